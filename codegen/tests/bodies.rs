//! Bodies in C and C++: the header that they are given, what compilers say of them, and which are compiled at all.

use gristmill_codegen::builder::BuildError;
use gristmill_codegen::c::{Built, Target, build, header, units};
use gristmill_codegen::{Options, compile};
use gristmill_spec::model::SpecSet;
use gristmill_spec::{SourceFile, check, render, shipped};
use std::path::{Path, PathBuf};
use std::process::Command;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const KERNEL: &str = "doc = \"x\"\nop = \"dequantize\"\nformats = [\"q8_0\"]\n\n[[cpu]]\nisa = \"scalar\"\n\n\
    [[cpu]]\nisa = \"avx2\"\nbody = \"mine.c\"\nfunction = \"mine\"\n";
const BODY: &str = "static gm_fault mine(const uint8_t *src, float *dst, size_t blocks, float outer) {\n    \
    (void)outer;\n    for (size_t i = 0; i < blocks * GM_ELEMENTS; ++i) dst[i] = src[i % GM_BYTES];\n    \
    return blocks ? gm_invalid_code(blocks) : GM_DONE;\n}\n";

/// A folder with specs and their bodies.
struct Folder {
    folder: tempfile::TempDir,
    sources: Vec<SourceFile>,
}

impl Folder {
    fn new(files: &[(&str, &str)]) -> std::io::Result<Folder> {
        let folder = tempfile::tempdir()?;
        let mut sources = shipped()?;
        sources.retain(|s| !s.path.contains("/kernels/") && !s.path.ends_with("coverage.toml"));
        std::fs::create_dir(folder.path().join("kernels"))?;
        for (path, text) in files {
            std::fs::write(folder.path().join(path), text)?;
            sources.push(SourceFile { path: (*path).to_owned(), bytes: text.as_bytes().to_vec() });
        }
        Ok(Folder { folder, sources })
    }

    fn set(&self) -> SpecSet {
        let report = check(&self.sources);
        report.set.unwrap_or_else(|| panic!("{}", render(&self.sources, &report.diagnostics, false)))
    }

    /// Compiled for x86-64, by the usual compiler or another one.
    fn build(&self, compiler: Option<PathBuf>) -> Result<Built, String> {
        self.build_for(("x86_64", "x86_64-unknown-linux-gnu"), compiler)
    }

    fn build_for(&self, (arch, triple): (&str, &str), compiler: Option<PathBuf>) -> Result<Built, String> {
        let path = self.folder.path();
        let target = Target {
            package: "somebody".to_owned(),
            root: path.to_owned(),
            out: path.to_owned(),
            arch: arch.to_owned(),
            cargo: Some((triple.to_owned(), "x86_64-unknown-linux-gnu".to_owned(), "2".to_owned())),
            compiler,
        };
        build(&self.set(), &target).map_err(|errors| {
            let BuildError::Specs(said) = BuildError::refused(&self.sources, errors) else {
                panic!("a report")
            };
            said.replace(&path.display().to_string(), "FOLDER")
        })
    }
}

fn has(command: &str) -> bool {
    let found = Command::new(command).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: there is no {command}");
    }
    found
}

/// The header is the table of calls in C; `BLESS=1` rewrites it.
#[test]
fn the_header_reads_as_blessed() -> Outcome {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gristmill.h");
    let text = header().replace(env!("CARGO_PKG_VERSION"), "VERSION");
    if std::env::var_os("BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, &text)?;
    }
    assert_eq!(std::fs::read_to_string(&path)?, text);
    Ok(())
}

