//! Commands of `gristmill` on files that the fuzzer made.

use clap::Parser as _;
use gristmill::cli;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A file with these bytes, the same one each time.
pub fn file(bytes: &[u8]) -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    let path = FILE.get_or_init(|| {
        let folder = crate::seeds::scratch();
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        folder.join("input")
    });
    std::fs::write(path, bytes).expect("a file of a few kilobytes can be written");
    path
}

/// Runs a command; what it prints and what it answers are its own affair.
pub fn run(words: &[&str], path: &Path, more: &[&str]) {
    let arguments = std::iter::once("gristmill").chain(words.iter().copied()).map(OsString::from);
    let arguments = arguments.chain([path.as_os_str().to_owned()]).chain(more.iter().map(OsString::from));
    let arguments = cli::Arguments::try_parse_from(arguments).expect("arguments that the command has");
    if let Err(error) = cli::dispatch(&arguments.command, &mut cli::Plain::new(io::sink())) {
        assert!(!error.to_string().is_empty());
    }
}
