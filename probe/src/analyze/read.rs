//! Files to images, with the crate `object`.

use super::archive::{archive, import_member, universal};
use super::image::{Image, Needed, Symbol};
use super::{Analysis, Arch, Container, Kind};
use crate::error::Error;
use object::read::macho::MachOFatFile;
use object::read::{ExportFlags, ExportTarget, ImportFlags, ImportLibraryFlags, NameOrOrdinal};
use object::{
    Architecture, BinaryFormat, File, FileKind, Object, ObjectKind, ObjectSection, ObjectSegment,
    ObjectSymbol,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The start of a file of LLVM bitcode, plain and wrapped.
pub(super) const BITCODE: [[u8; 4]; 2] = [*b"BC\xC0\xDE", [0xDE, 0xC0, 0x17, 0x0B]];

/// More than any library has. They are looked up one by one, so that without a bound a small file could take hours.
const MOST_CONSTANTS: usize = 32;

/// What is collected about one architecture before it is put in order.
pub(super) struct Builder {
    pub(super) container: Container,
    pub(super) arch: Arch,
    pub(super) defined: BTreeSet<Symbol>,
    pub(super) undefined: BTreeSet<Symbol>,
    pub(super) soname: Option<String>,
    pub(super) version: Option<String>,
    pub(super) needed: Vec<Needed>,
    pub(super) search_paths: Vec<String>,
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
            search_paths: Vec::new(),
            defined_versions: BTreeSet::new(),
            gpu_code: false,
            members: 1,
            unreadable_members: 0,
            abi_constants: Vec::new(),
            names_a_dll: false,
        }
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
    image.gpu_code = file.sections().any(|section| {
        section.name_bytes().is_ok_and(|name| {
            matches!(name, b".nv_fatbin" | b"__nv_fatbin" | b".nvFatBi" | b".nv_fatb" | b".nvFatBinSegment")
        })
    });
    // The tables of imports come in parts that the linker sorts by these names.
    image.names_a_dll = container == Container::Coff
        && file.sections().any(|section| section.name_bytes().is_ok_and(|name| name.starts_with(b".idata$")));
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
        Kind::Shared => linked(at, &file, &mut image)?,
        Kind::Object | Kind::Static | Kind::Import => tables(&file, &mut image, false),
        Kind::Executable => {
            linked(at, &file, &mut image)?;
            tables(&file, &mut image, true);
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

/// Mach-O puts an underscore before the names of C.
fn plain(container: Container, name: &[u8]) -> String {
    match container {
        Container::MachO => text(name.strip_prefix(b"_").unwrap_or(name)),
        Container::Elf | Container::Coff | Container::Pe => text(name),
    }
}

/// What the loader would use: exports, imports, needed libraries.
fn linked(at: &At<'_>, file: &File<'_>, image: &mut Builder) -> Result<(), Error> {
    let container = image.container;
    let mut constants: Vec<(String, u64)> = Vec::new();
    for export in file.exports().map_err(|e| at.malformed(e))? {
        let export = export.map_err(|e| at.malformed(e))?;
        let NameOrOrdinal::Name(name) = export.name() else { continue };
        let name = plain(container, name);
        let version = match export.flags() {
            ExportFlags::Elf { version, .. } => version.map(text),
            // Only ELF has versions.
            _ => None,
        };
        // The names of versions stand in the table too, as absolute symbols.
        if let (Some(version), ExportTarget::Absolute { .. }) = (&version, export.target())
            && *version == name
        {
            image.defined_versions.insert(name);
            continue;
        }
        if let ExportTarget::Address { address } = export.target()
            && name.ends_with("_abi_version")
            && constants.len() < MOST_CONSTANTS
        {
            constants.push((name.clone(), address));
        }
        image.defined_versions.extend(version.clone());
        image.defined.insert(Symbol { name, version });
    }
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for import in file.imports().map_err(|e| at.malformed(e))? {
        let import = import.map_err(|e| at.malformed(e))?;
        let version = match import.flags() {
            ImportFlags::Elf { version, .. } => version.map(text),
            // Only ELF has versions.
            _ => None,
        };
        if let Some(version) = &version {
            versions.entry(text(import.library())).or_default().insert(version.clone());
        }
        if let NameOrOrdinal::Name(name) = import.name() {
            image.undefined.insert(Symbol { name: plain(container, name), version });
        }
    }
    for library in file.import_libraries().map_err(|e| at.malformed(e))? {
        let library = library.map_err(|e| at.malformed(e))?;
        let name = text(library.name());
        let mut used: Vec<String> = versions.remove(&name).unwrap_or_default().into_iter().collect();
        if let ImportLibraryFlags::MachO { compatibility_version, .. } = library.flags() {
            used.push(compatibility_version.to_string());
        }
        image.needed.push(Needed { name, versions: used });
    }
    match file {
        File::Elf32(elf) => elf_dynamic(elf, image),
        File::Elf64(elf) => elf_dynamic(elf, image),
        File::MachO32(macho) => macho_commands(at, macho, image)?,
        File::MachO64(macho) => macho_commands(at, macho, image)?,
        File::Pe32(pe) => pe_name(pe, image),
        File::Pe64(pe) => pe_name(pe, image),
        // The others are not linked.
        _ => {}
    }
    for (name, address) in constants {
        if let Some(value) = constant(file, &name, address) {
            image.abi_constants.push((name, value));
        }
    }
    Ok(())
}

/// A `u32` at an address, where it is data that the file holds, not code.
fn constant(file: &File<'_>, name: &str, address: u64) -> Option<u32> {
    // ELF says what a symbol is; where it says "function", its first bytes are no number.
    let is_function = file
        .dynamic_symbols()
        .any(|symbol| symbol.name() == Ok(name) && symbol.kind() == object::SymbolKind::Text);
    if is_function {
        return None;
    }
    let bytes = file.sections().find_map(|section| match section.kind() {
        object::SectionKind::Data | object::SectionKind::ReadOnlyData => {
            section.data_range(address, 4).ok().flatten()
        }
        // Code, strings, zeroes and tables hold no such constant.
        _ => None,
    })?;
    let bytes: [u8; 4] = bytes.try_into().ok()?;
    Some(if file.is_little_endian() { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
}

fn elf_dynamic<Elf: object::read::elf::FileHeader>(
    elf: &object::read::elf::ElfFile<'_, Elf>,
    image: &mut Builder,
) {
    // Imports were read from the same table, so it is there or the file has none.
    let Ok(table) = elf.elf_dynamic_table() else { return };
    for dynamic in table.iter() {
        match dynamic.tag {
            object::elf::DT_SONAME => image.soname = table.string(dynamic).ok().map(text),
            object::elf::DT_RPATH | object::elf::DT_RUNPATH => {
                let paths = table.string(dynamic).ok().map(text).unwrap_or_default();
                image
                    .search_paths
                    .extend(paths.split(':').filter(|path| !path.is_empty()).map(str::to_owned));
            }
            // Everything else is for the loader.
            _ => {}
        }
    }
}

fn macho_commands<Mach: object::read::macho::MachHeader>(
    at: &At<'_>,
    macho: &object::read::macho::MachOFile<'_, Mach>,
    image: &mut Builder,
) -> Result<(), Error> {
    use object::read::macho::LoadCommandVariant;
    let endian = macho.endian();
    let mut commands = macho.macho_load_commands().map_err(|e| at.malformed(e))?;
    while let Some(command) = commands.next().map_err(|e| at.malformed(e))? {
        match command.variant().map_err(|e| at.malformed(e))? {
            LoadCommandVariant::IdDylib(id) => {
                image.soname = command.string(endian, id.dylib.name).ok().map(text);
                image.version = Some(id.dylib.current_version.get(endian).to_string());
            }
            LoadCommandVariant::Rpath(rpath) => {
                image.search_paths.extend(command.string(endian, rpath.path).ok().map(text));
            }
            // Everything else is for the loader.
            _ => {}
        }
    }
    Ok(())
}

fn pe_name<Pe: object::read::pe::ImageNtHeaders>(pe: &object::read::pe::PeFile<'_, Pe>, image: &mut Builder) {
    if let Ok(Some(exports)) = pe.export_table() {
        let name = exports.directory().name.get(object::LittleEndian);
        image.soname = exports.name_from_pointer(name).ok().map(text);
    }
}

/// Names in the symbol table of an object, or all that a program defines.
fn tables(file: &File<'_>, image: &mut Builder, local_too: bool) {
    for symbol in file.symbols() {
        let Ok(name) = symbol.name_bytes() else { continue };
        let named = matches!(
            symbol.kind(),
            object::SymbolKind::Text
                | object::SymbolKind::Data
                | object::SymbolKind::Unknown
                | object::SymbolKind::Tls
        );
        if name.is_empty() || !named {
            continue;
        }
        let entry = Symbol { name: plain(image.container, name), version: None };
        if symbol.is_undefined() {
            image.undefined.insert(entry);
        } else if local_too || symbol.is_global() {
            image.defined.insert(entry);
        }
    }
}
