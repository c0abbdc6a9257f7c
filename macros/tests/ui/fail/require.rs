//! What the build does not hold.

mod kernels {
    gristmill::kernel!(two_bits, r#"
doc   = "2 bits a weight, for products and dequantizing"
block = { elements = 4, bytes = 1 }

[[field]]
name   = "q"
type   = "u2"
layout = { shape = [4], stride = [2], offset = 0 }

[value]
code = "q"
zero = 1
"#);
}

gristmill::require!(crate::kernels, matmul, two_bits, f32, cuda);
gristmill::require!(crate::kernels, dequantize, two_bits, bf16, cpu);
gristmill::require!(crate::kernels, quantize, two_bits, f32, cpu);
gristmill::require!(crate::kernels, matmul, two_bit, f32, cpu);
gristmill::require!(matmul, i2_s, f32, cpu);

fn main() {}
