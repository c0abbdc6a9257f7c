//! A quarantine as files. `ID.PROCESSOR.kernel` is a kernel in quarantine on a processor, `PID-0.running` names the kernels of a program that are
//! in their first run, and is locked for as long as that program lives: the system lets go of the lock however it ends.

use super::listed::Quarantined;
use crate::error::Error;
use crate::registry::KernelId;
use crate::same_file::is_at;
use crate::tuning::cpu;
use gristmill_spec::Fnv;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};

/// The first line of the file of a kernel.
const HEAD: &str = "gristmill quarantine 1";
/// What ends the name of the file of a kernel.
const KERNEL: &str = "kernel";
/// What ends the name of the file of a program that marks its first runs.
const RUNNING: &str = "running";
/// Bytes of the largest file that is read: more is no file of ours.
const MOST_BYTES: u64 = 1 << 20;
/// Programs with one process number and one folder (several containers have a process 1), at most.
const MOST_OF_A_NUMBER: u32 = 1000;

/// The folder.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

/// A kernel in its first run in a class of shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) id: KernelId,
    pub(super) kernel: String,
    /// Tokens, outputs, inner dimension.
    pub(super) shape: [usize; 3],
}

impl Mark {
    fn line(&self) -> String {
        let [m, n, k] = self.shape;
        format!("{} {m} {n} {k} {}\n", self.id, one_line(&self.kernel))
    }

    /// What [`line`](Mark::line) wrote; `None` for what it did not.
    fn parse(line: &str) -> Option<Mark> {
        let mut words = line.split(' ');
        let id = id_of(words.next()?)?;
        let mut size = || words.next()?.parse().ok();
        let shape = [size()?, size()?, size()?];
        let kernel = words.next().filter(|name| !name.is_empty())?.to_owned();
        words.next().is_none().then_some(Mark { id, kernel, shape })
    }
}

/// The text of a file of marks.
pub(super) fn marks(running: &[Mark]) -> String {
    running.iter().map(Mark::line).collect()
}

