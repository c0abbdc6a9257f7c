//! Files that commands write: never over an input, never two to one place, and never half.

use super::error::CliError;
use super::say::say;
use gristmill::replace::{ReplaceError, Replacement, is_same_place};
use gristmill::runtime::same_file::is_at;
use std::borrow::Cow;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Variables of the environment that name a file which decisions of a command are read from.
const VARIABLES: [&str; 1] = ["GRISTMILL_TUNING"];

/// All files that a command line names, by what becomes of them.
#[derive(Debug, Default)]
pub struct Files<'a> {
    inputs: Vec<&'a Path>,
    outputs: Vec<Cow<'a, Path>>,
    /// Outputs that keep what they hold, and so may be files that a variable names.
    updated: Vec<&'a Path>,
    /// Whether the command makes the folder of its outputs.
    fills: bool,
}

impl<'a> Files<'a> {
    /// The same with files that are read.
    pub fn reads(mut self, paths: impl IntoIterator<Item = &'a PathBuf>) -> Files<'a> {
        self.inputs.extend(paths.into_iter().map(PathBuf::as_path));
        self
    }

    /// The same with files that are replaced.
    pub fn writes(mut self, paths: impl IntoIterator<Item = &'a PathBuf>) -> Files<'a> {
        self.outputs.extend(paths.into_iter().map(|path| Cow::Borrowed(path.as_path())));
        self
    }

    /// The same with a folder, made where it is not there, in which files of these names are replaced.
    pub fn fills(mut self, folder: &Path, names: impl IntoIterator<Item = String>) -> Files<'a> {
        self.outputs.extend(names.into_iter().map(|name| Cow::Owned(folder.join(name))));
        self.fills = true;
        self
    }

    /// The same with files that something is added to.
    pub fn updates(mut self, paths: impl IntoIterator<Item = &'a PathBuf>) -> Files<'a> {
        self.updated.extend(paths.into_iter().map(PathBuf::as_path));
        self
    }

    fn written(&self) -> impl Iterator<Item = &Path> {
        self.outputs.iter().map(Cow::as_ref).chain(self.updated.iter().copied())
    }

    /// Refuses outputs that are an input or each other, by whatever names, and those that can't be written: before the command works.
    ///
    /// # Errors
    /// [`CliError::Usage`] with both names; [`CliError::Replace`].
    pub fn check(&self) -> Result<(), CliError> {
        let refused =
            |what: String| CliError::usage(what, "name another file for the output; nothing was written");
        let named = VARIABLES.iter().filter_map(|variable| {
            let value = std::env::var_os(variable).filter(|value| !value.is_empty())?;
            Some((variable, PathBuf::from(value)))
        });
        let named: Vec<(&&str, PathBuf)> = named.collect();
        for output in self.written() {
            if let Some(input) = self.inputs.iter().find(|input| is_same_place(output, input)) {
                let (output, input) = (output.display(), input.display());
                return Err(refused(format!("the output `{output}` and the input `{input}` are one file")));
            }
        }
        for output in &self.outputs {
            if let Some((variable, input)) = named.iter().find(|(_, input)| is_same_place(output, input)) {
                let (output, input) = (output.display(), input.display());
                return Err(refused(format!(
                    "the output `{output}` and `{input}`, which {variable} names, are one file"
                )));
            }
        }
        let outputs: Vec<&Path> = self.written().collect();
        for (at, output) in outputs.iter().enumerate() {
            if let Some(other) = outputs[..at].iter().find(|other| is_same_place(output, other)) {
                let (output, other) = (output.display(), other.display());
                return Err(refused(format!("the outputs `{other}` and `{output}` are one file")));
            }
        }
        outputs.into_iter().try_for_each(|output| {
            let begun = if self.fills { writable(&in_what_is_there(output)) } else { writable(output) };
            Ok(begun.map_err(|error| ReplaceError { path: output.to_owned(), ..error })?)
        })
    }

    /// Whether an output is where the command prints.
    pub fn has_standard_output(&self) -> bool {
        self.written().any(is_standard_output)
    }
}

/// A file of the same name in the folder that is there, of those around `path`: where the others have to be made.
fn in_what_is_there(path: &Path) -> PathBuf {
    let (Some(name), Some(folder)) = (path.file_name(), path.parent()) else { return path.to_owned() };
    let mut around = folder.ancestors().map(|folder| match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    });
    let there = around.find(|folder| fs::symlink_metadata(folder).is_ok());
    there.map_or_else(|| path.to_owned(), |there| there.join(name))
}

/// Whether a file can be made or replaced. A pipe would wait for its reader, and a device is as it is: they show it when they are written to.
fn writable(path: &Path) -> Result<(), ReplaceError> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
        return Ok(());
    }
    Replacement::begin(path).map(drop)
}

/// Whether a path names what standard output is. Of what is thrown away nothing is mixed, so `/dev/null` does not count.
#[cfg(unix)]
fn is_standard_output(path: &Path) -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    let standard = io::stdout().as_fd().try_clone_to_owned().and_then(|own| File::from(own).metadata());
    let (Ok(there), Ok(standard)) = (fs::metadata(path), standard) else { return false };
    let same = |other: &fs::Metadata| (there.dev(), there.ino()) == (other.dev(), other.ino());
    same(&standard) && !fs::metadata("/dev/null").is_ok_and(|null| same(&null))
}

#[cfg(not(unix))]
fn is_standard_output(_: &Path) -> bool {
    false
}

/// Writes a file as a whole, or leaves what was there.
///
/// # Errors
/// [`CliError::File`], [`CliError::Replace`].
pub fn write(output: &Path, bytes: &[u8]) -> Result<(), CliError> {
    let mut new = Replacement::begin(output)?;
    new.file().write_all(bytes).map_err(CliError::file("write", output))?;
    Ok(new.finish()?)
}

/// Replaces a file by what `new` makes of what it holds now, which no other program that does the same changes meanwhile. A file that was not
/// there, and what is none, hold nothing.
///
/// # Errors
/// What `new` refuses; [`CliError::File`], [`CliError::Replace`]. What was there is as it was.
pub fn update(path: &Path, new: impl FnOnce(Vec<u8>) -> Result<String, CliError>) -> Result<(), CliError> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return write(path, new(Vec::new())?.as_bytes());
    }
    let (mut file, made) = locked(path)?;
    let mut old = Vec::new();
    let read = file.read_to_end(&mut old).map_err(CliError::file("read", path));
    let written = read.and_then(|_| write(path, new(old)?.as_bytes()));
    if written.is_err() && made {
        // It was made to be locked; those who wait for it look for the file that is there then.
        let _ = fs::remove_file(path);
    }
    written
}

/// Opens a file, made if it is not there (which the second part of the answer says), and waits for others who hold its lock.
fn locked(path: &Path) -> Result<(File, bool), CliError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    loop {
        let (file, made) = match options.clone().create_new(true).open(path) {
            Ok(file) => (file, true),
            // A link to a file that is not there counts as there, so it may still have to be made.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                (options.clone().create(true).open(path).map_err(CliError::file("write", path))?, false)
            }
            Err(error) => return Err(CliError::file("write", path)(error)),
        };
        if let Err(error) = file.lock() {
            // Some file systems of other machines have no locks; what was measured is not to be lost for that.
            say(format_args!("`{}` can't be locked ({error}): let nobody else write it now", path.display()));
            return Ok((file, made));
        }
        // Whoever held the lock before has put another file in its place.
        if is_at(&file, path).unwrap_or(false) {
            return Ok((file, made));
        }
    }
}
