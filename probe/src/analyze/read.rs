//! Files to images, with the crate `object`.

use super::archive::{archive, import_member, universal};
use super::budget::Budget;
use super::image::{Image, Needed, Symbol};
use super::linked::{linked, tables};
use super::{Analysis, Arch, Container, Kind};
use crate::error::Error;
use object::read::macho::MachOFatFile;
use object::{Architecture, BinaryFormat, File, FileKind, Object, ObjectKind, ObjectSection, ObjectSegment};
use std::collections::BTreeSet;
use std::path::Path;

/// The start of a file of LLVM bitcode, plain and wrapped.
pub(super) const BITCODE: [[u8; 4]; 2] = [*b"BC\xC0\xDE", [0xDE, 0xC0, 0x17, 0x0B]];

/// What is collected about one architecture before it is put in order.
pub(super) struct Builder {
    pub(super) container: Container,
    pub(super) arch: Arch,
    pub(super) defined: BTreeSet<Symbol>,
    pub(super) undefined: BTreeSet<Symbol>,
    pub(super) soname: Option<String>,
    pub(super) version: Option<String>,
    needed: Vec<Needed>,
    needed_names: BTreeSet<String>,
    pub(super) search_paths: Vec<String>,
    pub(super) rpath_first: bool,
    pub(super) defined_versions: BTreeSet<String>,
    pub(super) gpu_code: bool,
    pub(super) members: usize,
    pub(super) unreadable_members: usize,
    pub(super) abi_constants: Vec<(String, u32)>,
    /// A part of an import library: it names a DLL's function, or holds the tables for that.
    pub(super) names_a_dll: bool,
}

impl Builder {
    pub(super) fn new(container: Container, arch: Arch) -> Builder {
        Builder {
            container,
            arch,
            defined: BTreeSet::new(),
            undefined: BTreeSet::new(),
            soname: None,
            version: None,
            needed: Vec::new(),
            needed_names: BTreeSet::new(),
            search_paths: Vec::new(),
            rpath_first: false,
            defined_versions: BTreeSet::new(),
            gpu_code: false,
            members: 1,
            unreadable_members: 0,
            abi_constants: Vec::new(),
            names_a_dll: false,
        }
    }

    /// Adds a library that is needed, unless one of this name is already.
    pub(super) fn needs(&mut self, needed: Needed) {
        if self.needed_names.insert(needed.name.clone()) {
            self.needed.push(needed);
        }
    }

    /// Adds what a member of an archive has.
    pub(super) fn merge(&mut self, part: Builder) {
        self.defined.extend(part.defined);
        self.undefined.extend(part.undefined);
        self.gpu_code |= part.gpu_code;
        for needed in part.needed {
            self.needs(needed);
        }
    }

    /// An archive that only names what a DLL offers: the DLL's name stands for it, and nothing is needed.
    pub(super) fn stands_for_a_dll(&mut self) {
        self.soname = self.needed.drain(..).next().map(|needed| needed.name);
        self.undefined.clear();
    }

    pub(super) fn finish(self) -> Image {
        let names: BTreeSet<&str> = self.defined.iter().map(|symbol| symbol.name.as_str()).collect();
        let undefined = self.undefined.iter().filter(|symbol| !names.contains(symbol.name.as_str()));
        let undefined = undefined.cloned().collect();
        Image {
            container: self.container,
            arch: self.arch,
            undefined,
            defined: self.defined.into_iter().collect(),
            soname: self.soname,
            version: self.version,
            needed: self.needed,
            search_paths: self.search_paths,
            rpath_first: self.rpath_first,
            defined_versions: self.defined_versions.into_iter().collect(),
            gpu_code: self.gpu_code,
            members: self.members,
            unreadable_members: self.unreadable_members,
            abi_constants: self.abi_constants,
        }
    }
}

/// Context of errors.
pub(super) struct At<'a> {
    pub(super) path: &'a Path,
    /// The member of an archive, if in one.
    pub(super) member: Option<String>,
}