/// The kernel and the body that the reference shows compile as they stand there.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_reference_shows_a_body_that_compiles() -> Outcome {
    if !has("cc") {
        return Ok(());
    }
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/spec-reference.md"))?;
    let block = |start: &str| {
        let (_, rest) = page.split_once(start).ok_or_else(|| format!("the reference has no `{start}`"))?;
        rest.split_once("```").map(|(block, _)| block.to_owned()).ok_or("a block without an end".to_owned())
    };
    // Beside the reference of the op, which each has; the format is one that there is.
    let kernel = block("```toml\n# kernels/dequantize_mine.toml\n")?.replace("my_format", "q8_0");
    let kernel = kernel.replace("[[cpu]]", "[[cpu]]\nisa = \"scalar\"\n\n[[cpu]]");
    let body = block("```c\n/* kernels/mine.c */\n")?;
    let folder = Folder::new(&[("kernels/dequantize_mine.toml", &kernel), ("kernels/mine.c", &body)])?;
    let built = folder.build(None)?;
    // What its loop does is a comment, so parameters are not used.
    let is_other = |line: &&String| line.contains("warning:") && !line.contains("unused parameter");
    assert_eq!((built.objects.len(), built.warnings.iter().find(is_other)), (1, None));
    Ok(())
}

#[test]
#[cfg(target_arch = "x86_64")]
fn units_export_their_kernels() -> Outcome {
    for (name, compiler) in [("mine.c", "cc"), ("mine.cc", "c++")] {
        if !has(compiler) {
            continue;
        }
        let kernel = KERNEL.replace("mine.c", name);
        let folder = Folder::new(&[("kernels/k.toml", &kernel), (&format!("kernels/{name}"), BODY)])?;
        let built = folder.build(None)?;
        let set = folder.set();
        let [unit] = &units(&set, "somebody")[..] else { panic!("one unit") };
        assert_eq!((unit.kernel.as_str(), unit.block), ("k.q8_0.avx2", Some((32, 34))));
        assert_eq!((built.objects.len(), built.cpp, built.warnings), (1, name == "mine.cc", Vec::new()));
        let object = std::fs::read(&built.objects[0])?;
        let symbol = [b"\0", unit.symbol.as_bytes(), b"\0"].concat();
        assert!(object.windows(symbol.len()).any(|bytes| bytes == symbol), "{}", unit.symbol);
        assert!(built.compiler.contains("-O2"), "{}", built.compiler);
        // Nothing of it runs on another architecture, so no compiler for one is looked for.
        let other =
            folder.build_for(("aarch64", "aarch64-unknown-linux-gnu"), Some("/nonexistent/cc".into()))?;
        assert!(other.objects.is_empty() && other.compiler.is_empty());
    }
    Ok(())
}

#[test]
fn functions_have_the_name_of_a_package_a_kernel_and_a_text() -> Outcome {
    let symbol = |package, body: &str| {
        let folder = Folder::new(&[("kernels/k.toml", KERNEL), ("kernels/mine.c", body)])?;
        Ok::<String, std::io::Error>(units(&folder.set(), package)[0].symbol.clone())
    };
    let one = symbol("somebody", BODY)?;
    assert!(one.starts_with("gristmill_mine_"), "{one}");
    assert_eq!(one, symbol("somebody", BODY)?);
    assert_ne!(one, symbol("somebody else", BODY)?);
    assert_ne!(one, symbol("somebody", &BODY.replace("blocks ?", "blocks  ?"))?);
    Ok(())
}

/// The text of a body and of what it includes, and its compiler, are part of its kernel's id and of no other one's.
#[test]
fn kernels_have_the_identity_of_their_text_and_compiler() -> Outcome {
    let body = format!("#include \"mine.h\"\n{BODY}");
    let ids = |body: &str, included: &str, compiler: &str| -> Result<[u64; 2], Box<dyn std::error::Error>> {
        let files = [("kernels/k.toml", KERNEL), ("kernels/mine.c", body), ("kernels/mine.h", included)];
        let folder = Folder::new(&files)?;
        let mut set = folder.set();
        let keep: Vec<bool> = set.formats.iter().map(|format| format.name == "q8_0").collect();
        set.retain_formats(&keep);
        let options = Options { c_compiler: compiler.to_owned(), ..Options::default() };
        let compiled = compile(&set, &folder.sources, &options).map_err(|errors| format!("{errors:?}"))?;
        let id =
            |name: &str| compiled.kernels.iter().find(|kernel| kernel.name == name).map(|kernel| kernel.id);
        Ok([id("k.q8_0.scalar").ok_or("listed")?, id("k.q8_0.avx2").ok_or("listed")?])
    };
    let [scalar, avx2] = ids(&body, "", "gcc 1")?;
    for changed in [
        ids(&body.replace("blocks ?", "blocks  ?"), "", "gcc 1")?,
        ids(&body, "\n", "gcc 1")?,
        ids(&body, "", "gcc 2")?,
    ] {
        assert_eq!(changed[0], scalar);
        assert_ne!(changed[1], avx2);
    }
    assert_eq!(ids(&body, "", "gcc 1")?, [scalar, avx2]);
    Ok(())
}

