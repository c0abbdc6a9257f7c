//! How a block is written: what a quantizer that rounds does to it, and codes into its words.

use super::ends::indented;
use super::fields::{address, by};
use crate::text::when;
use gristmill_spec::model::{Field, FieldLayout, Format};
use std::fmt::Write;

/// Warps of a block of `quantize`, each with a block of the format.
pub const WARPS: u32 = 4;

/// Bytes of shared memory that a kernel may declare, on every device.
pub const SHARED: u32 = 48 * 1024;

/// The emitted `put_NAME`, which ORs the raw bits of value `i` of a field into the words of a block; its first bit is `base` where
/// several blocks are `grouped`.
pub fn put(name: &str, format: &Format, field: &Field, grouped: bool) -> String {
    format!(
        "GM_DEVICE void put_{name}(GM_SHARED_ARRAY(u32) all_words, u32 words, [[maybe_unused]] i32 base, u32 i, u32 code) {{\n{}}}\n",
        or_code(format, field, grouped)
    )
}

/// Its statements.
fn or_code(format: &Format, field: &Field, grouped: bool) -> String {
    let FieldLayout::Bits(slices) = &field.layout else { return String::new() };
    let mut out = String::new();
    let mut low = 0;
    for slice in slices {
        let mask = if slice.bits == 32 { u32::MAX } else { (1 << slice.bits) - 1 };
        // Grouped blocks start at any multiple of what their size has in common with a word.
        let apart = if grouped { 8 << format.bytes.trailing_zeros().min(2) } else { 32 };
        let crosses = (0..field.count)
            .any(|i| slice.address(i).rem_euclid(apart) + (32 - apart) + i64::from(slice.bits) > 32);
        let base = if grouped { "    a += base;\n" } else { "" };
        let beyond = when(crosses, || {
            format!(
                "    if ((a & 31) + {} > 32) gm_shared_or(all_words, words + (u32)(a >> 5) + 1, piece >> (32 - (a & 31)));\n",
                slice.bits
            )
        });
        let inner = format!(
            "{}{base}    const u32 piece = {} & {mask:#x}u;
    gm_shared_or(all_words, words + (u32)(a >> 5), piece << (a & 31));
{beyond}",
            address(slice),
            by("code", ">>", low),
        );
        let _ = write!(out, "    {{\n{}    }}\n", indented("    ", &inner));
        low += slice.bits;
    }
    out
}