impl At<'_> {
    pub(super) fn malformed(&self, what: impl std::fmt::Display) -> Error {
        let what = match &self.member {
            Some(member) => format!("member `{member}`: {what}"),
            None => what.to_string(),
        };
        Error::Malformed { path: self.path.to_owned(), what }
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

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

pub(super) fn arch_of(found: Architecture) -> Arch {
    Arch::new(match found {
        Architecture::Aarch64 | Architecture::Aarch64_Ilp32 => "aarch64",
        Architecture::Arm => "arm",
        Architecture::I386 => "x86",
        Architecture::X86_64 | Architecture::X86_64_X32 => "x86_64",
        Architecture::LoongArch64 => "loongarch64",
        Architecture::Mips => "mips",
        Architecture::Mips64 => "mips64",
        Architecture::PowerPc => "powerpc",
        Architecture::PowerPc64 => "powerpc64",
        Architecture::Riscv32 => "riscv32",
        Architecture::Riscv64 => "riscv64",
        Architecture::S390x => "s390x",
        Architecture::Wasm32 => "wasm32",
        // Rust has no target for the others, or gristmill no use; the name is for the error message.
        other => return Arch::new(format!("{other:?}").to_lowercase()),
    })
}

fn container_of(format: BinaryFormat, pe: bool) -> Option<Container> {
    match format {
        BinaryFormat::Elf => Some(Container::Elf),
        BinaryFormat::MachO => Some(Container::MachO),
        BinaryFormat::Coff if !pe => Some(Container::Coff),
        BinaryFormat::Pe | BinaryFormat::Coff => Some(Container::Pe),
        // The reader is compiled without the others.
        _ => None,
    }
}

/// Refuses a file that ends before what its headers speak of.
fn check_length(at: &At<'_>, data: &[u8], file: &File<'_>) -> Result<(), Error> {
    let mut declared = 0u64;
    for segment in file.segments() {
        let (offset, size) = segment.file_range();
        declared = declared.max(offset.saturating_add(size));
    }
    for section in file.sections() {
        if let Some((offset, size)) = section.file_range() {
            declared = declared.max(offset.saturating_add(size));
        }
    }
    let found = data.len() as u64;
    if declared > found {
        return match &at.member {
            None => Err(Error::Truncated { path: at.path.to_owned(), declared, found }),
            Some(_) => Err(at.malformed(format!("truncated: {found} bytes of {declared}"))),
        };
    }
    Ok(())
}

/// Anything but archives and universal files.
pub(super) fn single(at: &At<'_>, data: &[u8]) -> Result<(Kind, Builder), Error> {
    if let Some(declared) = elf_section_table_end(data).filter(|end| *end > data.len() as u64) {
        return Err(match &at.member {
            None => Error::Truncated { path: at.path.to_owned(), declared, found: data.len() as u64 },
            Some(_) => at.malformed(format!("truncated: {} bytes of {declared}", data.len())),
        });
    }
    let file = File::parse(data).map_err(|e| at.malformed(e))?;
    check_length(at, data, &file)?;
    let pe = matches!(file, File::Pe32(_) | File::Pe64(_));
    let container =
        container_of(file.format(), pe).ok_or_else(|| at.malformed("a container that is not read"))?;
    let mut image = Builder::new(container, arch_of(file.architecture()));
    let budget = Budget::of(data.len());
    for section in file.sections() {
        let Ok(name) = section.name_bytes() else { continue };
        budget.take(at, name.len())?;
        image.gpu_code |=
            matches!(name, b".nv_fatbin" | b"__nv_fatbin" | b".nvFatBi" | b".nv_fatb" | b".nvFatBinSegment");
        // The tables of imports come in parts that the linker sorts by these names.
        image.names_a_dll |= container == Container::Coff && name.starts_with(b".idata$");
    }
    let kind = match file.kind() {
        ObjectKind::Dynamic if is_elf_program(&file) => Kind::Executable,
        ObjectKind::Dynamic => Kind::Shared,
        ObjectKind::Relocatable => Kind::Object,
        // A DLL is an executable image with a flag; `object` says Dynamic for those.
        ObjectKind::Executable | ObjectKind::Core | ObjectKind::Unknown => Kind::Executable,
        // The list is open on the side of `object`.
        _ => Kind::Executable,
    };
    match kind {
        Kind::Shared => linked(at, &budget, &file, &mut image)?,
        Kind::Object | Kind::Static | Kind::Import => tables(at, &budget, &file, &mut image, false)?,
        Kind::Executable => {
            linked(at, &budget, &file, &mut image)?;
            tables(at, &budget, &file, &mut image, true)?;
        }
    }
    Ok((kind, image))
}

/// Where the section table of an ELF file ends: `object` refuses a truncated file without saying that it is one.
fn elf_section_table_end(data: &[u8]) -> Option<u64> {
    let number = |offset: usize, bytes: usize| {
        let bytes = data.get(offset..offset.checked_add(bytes)?)?;
        let little = *data.get(5)? == 1;
        let fold = |value: u64, byte: &u8| (value << 8) | u64::from(*byte);
        Some(if little { bytes.iter().rev().fold(0, fold) } else { bytes.iter().fold(0, fold) })
    };
    if !data.starts_with(b"\x7FELF") {
        return None;
    }
    // e_shoff, e_shentsize and e_shnum of both classes; with more than 65,280 sections the count is elsewhere
    // and only the start of the table is checked.
    let (offset, entry, count) = match *data.get(4)? {
        2 => (number(0x28, 8)?, number(0x3A, 2)?, number(0x3C, 2)?),
        _ => (number(0x20, 4)?, number(0x2E, 2)?, number(0x30, 2)?),
    };
    offset.checked_add(entry.checked_mul(count)?)
}

/// Position-independent programs are shared objects with a flag.
fn is_elf_program(file: &File<'_>) -> bool {
    let flags = |tag, value: u64| tag == object::elf::DT_FLAGS_1 && value & object::elf::DF_1_PIE.0 != 0;
    match file {
        File::Elf32(elf) => {
            elf.elf_dynamic_table().is_ok_and(|table| table.iter().any(|d| flags(d.tag, d.val)))
        }
        File::Elf64(elf) => {
            elf.elf_dynamic_table().is_ok_and(|table| table.iter().any(|d| flags(d.tag, d.val)))
        }
        _ => false,
    }
}
