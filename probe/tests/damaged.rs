//! No input makes the analysis panic, loop or take memory without bound: files of every kind, cut off everywhere,
//! with bytes changed, and noise behind every magic number.

#[path = "foreign/mod.rs"]
mod files;

use gristmill_probe::analyze::{Facts, analyze_bytes};
use object::{Architecture, BinaryFormat, macho};
use proptest::prelude::*;
use std::path::Path;
use std::sync::LazyLock;

const DEFINED: [&str; 3] = ["ggml_vec_dot_i2_i8_s", "_ZN5llama4initEv", "bitnet_abi_version"];
const UNDEFINED: [&str; 2] = ["ggml_backend_cuda_reg", "malloc"];

/// One file of each kind.
static SEEDS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let dylib = |cpu| files::dylib(cpu, &DEFINED, &UNDEFINED);
    let object = |format, arch| files::object_file(format, arch, &DEFINED, &UNDEFINED);
    let mut seeds = vec![
        dylib(macho::CPU_TYPE_X86_64),
        files::universal(&[
            (macho::CPU_TYPE_ARM64, dylib(macho::CPU_TYPE_ARM64)),
            (macho::CPU_TYPE_X86_64, dylib(macho::CPU_TYPE_X86_64)),
        ]),
        files::dll(&DEFINED, &UNDEFINED),
        files::archive(&[("llama.dll", files::import_member("llama_x", "llama.dll"))]),
        files::import_member("llama_x", "llama.dll"),
        object(BinaryFormat::Coff, Architecture::X86_64),
        object(BinaryFormat::Elf, Architecture::Arm),
        files::archive(&[
            ("one.o", object(BinaryFormat::Elf, Architecture::X86_64)),
            ("the-second.o", object(BinaryFormat::Elf, Architecture::X86_64)),
        ]),
        files::archive(&[("m.o", object(BinaryFormat::MachO, Architecture::Aarch64))]),
    ];
    #[cfg(unix)]
    seeds.push(real());
    seeds
});

/// A shared library with versions and everything else that a linker writes.
#[cfg(unix)]
fn real() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("real.c");
    let code = "const unsigned bitnet_abi_version = 7; extern void *malloc(unsigned long);
                void *llama_x(void) { return malloc(1); }";
    std::fs::write(&source, code).expect("writable");
    let library = folder.path().join("libreal.so");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = std::process::Command::new(compiler)
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    assert!(status.expect("there is a C compiler").success());
    std::fs::read(library).expect("readable")
}

/// Whatever it is: read, and everything that follows computed. Errors are texts for people.
fn look(bytes: &[u8]) {
    match analyze_bytes(Path::new("any"), bytes) {
        Ok(analysis) => {
            for image in &analysis.images {
                let facts = Facts::of(image, &analysis.path);
                assert!(facts.families.iter().all(|evidence| !evidence.symbols.is_empty()));
                assert!(image.defined.is_sorted() && image.undefined.is_sorted());
            }
        }
        Err(error) => assert!(error.to_string().starts_with('`'), "{error}"),
    }
}

#[test]
fn seeds_are_whole() {
    for (index, seed) in SEEDS.iter().enumerate() {
        assert!(
            analyze_bytes(Path::new("seed"), seed).is_ok(),
            "seed {index}: {:?}",
            analyze_bytes(Path::new("seed"), seed)
        );
    }
}

#[test]
fn every_prefix() {
    for seed in SEEDS.iter() {
        // Every length of the headers, then every so often.
        let lengths = (0..seed.len().min(1200)).chain((1200..seed.len()).step_by(61));
        for length in lengths {
            look(&seed[..length]);
        }
    }
}

#[test]
fn every_header_byte_at_its_extremes() {
    for seed in SEEDS.iter() {
        for at in 0..seed.len().min(1500) {
            for value in [0x00, 0xFF, 0x7F, 0x80, seed[at] ^ 1] {
                let mut changed = seed.clone();
                changed[at] = value;
                look(&changed);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn scattered_changes(
        seed in 0..SEEDS.len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        words in proptest::collection::vec((any::<prop::sample::Index>(), any::<u32>()), 0..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = SEEDS[seed].clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        for (at, value) in words {
            let at = at.index(bytes.len() / 4) * 4;
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        look(&bytes);
    }

    #[test]
    fn noise_behind_a_magic_number(magic in 0..9usize, noise in proptest::collection::vec(any::<u8>(), 0..400)) {
        let magics: [&[u8]; 9] = [
            b"\x7FELF\x02\x01\x01", b"\x7FELF\x01\x02\x01", b"!<arch>\n", b"!<thin>\n", b"\xCF\xFA\xED\xFE",
            b"\xCA\xFE\xBA\xBE\0\0\0\x02", b"MZ", b"\0\0\xFF\xFF\0\0\x64\x86", b"",
        ];
        look(&[magics[magic], &noise].concat());
    }
}
