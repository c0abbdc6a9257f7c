//! Code that packs codes whose upper bits lie in a plane of their own, and finds them again: what `pack` writes for such tiles.

use super::packer::{Packer, packed_k};
use crate::plan::{FormatPlan, PackPlan, UpperPlane};
use crate::text::joined;
use std::fmt::Write;

/// Bits of a row in a vector of codes.
const LANE: u32 = 32;

/// For codes whose upper bits are in `plane`.
pub(super) fn packer(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, plane: UpperPlane) -> Packer {
    let name = pack.ident();
    let upper = name.to_uppercase();
    let (tile_k, tile_bytes, low) = (pack.tile.k, pack.tile.bytes, pack.field_bits());
    let bits: Vec<u32> = (0..tile_k).filter_map(|k| pack.upper_bit(0, k)).collect();
    let keep = (1u32 << low) - 1;
    // Bits of a row in the plane.
    let lane = if plane.nibbles { 16 } else { LANE };
    let tables = format!(
        "/// Bit of the upper bits of element k of a tile's first row in packing `{name}`.
         const UPPER_BITS_{upper}: [usize; {tile_k}] = {bits:?};\n"
    );
    let code = format!(
        "(byte >> (bit % 8)) & {keep:#x} | {{
             let bit = row * {lane} + UPPER_BITS_{upper}[at % {tile_k}];
             // SAFETY: the caller answers for a whole panel.
             let byte = unsafe {{ *codes.add(at / {tile_k} * {tile_bytes} + bit / 8) }};
             ((byte >> (bit % 8)) & {:#x}) << {low}
         }}",
        (1u32 << plane.bits) - 1
    );
    let store = if plan.appended().is_multiple_of(tile_k) {
        format!(
            "for tile in 0..ELEMENTS / {tile_k} {{
                 let mut each = [0u8; {tile_k}];
                 for (code, &value) in each.iter_mut().zip(&values[tile * {tile_k}..]) {{ *code = code_{name}(value); }}
                 let at = (first / {tile_k} + tile) * {tile_bytes};
                 {}
             }}",
            words(pack, lane, &bits)
        )
    } else {
        format!(
            "for (element, &value) in values.iter().enumerate() {{
                 let code = code_{name}(value);
                 let k = first + element;
                 let at = {at};
                 let bit = row * {LANE} + K_BITS_{upper}[at % {tile_k}];
                 let above = row * {lane} + UPPER_BITS_{upper}[at % {tile_k}];
                 let tile = at / {tile_k} * {tile_bytes};
                 // SAFETY: the caller answers for a whole panel.
                 unsafe {{
                     *codes.add(tile + bit / 8) |= (code & {keep:#x}) << (bit % 8);
                     *codes.add(tile + above / 8) |= (code >> {low}) << (above % 8);
                 }}
             }}",
            at = packed_k(plan, pack),
        )
    };
    Packer { tables, store, code, ..Packer::default() }
}

/// Statements that write the codes `each` of a row in the tile at byte `at`: a word in each vector, and one in the plane.
fn words(pack: &PackPlan<'_>, lane: u32, upper_bits: &[u32]) -> String {
    let low = pack.field_bits();
    let mut out = String::new();
    let mut write = |first: u32, width: u32, codes: Vec<(String, u32)>| {
        let codes = codes.into_iter().map(|(code, bit)| match bit - first {
            0 => format!("u{width}::from({code})"),
            place => format!("u{width}::from({code}) << {place}"),
        });
        let _ = write!(
            out,
            "let word = {};
             // SAFETY: the caller answers for a whole panel.
             unsafe {{ codes.add(at + {} + row * {bytes}).cast::<[u8; {bytes}]>().write(word.to_le_bytes()) }};\n",
            joined(codes, " | "),
            first / 8,
            bytes = width / 8
        );
    };
    for word in 0..pack.words {
        let first = pack.tile.offset + word * LANE * pack.packing.rows;
        let here = (0..pack.tile.k).filter(|k| (first..first + LANE).contains(&pack.bit(0, *k)));
        let codes = here.map(|k| (format!("each[{k}] & {:#x}", (1u32 << low) - 1), pack.bit(0, k)));
        write(first, LANE, codes.collect());
    }
    let first = upper_bits.iter().min().copied().unwrap_or(0);
    let codes = upper_bits.iter().enumerate().map(|(k, bit)| (format!("each[{k}] >> {low}"), *bit));
    write(first, lane, codes.collect());
    out
}