impl Folder {
    /// Makes it, if it is not there.
    pub(super) fn open(path: &Path) -> Result<Folder, Error> {
        fs::create_dir_all(path).map_err(failed(path, "make the folder"))?;
        // Whatever the program's directory is later.
        let path = std::path::absolute(path).map_err(failed(path, "find the folder"))?;
        Ok(Folder { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file of a kernel on this processor, unless there is one. Who reads meanwhile finds none or all of it.
    pub(super) fn keep(&self, kernel: &Quarantined) -> Result<(), Error> {
        // Machines with different processors may share the folder, and each has its own faults.
        let processor = Fnv::EMPTY.with(one_line(cpu()).as_bytes()).get();
        let path = self.path.join(format!("{}.{processor:016x}.{KERNEL}", kernel.id));
        if path.try_exists().map_err(failed(&path, "look for the file"))? {
            return Ok(());
        }
        let mut text = format!("{HEAD}\nprocessor {}\n", one_line(cpu()));
        if let Some(name) = &kernel.kernel {
            let _ = writeln!(text, "kernel {}", one_line(name));
        }
        let _ = writeln!(text, "why {}", one_line(&kernel.why));
        let (mut file, beside) = self.new_file(&format!("{}-{}", kernel.id, std::process::id()), "new")?;
        // On the disk before it has its name: after a power cut a file that is there is whole.
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        let renamed = written.and_then(|()| fs::rename(&beside, &path));
        renamed.map_err(|error| {
            let _ = fs::remove_file(&beside);
            failed(&path, "write the file")(error)
        })
    }

    /// A file that nobody else has: `STEM-NUMBER.ENDING`.
    fn new_file(&self, stem: &str, ending: &str) -> Result<(File, PathBuf), Error> {
        for number in 0..MOST_OF_A_NUMBER {
            let path = self.path.join(format!("{stem}-{number}.{ending}"));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((file, path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&path, "write the file")(error)),
            }
        }
        let why = format!(
            "there are {MOST_OF_A_NUMBER} files `{stem}-*.{ending}`, of programs with one process number"
        );
        Err(Error::Quarantine { path: self.path.display().to_string(), doing: "write a file", why })
    }

    /// The kernels that are in quarantine on this processor, by id.
    pub(super) fn kernels(&self) -> Result<Vec<Quarantined>, Error> {
        let mut kernels = Vec::new();
        for path in self.files(KERNEL)? {
            let text = match File::open(&path) {
                Ok(file) => text_of(&file, &path)?,
                // Somebody has let it out since the folder was listed.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(&path, "read the file")(error)),
            };
            let id = path.file_stem().and_then(|stem| id_of(stem.to_str()?.split('.').next()?));
            let parsed = id.and_then(|id| parse(id, &text));
            let damaged = || Error::Quarantine {
                path: path.display().to_string(),
                doing: "read the file",
                why: format!(
                    "it is no file of a kernel (`ID.PROCESSOR.{KERNEL}`, which begins with `{HEAD}`)"
                ),
            };
            // What can't be read could forbid a kernel: to go on without it would be to run that.
            let (processor, kernel) = parsed.ok_or_else(damaged)?;
            if processor == one_line(cpu()) {
                kernels.push(kernel);
            }
        }
        Ok(kernels)
    }

    /// Puts the kernels into quarantine in whose first runs programs ended, and says which.
    pub(super) fn take_in(&self, how: Option<&str>) -> Result<Vec<Quarantined>, Error> {
        let mut came = Vec::new();
        self.left(|mark, others| {
            let kernel = quarantined(mark, others, how);
            self.keep(&kernel)?;
            came.push(kernel);
            Ok(())
        })?;
        Ok(came)
    }

    /// Goes through the marks that programs left, each with the number of others of its program, and removes them.
    pub(super) fn left(&self, mut each: impl FnMut(&Mark, usize) -> Result<(), Error>) -> Result<(), Error> {
        for path in self.files(RUNNING)? {
            let file = match OpenOptions::new().read(true).write(true).open(&path) {
                Ok(file) => file,
                // Another program took it in.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(&path, "read the file")(error)),
            };
            match file.try_lock() {
                Ok(()) => {}
                // It lives.
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => return Err(failed(&path, "lock the file")(error)),
            }
            // Another program took it in before it was locked, and a third one may have a file of this name by now.
            if !is_at(&file, &path).map_err(failed(&path, "look for the file"))? {
                continue;
            }
            let text = text_of(&file, &path)?;
            // What was being written when the program ended names no kernel.
            let marks: Vec<Mark> = text.lines().filter_map(Mark::parse).collect();
            for mark in &marks {
                each(mark, marks.len() - 1)?;
            }
            // It stays locked until it is gone, so that the program whose number it has makes no marks in it.
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(failed(&path, "remove the file")(error));
                }
                Ok(()) | Err(_) => {}
            }
            drop(file);
        }
        Ok(())
    }

    /// The file for the marks of this program, locked for as long as it is open.
    pub(super) fn marked_by_this(&self) -> Result<(File, PathBuf), Error> {
        let process = std::process::id().to_string();
        loop {
            let (file, path) = self.new_file(&process, RUNNING)?;
            match file.try_lock() {
                // Another program may have taken it for a file that was left, and removed it.
                Ok(()) if is_at(&file, &path).map_err(failed(&path, "look for the file"))? => {
                    return Ok((file, path));
                }
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(failed(&path, "lock the file")(error)),
            }
        }
    }

    fn files(&self, ending: &str) -> Result<Vec<PathBuf>, Error> {
        let unread = failed(&self.path, "read the folder");
        let listed: Result<Vec<_>, _> = fs::read_dir(&self.path).and_then(Iterator::collect);
        let files = listed.map_err(unread)?.into_iter().map(|entry| entry.path());
        let mut files: Vec<PathBuf> =
            files.filter(|path| path.extension().is_some_and(|found| found == ending)).collect();
        files.sort();
        Ok(files)
    }
}

