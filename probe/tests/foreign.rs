//! Libraries of macOS and Windows, and object files of any system, read on every system.

#[path = "foreign/mod.rs"]
mod files;

use gristmill_probe::analyze::{Facts, analyze_bytes};
use gristmill_probe::{Analysis, Arch, Container, Device, Error, Family, Kind};
use object::{Architecture, BinaryFormat, macho};
use std::path::Path;

fn read(name: &str, bytes: &[u8]) -> Result<Analysis, Error> {
    analyze_bytes(Path::new(name), bytes)
}

const DEFINED: [&str; 3] = ["ggml_vec_dot_i2_i8_s", "llama_backend_init", "quantize_i2_s"];
const UNDEFINED: [&str; 2] = ["ggml_backend_cuda_reg", "malloc"];

fn names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    names.map(str::to_owned).collect()
}

#[test]
fn a_dylib() {
    let bytes = files::dylib(macho::CPU_TYPE_ARM64, &DEFINED, &UNDEFINED);
    let analysis = read("libllama.0.dylib", &bytes).expect("a library");
    assert_eq!(analysis.kind, Kind::Shared);
    let [image] = &analysis.images[..] else { panic!("one image") };
    assert_eq!((image.container, &image.arch), (Container::MachO, &Arch::new("aarch64")));
    assert_eq!(names(image.defined_names()), DEFINED, "without the underscore");
    assert_eq!(names(image.undefined_names()), UNDEFINED);
    assert_eq!(image.soname.as_deref(), Some("@rpath/libllama.0.dylib"));
    assert_eq!(image.soname_version(), Some(0));
    assert_eq!(image.version.as_deref(), Some("1.2.3"));
    assert_eq!(image.search_paths, ["@loader_path/deps"]);
    let [needed] = &image.needed[..] else { panic!("one library: {:?}", image.needed) };
    assert_eq!(
        (needed.name.as_str(), &needed.versions[..]),
        ("@rpath/libggml.0.dylib", &["1.0.0".to_owned()][..])
    );
    let facts = Facts::of(image, &analysis.path);
    assert!(facts.computes(Family::I2S, Device::Cpu) && !facts.has_cuda());
    assert!(analysis.fits_system("macos").is_ok() && analysis.fits_system("linux").is_err());
}

#[test]
fn a_universal_dylib_has_an_image_for_each_architecture() {
    let arm = files::dylib(macho::CPU_TYPE_ARM64, &DEFINED, &UNDEFINED);
    let intel = files::dylib(macho::CPU_TYPE_X86_64, &["llama_backend_init"], &[]);
    let both = files::universal(&[(macho::CPU_TYPE_ARM64, arm), (macho::CPU_TYPE_X86_64, intel)]);
    let analysis = read("libllama.dylib", &both).expect("a library");
    assert_eq!(analysis.architectures(), [Arch::new("aarch64"), Arch::new("x86_64")]);
    assert!(analysis.image(&Arch::new("aarch64")).expect("there").defines("quantize_i2_s"));
    assert!(!analysis.image(&Arch::new("x86_64")).expect("there").defines("quantize_i2_s"));
    let error = analysis.image(&Arch::new("riscv64")).expect_err("not there").to_string();
    assert!(error.contains("aarch64, x86_64") && error.contains("riscv64"), "{error}");
    let error = read("cut.dylib", &both[..both.len() - 100]).expect_err("a part of it");
    assert!(matches!(error, Error::Truncated { .. }), "{error}");
}

#[test]
fn a_dll() {
    let bytes = files::dll(&DEFINED, &["ggml_init", "ggml_backend_cuda_reg"]);
    let analysis = read("llama.dll", &bytes).expect("a library");
    assert_eq!(analysis.kind, Kind::Shared);
    let [image] = &analysis.images[..] else { panic!("one image") };
    assert_eq!((image.container, &image.arch), (Container::Pe, &Arch::new("x86_64")));
    assert_eq!(names(image.defined_names()), DEFINED);
    assert_eq!(names(image.undefined_names()), ["ggml_backend_cuda_reg", "ggml_init"]);
    assert_eq!(image.soname.as_deref(), Some("llama.dll"));
    assert_eq!(image.needed.iter().map(|needed| needed.name.as_str()).collect::<Vec<_>>(), ["ggml.dll"]);
    assert!(!Facts::of(image, &analysis.path).has_cuda());
    assert!(analysis.fits_system("windows").is_ok() && analysis.fits_system("macos").is_err());
    let error = read("cut.dll", &bytes[..bytes.len() - 0x200]).expect_err("a part of it");
    assert!(matches!(error, Error::Truncated { .. }), "{error}");
}

