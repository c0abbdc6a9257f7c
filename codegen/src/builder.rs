//! For build scripts: spec folders in, one Rust file in `OUT_DIR` out.

mod select;

use crate::c;
use crate::cuda::Env;
use crate::cuda::build::CudaError;
use crate::error::by_message;
use crate::options::{CudaImages, Options};
use crate::{Compiled, Error, compile};
use gristmill_spec::model::{Kernel, SpecSet};
use gristmill_spec::vocab::Serves;
use gristmill_spec::{
    Diagnostic, ReadError, Severity, SourceFile, check, is_shipped, read_path, render, shipped,
};
pub use select::SelectionError;
use select::Shipped;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Name of the file that [`Builder::build`] writes into `OUT_DIR`; `include_kernels!` includes it.
pub const FILE: &str = "gristmill.rs";

/// Variable that [`Builder::build`] sets, to [`FILE`], for the crate whose build script called it. What one script wrote stays in `OUT_DIR`
/// when a later one no longer does; who includes it through this variable is told instead.
pub const WRITTEN: &str = "GRISTMILL_WRITTEN";

/// Variable with further spec folders, separated as in `PATH`.
pub const EXTRA_SPECS: &str = "GRISTMILL_EXTRA_SPECS";

/// Why a build failed.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Spec files could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The shipped specs could not be read.
    #[error("can't read the specs shipped with gristmill-spec: {0}")]
    Shipped(#[source] std::io::Error),
    /// The specs hold mistakes, or ask for what can't be compiled exactly; the text is the rendered report.
    #[error("{0}")]
    Specs(String),
    /// A defect of the compiler.
    #[error(transparent)]
    Compiler(Error),
    /// What was selected is not there, or is not all that is required.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// CUDA images were required, or the environment says something about them that means nothing.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Objects of bodies in C or C++ could not be put together.
    #[error("can't put the objects of C bodies together: {0}; it needs `ar`, or what the variable AR names")]
    Archive(#[source] cc::Error),
    /// Not called from a build script.
    #[error("the environment variable {0} is not set: this must run in a build script")]
    NoBuildScript(&'static str),
    /// The output could not be written.
    #[error("can't write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl BuildError {
    /// What the compiler refused of `sources`, rendered.
    pub fn refused(sources: &[SourceFile], errors: Vec<Error>) -> BuildError {
        let mut diagnostics = Vec::with_capacity(errors.len());
        for error in errors {
            match error {
                Error::Spec(diagnostic) => diagnostics.push(*diagnostic),
                defect @ (Error::Passed { .. } | Error::Emitted { .. }) => {
                    return BuildError::Compiler(defect);
                }
            }
        }
        BuildError::Specs(render(sources, &by_message(diagnostics), false))
    }
}

/// Compiles specs in a build script.
///
/// ```no_run
/// // build.rs
/// gristmill_codegen::Builder::new("kernels").with_shipped(["i2_s"]).build();
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    dirs: Vec<PathBuf>,
    shipped: Shipped,
    extra: bool,
    sources: Vec<SourceFile>,
    /// The shipped specs where they are in memory already; else they are read from their folder.
    memory: Option<Vec<SourceFile>>,
    runtime: String,
    cuda: bool,
}

impl Builder {
    /// Specs of one's own, in `dir` (relative to the package), with the shipped activation formats,
    /// packings and kernels, and no shipped format.
    pub fn new(dir: impl Into<PathBuf>) -> Builder {
        Builder { dirs: vec![dir.into()], ..Builder::shipped() }
    }

    /// No specs of one's own: shipped ones only.
    pub fn shipped() -> Builder {
        Builder {
            dirs: Vec::new(),
            shipped: Shipped::default(),
            extra: false,
            sources: Vec::new(),
            memory: None,
            runtime: String::new(),
            cuda: false,
        }
    }

    /// As [`shipped`](Builder::shipped), with the shipped specs given: [`compile`](Builder::compile) then
    /// reads no folder (macros).
    pub fn from_memory(shipped: Vec<SourceFile>) -> Builder {
        Builder { memory: Some(shipped), ..Builder::shipped() }
    }

    /// Adds shipped formats and import layouts by name; a layout brings its format with it.
    pub fn with_shipped<S: Into<String>>(mut self, formats: impl IntoIterator<Item = S>) -> Builder {
        self.shipped.names.extend(formats.into_iter().map(Into::into));
        self
    }

    /// Adds all shipped formats of these families. Formats of other families are remembered as left
    /// out, so that `explain` can name the cargo feature that brings them in.
    pub fn with_families<S: Into<String>>(mut self, families: impl IntoIterator<Item = S>) -> Builder {
        self.shipped.families.get_or_insert_default().extend(families.into_iter().map(Into::into));
        self
    }

    /// Also reads the folders that `GRISTMILL_EXTRA_SPECS` names.
    pub fn with_extra_specs(mut self) -> Builder {
        self.extra = true;
        self
    }

    /// Also compiles the CUDA kernels, where a compiler is found (`gristmill doctor` says where it is looked for).
    /// Without one the build goes on and the registry says so. `GRISTMILL_CUDA=require` makes that an error.
    pub fn with_cuda(mut self) -> Builder {
        self.cuda = true;
        self
    }

    /// Sets the path under which generated code finds the runtime. The default, [`RUNTIME`](crate::RUNTIME),
    /// is right for crates that depend on `gristmill`; one that depends on `gristmill-runtime` alone says
    /// `"::gristmill_runtime"`.
    pub fn with_runtime(mut self, path: impl Into<String>) -> Builder {
        self.runtime = path.into();
        self
    }

    /// Adds sources that are already in memory (macros).
    pub fn with_sources(mut self, sources: impl IntoIterator<Item = SourceFile>) -> Builder {
        self.sources.extend(sources);
        self
    }

    /// Compiles, writes `OUT_DIR/gristmill.rs` and tells cargo what to watch. On an error it prints the
    /// report and ends the build script with exit code 1.
    pub fn build(self) {
        if let Err(error) = self.try_build() {
            // Cargo shows `cargo::error` lines in its own style and the script's stderr below.
            let first = error.to_string();
            println!(
                "cargo::error={}",
                first.lines().next().unwrap_or("gristmill could not compile the specs")
            );
            eprintln!("{error}");
            std::process::exit(1);
        }
    }

    /// As [`build`](Builder::build), with the error returned.
    ///
    /// # Errors
    ///
    /// See [`BuildError`].
    pub fn try_build(self) -> Result<(), BuildError> {
        let variable = |name: &'static str| std::env::var(name).map_err(|_| BuildError::NoBuildScript(name));
        let out = PathBuf::from(variable("OUT_DIR")?).join(FILE);
        let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
        let mut watched: Vec<PathBuf> = self.dirs.iter().map(|dir| root.join(dir)).collect();
        if self.extra {
            println!("cargo::rerun-if-env-changed={EXTRA_SPECS}");
            watched.extend(extra_dirs());
        }
        watched.extend(gristmill_spec::FOLDERS.iter().map(|f| gristmill_spec::shipped_dir().join(f)));
        for path in watched.iter().filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
        let package = variable("CARGO_PKG_NAME")?;
        if self.cuda {
            for name in crate::cuda::build::variables() {
                println!("cargo::rerun-if-env-changed={name}");
            }
        }
        let folder = PathBuf::from(variable("OUT_DIR")?);
        let target = c::Target {
            package: package.clone(),
            root: root.clone(),
            out: folder.clone(),
            arch: variable("CARGO_CFG_TARGET_ARCH")?,
            cargo: None,
            compiler: None,
        };
        let mut bodies = c::Built::default();
        let compile_bodies = |set: &SpecSet| {
            bodies = c::build(set, &target)?;
            Ok((bodies.compiler.clone(), bodies.warnings.clone()))
        };
        let (compiled, set, warnings) =
            self.compile_with(&root, package, compiler(), compile_bodies, |set| {
                if !self.cuda {
                    return Ok((CudaImages::Off, Vec::new()));
                }
                let built = crate::cuda::build::build(set, &folder, &Env::of_process(), crate::cuda::jobs())?;
                for path in built.watched {
                    println!("cargo::rerun-if-changed={}", path.display());
                }
                Ok((built.images, built.warnings))
            })?;
        if !bodies.objects.is_empty() {
            let mut archive = cc::Build::new();
            archive.cpp(bodies.cpp).objects(&bodies.objects);
            archive
                .try_compile(&format!("gristmill_bodies_{}", target.package))
                .map_err(BuildError::Archive)?;
        }
        for file in &set.files {
            println!("cargo::rerun-if-changed={}", file.display());
        }
        for warning in warnings {
            println!("cargo::warning={warning}");
        }
        // An unchanged file keeps its time, so that nothing that depends on it is compiled again.
        if !std::fs::read(&out).is_ok_and(|old| old == compiled.code.as_bytes()) {
            std::fs::write(&out, compiled.code).map_err(|source| BuildError::Write { path: out, source })?;
        }
        println!("cargo::rustc-env={WRITTEN}={FILE}");
        Ok(())
    }

    /// Reads, checks and compiles; for the command and for tests. `root` is what relative folders are
    /// relative to.
    ///
    /// # Errors
    ///
    /// See [`BuildError`].
    pub fn compile(
        &self,
        root: &Path,
        package: String,
        compiler: String,
    ) -> Result<(Compiled, SpecSet, Vec<String>), BuildError> {
        self.compile_with(
            root,
            package,
            compiler,
            |_| Ok(<_>::default()),
            |_| Ok((CudaImages::Off, Vec::new())),
        )
    }

    /// As [`compile`](Builder::compile), with `bodies` compiling those of C and C++ of the formats that were selected and telling
    /// with which compilers, and `cuda` making images; both with warnings.
    fn compile_with(
        &self,
        root: &Path,
        package: String,
        compiler: String,
        bodies: impl FnOnce(&SpecSet) -> Result<(String, Vec<String>), Vec<Error>>,
        cuda: impl FnOnce(&SpecSet) -> Result<(CudaImages, Vec<String>), BuildError>,
    ) -> Result<(Compiled, SpecSet, Vec<String>), BuildError> {
        let (mut set, sources, mut warnings) = self.read(root)?;
        let (keep, left_out) = self.shipped.selected(&mut set)?;
        set.retain_formats(&keep);
        let served =
            |kernel: &Kernel| kernel.op.info().serves != Serves::Formats || !kernel.formats.is_empty();
        for kernel in set.kernels.iter().filter(|kernel| !kernel.is_shipped() && !served(kernel)) {
            warnings.push(format!(
                "{}: no format of this build is served; select shipped ones with `with_shipped`",
                kernel.origin.file
            ));
        }
        // The registry carries the specs of what it holds, not those that were left out.
        let books: BTreeSet<&str> = set.formats.iter().filter_map(|f| f.codebook()).collect();
        let used: Vec<SourceFile> = sources
            .iter()
            .filter(|source| {
                let stem = Path::new(&source.path).file_name().and_then(|n| n.to_str()).unwrap_or_default();
                let stem = stem.split('.').next().unwrap_or_default();
                let folder =
                    Path::new(&source.path).parent().and_then(Path::file_name).and_then(|n| n.to_str());
                match folder {
                    Some("formats") => set.formats.iter().any(|f| f.origin.file == source.path),
                    Some("imports") => set.imports.iter().any(|i| i.origin.file == source.path),
                    Some("codebooks") => books.contains(stem),
                    _ => stem != "coverage",
                }
            })
            .cloned()
            .collect();
        let (c_compiler, more) = bodies(&set).map_err(|errors| BuildError::refused(&sources, errors))?;
        warnings.extend(more);
        let (cuda, more) = cuda(&set).map_err(|error| match error {
            BuildError::Cuda(CudaError::Plans(errors)) => BuildError::refused(&sources, errors),
            other => other,
        })?;
        warnings.extend(more);
        let options =
            Options { package, compiler, c_compiler, left_out, runtime: self.runtime.clone(), cuda };
        let compiled =
            compile(&set, &used, &options).map_err(|errors| BuildError::refused(&sources, errors))?;
        Ok((compiled, set, warnings))
    }

    /// Reads and checks everything that was named.
    fn read(&self, root: &Path) -> Result<(SpecSet, Vec<SourceFile>, Vec<String>), BuildError> {
        let mut sources = match &self.memory {
            Some(sources) => sources.clone(),
            None => shipped().map_err(BuildError::Shipped)?,
        };
        let shipped_count = sources.len();
        for dir in &self.dirs {
            let mut read = read_path(&root.join(dir))?;
            for source in &mut read {
                if let Ok(rest) = Path::new(&source.path).strip_prefix(root) {
                    source.path = rest.display().to_string();
                }
            }
            sources.extend(read);
        }
        if self.extra {
            for dir in extra_dirs() {
                // A folder that is named twice is read once.
                let new = read_path(&dir)?
                    .into_iter()
                    .filter(|read| sources.iter().all(|known| known.path != read.path));
                let new: Vec<_> = new.collect();
                sources.extend(new);
            }
        }
        sources.extend(self.sources.iter().cloned());
        // A folder of the user's may have the name under which shipped specs are shown.
        for source in &mut sources[shipped_count..] {
            if is_shipped(&source.path) {
                source.path.insert_str(0, "./");
            }
        }
        let report = check(&sources);
        match report.set {
            Some(set) => {
                let warnings = report
                    .diagnostics
                    .iter()
                    .filter(|d| d.severity == Severity::Warning)
                    .map(|warning| one_line(warning, &sources))
                    .collect();
                Ok((set, sources, warnings))
            }
            None => Err(BuildError::Specs(render(&sources, &report.diagnostics, false))),
        }
    }
}

/// A diagnostic as cargo shows warnings: file, line and column, message, code, and what helps.
fn one_line(diagnostic: &Diagnostic, sources: &[SourceFile]) -> String {
    let (line, column) = diagnostic.line_column(sources);
    let help =
        diagnostic.help.as_ref().map_or(String::new(), |help| format!("; {}", help.replace('\n', " ")));
    let Diagnostic { path, code, message, .. } = diagnostic;
    format!("{path}:{line}:{column}: [{code}] {message}{help}")
}

fn extra_dirs() -> Vec<PathBuf> {
    std::env::var_os(EXTRA_SPECS)
        .map(|value| std::env::split_paths(&value).filter(|p| !p.as_os_str().is_empty()).collect())
        .unwrap_or_default()
}

/// Compiler, target and flags of the build whose script calls this, as they go into kernel identities.
pub fn compiler() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = std::process::Command::new(rustc)
        .arg("--version")
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string())
        .unwrap_or_default();
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    format!(
        "{version};{};O{};{}",
        variable("TARGET"),
        variable("OPT_LEVEL"),
        variable("CARGO_ENCODED_RUSTFLAGS")
    )
}