/// What a mark says that was left, beside so many others.
fn quarantined(mark: &Mark, others: usize, how: Option<&str>) -> Quarantined {
    let [m, n, k] = mark.shape;
    let mut why = match how {
        Some(how) => format!("it ended a program by {how}, in its first run with m={m}, n={n}, k={k}"),
        None => format!(
            "a program ended in its first run with m={m}, n={n}, k={k}: by a signal such as SIGILL, or somebody ended it just then"
        ),
    };
    match others {
        0 => {}
        1 => why.push_str("; another kernel was in its first run too"),
        others => {
            let _ = write!(why, "; {others} other kernels were in their first runs too");
        }
    }
    Quarantined { id: mark.id, kernel: Some(mark.kernel.clone()), why }
}

/// The processor, and the kernel.
fn parse(id: KernelId, text: &str) -> Option<(&str, Quarantined)> {
    let mut lines = text.lines();
    lines.next().filter(|head| *head == HEAD)?;
    let (mut processor, mut kernel, mut why) = (None, None, None);
    for line in lines {
        let (key, value) = line.split_once(' ')?;
        match key {
            "processor" => processor = Some(value),
            "kernel" => kernel = Some(value.to_owned()),
            "why" => why = Some(value.to_owned()),
            _ => return None,
        }
    }
    Some((processor?, Quarantined { id, kernel, why: why? }))
}

fn id_of(text: &str) -> Option<KernelId> {
    let is_id = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| u64::from_str_radix(text, 16).ok().map(KernelId)).flatten()
}

/// Text in which no character ends a line.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn text_of(file: &File, path: &Path) -> Result<String, Error> {
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(failed(path, "read the file"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn failed(path: &Path, doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::Quarantine { path: path.display().to_string(), doing, why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_they_were_written_and_nothing_else_is_one() {
        let mark =
            |id, kernel: &str| Mark { id: KernelId(id), kernel: kernel.to_owned(), shape: [1, 61, 24] };
        let both = [mark(0x1000, "matmul.a"), mark(u64::MAX, "matmul.b")];
        let text = marks(&both);
        assert_eq!(text.lines().map(Mark::parse).collect::<Vec<_>>(), both.map(Some));
        for cut in 1..text.lines().next().map_or(0, |line| line.len() - "matmul.a".len()) {
            assert_eq!(Mark::parse(&text[..cut]), None, "{:?}", &text[..cut]);
        }
        for line in ["", "0000000000001000 1 2 matmul.a", "1000 1 2 3 matmul.a", "0000000000001000 1 2 3 a b"]
        {
            assert_eq!(Mark::parse(line), None, "{line}");
        }
    }

    #[test]
    fn why_says_what_is_known() {
        let mark = Mark { id: KernelId(1), kernel: "a".to_owned(), shape: [1, 2, 3] };
        let why = |others, how| quarantined(&mark, others, how).why;
        assert_eq!(
            why(0, Some("SIGILL")),
            "it ended a program by SIGILL, in its first run with m=1, n=2, k=3"
        );
        assert!(why(0, None).contains("such as SIGILL"));
        assert!(why(1, None).ends_with("; another kernel was in its first run too"));
        assert!(why(2, None).ends_with("; 2 other kernels were in their first runs too"));
    }

    #[test]
    fn files_of_kernels_are_read_as_they_were_written() {
        let name = format!("processor {}", cpu());
        let text = format!("{HEAD}\n{name}\nkernel a\nwhy b c\n");
        let kernel = Quarantined { id: KernelId(7), kernel: Some("a".to_owned()), why: "b c".to_owned() };
        assert_eq!(parse(KernelId(7), &text), Some((cpu(), kernel)));
        for text in ["", HEAD, "gristmill quarantine 2\nwhy b\n", &text.replace("why", "when")] {
            assert_eq!(parse(KernelId(7), text), None, "{text}");
        }
        assert_eq!(one_line("a\nb\u{1b}c"), "a b c");
    }
}