#[test]
fn a_compiler_that_is_missing_is_an_error_with_its_place() -> Outcome {
    let folder = Folder::new(&[("kernels/k.toml", KERNEL), ("kernels/mine.c", BODY)])?;
    let said = folder.build(Some("/nonexistent/cc".into())).expect_err("no compiler");
    assert_eq!(
        said,
        "error[body-compiler]: the compiler of C `/nonexistent/cc` can't be started: No such file or directory (os error 2)\n  \
         --> kernels/k.toml:10:8\n   |\n10 | body = \"mine.c\"\n   |        ^^^^^^^^\n   |\n   \
         = help: install gcc or clang for x86_64, or name one in the environment variable CC (for one target alone CC_TARGET); \
         or leave this variant out\n\nfound 1 error\n"
    );
    Ok(())
}

/// A compiler that is older than an instruction set.
#[test]
#[cfg(all(unix, target_arch = "x86_64"))]
fn an_option_that_is_missing_is_named() -> Outcome {
    use std::os::unix::fs::PermissionsExt;
    if !has("cc") {
        return Ok(());
    }
    let folder = Folder::new(&[("kernels/k.toml", KERNEL), ("kernels/mine.c", BODY)])?;
    let old = folder.folder.path().join("old-cc");
    let script = "#!/bin/sh\nfor o in \"$@\"; do if [ \"$o\" = -mf16c ]; then echo \"error: unknown option -mf16c\" >&2; exit 1; fi; done\n\
        exec cc \"$@\"\n";
    std::fs::write(&old, script)?;
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o755))?;
    let said = folder.build(Some(old)).expect_err("an old compiler");
    assert!(
        said.starts_with(
            "error[body-compiler]: `FOLDER/old-cc` does not know `-mf16c`, which `k.q8_0.avx2` needs\n"
        ),
        "{said}"
    );
    assert!(said.contains("= help: it says: error: unknown option -mf16c"), "{said}");
    Ok(())
}

/// Mistakes and other signatures, with what the compiler says.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_body_that_is_refused_is_an_error_with_its_place() -> Outcome {
    let edits = [
        ("size_t blocks", "int blocks"),
        ("GM_DONE", "GM_DON"),
        ("gm_fault mine", "int mine"),
        ("float *dst", "double *dst"),
    ];
    for (name, compiler) in [("mine.c", "cc"), ("mine.cpp", "c++")] {
        if !has(compiler) {
            continue;
        }
        for (from, to) in edits {
            let (kernel, body) = (KERNEL.replace("mine.c", name), BODY.replacen(from, to, 1));
            let folder = Folder::new(&[("kernels/k.toml", &kernel), (&format!("kernels/{name}"), &body)])?;
            let said = folder.build(None).expect_err(to);
            assert!(said.starts_with("error[body-refused]: `"), "{said}");
            assert!(
                said.contains(&format!(" refuses `kernels/{name}`, the body of `k.q8_0.avx2`")),
                "{said}"
            );
            assert!(said.contains("--> kernels/k.toml:10:8"), "{said}");
            assert!(said.contains("error: "), "what the compiler says: {said}");
        }
    }
    Ok(())
}
