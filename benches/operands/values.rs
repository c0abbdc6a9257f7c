//! Operands of benches.

/// Seeded values in -1..1 (xorshift).
pub fn values(count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect()
}
