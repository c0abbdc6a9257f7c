//! Compiles the shipped specs (and those in `GRISTMILL_EXTRA_SPECS`) with our own compiler.

fn main() {
    // A cargo feature of the same name selects a family of formats.
    let families = ["bitnet", "ggml", "iq", "import"]
        .into_iter()
        .filter(|family| std::env::var_os(format!("CARGO_FEATURE_{}", family.to_uppercase())).is_some());
    let mut builder = gristmill_codegen::Builder::shipped()
        .with_runtime("::gristmill_runtime")
        .with_families(families)
        .with_extra_specs();
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        builder = builder.with_cuda();
    }
    println!(
        "cargo::rustc-env=GRISTMILL_COMPILER={}",
        gristmill_codegen::builder::compiler().replace('\u{1f}', " ")
    );
    builder.build();
}
