//! Compiles the formats of this package.

fn main() {
    gristmill_codegen::Builder::new("specs").build();
}
