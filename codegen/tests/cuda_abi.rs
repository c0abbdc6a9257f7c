//! The table of calls: its section in `docs/cuda.md`, how a C++ compiler lays its structs out, and that what units say of
//! themselves is so.

use gristmill_spec::vocab::{CudaAbi, CudaFault};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const BEGIN: &str = "<!-- @generated from the table of calls; `BLESS=1 cargo test -p gristmill-codegen --test cuda_abi` rewrites it. -->\n";
const END: &str = "<!-- end of what is generated -->\n";

/// The section, in Markdown.
fn section() -> Result<String, std::fmt::Error> {
    let mut out = String::from(BEGIN);
    let tables = [("kernel", CudaAbi::KERNELS), ("struct", CudaAbi::STRUCTS)];
    for (what, rows) in tables {
        write!(out, "\n| {what} | parameters, in this order | what it is |\n|---|---|---|\n")?;
        for CudaAbi { name, declarations, doc } in rows {
            let declared = |one: &&str| if one.is_empty() { "(activations)" } else { *one }.to_owned();
            let declarations: Vec<String> = declarations.iter().map(declared).collect();
            writeln!(out, "| `{name}` | `{}` | {doc} |", declarations.join(", "))?;
        }
    }
    write!(out, "\n| number | fault |\n|---|---|\n")?;
    for fault in CudaFault::ALL {
        writeln!(out, "| {} | {fault} |", *fault as u8)?;
    }
    out.push('\n');
    out.push_str(END);
    Ok(out)
}

#[test]
fn the_page_has_the_table() -> Outcome {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cuda.md");
    let page = std::fs::read_to_string(&path)?;
    let from = page.find(BEGIN).ok_or("the page has no place for the table")?;
    let to = page.find(END).ok_or("the table has no end")? + END.len();
    let expected = section()?;
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, [&page[..from], &expected, &page[to..]].concat())?;
    } else {
        assert_eq!(&page[from..to], expected);
    }
    Ok(())
}

/// The struct `name` of an emitted unit.
fn cut(unit: &str, name: &str) -> Result<String, Box<dyn std::error::Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(unit);
    let text = std::fs::read_to_string(path)?;
    let from = text.find(&format!("struct {name} {{")).ok_or("the unit has no such struct")?;
    let len = text[from..].find("};").ok_or("the struct has no end")?;
    Ok(text[from..from + len + 2].to_owned())
}

#[test]
fn structs_lie_in_memory_as_the_launches_write_them() -> Outcome {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "g++".into());
    if Command::new(&compiler).arg("--version").output().is_err() {
        assert!(std::env::var_os("GRISTMILL_NO_SKIP").is_none(), "there is no C++ compiler");
        eprintln!("SKIPPED: layout of structs: no g++ (or $CXX)");
        return Ok(());
    }
    // Counted by hand: what the drivers copy is what the runtime's structs hold at these places.
    let weights =
        "codes 0, stride 8, scales 16, mins 24, min 32, k 36, table 40, outer 48, units 56, x_blocks 60";
    let results = "bias 96, y 104, m 112, n 116, parts 120";
    let quantized = format!("{weights}, x 64, x_stride 72, x_scales 80, x_sums 88, {results}");
    let fused = format!("{weights}, x 64, x_first 72, fault 80, x_type 88, sides 92, {results}");
    let rows = "blocks 0, row_bytes 8, outer 16, x 24, x_stride 32, x_first 40, bias 48, y 56, fault 64, x_type 72, k 76, m 80, n 84";
    let units = [
        ("cuda_dp4a.cu", "Matmul", quantized.as_str(), 128),
        ("cuda_dp4a_fused.cu", "Matmul", fused.as_str(), 128),
        ("cuda_rows_fma.cu", "Rows", rows, 88),
    ];
    for (unit, name, fields, size) in units {
        let mut text = String::from(
            "#include <cstddef>\n#include <cstdint>\nusing u8 = uint8_t; using i8 = int8_t; using i32 = int32_t;\n\
             using u32 = uint32_t; using u64 = uint64_t; using f32 = float;\n",
        );
        writeln!(text, "{}\nstatic_assert(sizeof({name}) == {size});", cut(unit, name)?)?;
        for field in fields.split(", ") {
            let (field, place) = field.split_once(' ').ok_or("a field has a place")?;
            writeln!(text, "static_assert(offsetof({name}, {field}) == {place});")?;
        }
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("layout_{unit}.cpp"));
        std::fs::write(&path, text)?;
        let output = Command::new(&compiler).args(["-std=c++17", "-fsyntax-only"]).arg(&path).output()?;
        assert!(output.status.success(), "{unit}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// The vocabulary as a compiler for one architecture reads it; `None` where there is no C++ compiler, which is said.
fn vocabulary(arch: u32) -> Result<Option<String>, Box<dyn std::error::Error>> {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "g++".into());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/device.h");
    let mut command = Command::new(&compiler);
    command.args(["-E", "-x", "c++", "-D__CUDACC__", &format!("-D__CUDA_ARCH__={arch}")]);
    command.args(["-DGM_COPIES", "-DGM_OVERLAP", "-DGM_TENSOR", "-DGM_HALVES"]).arg(path);
    let Ok(output) = command.output() else {
        assert!(std::env::var_os("GRISTMILL_NO_SKIP").is_none(), "there is no C++ compiler");
        eprintln!("SKIPPED: the vocabulary of old architectures: no g++ (or $CXX)");
        return Ok(None);
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(Some(String::from_utf8(output.stdout)?))
}

/// Compilers from CUDA 13 on don't compile for the oldest architectures that kernels are for, so what these lack is looked for in the text.
#[test]
fn the_oldest_architectures_are_asked_for_what_they_have() -> Outcome {
    for (words, since) in [("L1::no_allocate", 700), ("cp.async", 800), ("griddepcontrol", 900)] {
        for (arch, there) in [(500, false), (since - 10, false), (since, true)] {
            let Some(text) = vocabulary(arch)? else { return Ok(()) };
            assert_eq!(text.contains(words), there, "{words} for sm_{}", arch / 10);
        }
    }
    Ok(())
}

#[test]
fn units_overlap_where_their_text_waits() -> Outcome {
    let report = gristmill_spec::check(&gristmill_spec::shipped()?);
    let set = report.set.ok_or("the shipped specs are sound")?;
    let emitted = gristmill_codegen::cuda::emit(&set).map_err(|errors| format!("{errors:?}"))?;
    for unit in &emitted.units {
        // Behind the vocabulary, which defines it.
        let kernels = unit.text.rsplit_once("#endif").map_or(unit.text.as_str(), |(_, kernels)| kernels);
        assert_eq!(unit.overlaps, kernels.contains("gm_wait_for_previous();"), "{}", unit.name);
    }
    for listed in &emitted.listed {
        let unit = emitted.units.iter().find(|unit| unit.name == listed.unit).ok_or("a unit")?;
        assert_eq!(listed.plan.overlaps, unit.overlaps, "{}", listed.name);
    }
    Ok(())
}
