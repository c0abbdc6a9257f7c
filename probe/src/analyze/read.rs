//! Files to images, with the crate `object`.

use super::analysis::Analysis;
use super::archive::{archive, import_member, universal};
use super::at::At;
use super::builder::Builder;
use super::kind::{Arch, Container, Kind};
use super::single::{BITCODE, single};
use crate::error::Error;
use object::FileKind;
use object::read::macho::MachOFatFile;
use std::path::Path;

/// Reads a whole file.
pub fn file(path: &Path, data: &[u8]) -> Result<Analysis, Error> {
    let at = At { path, member: None };
    let not_a_library = |what: &str| Error::NotALibrary { path: path.to_owned(), what: what.to_owned() };
    if data.is_empty() {
        return Err(not_a_library("an empty file"));
    }
    let (kind, images) = match FileKind::parse(data) {
        Ok(FileKind::Archive) => archive(&at, data)?,
        Ok(FileKind::MachOFat32) => {
            let fat = MachOFatFile::<object::macho::FatArch32>::parse(data).map_err(|e| at.malformed(e))?;
            universal(&at, data, fat.arches())?
        }
        Ok(FileKind::MachOFat64) => {
            let fat = MachOFatFile::<object::macho::FatArch64>::parse(data).map_err(|e| at.malformed(e))?;
            universal(&at, data, fat.arches())?
        }
        Ok(FileKind::CoffImport) => {
            let mut image = Builder::new(Container::Coff, Arch::new("unknown"));
            import_member(&at, data, &mut image)?;
            (Kind::Import, vec![image.finish()])
        }
        Ok(
            FileKind::Elf32
            | FileKind::Elf64
            | FileKind::MachO32
            | FileKind::MachO64
            | FileKind::Pe32
            | FileKind::Pe64
            | FileKind::Coff
            | FileKind::CoffBig,
        ) => {
            let (kind, image) = single(&at, data)?;
            (kind, vec![image.finish()])
        }
        // Kinds that `object` knows and no library is; the list is open on its side.
        Ok(other) => return Err(not_a_library(&format!("a file of kind {other:?}"))),
        Err(_) => return Err(not_a_library(guess(data))),
    };
    if images.iter().all(|image| image.defined.is_empty() && image.undefined.is_empty()) {
        return Err(Error::Stripped { path: path.to_owned() });
    }
    let offers = images.iter().any(|image| !image.defined.is_empty());
    if !offers && kind != Kind::Executable {
        return Err(Error::Stripped { path: path.to_owned() });
    }
    Ok(Analysis { path: path.to_owned(), bytes: data.len() as u64, kind, images })
}

/// What something that is no object file may be.
fn guess(data: &[u8]) -> &'static str {
    let begins = |magic: &[u8]| data.starts_with(magic);
    let start = data.get(..data.len().min(4096)).unwrap_or_default();
    let contains = |word: &[u8]| start.windows(word.len()).any(|window| window == word);
    if BITCODE.iter().any(|magic| begins(magic)) {
        "LLVM bitcode"
    } else if begins(b"!<arch>\n") {
        "an archive without members"
    } else if begins(b"--- !tapi") {
        "a text stub of a macOS library (.tbd), which names symbols but holds no code"
    } else if begins(b"#!") {
        "a script"
    } else if begins(b"GGUF") {
        "a GGUF model"
    } else if begins(b"PK\x03\x04") {
        "a ZIP archive; unpack it (a Python wheel has its libraries inside)"
    } else if begins(b"\x1F\x8B") {
        "compressed with gzip; unpack it"
    } else if start.is_ascii() && (contains(b"GROUP") || contains(b"INPUT")) {
        "a linker script, a text that names the library"
    } else if std::str::from_utf8(start).is_ok() {
        "text"
    } else {
        "of no known format"
    }
}
