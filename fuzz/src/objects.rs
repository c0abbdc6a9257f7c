//! Libraries of every system: read, and everything that follows from their names computed.

use crate::foreign;
use crate::seeds::Seed;
use gristmill_probe::analyze::{Facts, analyze_bytes};
use object::{Architecture, BinaryFormat, macho};
use std::path::Path;

/// Never panics; what is read is in order.
pub fn run(data: &[u8]) {
    match analyze_bytes(Path::new("libfuzz-ggml-cpu-x.so"), data) {
        Ok(analysis) => {
            for image in &analysis.images {
                let facts = Facts::of(image, &analysis.path);
                assert!(facts.families.iter().all(|evidence| !evidence.symbols.is_empty()));
                assert!(image.defined.is_sorted() && image.undefined.is_sorted());
                let _ = image.soname_version();
            }
            let _ = analysis.architectures();
            for system in ["linux", "macos", "windows"] {
                let _ = analysis.fits_system(system);
            }
            let _ = analysis.library();
        }
        Err(error) => assert!(error.to_string().starts_with('`'), "{error}"),
    }
}

/// What the tests of the probe read, and what the system's compiler makes, where there is one.
pub fn seeds() -> Vec<Seed> {
    const DEFINED: [&str; 3] = ["ggml_vec_dot_i2_i8_s", "_ZN5llama4initEv", "bitnet_abi_version"];
    const UNDEFINED: [&str; 2] = ["ggml_backend_cuda_reg", "malloc"];
    let dylib = |cpu| foreign::dylib(cpu, &DEFINED, &UNDEFINED);
    let object = |format, arch| foreign::object_file(format, arch, &DEFINED, &UNDEFINED);
    let two = [
        ("one.o", object(BinaryFormat::Elf, Architecture::X86_64)),
        ("the-second-with-a-long-name.o", object(BinaryFormat::Elf, Architecture::X86_64)),
    ];
    let both = [
        (macho::CPU_TYPE_ARM64, dylib(macho::CPU_TYPE_ARM64)),
        (macho::CPU_TYPE_X86_64, dylib(macho::CPU_TYPE_X86_64)),
    ];
    let import = foreign::import_member("llama_x", "llama.dll");
    let mut seeds = vec![
        ("dylib", dylib(macho::CPU_TYPE_X86_64)),
        ("universal", foreign::universal(&both)),
        ("dll", foreign::dll(&DEFINED, &UNDEFINED)),
        ("import_library", foreign::archive(&[("llama.dll", import.clone())])),
        ("import_member", import),
        ("coff", object(BinaryFormat::Coff, Architecture::X86_64)),
        ("elf32", object(BinaryFormat::Elf, Architecture::Arm)),
        ("archive", foreign::archive(&two)),
        ("archive_macho", foreign::archive(&[("m.o", object(BinaryFormat::MachO, Architecture::Aarch64))])),
    ];
    seeds.extend(shared_library().map(|bytes| ("shared", bytes)));
    seeds.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

/// A shared library with all that a linker writes.
fn shared_library() -> Option<Vec<u8>> {
    const SOURCE: &str = "const unsigned bitnet_abi_version = 7; extern void *malloc(unsigned long);\n\
                          void *llama_x(void) { return malloc(1); }\n";
    let folder = tempfile::tempdir().ok()?;
    let (source, library) = (folder.path().join("made.c"), folder.path().join("libmade.so"));
    std::fs::write(&source, SOURCE).ok()?;
    let made = std::process::Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-shared", "-fPIC", "-s", "-Wl,-soname,libllama.so.3", "-o"])
        .arg(&library)
        .arg(source)
        .status();
    made.is_ok_and(|status| status.success()).then(|| std::fs::read(&library).ok())?
}
