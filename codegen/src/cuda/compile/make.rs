//! Making one image, or several from one PTX.

use super::flags::{FLAGS, NVRTC_FLAGS};
use super::front::Group;
use super::image::{Image, Key, cached, to_bytes};
use super::messages::{CompileError, Failure, warnings};
use super::usage::parse_ptxas;
use crate::cuda::arch::{compute, sm};
use crate::cuda::packed::ptx_version;
use crate::cuda::toolchain::{Kind, Nvcc, Nvrtc, Scratch, Toolchain, both};
use crate::text::joined;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// PTX versions that are tried for the forward-compatible image, oldest first: those of CUDA 11.0, 11.4, 11.8, 12.0,
/// 12.3, 12.4, 12.5, 12.8, 12.9. The older the version, the older the driver that takes it.
const PTX_VERSIONS: &[(u32, u32)] = &[(7, 0), (7, 4), (7, 8), (8, 0), (8, 3), (8, 4), (8, 5), (8, 7), (8, 8)];

pub(super) enum Outcome {
    Cached(Image),
    Compiled(Image),
    Failed(Failure),
}

/// An image with what the compiler said, or why there is none.
type Made = Result<Said, String>;
/// The bytes of an image, and what was said of it.
type Said = (Vec<u8>, String);

/// Makes the images of a group, in its order. Where the common PTX serves an image not, that one is compiled on its own.
pub(super) fn group(
    group: &Group,
    keys: &[Key<'_>],
    toolchain: &Toolchain,
    cache: &Path,
) -> Result<Vec<Outcome>, CompileError> {
    let mut found: Vec<Option<Image>> = keys.iter().map(|key| cached(cache, key)).collect();
    let missing: Vec<&Key<'_>> =
        keys.iter().zip(&found).filter(|(_, f)| f.is_none()).map(|(k, _)| k).collect();
    let mut made = match (toolchain, group.front, missing.first()) {
        (Toolchain::Nvcc(nvcc), Some(_), Some(_)) => together(nvcc, group, &missing, cache)?,
        _ => missing.iter().map(|_| None).collect(),
    }
    .into_iter();
    let each = keys.iter().zip(&mut found).map(|(key, found)| match found.take() {
        Some(image) => Ok(Outcome::Cached(image)),
        None => match made.next().flatten() {
            Some((bytes, log)) => kept(key, bytes, &log, cache),
            None => alone(key, toolchain, cache),
        },
    });
    each.collect()
}

/// Machine code and PTX for `keys` from one compilation; `None` for those that do not come from it.
fn together(
    nvcc: &Nvcc,
    group: &Group,
    keys: &[&Key<'_>],
    cache: &Path,
) -> Result<Vec<Option<Said>>, CompileError> {
    let mut made: Vec<_> = keys.iter().map(|_| None).collect();
    let (Some(front), [first, ..]) = (group.front, keys) else { return Ok(made) };
    let of_front = Key { arch: front, ptx: true, ..(*first).clone() };
    let Ok((ptx, log)) = compiled(nvcc, &of_front, cache)? else { return Ok(made) };
    let Ok(mut text) = String::from_utf8(ptx) else { return Ok(made) };
    let scratch = scratch(cache)?;
    let assemble = |key: &Key<'_>, text: &str| {
        let (bytes, said) = assembled(nvcc, key, text, "-O3", &scratch).ok()?;
        Some((bytes, format!("{log}{said}")))
    };
    if let Some(at) = keys.iter().position(|key| key.ptx) {
        // The version does not show in machine code, so the first version that assembles gives both.
        let machine = keys.iter().position(|key| !key.ptx);
        let lower = lowered(text.as_bytes(), |text| match machine {
            Some(machine) => {
                made[machine] = assemble(keys[machine], text);
                made[machine].is_some()
            }
            None => assembled(nvcc, &of_front, text, "-O0", &scratch).is_ok(),
        });
        let Some(lower) = lower.ok().and_then(|lower| String::from_utf8(lower).ok()) else { return Ok(made) };
        made[at] = Some((lower.clone().into_bytes(), log.clone()));
        text = lower;
    }
    for (key, made) in keys.iter().zip(&mut made) {
        if made.is_none() {
            *made = assemble(key, &text);
        }
        // Compiled for its own architecture it may do with fewer registers.
        made.take_if(|(_, log)| {
            parse_ptxas(log).iter().any(|usage| usage.spill_stores + usage.spill_loads > 0)
        });
    }
    Ok(made)
}

/// PTX to machine code by the toolkit's assembler.
fn assembled(nvcc: &Nvcc, key: &Key<'_>, text: &str, level: &str, scratch: &Scratch) -> Made {
    let (source, image) = (format!("{}.ptx", key.unit), "image");
    std::fs::write(scratch.path.join(&source), text).map_err(|error| error.to_string())?;
    let output = nvcc
        .command(&nvcc.ptxas)
        .current_dir(&scratch.path)
        .args([level, "-v", &format!("-arch={}", sm(key.arch)), &source, "-o", image])
        .output()
        .map_err(|error| error.to_string())?;
    let log = both(&output);
    if !output.status.success() {
        return Err(log);
    }
    std::fs::read(scratch.path.join(image)).map(|bytes| (bytes, log)).map_err(|error| error.to_string())
}

/// Makes one image on its own.
fn alone(key: &Key<'_>, toolchain: &Toolchain, cache: &Path) -> Result<Outcome, CompileError> {
    let failed = |stderr: String| {
        Ok(Outcome::Failed(Failure { unit: key.unit.to_string(), arch: key.arch, ptx: key.ptx, stderr }))
    };
    let made = match toolchain {
        Toolchain::Images(folder) => {
            return match folder.image(key) {
                Ok(image) => Ok(Outcome::Cached(image)),
                Err(reason) => failed(format!("{}: {reason}", folder.path().display())),
            };
        }
        _ if !toolchain.supports(key.arch) => {
            let listed = joined(toolchain.archs(), ", ");
            return failed(format!("{toolchain} builds for {listed}, not for this"));
        }
        Toolchain::Nvcc(nvcc) => match compiled(nvcc, key, cache)? {
            Ok((ptx, log)) if key.ptx => {
                let scratch = scratch(cache)?;
                // Whether it assembles does not depend on how well.
                let assembles = |text: &str| assembled(nvcc, key, text, "-O0", &scratch).is_ok();
                lowered(&ptx, assembles).map(|bytes| (bytes, log))
            }
            made => made,
        },
        Toolchain::Nvrtc(nvrtc) => with_nvrtc(nvrtc, key),
    };
    match made {
        Ok((bytes, log)) => kept(key, bytes, &log, cache),
        Err(stderr) => failed(stderr),
    }
}

/// Puts an image into the cache.
fn kept(key: &Key<'_>, mut bytes: Vec<u8>, log: &str, cache: &Path) -> Result<Outcome, CompileError> {
    if key.ptx {
        // The driver reads PTX as a C string.
        bytes.push(0);
    }
    let image = Image {
        unit: key.unit.to_string(),
        arch: key.arch,
        ptx: key.ptx,
        bytes,
        usage: if key.ptx { Vec::new() } else { parse_ptxas(log) },
        warnings: warnings(log),
        compiler: key.compiler.to_string(),
    };
    let path = cache.join(key.file_name());
    write_atomically(&path, &to_bytes(key, &image)).map_err(|source| CompileError::Cache { path, source })?;
    Ok(Outcome::Compiled(image))
}

/// Machine code, or PTX of the compiler's own version.
fn compiled(nvcc: &Nvcc, key: &Key<'_>, cache: &Path) -> Result<Made, CompileError> {
    if let Some(library) = &nvcc.library {
        return Ok(with_nvrtc(library, key));
    }
    // A name without folders: it stands in the compiler's messages, and an image must not depend on where it was made.
    let (scratch, source) = (scratch(cache)?, format!("{}.cu", key.unit));
    std::fs::write(scratch.path.join(&source), key.text)
        .map_err(|source| CompileError::Cache { path: scratch.path.clone(), source })?;
    let mut command = nvcc.command(&nvcc.path);
    command.current_dir(&scratch.path).args(FLAGS);
    if key.ptx {
        command.arg(format!("-gencode=arch={0},code={0}", compute(key.arch))).arg("-ptx");
    } else {
        command.arg(format!("-gencode=arch={},code={}", compute(key.arch), sm(key.arch)));
        command.args(["-cubin", "-Xptxas", "-v"]);
    }
    let output = match command.args(["-o", "image", &source]).output() {
        Ok(output) => output,
        Err(error) => return Ok(Err(format!("{} can't be run: {error}", nvcc.path.display()))),
    };
    let log = both(&output);
    if !output.status.success() {
        return Ok(Err(log));
    }
    let bytes = std::fs::read(scratch.path.join("image"));
    Ok(match bytes {
        Ok(bytes) => Ok((bytes, log)),
        Err(error) => Err(format!("nvcc reported success but left no image: {error}\n{log}")),
    })
}

fn scratch(cache: &Path) -> Result<Scratch, CompileError> {
    Scratch::new(Some(cache)).map_err(|source| CompileError::Cache { path: cache.to_path_buf(), source })
}

fn with_nvrtc(nvrtc: &Nvrtc, key: &Key<'_>) -> Made {
    let kind = if key.ptx { Kind::Ptx } else { Kind::Cubin };
    let name = format!("{}.cu", key.unit);
    let made = nvrtc.compile(&name, key.text, key.arch, kind, NVRTC_FLAGS);
    // Without nvcc, PTX keeps its version: there is no assembler to try an older one with.
    made.image.map(|bytes| (bytes, made.log.clone())).ok_or(made.log)
}

/// PTX with the oldest `.version` that `assembles` takes, or as it is.
fn lowered(ptx: &[u8], mut assembles: impl FnMut(&str) -> bool) -> Result<Vec<u8>, String> {
    let text = std::str::from_utf8(ptx).map_err(|_| "the PTX is no text".to_string())?;
    let Some((at, version)) = ptx_version(ptx) else {
        return Err("the PTX has no .version".to_string());
    };
    for &(major, minor) in PTX_VERSIONS.iter().take_while(|older| **older < version) {
        let older = format!("{}{major}.{minor}{}", &text[..at.start], &text[at.end..]);
        if assembles(&older) {
            return Ok(older.into_bytes());
        }
    }
    Ok(ptx.to_vec())
}

/// Writes beside the file and renames, so that nobody ever reads a half of it.
pub(in crate::cuda) fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("{}-{count}.tmp", std::process::id()));
    std::fs::write(&temporary, bytes)?;
    std::fs::rename(&temporary, path).inspect_err(|_| {
        // The error that is returned matters more.
        let _ = std::fs::remove_file(&temporary);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_version_that_assembles() {
        let ptx = "//\n// .version 1.0 in a comment\n.version 9.0\n.target sm_80\n.version_like x\n";
        let tried = std::cell::RefCell::new(Vec::new());
        let low = lowered(ptx.as_bytes(), |text| {
            let version = text.lines().find(|line| line.starts_with(".version ")).unwrap().to_string();
            tried.borrow_mut().push(version.clone());
            version == ".version 7.8"
        });
        assert_eq!(low.unwrap(), ptx.replace(".version 9.0", ".version 7.8").into_bytes());
        assert_eq!(*tried.borrow(), [".version 7.0", ".version 7.4", ".version 7.8"]);
        assert_eq!(lowered(ptx.as_bytes(), |_| false).unwrap(), ptx.as_bytes());
        // Never raised.
        let old = ".version 7.4\n";
        assert_eq!(lowered(old.as_bytes(), |text| text.contains("8.")).unwrap(), old.as_bytes());
        assert!(lowered(b"nothing", |_| true).is_err());
    }
}
