//! What the loader and the linker see of one file: names, needed libraries, where those are looked for.

use super::at::At;
use super::budget::Budget;
use super::builder::{Builder, text};
use super::image::{Needed, Symbol};
use super::kind::Container;
use super::trie;
use crate::error::Error;
use crate::families::is_own;
use object::read::{ExportFlags, ExportTarget, ImportFlags, ImportLibraryFlags, NameOrOrdinal};
use object::{File, Object, ObjectSection, ObjectSymbol};
use std::collections::{BTreeMap, BTreeSet};

/// More than any library has. They are looked up one by one, so that without a bound a small file could take hours.
const MOST_CONSTANTS: usize = 32;

/// Mach-O puts an underscore before the names of C.
fn plain(container: Container, name: &[u8]) -> String {
    match container {
        Container::MachO => text(name.strip_prefix(b"_").unwrap_or(name)),
        Container::Elf | Container::Coff | Container::Pe => text(name),
    }
}

/// What the loader would use: exports, imports, needed libraries.
pub(super) fn linked(
    at: &At<'_>,
    budget: &Budget,
    file: &File<'_>,
    image: &mut Builder,
) -> Result<(), Error> {
    // Some tables are read as a whole before the first name of them is seen.
    match file {
        File::Elf32(elf) => elf_versions(at, budget, elf)?,
        File::Elf64(elf) => elf_versions(at, budget, elf)?,
        File::MachO32(macho) => macho_exports(at, budget, macho)?,
        File::MachO64(macho) => macho_exports(at, budget, macho)?,
        // The others have none.
        _ => {}
    }
    exports(at, budget, file, image)?;
    let versions = imports(at, budget, file, image)?;
    needed(at, budget, file, image, versions)?;
    match file {
        File::Elf32(elf) => elf_dynamic(at, budget, elf, image)?,
        File::Elf64(elf) => elf_dynamic(at, budget, elf, image)?,
        File::MachO32(macho) => macho_commands(at, macho, image)?,
        File::MachO64(macho) => macho_commands(at, macho, image)?,
        File::Pe32(pe) => pe_name(pe, image),
        File::Pe64(pe) => pe_name(pe, image),
        // The others are not linked.
        _ => {}
    }
    Ok(())
}

/// What others may link to, and the values of the constants by which our own libraries are told apart.
fn exports(at: &At<'_>, budget: &Budget, file: &File<'_>, image: &mut Builder) -> Result<(), Error> {
    let mut constants: Vec<(String, u64)> = Vec::new();
    for export in file.exports().map_err(|e| at.malformed(e))? {
        let export = export.map_err(|e| at.malformed(e))?;
        budget.take(at, forwarded(&export.target()))?;
        let NameOrOrdinal::Name(name) = export.name() else { continue };
        budget.take(at, name.len())?;
        let name = plain(image.container, name);
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
            && is_own(&name)
            && constants.len() < MOST_CONSTANTS
        {
            constants.push((name.clone(), address));
        }
        if let Some(version) = &version {
            budget.take(at, version.len())?;
            if !image.defined_versions.contains(version) {
                image.defined_versions.insert(version.clone());
            }
        }
        image.defined.insert(Symbol { name, version });
    }
    for (name, address) in constants {
        if let Some(value) = constant(file, address) {
            image.abi_constants.push((name, value));
        }
    }
    Ok(())
}

/// Versions of what is used of each library.
type Versions = BTreeMap<String, BTreeSet<String>>;

/// What others have to bring.
fn imports(at: &At<'_>, budget: &Budget, file: &File<'_>, image: &mut Builder) -> Result<Versions, Error> {
    let mut versions = Versions::new();
    for import in file.imports().map_err(|e| at.malformed(e))? {
        let import = import.map_err(|e| at.malformed(e))?;
        let length = match import.name() {
            NameOrOrdinal::Name(name) => name.len(),
            NameOrOrdinal::Ordinal(_) => 0,
        };
        budget.take(at, length.saturating_add(import.library().len()))?;
        let version = match import.flags() {
            ImportFlags::Elf { version, .. } => version.map(text),
            // Only ELF has versions.
            _ => None,
        };
        if let Some(version) = &version {
            budget.take(at, version.len())?;
            versions.entry(text(import.library())).or_default().insert(version.clone());
        }
        if let NameOrOrdinal::Name(name) = import.name() {
            image.undefined.insert(Symbol { name: plain(image.container, name), version });
        }
    }
    Ok(versions)
}

/// The libraries that those are looked for in.
fn needed(
    at: &At<'_>,
    budget: &Budget,
    file: &File<'_>,
    image: &mut Builder,
    mut versions: Versions,
) -> Result<(), Error> {
    for library in file.import_libraries().map_err(|e| at.malformed(e))? {
        let library = library.map_err(|e| at.malformed(e))?;
        budget.take(at, library.name().len())?;
        let name = text(library.name());
        let mut used: Vec<String> = versions.remove(&name).unwrap_or_default().into_iter().collect();
        if let ImportLibraryFlags::MachO { compatibility_version, .. } = library.flags() {
            used.push(compatibility_version.to_string());
        }
        image.needs(Needed { name, versions: used });
    }
    Ok(())
}

