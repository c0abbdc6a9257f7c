//! `bench`: records, selections, refusals, and comparison with an earlier run.
#![cfg(all(feature = "cli", feature = "bitnet", feature = "ggml"))]

use crate::choice::everything;
use crate::common::{gristmill, text, words};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const KEYS: [&str; 21] = [
    "at",
    "ceiling",
    "compiler",
    "file_bits_per_weight",
    "format",
    "gb_s",
    "gmac_s",
    "id",
    "includes_activation_quantization",
    "isa",
    "k",
    "kernel",
    "m",
    "machine",
    "memory",
    "memory_bits_per_weight",
    "n",
    "percent",
    "rounds_us",
    "threads",
    "us",
];

/// Whether a record says what every record must.
fn check(record: &Value) {
    let keys: Vec<&str> = record.as_object().expect("a record").keys().map(String::as_str).collect();
    assert_eq!(keys, KEYS, "{record}");
    let number = |key: &str| record[key].as_f64().unwrap_or_else(|| panic!("no number {key} in {record}"));
    assert!(number("us") > 0.0 && number("gmac_s") > 0.0 && number("gb_s") > 0.0, "{record}");
    assert!(number("percent") > 0.0 && number("percent") <= 100.0, "{record}");
    assert!(["read", "multiply"].contains(&record["ceiling"].as_str().expect("a word")), "{record}");
    // The rate is that of the time.
    let macs = number("m") * number("n") * number("k");
    assert!((macs / number("us") / 1e3 / number("gmac_s") - 1.0).abs() < 1e-9, "{record}");
    // Bytes are those of the file, also where packed weights take more: i2_s has a scale a tensor, q4_0 one for 32 weights.
    let weights = number("n") * number("k");
    let bytes = match record["format"].as_str() {
        Some("i2_s") => weights / 4.0 + 32.0,
        Some("q4_0") => weights / 32.0 * 18.0,
        other => panic!("{other:?}"),
    };
    assert_eq!(number("file_bits_per_weight"), 8.0 * bytes / weights, "{record}");
    assert!((bytes / number("us") / 1e3 / number("gb_s") - 1.0).abs() < 1e-9, "{record}");
    assert!((1.0..8.0).contains(&number("memory_bits_per_weight")), "{record}");
}

#[test]
fn what_is_selected_is_measured() {
    let selections = [
        ("--format i2_s,q4_0 --m 1,5 --shape 256x512,64x1024 --threads 1,2 --memory hot", 16),
        ("--format i2_s --m 1 --shape 2560x2560 --memory hot,cold", 2),
    ];
    let mut all = Vec::new();
    for (selection, count) in selections {
        let json = gristmill(words(&format!("bench --quick --json {selection}"))).code(0).json();
        let records = json.as_array().expect("an array");
        records.iter().for_each(check);
        let cells: BTreeSet<String> = records
            .iter()
            .map(|record| {
                let of = |key: &str| record[key].to_string();
                [of("format"), of("m"), of("n"), of("k"), of("threads"), of("memory")].join(" ")
            })
            .collect();
        assert_eq!((records.len(), cells.len()), (count, count), "each cell once: {cells:?}");
        all.extend(records.clone());
    }
    for record in &all {
        assert_eq!(record["includes_activation_quantization"], true, "{record}");
    }
    let json =
        gristmill(words("bench --quick --json --format i2_s --m 4 --shape 256x512 --memory hot --input i8"));
    assert_eq!(json.code(0).json()[0]["includes_activation_quantization"], false);
}

#[test]
fn every_kernel_of_an_isa_is_measured() {
    let line = "bench --quick --json --format i2_s --isa scalar --m 1 --shape 64x256 --memory hot";
    let json = gristmill(words(line)).code(0).json();
    let kernels: Vec<&str> =
        json.as_array().expect("an array").iter().filter_map(|r| r["kernel"].as_str()).collect();
    assert_eq!(kernels, ["matmul.i2_s.scalar"]);
}

#[test]
fn a_quick_run_ends_in_time() {
    let start = Instant::now();
    let line = if everything() { "bench --quick" } else { "bench --quick --format i2_s" };
    let ran = gristmill(words(line)).code(0).says("matmul.").says("read DRAM").says("% is of");
    // Some ten seconds where nothing else runs; this is about an end, on the busiest machine, and not about speed.
    assert!(start.elapsed() < Duration::from_secs(300), "{:?}:\n{}", start.elapsed(), ran.stdout);
}

