//! Files of one part: objects, shared libraries, programs.

use super::at::At;
use super::budget::Budget;
use super::builder::Builder;
use super::kind::{Arch, Container, Kind};
use super::linked::{linked, tables};
use crate::error::Error;
use object::{Architecture, BinaryFormat, File, Object, ObjectKind, ObjectSection, ObjectSegment};

/// The start of a file of LLVM bitcode, plain and wrapped.
pub(super) const BITCODE: [[u8; 4]; 2] = [*b"BC\xC0\xDE", [0xDE, 0xC0, 0x17, 0x0B]];

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
