//! Files that are replaced as a whole or not at all.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// How the names of temporary files begin and end.
const NAME: (&str, &str) = (".gristmill-new-", ".part");

/// Symbolic links that are followed to a file that does not exist yet.
const MOST_LINKS: usize = 40;

/// A file in the making. What is written goes to a temporary file beside the target, which takes the target's place in
/// [`finish`](Replacement::finish) only; whoever reads the target sees the old file or the whole new one. Dropped before, it leaves
/// the old file as it was and nothing else behind. A process that is killed leaves its temporary file; the next one that begins a file in
/// the same folder removes it: who makes one holds its lock for as long as it lives.
///
/// A link is followed: what it points to is replaced. An old file's permissions are kept; other names of it (hard
/// links) go on naming the old file. A target that is no file (a pipe, a terminal, a device) has nothing to be kept and is
/// written to directly.
#[derive(Debug)]
pub struct Replacement {
    /// As it was named.
    path: PathBuf,
    to: To,
}

#[derive(Debug)]
enum To {
    /// A temporary file, and what it is to replace.
    Beside(NamedTempFile, PathBuf),
    Direct(File),
}

/// Why a file could not be replaced. It is as it was.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot {action}: {source}", path.display())]
pub struct ReplaceError {
    /// The target.
    pub path: PathBuf,
    /// What was tried.
    pub action: &'static str,
    /// The system's reason.
    pub source: io::Error,
}

impl Replacement {
    /// Begins a file that is to stand at `path`.
    ///
    /// # Errors
    /// When the target may not be written, or nothing can be made beside it.
    pub fn begin(path: &Path) -> Result<Replacement, ReplaceError> {
        let failed = |action| move |source| ReplaceError { path: path.to_owned(), action, source };
        let old = match fs::metadata(path) {
            Ok(old) => Some(old),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("open")(error)),
        };
        // A file that may not be written must not be replaced either.
        let opened = old.as_ref().map(|_| OpenOptions::new().write(true).open(path));
        let opened = opened.transpose().map_err(failed("open for writing"))?;
        let to = match (&old, opened) {
            (Some(old), Some(file)) if !old.is_file() => To::Direct(file),
            (_, _) => {
                let target = match &old {
                    Some(_) => fs::canonicalize(path),
                    None => end_of_links(path),
                };
                let target = target.map_err(failed("follow the link"))?;
                if !names_a_file(&target) {
                    // Found out now, and not when the finished file is to be renamed.
                    let source = io::Error::new(
                        io::ErrorKind::IsADirectory,
                        "the name is that of a folder, and there is none; a file's ends with its own name",
                    );
                    return Err(failed("create")(source));
                }
                let temporary = beside(&target).map_err(failed("create a temporary file beside it"))?;
                if let Some(old) = &old {
                    let file = temporary.as_file();
                    file.set_permissions(old.permissions()).map_err(failed("keep the permissions"))?;
                }
                To::Beside(temporary, target)
            }
        };
        Ok(Replacement { path: path.to_owned(), to })
    }

    /// Where to write.
    pub fn file(&mut self) -> &mut File {
        match &mut self.to {
            To::Beside(temporary, _) => temporary.as_file_mut(),
            To::Direct(file) => file,
        }
    }

    /// Puts what was written in the target's place, once it is on the disk.
    ///
    /// # Errors
    /// When the disk is full, or the target can't be replaced.
    pub fn finish(self) -> Result<(), ReplaceError> {
        let Replacement { path, to } = self;
        let To::Beside(temporary, target) = to else { return Ok(()) };
        if let Err(source) = temporary.as_file().sync_all() {
            return Err(ReplaceError { path, action: "flush", source });
        }
        match temporary.persist(target) {
            Ok(_) => Ok(()),
            // The temporary file is dropped with the error, and so removed.
            Err(error) => {
                Err(ReplaceError { path, action: "rename the finished file to it", source: error.error })
            }
        }
    }
}

/// Where the file is made that `path` names, which does not exist: the end of its links.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    let mut at = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&at) {
            Ok(to) => at = at.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => return Ok(at),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Whether a path ends with the name of a file. That of a folder ends with `/`, `.` or `..`, which paths as such do not keep.
fn names_a_file(path: &Path) -> bool {
    let ends =
        |name: &std::ffi::OsStr| path.as_os_str().as_encoded_bytes().ends_with(name.as_encoded_bytes());
    path.file_name().is_some_and(ends)
}

/// A new temporary file in the folder of `target`, locked, where none of a dead process is left.
fn beside(target: &Path) -> io::Result<NamedTempFile> {
    let folder = folder_of(target);
    remove_left(folder);
    let mut builder = tempfile::Builder::new();
    builder.prefix(NAME.0).suffix(NAME.1);
    // A temporary file is private by default; the finished one is a file like any other.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    loop {
        let new = builder.tempfile_in(folder)?;
        // Some file systems have no locks. Then nobody finds one free either, and what is left stays.
        let locked = new.as_file().lock().is_ok();
        // Who came in between made and locked took it for a dead process's.
        if !locked || fs::metadata(new.path()).is_ok() {
            return Ok(new);
        }
    }
}

/// Removes temporary files that nobody holds the lock of. What can't be looked at or removed stays: it is in nobody's way.
fn remove_left(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        let temporary = name.starts_with(NAME.0.as_bytes()) && name.ends_with(NAME.1.as_bytes());
        // Others than regular files are not ours, and to open a pipe would wait for its writer.
        if !temporary || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let Ok(file) = OpenOptions::new().read(true).write(true).open(entry.path()) else { continue };
        match file.try_lock() {
            Ok(()) => drop(fs::remove_file(entry.path())),
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
        }
    }
}

