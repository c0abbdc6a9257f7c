//! Libraries of other systems, written with the writer of the crate `object`.
#![allow(dead_code, reason = "each test file uses a part of this")]

use object::write::macho::{
    DylibCommand, Encoder, MachHeader, Nlist, SectionHeader, SegmentCommand, SymtabCommand,
};
use object::write::pe::{NtHeaders, Writer};
use object::write::{Object, Symbol, SymbolSection};
use object::{Architecture, BinaryFormat, Endianness, SymbolFlags, SymbolKind, SymbolScope, macho, pe};

fn name16(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

/// A version of Apple's: 1.2.3.
fn version(x: u32, y: u32, z: u32) -> macho::Version {
    macho::Version(x << 16 | y << 8 | z)
}

/// A dynamic library of macOS for a processor, with these names defined and these undefined.
pub fn dylib(cpu: macho::CpuType, defined: &[&str], undefined: &[&str]) -> Vec<u8> {
    let encoder = Encoder::new(Endianness::Little, true);
    let id = b"@rpath/libllama.0.dylib";
    let needed = b"@rpath/libggml.0.dylib";
    let rpath = b"@loader_path/deps\0\0\0";
    let code = 16u64;
    let commands = [
        encoder.segment_command_size(1),
        encoder.dylib_command_size(id.len()),
        encoder.dylib_command_size(needed.len()),
        encoder.load_command_size(4 + rpath.len() as u64),
        encoder.symtab_command_size(),
    ];
    let size: u64 = commands.iter().sum();
    let code_at = encoder.mach_header_size() + size;
    let symbols_at = code_at + code;
    let count = defined.len() + undefined.len();
    let strings_at = symbols_at + encoder.nlist_size() * count as u64;
    let mut strings = vec![0u8];
    let mut place = |name: &str| {
        let at = strings.len() as u32;
        strings.extend(b"_");
        strings.extend(name.as_bytes());
        strings.push(0);
        at
    };
    let places: Vec<u32> = defined.iter().chain(undefined).map(|name| place(name)).collect();

    let mut out = Vec::new();
    encoder.mach_header(
        &mut out,
        &MachHeader {
            cputype: cpu,
            cpusubtype: macho::CpuSubtype(0),
            filetype: macho::MH_DYLIB,
            ncmds: commands.len() as u32,
            sizeofcmds: size as u32,
            flags: macho::MH_TWOLEVEL,
        },
    );
    encoder.segment_command(
        &mut out,
        &SegmentCommand {
            segname: name16("__TEXT"),
            vmaddr: 0,
            vmsize: 0x4000,
            fileoff: 0,
            filesize: strings_at + strings.len() as u64,
            maxprot: macho::VmProt(5),
            initprot: macho::VmProt(5),
            nsects: 1,
            flags: macho::SegmentFlags(0),
        },
    );
    encoder.section_header(
        &mut out,
        &SectionHeader {
            sectname: name16("__text"),
            segname: name16("__TEXT"),
            addr: code_at,
            size: code,
            offset: code_at as u32,
            align: 2,
            reloff: 0,
            nreloc: 0,
            flags: macho::SectionFlags(0x8000_0400),
            reserved1: 0,
            reserved2: 0,
            reserved3: 0,
        },
    );
    for (cmd, name) in [(macho::LC_ID_DYLIB, &id[..]), (macho::LC_LOAD_DYLIB, &needed[..])] {
        let dylib = DylibCommand {
            cmd,
            name,
            timestamp: 0,
            current_version: version(1, 2, 3),
            compatibility_version: version(1, 0, 0),
        };
        encoder.dylib_command(&mut out, &dylib);
    }
    let mut path = 12u32.to_le_bytes().to_vec();
    path.extend(rpath);
    encoder.load_command(&mut out, macho::LC_RPATH, &path);
    encoder.symtab_command(
        &mut out,
        &SymtabCommand {
            symoff: symbols_at as u32,
            nsyms: count as u32,
            stroff: strings_at as u32,
            strsize: strings.len() as u32,
        },
    );
    assert_eq!(out.len() as u64, code_at);
    out.extend([0u8; 16]);
    for (index, at) in places.iter().enumerate() {
        let defined = index < defined.len();
        let nlist = Nlist {
            n_strx: *at,
            n_type: macho::SymbolFlags(if defined { 0x0F } else { 0x01 }),
            n_sect: u8::from(defined),
            n_desc: macho::SymbolDesc(if defined { 0 } else { 0x0100 }),
            n_value: if defined { code_at } else { 0 },
        };
        encoder.nlist(&mut out, &nlist);
    }
    out.extend(strings);
    out
}

/// A universal file of several.
pub fn universal(parts: &[(macho::CpuType, Vec<u8>)]) -> Vec<u8> {
    let mut out = 0xCAFE_BABEu32.to_be_bytes().to_vec();
    out.extend((parts.len() as u32).to_be_bytes());
    let mut at = 0x1000u32;
    for (cpu, part) in parts {
        for word in [cpu.0, 0, at, part.len() as u32, 12] {
            out.extend(word.to_be_bytes());
        }
        at = (at + part.len() as u32).next_multiple_of(0x1000);
    }
    for (_, part) in parts {
        out.resize(out.len().next_multiple_of(0x1000), 0);
        out.extend(part);
    }
    out
}

/// A DLL that exports these names and imports those from `ggml.dll`.
pub fn dll(exports: &[&str], imports: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = Writer::new(true, 0x1000, 0x200, &mut out);
    writer.reserve_dos_header_and_stub();
    writer.reserve_nt_headers(16);
    writer.reserve_section_headers(3);
    let text = writer.reserve_text_section(16);
    let edata_size = export_table(0, text.virtual_address, exports).len() as u32;
    let edata = writer.reserve_edata_section(edata_size);
    let idata_size = import_table(0, imports).len() as u32;
    let idata = writer.reserve_idata_section(idata_size);
    writer.write_dos_header_and_stub().expect("it fits");
    writer.write_nt_headers(NtHeaders {
        machine: pe::IMAGE_FILE_MACHINE_AMD64,
        time_date_stamp: 0,
        characteristics: pe::IMAGE_FILE_DLL | pe::IMAGE_FILE_EXECUTABLE_IMAGE,
        major_linker_version: 0,
        minor_linker_version: 0,
        address_of_entry_point: 0,
        image_base: 0x1_8000_0000,
        major_operating_system_version: 6,
        minor_operating_system_version: 0,
        major_image_version: 0,
        minor_image_version: 0,
        major_subsystem_version: 6,
        minor_subsystem_version: 0,
        subsystem: pe::IMAGE_SUBSYSTEM_WINDOWS_CUI,
        dll_characteristics: pe::DllFlags(0),
        size_of_stack_reserve: 0,
        size_of_stack_commit: 0,
        size_of_heap_reserve: 0,
        size_of_heap_commit: 0,
    });
    writer.write_section_headers();
    writer.write_section(text.file_offset, &[0xC3; 16]);
    writer.write_section(
        edata.file_offset,
        &export_table(edata.virtual_address, text.virtual_address, exports),
    );
    writer.write_section(idata.file_offset, &import_table(idata.virtual_address, imports));
    out
}

fn export_table(base: u32, code: u32, names: &[&str]) -> Vec<u8> {
    let count = names.len() as u32;
    let (addresses, pointers) = (base + 40, base + 40 + 4 * count);
    let ordinals = pointers + 4 * count;
    let strings_at = ordinals + 2 * count;
    let mut strings = b"llama.dll\0".to_vec();
    let places: Vec<u32> = names
        .iter()
        .map(|name| {
            let at = strings_at + strings.len() as u32;
            strings.extend(name.as_bytes());
            strings.push(0);
            at
        })
        .collect();
    let mut out = Vec::new();
    for word in [0, 0, 0, strings_at, 1, count, count, addresses, pointers, ordinals] {
        out.extend(word.to_le_bytes());
    }
    for _ in names {
        out.extend(code.to_le_bytes());
    }
    for at in places {
        out.extend(at.to_le_bytes());
    }
    for ordinal in 0..count as u16 {
        out.extend(ordinal.to_le_bytes());
    }
    out.extend(strings);
    out
}

fn import_table(base: u32, names: &[&str]) -> Vec<u8> {
    let thunks = (names.len() + 1) * 8;
    let (lookup, address) = (base + 40, base + 40 + thunks as u32);
    let hints_at = address + thunks as u32;
    let mut hints = Vec::new();
    let places: Vec<u32> = names
        .iter()
        .map(|name| {
            let at = hints_at + hints.len() as u32;
            hints.extend([0, 0]);
            hints.extend(name.as_bytes());
            hints.push(0);
            at
        })
        .collect();
    let dll = hints_at + hints.len() as u32;
    let mut out = Vec::new();
    for word in [lookup, 0, 0, dll, address, 0, 0, 0, 0, 0] {
        out.extend(word.to_le_bytes());
    }
    for _ in 0..2 {
        for at in &places {
            out.extend(u64::from(*at).to_le_bytes());
        }
        out.extend(0u64.to_le_bytes());
    }
    out.extend(hints);
    out.extend(b"ggml.dll\0");
    out
}

/// What a DLL offers, as one member of an import library.
pub fn import_member(symbol: &str, dll: &str) -> Vec<u8> {
    let data = [symbol.as_bytes(), b"\0", dll.as_bytes(), b"\0"].concat();
    let mut out = Vec::new();
    // Signature, version, machine, time, size, ordinal, type: code by name.
    out.extend([0u8, 0, 0xFF, 0xFF, 0, 0]);
    out.extend(pe::IMAGE_FILE_MACHINE_AMD64.0.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    out.extend((data.len() as u32).to_le_bytes());
    out.extend(0u16.to_le_bytes());
    out.extend(4u16.to_le_bytes());
    out.extend(data);
    out
}

/// A table of an import library: an object with one name in a section of this name.
pub fn import_table_part(name: &str, section: &str) -> Vec<u8> {
    let mut object = Object::new(BinaryFormat::Coff, Architecture::X86_64, Endianness::Little);
    let section = object.add_section(Vec::new(), section.as_bytes().to_vec(), object::SectionKind::Data);
    let symbol = object.add_symbol(Symbol {
        name: name.as_bytes().to_vec(),
        value: 0,
        size: 0,
        kind: SymbolKind::Data,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Undefined,
        flags: SymbolFlags::None,
    });
    object.add_symbol_data(symbol, section, &[0; 20], 4);
    object.write().expect("it can be written")
}

/// An archive of these members.
pub fn archive(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut out = b"!<arch>\n".to_vec();
    for (name, data) in members {
        out.extend(
            format!("{:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", format!("{name}/"), 0, 0, 0, 644, data.len())
                .into_bytes(),
        );
        out.extend(data);
        if data.len() % 2 == 1 {
            out.push(b'\n');
        }
    }
    out
}

/// An object file with these names defined and these undefined.
pub fn object_file(
    format: BinaryFormat,
    arch: Architecture,
    defined: &[&str],
    undefined: &[&str],
) -> Vec<u8> {
    let mut object = Object::new(format, arch, Endianness::Little);
    let text = object.section_id(object::write::StandardSection::Text);
    let defined = defined.iter().map(|name| (name, true));
    for (name, is_defined) in defined.chain(undefined.iter().map(|name| (name, false))) {
        let symbol = object.add_symbol(Symbol {
            name: name.as_bytes().to_vec(),
            value: 0,
            size: 0,
            kind: SymbolKind::Text,
            scope: if is_defined { SymbolScope::Dynamic } else { SymbolScope::Unknown },
            weak: false,
            section: SymbolSection::Undefined,
            flags: SymbolFlags::None,
        });
        if is_defined {
            object.add_symbol_data(symbol, text, &[0xC3, 0, 0, 0], 4);
        }
    }
    object.write().expect("it can be written")
}
