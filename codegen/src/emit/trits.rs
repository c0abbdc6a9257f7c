//! Code that packs five trits to a byte and finds them again: what `pack` writes for tiles of trits.

use super::packer::Packer;
use crate::plan::{FormatPlan, PackPlan, trits};
use crate::text::joined;

/// Codes wait until they fill a tile of their row: blocks need not be whole tiles.
pub(super) fn packer(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, row_bit: &str) -> Packer {
    let name = pack.ident();
    let upper = name.to_uppercase();
    let (tile_k, tile_bytes) = (pack.tile.k, pack.tile.bytes);
    let run = plan.appended();
    let store = |codes: &str| {
        format!(
            "// SAFETY: the caller answers for a whole panel.
             unsafe {{ to = tile_{name}({codes}, to) }};"
        )
    };
    let last = format!(
        "if held > 0 {{
             staged[held..{tile_k}].fill(0);
             {}
         }}",
        store("&staged")
    );
    // Without K groups no tile ends before the row does.
    let (after_run, end) =
        if plan.k_group == 0 { (String::new(), last) } else { (format!("{last}\nheld = 0;"), String::new()) };
    Packer {
        items: format!(
            "/// The byte for five trits of packing `{name}`, numbered with the first as the least significant digit.
             const BYTES_{upper}: [u8; 256] = {bytes:?};
             /// The trits of a byte of packing `{name}`, in two bits each.
             const TRITS_{upper}: [u16; 256] = {fields:?};
             /// Number of the trit of element k of a tile's first row in its byte.
             const K_TRITS_{upper}: [u32; {tile_k}] = {numbers:?};

             /// The codes of a row in a tile of `{name}`, from `codes` on, to their bytes; returns where the row's next tile goes.
             ///
             /// # Safety
             ///
             /// `to` is where the row's bytes begin in a tile of a panel.
             #[inline(always)]
             unsafe fn tile_{name}(codes: &[u8], to: *mut u8) -> *mut u8 {{
                 // SAFETY: the caller answers for the tile; behind the last one of a panel nothing is touched.
                 unsafe {{ {writes} to.wrapping_add({tile_bytes}) }}
             }}\n",
            bytes = padded(&trits::bytes()),
            fields = trits::fields(),
            numbers = (0..tile_k).map(|k| pack.trit(0, k)).collect::<Vec<u32>>(),
            writes = writes(pack),
        ),
        begin: format!(
            "let mut staged = [0u8; {room}];
             let mut held = 0;
             let mut to = codes.wrapping_add(({row_bit}) / 8);",
            room = run + tile_k,
        ),
        store: format!(
            "for start in (0..ELEMENTS).step_by({run}) {{
                 for (staged, &value) in staged[held..].iter_mut().zip(&values[start..start + {run}]) {{
                     *staged = code_{name}(value);
                 }}
                 held += {run};
                 let mut begin = 0;
                 while held - begin >= {tile_k} {{
                     {whole}
                     begin += {tile_k};
                 }}
                 staged.copy_within(begin..held, 0);
                 held -= begin;
                 {after_run}
             }}",
            whole = store("&staged[begin..]"),
        ),
        end,
        code: format!("(TRITS_{upper}[usize::from(byte)] >> (2 * K_TRITS_{upper}[at % {tile_k}])) & 3"),
        tables: String::new(),
    }
}

/// One statement for each byte of a row in a tile.
fn writes(pack: &PackPlan<'_>) -> String {
    let upper = pack.ident().to_uppercase();
    let mut bits: Vec<u32> = (0..pack.tile.k).map(|k| pack.bit(0, k)).collect();
    bits.sort_unstable();
    bits.dedup();
    let write = |bit: u32| {
        let of_byte = (0..pack.tile.k).filter(|k| pack.bit(0, *k) == bit);
        let terms = joined(of_byte.map(|k| term(k, 3u32.pow(pack.trit(0, k)))), " + ");
        format!("to.add({}).write(BYTES_{upper}[usize::from({})]);\n", bit / 8, terms)
    };
    bits.into_iter().map(write).collect()
}

fn term(k: u32, weight: u32) -> String {
    if weight == 1 { format!("codes[{k}]") } else { format!("{weight} * codes[{k}]") }
}

/// As many entries as a byte has values, so that no index can be too large.
fn padded(bytes: &[u8; 243]) -> [u8; 256] {
    let mut all = [0; 256];
    all[..bytes.len()].copy_from_slice(bytes);
    all
}