/// Whether two paths name one file, by links of either kind too. `false` where one of them names nothing, or no file.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    let (Ok(first), Ok(second)) = (fs::metadata(a), fs::metadata(b)) else { return false };
    if !first.is_file() || !second.is_file() {
        return false;
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        (first.dev(), first.ino()) == (second.dev(), second.ino())
    }
    #[cfg(not(unix))]
    {
        matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
    }
}

/// Whether two paths name one file, or would if it were made: of files that are not there, links and folders are followed.
pub fn is_same_place(a: &Path, b: &Path) -> bool {
    is_same_file(a, b) || matches!((place(a), place(b)), (Ok(a), Ok(b)) if a == b)
}

/// Where a file would be made that is not there: its folder by its one true name.
fn place(path: &Path) -> io::Result<PathBuf> {
    if fs::metadata(path).is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let end = end_of_links(path)?;
    let name = end.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(fs::canonicalize(folder_of(&end))?.join(name))
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(folder: &Path) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
        let mut names: Vec<String> =
            entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        Ok(names)
    }

    #[test]
    fn what_is_not_finished_changes_nothing() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("f");
        for old in [None, Some("old")] {
            if let Some(old) = old {
                fs::write(&path, old)?;
            }
            let before = names(folder.path())?;
            let mut new = Replacement::begin(&path)?;
            new.file().write_all(b"new")?;
            drop(new);
            assert_eq!(names(folder.path())?, before);
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), old);
        }
        let mut new = Replacement::begin(&path)?;
        new.file().write_all(b"new")?;
        new.finish()?;
        assert_eq!((names(folder.path())?, fs::read_to_string(&path)?), (vec!["f".into()], "new".into()));
        Ok(())
    }

    #[test]
    fn what_a_dead_process_left_is_removed() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("f");
        // What the end of a process does, SIGKILL's too: its files are closed, which frees their locks, and nothing is dropped.
        let To::Beside(half, _) = Replacement::begin(&path)?.to else {
            return Err("replaced in place".into());
        };
        drop(half.keep()?);
        let left = names(folder.path())?;
        assert!(matches!(left.as_slice(), [left] if left.ends_with(NAME.1)), "{left:?}");
        // Not ours, whatever it is called.
        let other = folder.path().join(".gristmill-other.part");
        fs::write(&other, "theirs")?;
        #[cfg(unix)]
        std::os::unix::fs::symlink(&other, folder.path().join(".gristmill-new-link.part"))?;
        let kept = names(folder.path())?;
        let kept: Vec<&String> = kept.iter().filter(|name| !left.contains(name)).collect();

        let mut living = Replacement::begin(&path)?;
        living.file().write_all(b"new")?;
        let during = names(folder.path())?;
        assert_eq!(during.len(), kept.len() + 1, "{during:?}");
        assert!(!during.contains(&left[0]));
        // What somebody is still at work on stays.
        drop(Replacement::begin(&folder.path().join("g"))?);
        assert_eq!(names(folder.path())?, during);
        living.finish()?;
        let after = names(folder.path())?;
        assert_eq!(after.iter().filter(|name| *name != "f").collect::<Vec<_>>(), kept);
        assert_eq!(fs::read_to_string(&path)?, "new");
        Ok(())
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_stay() -> Result<(), Box<dyn std::error::Error>> {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir()?;
        let [file, link, dangling, made] = ["f", "l", "d", "m"].map(|name| folder.path().join(name));
        fs::write(&file, "old")?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640))?;
        symlink("f", &link)?;
        symlink("m", &dangling)?;
        for (named, real) in [(&link, &file), (&dangling, &made)] {
            let mut new = Replacement::begin(named)?;
            new.file().write_all(b"new")?;
            new.finish()?;
            assert_eq!(fs::read_to_string(real)?, "new");
            assert!(fs::symlink_metadata(named)?.is_symlink());
        }
        assert_eq!(fs::metadata(&file)?.permissions().mode() & 0o777, 0o640);
        Ok(())
    }

    #[test]
    fn one_file_by_several_names() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let [a, b, hard] = ["a", "b", "hard"].map(|name| folder.path().join(name));
        fs::write(&a, "1")?;
        fs::write(&b, "1")?;
        assert!(is_same_file(&a, &folder.path().join(".").join("a")) && !is_same_file(&a, &b));
        assert!(!is_same_file(&a, &folder.path().join("none")));
        #[cfg(unix)]
        {
            let soft = folder.path().join("soft");
            std::os::unix::fs::symlink("a", &soft)?;
            fs::hard_link(&a, &hard)?;
            assert!(is_same_file(&a, &soft) && is_same_file(&hard, &a) && is_same_file(&hard, &soft));
        }
        let _ = hard;
        // Of files that are not there, the places count.
        let [new, other] = ["new", "other"].map(|name| folder.path().join(name));
        assert!(is_same_place(&a, &folder.path().join(".").join("a")) && !is_same_place(&a, &b));
        assert!(is_same_place(&new, &folder.path().join(".").join("new")));
        assert!(!is_same_place(&new, &other) && !is_same_place(&new, &a));
        #[cfg(unix)]
        {
            let [link, inside] = ["link", "inside"].map(|name| folder.path().join(name));
            std::os::unix::fs::symlink("new", &link)?;
            std::os::unix::fs::symlink(folder.path(), &inside)?;
            assert!(is_same_place(&link, &inside.join("new")) && !is_same_place(&link, &other));
        }
        Ok(())
    }
}
