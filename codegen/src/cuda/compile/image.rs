//! Images, and the files in which they are kept: with the source, the flags and the compiler that made them, so that
//! a stale one is never taken for another.

use super::usage::Usage;
use crate::cuda::arch::{compute, sm};
use crate::cuda::toolchain::Problem;
use crate::hash::hash;
use gristmill_spec::Fnv;
use gristmill_spec::vocab::CudaArch;
use std::path::{Path, PathBuf};

/// Compiled code of one unit for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The unit.
    pub unit: String,
    /// The architecture it was compiled for.
    pub arch: CudaArch,
    /// PTX text, and not machine code.
    pub ptx: bool,
    /// What the driver loads. PTX ends with a zero byte, as the driver wants it.
    pub bytes: Vec<u8>,
    /// What its kernels use; empty for PTX, whose registers are allotted by the driver.
    pub usage: Vec<Usage>,
    /// What the compiler warned of.
    pub warnings: Vec<String>,
    /// The compiler and its version.
    pub compiler: String,
}

impl Image {
    /// `sm_90a` or `compute_75`.
    pub fn target(&self) -> String {
        target(self.arch, self.ptx)
    }
}

/// `sm_90a` or `compute_75`.
pub(super) fn target(arch: CudaArch, ptx: bool) -> String {
    if ptx { compute(arch) } else { sm(arch) }
}

/// What an image is made from. Two images with equal keys have equal bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key<'k> {
    pub(super) unit: &'k str,
    pub(super) text: &'k str,
    pub(super) arch: CudaArch,
    pub(super) ptx: bool,
    /// Of the compiler, and which PTX the image was assembled from where that was another's.
    pub(super) flags: String,
    pub(super) compiler: &'k str,
}

impl Key<'_> {
    /// The name of the image's file. The hash only finds the file; what decides is the file's own key.
    pub(super) fn file_name(&self) -> String {
        let target = target(self.arch, self.ptx);
        let id = hash([self.unit, self.text, &target, &self.flags, self.compiler]);
        format!("{}.{target}.{id:016x}.{EXTENSION}", self.unit)
    }
}

const EXTENSION: &str = "image";
const MAGIC: &str = "gristmill image 1";

/// An image with what it was made from, as it stands in a file.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    image: Image,
    text: String,
    flags: String,
}

impl Kept {
    /// Whether this is the image of a source, whatever compiled it.
    fn is_of(&self, key: &Key<'_>) -> bool {
        self.image.unit == key.unit
            && self.image.arch == key.arch
            && self.image.ptx == key.ptx
            && self.text == key.text
    }
}

/// The text of an image's file: lines, an empty line, the source, the image.
pub(super) fn to_bytes(key: &Key<'_>, image: &Image) -> Vec<u8> {
    let line = |text: &str| text.replace(['\n', '\r'], " ");
    let mut head = format!(
        "{MAGIC}\nunit {}\ntarget {}\nflags {}\ncompiler {}\n",
        line(key.unit),
        image.target(),
        line(&key.flags),
        line(&image.compiler)
    );
    for usage in &image.usage {
        let Usage { kernel, registers, stack, spill_stores, spill_loads, shared } = usage;
        head.push_str(&format!(
            "kernel {} {registers} {stack} {spill_stores} {spill_loads} {shared}\n",
            line(kernel)
        ));
    }
    for warning in &image.warnings {
        head.push_str(&format!("warning {}\n", line(warning)));
    }
    let sum = checksum(key.text.as_bytes(), &image.bytes);
    head.push_str(&format!("sizes {} {} {sum:016x}\n\n", key.text.len(), image.bytes.len()));
    [head.as_bytes(), key.text.as_bytes(), &image.bytes].concat()
}

/// A number for an image's bytes.
pub(in crate::cuda) fn content(image: &[u8]) -> u64 {
    Fnv::EMPTY.with(image).get()
}

fn checksum(text: &[u8], image: &[u8]) -> u64 {
    Fnv::EMPTY.with(text).with(image).get()
}

/// Reads an image's file; the error says what is wrong with it.
pub(super) fn from_bytes(bytes: &[u8]) -> Result<Kept, &'static str> {
    let end = bytes.windows(2).position(|two| two == b"\n\n").ok_or("it is no image file")?;
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| "its head is no text")?;
    let body = &bytes[end + 2..];
    let mut lines = head.lines();
    if lines.next() != Some(MAGIC) {
        return Err("it is no image file of this version");
    }
    let mut image = Image {
        unit: String::new(),
        arch: CudaArch { major: 0, minor: 0, specific: false },
        ptx: false,
        bytes: Vec::new(),
        usage: Vec::new(),
        warnings: Vec::new(),
        compiler: String::new(),
    };
    let mut flags = String::new();
    let mut sizes = None;
    for line in lines {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "unit" => image.unit = rest.to_string(),
            "target" => {
                let (ptx, name) = match rest.split_once('_') {
                    Some(("sm", name)) => (false, name),
                    Some(("compute", name)) => (true, name),
                    _ => return Err("it names no architecture"),
                };
                image.arch = CudaArch::from_name(name).ok_or("it names no architecture")?;
                image.ptx = ptx;
            }
            "flags" => flags = rest.to_string(),
            "compiler" => image.compiler = rest.to_string(),
            "kernel" => image.usage.push(usage(rest).ok_or("a kernel's numbers are damaged")?),
            "warning" => image.warnings.push(rest.to_string()),
            "sizes" => sizes = Some(rest),
            _ => return Err("it has a line of an unknown kind"),
        }
    }
    let mut sizes = sizes.ok_or("it has no sizes")?.split(' ');
    let mut size = || sizes.next().and_then(|word| word.parse::<usize>().ok());
    let (text, image_size) = size().zip(size()).ok_or("its sizes are damaged")?;
    let sum =
        sizes.next().and_then(|word| u64::from_str_radix(word, 16).ok()).ok_or("its sizes are damaged")?;
    if image.arch.major == 0 || text.checked_add(image_size) != Some(body.len()) {
        return Err("it is cut off");
    }
    let (text, code) = body.split_at(text);
    if checksum(text, code) != sum {
        return Err("its contents are damaged");
    }
    image.bytes = code.to_vec();
    let text = String::from_utf8(text.to_vec()).map_err(|_| "its source is no text")?;
    Ok(Kept { image, text, flags })
}

