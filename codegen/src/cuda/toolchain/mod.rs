//! Which CUDA compiler there is, where it was looked for, and why not there.
//!
//! [`discover`] looks in a fixed order and takes the first compiler that compiles an empty kernel: images that
//! were built before (`GRISTMILL_CUDA_IMAGES`); nvcc as named by `GRISTMILL_NVCC`, `NVCC`, `CUDA_HOME` or
//! `CUDA_PATH`, on `PATH`, or in a wheel of the active Python environment; then NVRTC. A `GRISTMILL_` variable
//! names a place that is meant: if it does not work, nothing else is taken in its stead.
//!
//! nvidia-smi is never run, and no GPU or driver is needed.

mod driver;
mod env;
mod nvcc;
mod nvrtc;
mod places;
mod problem;
mod version;

pub use driver::{Device, Driver, DriverError, probe_driver};
pub use env::Env;
pub(crate) use env::exe;
pub use nvcc::Nvcc;
pub(crate) use nvcc::{Scratch, both};
pub(crate) use nvrtc::Kind;
pub use nvrtc::Nvrtc;
pub use problem::Problem;
pub(crate) use problem::words;
pub use version::Version;

use super::arch::{Wanted, plain};
use super::compile::Folder;
use super::variables;
use gristmill_spec::vocab::CudaArch;
use std::fmt;
use std::path::{Path, PathBuf};

/// The line that installs a compiler from Python wheels: about 350 MB, no root.
pub const PIP_LINE: &str = "pip install --no-deps nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 \
                            nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 \
                            nvidia-cuda-nvrtc==13.0.88";

/// The line that installs the last compiler whose machine code drivers before CUDA 13.0 take: about 200 MB, no root.
pub const PIP_LINE_12: &str = "pip install --no-deps nvidia-cuda-nvrtc-cu12==12.9.86";

/// The line that installs the tools which look into images.
pub const PIP_TOOLS_LINE: &str =
    "pip install --no-deps nvidia-cuda-cuobjdump==13.2.86 nvidia-cuda-nvdisasm==13.2.86";

/// What makes images.
#[derive(Clone, Debug)]
pub enum Toolchain {
    /// Images that were built before.
    Images(Folder),
    /// nvcc, which needs a host compiler, or the library of its toolkit that does the same.
    Nvcc(Nvcc),
    /// The library that compiles without one.
    Nvrtc(Nvrtc),
}

impl Toolchain {
    /// Name and versions, as they go into the identity of what is built.
    pub fn identity(&self) -> String {
        match self {
            Toolchain::Images(_) => "images".to_string(),
            Toolchain::Nvcc(nvcc) => format!(
                "nvcc {} cicc {} ptxas {}{}{}{}",
                nvcc.version,
                nvcc.cicc,
                nvcc.assembler,
                if nvcc.library.is_some() { " by nvrtc" } else { "" },
                if nvcc.environment_flags.is_empty() { "" } else { " " },
                nvcc.environment_flags
            ),
            Toolchain::Nvrtc(nvrtc) => format!("nvrtc {}", nvrtc.version),
        }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        match self {
            Toolchain::Images(folder) => folder.path(),
            Toolchain::Nvcc(nvcc) => &nvcc.path,
            Toolchain::Nvrtc(nvrtc) => &nvrtc.path,
        }
    }

    /// The version of what makes its machine code; unknown for images that were built before.
    pub fn version(&self) -> Option<Version> {
        match self {
            Toolchain::Images(_) => None,
            Toolchain::Nvcc(nvcc) => Some(nvcc.assembler),
            Toolchain::Nvrtc(nvrtc) => Some(nvrtc.version),
        }
    }

    /// What it can build (for a folder: what lies in it), ascending.
    pub fn archs(&self) -> Vec<CudaArch> {
        match self {
            Toolchain::Images(folder) => folder.archs(),
            Toolchain::Nvcc(nvcc) => nvcc.archs.clone(),
            Toolchain::Nvrtc(nvrtc) => nvrtc.archs.clone(),
        }
    }

    /// Whether it can build for `arch`. Compilers list plain architectures only; variants with `a` exist from 9.0 on.
    pub fn supports(&self, arch: CudaArch) -> bool {
        let listed = self.archs();
        let base = plain(arch.major, arch.minor);
        match self {
            Toolchain::Images(_) => listed.contains(&arch),
            Toolchain::Nvcc(_) | Toolchain::Nvrtc(_) => {
                listed.contains(&base) && (!arch.specific || arch.major >= 9)
            }
        }
    }

