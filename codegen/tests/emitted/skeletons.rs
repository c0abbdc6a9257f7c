//! One file for each skeleton: what a shipped format makes of it. Small enough to be read whole in review.

use super::golden;
use gristmill_codegen::{Options, compile, cuda};
use gristmill_spec::model::SpecSet;
use gristmill_spec::{check, shipped};
use std::collections::BTreeMap;
use std::path::Path;

/// File, format, and what the name of the module begins with.
const RUST: [(&str, &str, &str); 22] = [
    ("avx2_decode", "i2_s", "matmul_avx2_decode_"),
    ("avx2_prefill_runs", "q4_0", "matmul_avx2_prefill_"),
    ("avx2_split_runs", "q8_0", "matmul_avx2_decode_"),
    ("avx2_wide_runs", "q8_0", "matmul_avx2_prefill_"),
    ("avx512_vnni_superblocks", "q4_k", "matmul_avx512_avx512vnni_decode_"),
    ("avx512_dense_ternary", "i2_s", "matmul_avx512_avx512vnni_avx512vbmi_dense_decode_"),
    ("avx512_dense_ternary_staged", "i2_s", "matmul_avx512_avx512vnni_avx512vbmi_dense_batch_"),
    ("avx2_staged_superblocks", "q6_k", "matmul_avx2_batch_"),
    ("avx2_signs", "iq4_xs", "matmul_avx2_prefill_"),
    ("avx2_staged_words", "iq4_nl", "matmul_avx2_batch_"),
    ("avx512_staged_words", "iq4_xs", "matmul_avx512_batch_"),
    ("avx512_tiles", "i2_s", "matmul_avx512_avx512vnni_amxint8_tiles_"),
    ("avx512_tiles_of_runs", "q4_0", "matmul_avx512_avx512vnni_amxint8_tiles_"),
    ("avx512_tiles_of_digits", "q4_k", "matmul_avx512_avx512vnni_amxint8_tiles_"),
    ("avx2_lookup", "q1_0", "matmul_avx2_lookup_"),
    ("neon_i8mm", "i2_s", "matmul_neon_dotprod_i8mm_prefill_"),
    ("avx512_vnni_planes_of_nibbles", "q3_k", "matmul_avx512_avx512vnni_decode_"),
    ("avx2_planes", "q5_0", "matmul_avx2_decode_"),
    ("avx512_vnni_shifted", "iq1_m", "matmul_avx512_avx512vnni_decode_"),
    ("avx2_minima_in_nibbles", "q2_k", "matmul_avx2_decode_"),
    ("neon_i8mm_planes", "q6_k", "matmul_neon_dotprod_i8mm_prefill_"),
    ("activations", "i2_s", "activations_int8_row"),
];

/// File, format, and name of the unit.
const CUDA: [(&str, &str, &str); 12] = [
    ("cuda_dp4a", "i2_s", "matmul_dp4a_2bit_rows_int8_row_centred_outer_512x1"),
    ("cuda_dp4a_fused", "i2_s", "matmul_dp4a_2bit_rows_int8_row_centred_outer_512x1_fused"),
    ("cuda_mma", "i2_s", "matmul_mma_2bit_rows_int8_row_centred_outer_128x32"),
    ("cuda_mma_one", "i2_s", "matmul_mma_2bit_rows_int8_row_centred_outer_256x1"),
    ("cuda_mma_fused", "q4_k", "matmul_mma_4bit_by32x8_q8_k_scales_mins_512x1_fused"),
    ("cuda_wgmma", "i2_s", "matmul_wgmma_2bit_rows_int8_row_centred_outer_384x64"),
    ("cuda_wgmma_runs", "q4_0", "matmul_wgmma_4bit_by32_q8_0_scales_centred_384x64"),
    ("cuda_rows_fma", "q4_0", "rows_q4_0_fma_sm50"),
    ("cuda_rows_mma_f16", "q4_0", "rows_q4_0_halves_sm75"),
    ("cuda_rows_mma_fp4", "nvfp4", "rows_nvfp4_fp4_sm120a"),
    ("cuda_quantize", "i2_s", "quantize_absmean_i2_s"),
    ("cuda_dequantize", "i2_s", "dequantize_i2_s"),
];

/// The shipped set with one weight format.
pub fn only(format: &str) -> SpecSet {
    let mut sources = shipped().expect("the shipped specs are readable");
    sources.retain(|source| {
        !source.path.contains("/formats/") || source.path.ends_with(&format!("/{format}.toml"))
    });
    // What must exist of formats that are not here.
    sources.retain(|source| !source.path.ends_with("coverage.toml") && !source.path.contains("/imports/"));
    let report = check(&sources);
    report.set.unwrap_or_else(|| panic!("{format}: {:?}", report.diagnostics))
}

#[test]
fn rust_is_as_reviewed() {
    let options = Options { package: "test".into(), compiler: "test".into(), ..Options::default() };
    let mut compiled = BTreeMap::new();
    for (file, format, begin) in RUST {
        let code = compiled
            .entry(format)
            .or_insert_with(|| compile(&only(format), &[], &options).expect("compiles").code);
        let head = format!("pub mod {begin}");
        let lines: Vec<&str> = code.lines().collect();
        let first = lines.iter().position(|line| line.starts_with(&head));
        let first = first.unwrap_or_else(|| panic!("no module of {format} is named {begin}..."));
        // What is printed has the end of a module alone at the margin.
        let len = lines[first..].iter().position(|line| *line == "}").expect("the end of a module");
        golden(&format!("{file}.rs"), &format!("{}\n", lines[first..=first + len].join("\n")));
    }
}

#[test]
fn cuda_is_as_reviewed() {
    let headers = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda")).expect("a folder");
    let headers: Vec<String> = headers
        .map(|entry| std::fs::read_to_string(entry.expect("an entry").path()).expect("text"))
        .collect();
    let mut emitted = BTreeMap::new();
    for (file, format, name) in CUDA {
        let emitted = emitted.entry(format).or_insert_with(|| cuda::emit(&only(format)).expect("plans"));
        let unit = emitted.units.iter().find(|unit| unit.name == name);
        let unit = unit.unwrap_or_else(|| {
            let names: Vec<_> = emitted.units.iter().map(|unit| &unit.name).collect();
            panic!("no unit of {format} is named {name}, but {names:?}")
        });
        let text = headers.iter().fold(unit.text.clone(), |text, header| text.replace(header, ""));
        golden(&format!("{file}.cu"), text.trim_start());
    }
}
