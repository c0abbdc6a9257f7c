//! Compiles the specs in `kernels/`, and one of gristmill's own formats, into this crate.

fn main() {
    gristmill_codegen::Builder::new("kernels").with_shipped(["i2_s"]).build();
}