    /// The architectures that were asked for, ascending; `default` where nothing was said.
    ///
    /// # Errors
    ///
    /// `native` on a machine without a usable driver or device.
    pub fn archs_for(&self, wanted: &Wanted, default: &[CudaArch]) -> Result<Vec<CudaArch>, NoNative> {
        let mut archs = match wanted {
            Wanted::Default => default.to_vec(),
            Wanted::List(list) => list.clone(),
            Wanted::All => match self {
                Toolchain::Images(folder) => folder.archs(),
                // Compilers list architectures without suffixes.
                Toolchain::Nvcc(_) | Toolchain::Nvrtc(_) => {
                    self.archs().into_iter().map(|arch| CudaArch::of_device(arch.cc())).collect()
                }
            },
            Wanted::Native => {
                let driver = probe_driver().map_err(NoNative::Driver)?;
                let archs: Vec<CudaArch> =
                    driver.devices.iter().map(|device| CudaArch::of_device(device.cc)).collect();
                if archs.is_empty() {
                    return Err(NoNative::NoDevice);
                }
                archs
            }
        };
        archs.sort_unstable();
        archs.dedup();
        Ok(archs)
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Toolchain::Images(folder) => write!(f, "images in {}", folder.path().display()),
            Toolchain::Nvcc(nvcc) => {
                write!(f, "nvcc {} ({}", nvcc.version, nvcc.path.display())?;
                match &nvcc.library {
                    Some(library) => write!(f, ", by its library {})", library.path.display()),
                    None => f.write_str(")"),
                }
            }
            Toolchain::Nvrtc(nvrtc) => write!(f, "NVRTC {} ({})", nvrtc.version, nvrtc.path.display()),
        }
    }
}

/// `GRISTMILL_CUDA_ARCHS=native` where no device answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoNative {
    /// There is no driver, or it refuses.
    #[error(
        "GRISTMILL_CUDA_ARCHS=native needs the driver of a GPU in this machine: {0}; name architectures instead, as in `80,90a`"
    )]
    Driver(DriverError),
    /// The driver knows no device.
    #[error(
        "{}=native: the driver knows no device; name architectures instead, as in `80,90a`",
        variables::ARCHS
    )]
    NoDevice,
}

/// A place that was looked at without success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// The variable, the path, or what else leads there.
    pub place: String,
    /// Why there is nothing to use.
    pub why_not: Problem,
}

impl fmt::Display for Looked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.why_not)
    }
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Discovery {
    /// What will be used.
    pub found: Option<Toolchain>,
    /// Where it was looked before, in order.
    pub looked: Vec<Looked>,
}

/// No compiler, where one is required.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}=require, but there is no CUDA compiler; looked at\n{places}help: {PIP_LINE}", variables::USE)]
pub struct NoToolchain {
    places: String,
}

impl Discovery {
    /// The toolchain, or an error that lists every place.
    ///
    /// # Errors
    ///
    /// [`NoToolchain`], where none was found.
    pub fn require(&self) -> Result<&Toolchain, NoToolchain> {
        self.found.as_ref().ok_or_else(|| NoToolchain {
            places: self.looked.iter().map(|looked| format!("  {looked}\n")).collect(),
        })
    }

    /// One line for a build that goes on without CUDA. What was merely absent is left out.
    pub fn warning(&self) -> String {
        let absent = |problem: &Problem| {
            matches!(
                problem,
                Problem::NotSet
                    | Problem::NotOnPath(_)
                    | Problem::NoFile(_)
                    | Problem::Python(_)
                    | Problem::NotOpened { .. }
            )
        };
        let unusable: Vec<String> = self
            .looked
            .iter()
            .filter(|looked| !absent(&looked.why_not) || looked.place.starts_with("GRISTMILL_"))
            .filter(|looked| looked.why_not != Problem::NotSet)
            .map(ToString::to_string)
            .collect();
        let what =
            if unusable.is_empty() { "no CUDA compiler found".to_string() } else { unusable.join("; ") };
        format!(
            "built without CUDA kernels: {what} (`gristmill doctor` says where it was looked and what to install)"
        )
    }

    /// Existing files whose change makes another search worthwhile, for `rerun-if-changed`.
    pub fn watched(&self) -> Vec<PathBuf> {
        self.found.iter().map(|found| found.path().to_path_buf()).filter(|path| path.exists()).collect()
    }
}

/// Looks for a compiler. `memo` is a folder where a successful trial is remembered.
pub fn discover(env: &Env, memo: Option<&Path>) -> Discovery {
    let mut search = Search { env, memo, looked: Vec::new() };
    let found = search.run();
    Discovery { found, looked: search.looked }
}