#[test]
fn an_import_library_names_its_dll() {
    let members: Vec<(&str, Vec<u8>)> =
        DEFINED.iter().map(|symbol| ("llama.dll", files::import_member(symbol, "llama.dll"))).collect();
    let analysis = read("llama.lib", &files::archive(&members)).expect("a library");
    assert_eq!(analysis.kind, Kind::Import);
    let [image] = &analysis.images[..] else { panic!("one image") };
    assert_eq!((image.container, &image.arch), (Container::Coff, &Arch::new("x86_64")));
    assert_eq!(names(image.defined_names()), DEFINED);
    assert_eq!(image.soname.as_deref(), Some("llama.dll"));
    // With the tables that linkers put beside them, and only one function.
    let table = |name: &str, section: &str| files::import_table_part(name, section);
    let few = files::archive(&[
        ("llama.dll", table("__IMPORT_DESCRIPTOR_llama", ".idata$2")),
        ("llama.dll", table("__NULL_IMPORT_DESCRIPTOR", ".idata$3")),
        ("llama.dll", table("\u{7f}llama_NULL_THUNK_DATA", ".idata$5")),
        ("llama.dll", files::import_member("llama_x", "llama.dll")),
    ]);
    let few = read("llama.lib", &few).expect("a library");
    assert_eq!((few.kind, names(few.images[0].defined_names())), (Kind::Import, vec!["llama_x".to_owned()]));
    assert_eq!(few.images[0].soname.as_deref(), Some("llama.dll"));
    let alone = read("one.lib", &files::import_member("llama_x", "llama.dll")).expect("a member alone");
    assert_eq!(alone.kind, Kind::Import);
}

#[test]
fn archives_of_every_container() {
    for (format, arch, container, rust) in [
        (BinaryFormat::Coff, Architecture::X86_64, Container::Coff, "x86_64"),
        (BinaryFormat::Elf, Architecture::Aarch64, Container::Elf, "aarch64"),
        (BinaryFormat::Elf, Architecture::Riscv64, Container::Elf, "riscv64"),
        (BinaryFormat::MachO, Architecture::Aarch64, Container::MachO, "aarch64"),
    ] {
        let one = files::object_file(format, arch, &DEFINED, &["ggml_init", "malloc"]);
        let two = files::object_file(format, arch, &["ggml_init"], &[]);
        let analysis = read("libllama.a", &files::archive(&[("one.o", one.clone()), ("two.o", two)]))
            .expect("an archive");
        assert_eq!(analysis.kind, Kind::Static);
        let [image] = &analysis.images[..] else { panic!("one image") };
        assert_eq!((image.container, &image.arch, image.members), (container, &Arch::new(rust), 2));
        let mut expected = vec!["ggml_init"];
        expected.splice(1..1, DEFINED);
        expected.sort_unstable();
        assert_eq!(names(image.defined_names()), expected);
        assert_eq!(names(image.undefined_names()), ["malloc"], "{rust}: resolved inside");
        // Bitcode is counted, not guessed at.
        let mixed = files::archive(&[("one.o", one), ("lto.o", b"BC\xC0\xDE and so on".to_vec())]);
        let mixed = read("libmixed.a", &mixed).expect("an archive");
        assert_eq!((mixed.images[0].members, mixed.images[0].unreadable_members), (2, 1));
    }
    let elf = files::object_file(BinaryFormat::Elf, Architecture::Aarch64, &DEFINED, &[]);
    let other = files::object_file(BinaryFormat::Elf, Architecture::X86_64, &["x"], &[]);
    let error = read("libmixed.a", &files::archive(&[("a.o", elf), ("b.o", other)]))
        .expect_err("two processors")
        .to_string();
    assert!(error.contains("b.o") && error.contains("x86_64") && error.contains("aarch64"), "{error}");
    let error = read("liblto.a", &files::archive(&[("lto.o", b"BC\xC0\xDE and so on".to_vec())]))
        .expect_err("bitcode")
        .to_string();
    assert!(error.contains("link-time optimization"), "{error}");
}
