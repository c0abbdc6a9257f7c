//! Where spec files come from: the ones shipped with this package, and folders of users.

use crate::nearest::nearest;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// A spec file (or codebook data, or a hand-written body in CUDA C++, C or C++) in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Path as people should see it. The name of the folder says what kind of spec it is.
    pub path: String,
    /// Contents.
    pub bytes: Vec<u8>,
}

/// Largest file that is read: far beyond any spec or codebook, far below what hurts.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// The folders of a spec directory, in the order they are read.
pub const FOLDERS: [&str; 6] = ["activations", "codebooks", "formats", "imports", "kernels", "packings"];

/// What people see instead of [`shipped_dir`].
pub const SHIPPED_PREFIX: &str = "kernel-spec/";

/// Why a spec folder or file can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is nothing at this path.
    #[error(
        "spec path `{}` does not exist{}; give a TOML file or a folder that holds TOML files (or formats/, packings/, kernels/, imports/, activations/, codebooks/)",
        .0.display(), from_here(.0)
    )]
    Missing(PathBuf),
    /// The system would not let us read it.
    #[error("can't read spec path `{}`: {source}", path.display())]
    Unreadable {
        /// What was read.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The path's name is not UTF-8, so no message could show it.
    #[error("the path of spec file `{}` is not UTF-8; rename it", .0.display())]
    PathNotUtf8(PathBuf),
    /// The file is too large to be a spec.
    #[error("spec file `{}` has {bytes} bytes; specs and codebooks may have at most {MAX_FILE_BYTES}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The folder holds nothing that could be a spec.
    #[error("spec folder `{}` holds no TOML file, neither directly nor in formats/, packings/, kernels/, imports/, activations/ or codebooks/", .0.display())]
    Empty(PathBuf),
    /// A folder that would not be read is nearly called as one that would.
    #[error("`{}` holds TOML files and is not read; is it meant to be called `{meant}`?", path.display())]
    Misnamed {
        /// The folder.
        path: PathBuf,
        /// What may have been meant.
        meant: &'static str,
    },
    /// A folder of specs holds another one.
    #[error("`{}` holds TOML files and is not read: specs lie directly in the folder of their kind", .0.display())]
    Nested(PathBuf),
}

/// Where a relative path begins: a build script runs in its own package.
fn from_here(path: &Path) -> String {
    match std::env::current_dir() {
        Ok(here) if path.is_relative() => format!(" in `{}`, from where it is looked for", here.display()),
        _ => String::new(),
    }
}

/// The folder that holds the specs shipped with this package: `formats/`, `packings/`, `kernels/`,
/// `imports/`, `activations/`, `codebooks/` and `coverage.toml`.
pub fn shipped_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Reads every shipped spec; paths are shown as `kernel-spec/formats/i2_s.toml`.
///
/// # Errors
/// When the package's files are gone or can't be read.
pub fn shipped() -> io::Result<Vec<SourceFile>> {
    let dir = shipped_dir();
    let mut sources = read_path(&dir).map_err(io::Error::other)?;
    for source in &mut sources {
        let rest = Path::new(&source.path).strip_prefix(&dir).ok().and_then(Path::to_str);
        if let Some(rest) = rest {
            source.path = format!("{SHIPPED_PREFIX}{}", rest.replace('\\', "/"));
        }
    }
    Ok(sources)
}

/// Whether a file is one of the shipped specs, by the path under which it is shown.
pub fn is_shipped(file: &str) -> bool {
    file.starts_with(SHIPPED_PREFIX)
}

/// The file behind a shown path, for `rerun-if-changed`.
pub(crate) fn location(shown: &str) -> PathBuf {
    let shipped = shown.strip_prefix(SHIPPED_PREFIX).map(|rest| shipped_dir().join(rest));
    shipped.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(shown))
}