#[test]
fn other_ops_have_records_of_the_same_keys() {
    let line = "bench --quick --json --op quantize,dequantize,embed,pack --format q4_0 --shape 64x1024";
    let json = gristmill(words(line)).code(0).json();
    let records = json.as_array().expect("an array");
    let ops: Vec<&str> = records.iter().filter_map(|r| r["kernel"].as_str()?.split('.').next()).collect();
    assert_eq!(
        ops,
        ["quantize", "dequantize", "embed", "matmul"],
        "packing is named after the kernel that it is for"
    );
    for record in records {
        let keys: Vec<&str> = record.as_object().expect("a record").keys().map(String::as_str).collect();
        assert_eq!(keys, KEYS, "{record}");
        assert!(record["gmac_s"].is_null() && record["gb_s"].as_f64() > Some(0.0), "{record}");
    }
}

#[test]
fn refusals() {
    gristmill(words("bench --quick --format i2_s --shape 16x100")).code(2).complains("pad rows to 128");
    // Decided before any weights are made.
    let begun = Instant::now();
    gristmill(words("bench --format i2_s --m 1 --shape 16x100000000")).code(2).complains("no kernel for");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // Of `--isa` the reason is that of its kernels, and no variable is to be changed.
    let own = gristmill(words("bench --quick --format i2_s --isa scalar --shape 16x100")).code(2);
    assert!(!own.stderr.contains("GRISTMILL_KERNEL"), "{}", own.stderr);
    own.complains("matmul.i2_s.scalar").complains("pad rows to 128");
    let foreign = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
    let none = gristmill(words(&format!("bench --isa {foreign}"))).code(2);
    assert_eq!(none.stdout, "", "nothing is measured");
    none.complains(&format!("--isa {foreign}: this build has no kernel of it")).complains("help: ");
    gristmill(words("bench --quick --format i2_s --m 0")).code(1).complains("nothing to measure");
    gristmill(words("bench --quick --format i2_s --shape 16")).code(1).complains("NxK");
    gristmill(words("bench --compare nowhere.json")).code(1).complains("nowhere.json");
    gristmill(words("bench --device cpu --compare nowhere.json")).code(1).complains("nowhere.json");
    for argument in ["--isa avx2", "--threads 2", "--cpus 1", "--input i8"] {
        let line = format!("bench --device cuda:0 {argument}");
        gristmill(words(&line)).code(1).complains("is for --device cpu, not for cuda:0");
    }
}

#[test]
fn a_slower_kernel_is_found() -> Result<(), Box<dyn std::error::Error>> {
    let line = "bench --quick --json --format i2_s --m 8 --shape 512x512 --memory hot";
    let folder = tempfile::tempdir()?;
    let base = folder.path().join("base.json");
    let compare = |records: &Value| -> Result<crate::common::Ran, std::io::Error> {
        std::fs::write(&base, records.to_string())?;
        Ok(gristmill(words(line).into_iter().chain(["--compare", text(&base)])))
    };
    let mut records = gristmill(words(line)).code(0).json();
    // As slow as before, give or take what a busy machine adds.
    let us = records[0]["us"].as_f64().expect("a time");
    records[0]["us"] = json!(us * 2.0);
    compare(&records)?.code(0).complains("0 slower");
    // What took no time at all once is slower now, however fast the machine is today.
    records[0]["us"] = json!(us / 20.0);
    compare(&records)?.code(1).complains("1 slower").complains("matmul.i2_s.");
    // What another processor took says nothing.
    let machine = records[0]["machine"].take();
    records[0]["machine"] = json!("cpu another");
    compare(&records)?.code(1).complains("the base was measured on `cpu another`, this is `cpu ");
    records[0]["machine"] = machine;
    // Nothing in common is no agreement.
    records[0]["m"] = json!(9);
    compare(&records)?.code(1).complains("none of the records");
    compare(&json!([{ "kernel": 1 }]))?.code(1).complains("record 0: `kernel`: invalid type");
    compare(&json!({}))?.code(1).complains("not an array");
    Ok(())
}