/// A `u32` at an address, where it is data that the file holds, not code.
fn constant(file: &File<'_>, address: u64) -> Option<u32> {
    // ELF says what a symbol is; where it says "function", the first bytes there are no number.
    let is_function = file
        .dynamic_symbols()
        .any(|symbol| symbol.address() == address && symbol.kind() == object::SymbolKind::Text);
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
    at: &At<'_>,
    budget: &Budget,
    elf: &object::read::elf::ElfFile<'_, Elf>,
    image: &mut Builder,
) -> Result<(), Error> {
    // Imports were read from the same table, so it is there or the file has none.
    let Ok(table) = elf.elf_dynamic_table() else { return Ok(()) };
    let (mut rpath, mut runpath) = (None, None);
    for dynamic in table.iter() {
        let place = match dynamic.tag {
            object::elf::DT_SONAME => &mut image.soname,
            object::elf::DT_RPATH => &mut rpath,
            object::elf::DT_RUNPATH => &mut runpath,
            // Everything else is for the loader.
            _ => continue,
        };
        let Ok(string) = table.string(dynamic) else { continue };
        budget.take(at, string.len())?;
        *place = Some(text(string));
    }
    // RPATH counts only where there is no RUNPATH.
    image.rpath_first = runpath.is_none() && rpath.is_some();
    let paths = runpath.or(rpath).unwrap_or_default();
    image.search_paths = paths.split(':').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    Ok(())
}

/// Holds the lists of versions, each of which may have lists of its own, against the budget.
fn elf_versions<Elf: object::read::elf::FileHeader>(
    at: &At<'_>,
    budget: &Budget,
    elf: &object::read::elf::ElfFile<'_, Elf>,
) -> Result<(), Error> {
    let (endian, data, sections) = (elf.endian(), elf.data(), elf.elf_section_table());
    let malformed = |error: object::Error| at.malformed(error);
    let Some((_, link)) = sections.gnu_versym(endian, data).map_err(malformed)? else { return Ok(()) };
    let table = sections.symbol_table_by_index(endian, data, link).map_err(malformed)?;
    let strings = table.strings();
    if let Some((mut definitions, _)) = sections.gnu_verdef(endian, data).map_err(malformed)? {
        while let Some((_, mut names)) = definitions.next().map_err(malformed)? {
            let name = names.next().map_err(malformed)?.and_then(|name| name.name(endian, strings).ok());
            budget.take(at, name.map_or(0, <[u8]>::len))?;
        }
    }
    if let Some((mut needs, _)) = sections.gnu_verneed(endian, data).map_err(malformed)? {
        while let Some((need, mut names)) = needs.next().map_err(malformed)? {
            let file = need.file(endian, strings).map_or(0, <[u8]>::len);
            budget.take(at, file)?;
            while let Some(name) = names.next().map_err(malformed)? {
                // The file's name is read again for each version.
                budget.take(at, name.name(endian, strings).map_or(0, <[u8]>::len).saturating_add(file))?;
            }
        }
    }
    Ok(())
}

/// Holds the table of exports against the budget, and refuses one that is no tree.
fn macho_exports<Mach: object::read::macho::MachHeader>(
    at: &At<'_>,
    budget: &Budget,
    macho: &object::read::macho::MachOFile<'_, Mach>,
) -> Result<(), Error> {
    let (endian, data) = (macho.endian(), macho.data());
    let malformed = |error: object::Error| at.malformed(error);
    let mut commands = macho.macho_load_commands().map_err(malformed)?;
    while let Some(command) = commands.next().map_err(malformed)? {
        let exports = if let Some(exports) = command.dyld_exports_trie().map_err(malformed)? {
            exports.data(endian, data)
        } else if let Some(info) = command.dyld_info().map_err(malformed)? {
            info.export_data(endian, data)
        } else {
            continue;
        };
        trie::check(at, budget, exports.map_err(malformed)?)?;
    }
    Ok(())
}

/// The length of the name that a forwarded export leads to.
fn forwarded(target: &ExportTarget<'_>) -> usize {
    match target {
        ExportTarget::Reexport { library, name } => match name {
            NameOrOrdinal::Name(name) => library.len().saturating_add(name.len()),
            NameOrOrdinal::Ordinal(_) => library.len(),
        },
        // Addresses.
        _ => 0,
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
pub(super) fn tables(
    at: &At<'_>,
    budget: &Budget,
    file: &File<'_>,
    image: &mut Builder,
    local_too: bool,
) -> Result<(), Error> {
    for symbol in file.symbols() {
        let Ok(name) = symbol.name_bytes() else { continue };
        budget.take(at, name.len())?;
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
    Ok(())
}
