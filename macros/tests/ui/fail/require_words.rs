//! Words that are not in the vocabulary, and modules that hold no registry.

mod empty {}

gristmill::require!(empty, matmull, i2_s, float, gpu);
gristmill::require!(crate::empty, matmul, I2_S, f32, cpu);
gristmill::require!(empty, matmul, i2_s, f32, cpu);
gristmill::require!(matmul, i2_s, f32);
gristmill::require!(matmul, i2_s, f32, 3);
gristmill::require!();

fn main() {}
