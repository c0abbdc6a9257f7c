//! What quantizing costs, beside ggml: the table of `docs/measuring.md`, made again from the golden vectors.
#![cfg(all(feature = "bitnet", feature = "ggml", feature = "iq"))]

use crate::vectors::of;
use gristmill::{Dequantizer, QuantizedMatrix, Quantizer, REGISTRY, Request};
use std::error::Error;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The sum of (x - y)^2 over the sum of x^2.
fn nmse(x: &[f32], y: &[f32]) -> f64 {
    let error: f64 = x.iter().zip(y).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum();
    error / x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>()
}

/// Weights to a format by its first quantizer, and back.
fn there_and_back(format: &str, x: &[f32]) -> Result<Vec<f32>, Box<dyn Error>> {
    let info = REGISTRY.formats.iter().find(|info| info.name == format).ok_or("not in this build")?;
    let k = x.len();
    let mut bytes = vec![0; info.tensor_bytes(1, k)?];
    let prepared = REGISTRY.prepare(&Request::quantize(format, None, 1, k))?;
    Quantizer::new(&prepared.decide_as_asked())?.run(x, 1, k, &mut bytes)?;
    let prepared = REGISTRY.prepare(&Request::dequantize(format, 1, k))?;
    let mut back = vec![f32::NAN; k];
    Dequantizer::new(&prepared.decide_as_asked())?
        .run(&QuantizedMatrix::new(info, 1, k, &bytes)?, &mut back)?;
    Ok(back)
}

/// The table: formats in the order of their names, with both errors of each case.
fn table() -> Result<String, Box<dyn Error>> {
    let mut lines = vec![
        "| format | bits | bell, ours | bell, ggml | outlier, ours | outlier, ggml |".to_owned(),
        "|---|---|---|---|---|---|".to_owned(),
    ];
    for format in REGISTRY.formats {
        let mut cells = vec![
            format!("`{}`", format.name),
            format!("{}", 8.0 * format.bytes as f64 / format.elements as f64),
        ];
        for case in ["gauss", "outlier"] {
            // H00: quantized by ggml's compiled reference.
            let mut entries = of(format.name).into_iter();
            let Some(entry) = entries.find(|entry| entry["case"] == case && entry["how"] == "H00") else {
                continue;
            };
            let (x, theirs) = (entry.floats("x").ok_or("no x")?, entry.floats("y").ok_or("no y")?);
            let ours = there_and_back(format.name, &x)?;
            cells.push(format!("{:.3e}", nmse(&x, &ours)));
            // Where bytes are the same, both are.
            let same = ours.iter().zip(&theirs).all(|(ours, theirs)| ours.to_bits() == theirs.to_bits());
            cells.push(if same { "the same".to_owned() } else { format!("{:.3e}", nmse(&x, &theirs)) });
        }
        if cells.len() == 6 {
            lines.push(format!("| {} |", cells.join(" | ")));
        }
    }
    lines.push(String::new());
    Ok(lines.join("\n"))
}

#[test]
fn the_page_has_the_errors_of_our_quantizers_and_ggmls() -> Result<(), Box<dyn Error>> {
    let path = root().join(Path::new("docs/measuring.md"));
    let page = std::fs::read_to_string(&path)?;
    let (front, rest) = page.split_once("| format | bits | bell").ok_or("no table")?;
    // The table ends where a line does not begin with `|`.
    let end = rest.find("\n\n").ok_or("nothing behind the table")? + 1;
    let table = table()?;
    let expected = format!("{front}{table}{}", &rest[end..]);
    assert!(table.lines().count() >= 2 + 20, "only some formats were compared:\n{table}");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &expected)?;
        return Ok(());
    }
    let differs = page.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(
        page == expected,
        "docs/measuring.md has another table ({differs:?}); `BLESS=1 cargo test --features all --test kernels quality` rewrites it"
    );
    Ok(())
}