/// Reads one spec file, or a folder: the TOML files in it and in its `formats/`, `packings/`, `imports/`,
/// `kernels/`, `activations/` and `codebooks/` (there also `*.bin`), and the `*.cu`, `*.c`, `*.cc`, `*.cpp`, `*.h` and `*.hpp`
/// that kernels name, sorted by path. `Cargo.toml` and hidden files are left alone.
///
/// # Errors
/// See [`ReadError`].
pub fn read_path(dir_or_file: &Path) -> Result<Vec<SourceFile>, ReadError> {
    if !dir_or_file.exists() {
        return Err(ReadError::Missing(dir_or_file.to_path_buf()));
    }
    if !dir_or_file.is_dir() {
        return Ok(vec![read_file(dir_or_file)?]);
    }
    let mut paths = list(dir_or_file)?;
    misnamed(dir_or_file)?;
    for folder in FOLDERS.map(|folder| dir_or_file.join(folder)) {
        if folder.is_dir() {
            paths.extend(list(&folder)?);
            if let Some(path) = folders(&folder)?.into_iter().find(|folder| holds_toml(folder)) {
                return Err(ReadError::Nested(path));
            }
        }
    }
    paths.sort();
    if paths.is_empty() {
        return Err(ReadError::Empty(dir_or_file.to_path_buf()));
    }
    paths.iter().map(|path| read_file(path)).collect()
}

/// Refuses a folder whose name is nearly one of [`FOLDERS`] and that holds TOML files, which nobody would read.
fn misnamed(dir: &Path) -> Result<(), ReadError> {
    for path in folders(dir)? {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if let Some(meant) = nearest(name, FOLDERS)
            && !FOLDERS.contains(&name)
            && holds_toml(&path)
        {
            return Err(ReadError::Misnamed { path, meant });
        }
    }
    Ok(())
}

/// The folders in a folder, but hidden ones.
fn folders(dir: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let mut found = entries(dir)?;
    found.retain(|path| path.is_dir());
    Ok(found)
}

/// What is in a folder, but what is hidden, by name.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let unreadable = |source| ReadError::Unreadable { path: dir.to_path_buf(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn holds_toml(dir: &Path) -> bool {
    let is_toml = |path: PathBuf| path.extension().is_some_and(|extension| extension == "toml");
    std::fs::read_dir(dir).is_ok_and(|entries| entries.flatten().any(|entry| is_toml(entry.path())))
}

/// Extensions of bodies by hand, and of what they include.
const BODIES: [&str; 6] = ["cu", "c", "cc", "cpp", "h", "hpp"];

fn list(dir: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let (codebooks, kernels) = match dir.file_name().and_then(|name| name.to_str()) {
        Some("codebooks") => (true, false),
        Some("formats" | "packings" | "activations") => (false, false),
        // Kernel files may also lie directly in a spec folder.
        Some(_) | None => (false, true),
    };
    let wanted = |path: &PathBuf| {
        let spec = path
            .extension()
            .and_then(|e| e.to_str())
            .is_some_and(|e| e == "toml" || (codebooks && e == "bin") || (kernels && BODIES.contains(&e)));
        // A link to nothing is read too, for the error.
        spec && path.file_name().is_none_or(|name| name != "Cargo.toml")
            && (path.is_file() || path.metadata().is_err())
    };
    let mut paths = entries(dir)?;
    paths.retain(wanted);
    Ok(paths)
}

fn read_file(path: &Path) -> Result<SourceFile, ReadError> {
    let shown = path.to_str().ok_or_else(|| ReadError::PathNotUtf8(path.to_path_buf()))?;
    let unreadable = |source| ReadError::Unreadable { path: path.to_path_buf(), source };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    // One byte beyond the limit tells "too large" even where the size is not known beforehand (a pipe).
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let size = path.metadata().map_or(bytes.len() as u64, |m| m.len());
        return Err(ReadError::TooLarge { path: path.to_path_buf(), bytes: size.max(bytes.len() as u64) });
    }
    Ok(SourceFile { path: shown.to_owned(), bytes })
}
