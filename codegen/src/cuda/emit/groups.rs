//! `quantize` by rounding, where blocks have a power of two of elements: a warp does several blocks at once. The kernel stands in
//! `quantize_blocks.h`; here is what it takes of a format.

use super::encode::{SHARED, WARPS};
use super::ends::indented;
use super::fields::{Four, address, by, four};
use super::parameters::{enumerators, kernel};
use crate::plan::lcm;
use crate::text::{joined, when};
use gristmill_spec::model::{Field, FieldLayout, Format};
use gristmill_spec::vocab::CudaAbi;
use std::fmt::Write;

/// How a warp divides blocks.
#[derive(Clone, Copy, Debug)]
pub struct Groups {
    /// Lanes of a block.
    lanes: u32,
    /// Times that each of them has four elements.
    vectors: u32,
    /// Blocks whose bytes a warp puts together: a multiple of sixteen bytes.
    pub blocks: u32,
}

impl Groups {
    /// For formats without row headers whose codes are bytes or less, and no digits.
    pub fn of(format: &Format) -> Option<Groups> {
        let elements = format.elements;
        let code = &format.fields[format.value.code];
        let fits = elements.is_power_of_two() && (16..=1024).contains(&elements) && format.value.group <= 1;
        let narrow = match &code.layout {
            FieldLayout::Bits(slices) => slices.iter().map(|slice| slice.bits).sum::<u32>() <= 8,
            FieldLayout::Digits { .. } => false,
        };
        if !fits || !narrow || format.row_header.is_some() {
            return None;
        }
        let lanes = (elements / 4).min(32);
        let aligned = 16u32 >> format.bytes.trailing_zeros().min(4);
        let blocks = lcm(u64::from(32 / lanes), u64::from(aligned)) as u32;
        (WARPS * blocks * format.bytes <= SHARED).then(|| Groups {
            lanes,
            vectors: elements / (4 * lanes),
            blocks,
        })
    }
}

/// The kernel, behind what quantizers have in common.
pub fn quantize(format: &Format, groups: Groups, function: &str) -> String {
    let Groups { lanes, vectors, blocks } = groups;
    let numbers =
        [("LANES", lanes), ("VECTORS", vectors), ("BLOCKS", blocks), ("WORDS", blocks * format.bytes / 4)];
    let field = &format.fields[format.value.code];
    let body = "    GM_SHARED(u32, all_words, WARPS * WORDS);
    quantize_blocks(all_words, src, dst, rows, k, row_bytes, steps, fault);
";
    let one_by_one = "    GM_UNROLL for (u32 n = 0; n < 4; n++) put_code(all_words, words, base, e + n, codes >> (8 * n) & 0xff);\n";
    format!(
        "{numbers}
// Writes the codes of elements e to e + 3, a byte each.
GM_DEVICE void put_codes(GM_SHARED_ARRAY(u32) all_words, u32 words, i32 base, u32 e, u32 codes) {{
{put}}}

{header}{kernel}
",
        numbers = enumerators(&numbers),
        put = put_four(format, field).unwrap_or_else(|| one_by_one.to_string()),
        header = include_str!("../../../cuda/quantize_blocks.h"),
        kernel = kernel(32 * WARPS, function, &CudaAbi::QUANTIZE, body),
    )
}

/// Statements that put `codes`, a byte for each of the values `e` to `e + 3`, where they lie in neighbouring bytes or in one.
fn put_four(format: &Format, field: &Field) -> Option<String> {
    let FieldLayout::Bits(slices) = &field.layout else { return None };
    let mut out = String::from("    const u32 i = e;\n");
    let mut low = 0;
    for slice in slices {
        let mask = (1u32 << slice.bits) - 1;
        let masks = mask * 0x0101_0101;
        let text = match four(format, field, slice)? {
            Four::Bytes(alignment) => {
                let rest = when(
                    alignment != 4,
                    || "\n    if (up > 0) gm_shared_or(all_words, words + (u32)(a >> 5) + 1, bits >> (32 - up));",
                );
                format!(
                    "const u32 bits = ({} & {masks:#x}u) << (a & 7), up = (u32)(a & 24);
    gm_shared_or(all_words, words + (u32)(a >> 5), bits << up);{rest}",
                    by("codes", ">>", low)
                )
            }
            Four::Bits => {
                let code = |n| format!("({} & {mask:#x}u)", by("codes", ">>", 8 * n + low));
                let each = joined((0..4).map(|n| by(&code(n), "<<", slice.bits * n)), " | ");
                format!("gm_shared_or(all_words, words + (u32)(a >> 5), ({each}) << (a & 31));")
            }
        };
        let inner = format!("{}    a += base;\n    {text}\n", address(slice));
        let _ = write!(out, "    {{\n{}    }}\n", indented("    ", &inner));
        low += slice.bits;
    }
    Some(out)
}
