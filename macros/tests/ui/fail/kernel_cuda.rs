//! What needs another compiler is refused, and so are kernel files.

mod cuda {
    gristmill::kernel!(product, r#"
doc   = "a product"
op    = "matmul"
input = ["f32"]

[[cpu]]
isa      = "avx2"
requires = ["ssse3"]

[[cuda]]
algorithm = "dp4a"
packing   = "r16k4"
"#);
}

mod kernel {
    gristmill::kernel!(products, r#"
doc     = "dequantize again"
op      = "dequantize"
formats = ["i2_s"]

[[cpu]]
isa      = "avx2"
requires = ["ssse3"]
"#);
}

fn main() {}