fn usage(rest: &str) -> Option<Usage> {
    let mut words = rest.split(' ');
    let kernel = words.next()?.to_string();
    let mut number = || words.next()?.parse().ok();
    Some(Usage {
        kernel,
        registers: number()?,
        stack: number()?,
        spill_stores: number()?,
        spill_loads: number()?,
        shared: number()?,
    })
}

/// The image with this key in a cache's folder. A damaged file counts as none: it is made again.
pub(super) fn cached(cache: &Path, key: &Key<'_>) -> Option<Image> {
    let bytes = std::fs::read(cache.join(key.file_name())).ok()?;
    let kept = from_bytes(&bytes).ok()?;
    (kept.is_of(key) && kept.flags == key.flags && kept.image.compiler == key.compiler).then_some(kept.image)
}

/// A folder with images that were built before: the cache folder of another build.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    kept: std::sync::Arc<Vec<Kept>>,
}

impl Folder {
    /// Reads all image files of a folder.
    ///
    /// # Errors
    ///
    /// A folder that can't be read or holds no image, and any damaged image.
    pub fn read(path: &Path) -> Result<Folder, Problem> {
        let bad = |reason: String| Problem::Images { path: path.to_path_buf(), reason };
        let entries = std::fs::read_dir(path).map_err(|error| bad(error.to_string()))?;
        let mut files: Vec<PathBuf> =
            entries.filter_map(|entry| entry.ok()).map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
        files.sort();
        let mut kept = Vec::with_capacity(files.len());
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let bytes = std::fs::read(&file).map_err(|error| bad(format!("{name}: {error}")))?;
            kept.push(from_bytes(&bytes).map_err(|reason| bad(format!("{name}: {reason}")))?);
        }
        if kept.is_empty() {
            return Err(bad(format!(
                "no file that ends in .{EXTENSION}; {EXTENSION}s are what a build leaves in its cache"
            )));
        }
        Ok(Folder { path: path.to_path_buf(), kept: std::sync::Arc::new(kept) })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Architectures with machine code, ascending.
    pub fn archs(&self) -> Vec<CudaArch> {
        let mut archs: Vec<CudaArch> =
            self.kept.iter().filter(|kept| !kept.image.ptx).map(|kept| kept.image.arch).collect();
        archs.sort_unstable();
        archs.dedup();
        archs
    }

    /// The image of a source, or why there is none.
    pub(super) fn image(&self, key: &Key<'_>) -> Result<Image, &'static str> {
        if let Some(kept) = self.kept.iter().find(|kept| kept.is_of(key)) {
            return Ok(kept.image.clone());
        }
        let target = |kept: &&Kept| kept.image.arch == key.arch && kept.image.ptx == key.ptx;
        if self.kept.iter().filter(target).any(|kept| kept.image.unit == key.unit) {
            Err(
                "the folder holds an image of this unit, but of another source: it was built from other specs or \
                 with another version of gristmill",
            )
        } else {
            Err("the folder holds no image of this unit for this architecture")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> (Key<'static>, Image) {
        let key = Key {
            unit: "u",
            text: "int a;\n\nint b;\n",
            arch: CudaArch { major: 9, minor: 0, specific: true },
            ptx: false,
            flags: "-O3".into(),
            compiler: "nvcc 13.0.88",
        };
        let image = Image {
            unit: "u".into(),
            arch: key.arch,
            ptx: false,
            bytes: vec![0, 10, 10, 255],
            usage: vec![Usage {
                kernel: "k".into(),
                registers: 3,
                stack: 1,
                spill_stores: 4,
                spill_loads: 5,
                shared: 9,
            }],
            warnings: vec!["careful".into()],
            compiler: key.compiler.into(),
        };
        (key, image)
    }

    #[test]
    fn a_file_reads_back_as_it_was() {
        let (key, image) = example();
        let kept = from_bytes(&to_bytes(&key, &image)).unwrap();
        assert_eq!(kept.image, image);
        assert!(kept.is_of(&key));
        assert_eq!(kept.flags, key.flags);
        for other in [
            Key { text: "int a;\n\nint c;\n", ..key.clone() },
            Key { unit: "v", ..key.clone() },
            Key { ptx: true, ..key.clone() },
            Key { arch: CudaArch { major: 9, minor: 0, specific: false }, ..key.clone() },
        ] {
            assert!(!kept.is_of(&other));
            assert_ne!(other.file_name(), key.file_name());
        }
    }

    #[test]
    fn damage_is_seen_wherever_it_is() {
        let (key, image) = example();
        let good = to_bytes(&key, &image);
        for cut in 0..good.len() {
            assert!(from_bytes(&good[..cut]).is_err(), "cut at {cut}");
        }
        let body = good.windows(2).position(|two| two == b"\n\n").unwrap() + 2;
        for at in body..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(from_bytes(&bad).is_err(), "changed at {at}");
        }
    }
}