struct Search<'e> {
    env: &'e Env,
    memo: Option<&'e Path>,
    looked: Vec<Looked>,
}

impl Search<'_> {
    fn run(&mut self) -> Option<Toolchain> {
        if let Some(folder) = self.named(variables::IMAGES) {
            let read = Folder::read(&folder);
            return self.take(variables::IMAGES, &folder, read.map(Toolchain::Images));
        }
        if let Some(path) = self.named(variables::NVCC) {
            return self.nvcc(variables::NVCC, &path);
        }
        if let Some(path) = self.named(variables::NVRTC) {
            return self.nvrtc(variables::NVRTC, &path);
        }
        if let Some(path) = self.named("NVCC")
            && let Some(found) = self.nvcc("NVCC", &path)
        {
            return Some(found);
        }
        for name in ["CUDA_HOME", "CUDA_PATH"] {
            if let Some(root) = self.named(name)
                && let Some(found) = self.nvcc(name, &root.join("bin").join(env::exe("nvcc")))
            {
                return Some(found);
            }
        }
        match self.env.on_path("nvcc") {
            Some(path) => {
                if let Some(found) = self.nvcc("PATH", &path) {
                    return Some(found);
                }
            }
            None => self.note("PATH", Problem::NotOnPath("nvcc")),
        }
        let sites = self.sites();
        for (place, site) in &sites {
            for (path, problem) in places::wheel_compilers(site) {
                match problem {
                    Some(problem) => self.note(place, problem),
                    None => {
                        if let Some(found) = self.nvcc(place, &path) {
                            return Some(found);
                        }
                    }
                }
            }
        }
        for (place, path) in places::nvrtc_libraries(self.env, &sites) {
            if let Some(found) = self.nvrtc(&place, &path) {
                return Some(found);
            }
        }
        None
    }

    /// The value of a variable as a path; unset ones are noted.
    fn named(&mut self, name: &str) -> Option<PathBuf> {
        let value = self.env.get(name).map(PathBuf::from);
        if value.is_none() {
            self.note(name, Problem::NotSet);
        }
        value
    }

    fn note(&mut self, place: &str, why_not: Problem) {
        self.looked.push(Looked { place: place.to_string(), why_not });
    }

    fn take(&mut self, place: &str, path: &Path, result: Result<Toolchain, Problem>) -> Option<Toolchain> {
        match result {
            Ok(found) => Some(found),
            Err(why_not) => {
                self.note(&format!("{place} ({})", path.display()), why_not);
                None
            }
        }
    }

    fn nvcc(&mut self, place: &str, path: &Path) -> Option<Toolchain> {
        // A bare name, as in NVCC=nvcc-13, is looked for on PATH as a shell would.
        let path = match path.to_str() {
            Some(name) if path.components().count() == 1 => {
                self.env.on_path(name).unwrap_or_else(|| path.to_path_buf())
            }
            _ => path.to_path_buf(),
        };
        let result = Nvcc::examine(&path, self.env, self.memo);
        self.take(place, &path, result.map(Toolchain::Nvcc))
    }

    fn nvrtc(&mut self, place: &str, path: &Path) -> Option<Toolchain> {
        let result = Nvrtc::examine(path);
        self.take(place, path, result.map(Toolchain::Nvrtc))
    }

    /// Folders of Python packages, with what led there.
    fn sites(&mut self) -> Vec<(String, PathBuf)> {
        let mut sites: Vec<(String, PathBuf)> = Vec::new();
        for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
            let Some(root) = self.named(name) else { continue };
            let found = places::site_packages(&root);
            if found.is_empty() {
                let reason = format!("{} holds no site-packages", root.display());
                self.note(name, Problem::Python(reason));
            }
            for site in found {
                sites.push(self.site(name, site));
            }
        }
        match places::ask_python(self.env) {
            Ok(folders) => {
                for site in folders {
                    if sites.iter().any(|(_, known)| *known == site) {
                        continue;
                    }
                    sites.push(self.site("python3 on PATH", site));
                }
            }
            Err(problem) => self.note("python3 on PATH", problem),
        }
        sites
    }

    /// A folder of Python packages with what led there, of which is noted if it holds no wheel.
    fn site(&mut self, place: &str, site: PathBuf) -> (String, PathBuf) {
        if !places::has_wheels(&site) {
            self.note(place, Problem::Python(format!("no nvidia wheel in {}", site.display())));
        }
        (place.to_string(), site)
    }
}
