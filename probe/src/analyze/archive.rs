//! Files of several parts: archives, import libraries, universal files.

use super::at::At;
use super::budget::Budget;
use super::builder::{Builder, text};
use super::image::{Image, Needed, Symbol};
use super::kind::{Arch, Container, Kind};
use super::single::{BITCODE, arch_of, single};
use crate::error::Error;
use object::FileKind;
use object::read::archive::{ArchiveFile, ArchiveKind};
use object::read::coff::ImportFile;
use object::read::macho::FatArch;

/// More than any library has. Parts of a universal file may overlap, so that without a bound a small file could
/// take hours.
const MOST_ARCHITECTURES: usize = 32;

/// The parts of a universal Mach-O file.
pub(super) fn universal<F: FatArch>(
    at: &At<'_>,
    data: &[u8],
    arches: &[F],
) -> Result<(Kind, Vec<Image>), Error> {
    let mut images = Vec::new();
    let mut kind = None;
    if arches.len() > MOST_ARCHITECTURES {
        return Err(at.malformed(format!("a universal file for {} architectures", arches.len())));
    }
    for arch in arches {
        let (offset, size) = arch.file_range();
        let end = offset.saturating_add(size);
        let part = arch.data(data).map_err(|_| Error::Truncated {
            path: at.path.to_owned(),
            declared: end,
            found: data.len() as u64,
        })?;
        let (found, mut parts) = match FileKind::parse(part) {
            Ok(FileKind::Archive) => archive(at, part)?,
            _ => {
                let (found, image) = single(at, part)?;
                (found, vec![image.finish()])
            }
        };
        if *kind.get_or_insert(found) != found {
            return Err(at.malformed("a library for one architecture and something else for another"));
        }
        images.append(&mut parts);
    }
    let kind = kind.ok_or_else(|| at.malformed("a universal file without any part"))?;
    Ok((kind, images))
}

/// The members of an archive, together.
pub(super) fn archive(at: &At<'_>, data: &[u8]) -> Result<(Kind, Vec<Image>), Error> {
    let malformed = |error: object::Error| truncated_archive(at, data).unwrap_or_else(|| at.malformed(error));
    let archive = ArchiveFile::parse(data).map_err(malformed)?;
    if archive.is_thin() {
        return Err(Error::NotALibrary {
            path: at.path.to_owned(),
            what: String::from(
                "a thin archive, which names its members but does not hold them; analyse those",
            ),
        });
    }
    let mut image: Option<Builder> = None;
    let (mut objects, mut unreadable, mut code) = (0usize, 0usize, false);
    // Members may share a long name.
    let budget = Budget::of(data.len());
    for member in archive.members() {
        let member = member.map_err(malformed)?;
        let bytes = member.data(data).map_err(malformed)?;
        budget.take(at, member.name().len())?;
        let inside = At { path: at.path, member: Some(text(member.name())) };
        let part = match Member::read(&inside, bytes)? {
            Member::Object(part) => *part,
            Member::Bitcode => {
                unreadable += 1;
                continue;
            }
            Member::Metadata => continue,
        };
        objects += 1;
        code |= !part.names_a_dll;
        match &mut image {
            None => image = Some(part),
            Some(whole) if whole.arch != part.arch => {
                return Err(inside.malformed(format!("for {}, but others are for {}", part.arch, whole.arch)));
            }
            Some(whole) => whole.merge(part),
        }
    }
    let mut image = image.ok_or_else(|| without_objects(at, unreadable, archive.kind()))?;
    image.members = objects + unreadable;
    image.unreadable_members = unreadable;
    let kind = if code { Kind::Static } else { Kind::Import };
    if kind == Kind::Import {
        image.stands_for_a_dll();
        without_tables(&mut image);
    }
    Ok((kind, vec![image.finish()]))
}

/// What a member of an archive is.
enum Member {
    /// An object file, or a name that a DLL offers.
    Object(Box<Builder>),
    /// Of LLVM, which is not read.
    Bitcode,
    /// Of a compiler, such as rustc's.
    Metadata,
}

impl Member {
    fn read(at: &At<'_>, bytes: &[u8]) -> Result<Member, Error> {
        match FileKind::parse(bytes) {
            Ok(FileKind::CoffImport) => {
                let mut part = Builder::new(Container::Coff, Arch::new("unknown"));
                import_member(at, bytes, &mut part)?;
                Ok(Member::Object(Box::new(part)))
            }
            Ok(FileKind::Archive) => Err(at.malformed("an archive within an archive, which no linker reads")),
            Ok(_) => Ok(Member::Object(Box::new(single(at, bytes)?.1))),
            Err(_) if BITCODE.iter().any(|magic| bytes.starts_with(magic)) => Ok(Member::Bitcode),
            Err(_) => Ok(Member::Metadata),
        }
    }
}

/// What an archive is that has nothing to link.
fn without_objects(at: &At<'_>, bitcode: usize, kind: ArchiveKind) -> Error {
    let what = match (bitcode, kind) {
        (0, ArchiveKind::Unknown) => String::from("an archive without members"),
        (0, _) => String::from("an archive without object files"),
        (count, _) => {
            format!("an archive of {count} files of LLVM bitcode; build it without link-time optimization")
        }
    };
    Error::NotALibrary { path: at.path.to_owned(), what }
}

/// Leaves out what the tables of an import library are called, and the places that they are put in.
fn without_tables(image: &mut Builder) {
    image.defined.retain(|symbol| {
        let name = symbol.name.as_str();
        let table = ["__IMPORT_DESCRIPTOR_", "__NULL_IMPORT_DESCRIPTOR", "__imp_", "_head_"];
        !table.iter().any(|table| name.starts_with(table))
            && !name.ends_with("_NULL_THUNK_DATA")
            && !name.ends_with("_iname")
    });
}

/// A member's header that speaks of more bytes than there are.
fn truncated_archive(at: &At<'_>, data: &[u8]) -> Option<Error> {
    let mut offset = 8u64;
    let found = data.len() as u64;
    while offset < found {
        let header = data.get(usize::try_from(offset).ok()?..)?;
        let Some(header) = header.get(..60) else {
            return Some(Error::Truncated { path: at.path.to_owned(), declared: offset + 60, found });
        };
        let size: u64 = std::str::from_utf8(header.get(48..58)?).ok()?.trim_end().parse().ok()?;
        let end = offset.checked_add(60)?.checked_add(size)?;
        if end > found {
            return Some(Error::Truncated { path: at.path.to_owned(), declared: end, found });
        }
        offset = end + end % 2;
    }
    None
}

/// One name that a DLL offers.
pub(super) fn import_member(at: &At<'_>, data: &[u8], image: &mut Builder) -> Result<(), Error> {
    let import = ImportFile::parse(data).map_err(|e| at.malformed(e))?;
    image.arch = arch_of(import.architecture());
    image.names_a_dll = true;
    image.defined.insert(Symbol { name: text(import.symbol()), version: None });
    image.needs(Needed { name: text(import.dll()), versions: Vec::new() });
    Ok(())
}
