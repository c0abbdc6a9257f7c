//! Code that moves a format's rows into a packing and back, derived from the packing's layout.

use super::fields::signed;
use super::planes;
use super::terms;
use super::text::float;
use super::trits;
use crate::plan::{FormatPlan, PackPlan, SuperBlock};
use gristmill_spec::model::Axis;

/// `pack_NAME` and `unpack_NAME` for one packing.
pub fn pack(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    let name = &pack.ident();
    let (tile_k, tile_bytes, bits) = (pack.tile.k, pack.tile.bytes, pack.bits());
    let min = plan.min();
    let unit = plan.unit;
    let k_bits: Vec<String> = (0..tile_k).map(|k| pack.bit(0, k).to_string()).collect();
    let upper = name.to_uppercase();
    let mut row_digits = pack.tile.digits.iter().filter(|d| d.axis == Axis::Row);
    let (mut tables, row_bit) = match (row_digits.next(), row_digits.next()) {
        (Some(only), None) => (String::new(), format!("row * {}", only.stride)),
        (None, _) => (String::new(), "0".to_string()),
        (Some(_), Some(_)) => {
            let rows = pack.packing.rows;
            let bits: Vec<String> = (0..rows).map(|row| pack.bit(row, 0).to_string()).collect();
            (
                format!(
                    "/// Bit of a row's first element in a tile of packing `{name}`.
                     const ROW_BITS_{upper}: [usize; {rows}] = [{}];\n",
                    bits.join(", ")
                ),
                format!("ROW_BITS_{upper}[row % {rows}]"),
            )
        }
    };
    let (encode, decode) = match &pack.table {
        None => (
            if min == 0 {
                "value as u8".to_string()
            } else {
                format!("(i32::from(value){}) as u8", signed(-min))
            },
            if min == 0 { "i32::from(code)".to_string() } else { format!("i32::from(code){}", signed(min)) },
        ),
        Some(_) => {
            let mut index = vec![0u8; (plan.max() - min + 1) as usize];
            for (i, value) in plan.values.iter().enumerate() {
                index[(value - min) as usize] = i as u8;
            }
            (
                format!(
                    "{{ const INDEX: [u8; {}] = {index:?}; INDEX[(i32::from(value){}) as usize] }}",
                    index.len(),
                    signed(-min)
                ),
                format!(
                    "{{ const VALUES: [i32; {}] = {:?}; VALUES[usize::from(code) % VALUES.len()] }}",
                    plan.values.len(),
                    plan.values
                ),
            )
        }
    };
    let unit_of = |k: &str| -> (String, String) {
        if unit == 0 {
            ("0usize".to_string(), k.to_string())
        } else {
            let padded = unit.next_multiple_of(pack.multiple);
            let packed = if padded == unit {
                k.to_string()
            } else {
                format!("{k} / {unit} * {padded} + {k} % {unit}")
            };
            (format!("({k} / {unit})"), packed)
        }
    };
    let (unit_index, packed_k) = unit_of("k");
    let scale_index =
        if unit == 0 { unit_index.clone() } else { format!("(k / {})", unit * pack.terms.span) };
    let rows = pack.packing.rows;
    let scales = if let Some(superblock) = &plan.superblock {
        pack_parts(plan, pack, superblock)
    } else if plan.has_scales() {
        let place = format!("{scale_index} * {rows} + row");
        let write = |name: &str, value: &str| terms::write(pack.terms, name, name, &place, value);
        // As the block holds them, or what they come to.
        let narrow = |name: &str| terms::stored(plan, pack, name, plan.groups);
        let mut pattern = match (narrow("scales"), plan.offset.then(|| narrow("mins"))) {
            (Some(_), None | Some(Some(_))) => String::new(),
            (_, None) => "let scale = terms(block, 1.0);\n".to_string(),
            (Some(_), Some(None)) => "let (_, offset) = terms(block, 1.0);\n".to_string(),
            (None, Some(Some(_))) => "let (scale, _) = terms(block, 1.0);\n".to_string(),
            (None, Some(None)) => "let (scale, offset) = terms(block, 1.0);\n".to_string(),
        };
        for (variable, name, used) in [("scale", "scales", true), ("offset", "mins", plan.offset)] {
            if let Some(stored) = narrow(name).filter(|_| used) {
                pattern.push_str(&format!("let {variable} = {stored};\n"));
            }
        }
        let mins = if plan.offset { format!("{};", write("mins", "offset[run]")) } else { String::new() };
        format!(
            "{pattern}
             for start in (0..ELEMENTS).step_by({run}) {{
                 let (run, k) = (start / RUN, first + start);
                 // SAFETY: the caller answers for room for one value a scale and row.
                 unsafe {{ {scales}; {mins} }}
             }}",
            run = unit * pack.terms.span,
            scales = write("scales", "scale[run]"),
        )
    } else {
        String::new()
    };
    let (scales_name, mins_name) =
        (if plan.has_scales() { "scales" } else { "_scales" }, if plan.offset { "mins" } else { "_mins" });
    let runs = plan.runs();
    let shared = pack.terms.shared_words(rows);
    let value = match (plan.has_scales(), plan.offset) {
        (true, offset) if runs > 1 => format!(
            "let (run, words) = ({unit_index} % {runs}, {unit_index} / {runs} * {words});
             let scale = unsafe {{
                 {scale} * f32::from(scales.add(words + {shared}).cast::<i8>().add(run * {rows} + row).read())
             }};
             {}",
            if offset {
                format!(
                    "// SAFETY: and for minima.
                     let offset = unsafe {{
                         {min} * f32::from(mins.add(words + {shared}).cast::<i8>().add({PAIR}).read())
                     }};
                     outer * (scale * value as f32 - offset)",
                    min = terms::read(pack.terms, "mins", "mins.add(words)", "row"),
                    PAIR = in_pairs(rows),
                )
            } else {
                "outer * (scale * value as f32)".to_string()
            },
            words = pack.terms.words(runs, rows),
            scale = terms::read(pack.terms, "scales", "scales.add(words)", "row"),
        ),
        (true, true) => format!(
            "let (scale, offset) = unsafe {{ ({}, {}) }};
             outer * (scale * value as f32 - offset)",
            terms::read(pack.terms, "scales", "scales", &format!("{scale_index} * {rows} + row")),
            terms::read(pack.terms, "mins", "mins", &format!("{scale_index} * {rows} + row")),
        ),
        (true, false) => format!(
            "let scale = unsafe {{ {} }};
             outer * (scale * value as f32)",
            terms::read(pack.terms, "scales", "scales", &format!("{scale_index} * {rows} + row")),
        ),
        (false, _) if plan.format.value.unit != 1.0 => {
            format!("outer * {} * value as f32", float(plan.format.value.unit))
        }
        (false, _) => "outer * value as f32".to_string(),
    };
    let value = value
        .replace("let (scale", "\n// SAFETY: the caller answers for packed scales.\nlet (scale")
        .replace("let scale =", "\n// SAFETY: the caller answers for packed scales.\nlet scale =");
    let planes = planes::pack(plan, pack, &mut tables);
    // Where the codes of a row in a tile make a word of their own, whole blocks are written word by word.
    let trits = pack.trits().then(|| trits::pack(plan, pack, &row_bit));
    let word = whole_words(plan, pack);
    let store = match (&trits, &planes, word) {
        (Some(trits), _, _) => trits.store.clone(),
        (None, Some(planes), _) => planes.store.clone(),
        (None, None, Some(word)) => {
            let parts: Vec<String> = (0..tile_k)
                .map(|k| {
                    let code = format!("code_{name}(values[{tile_k} * tile + {k}])");
                    let code = if word == 8 { code } else { format!("u{word}::from({code})") };
                    match pack.bit(0, k) {
                        0 => code,
                        bit => format!("{code} << {bit}"),
                    }
                })
                .collect();
            format!(
                "for tile in 0..ELEMENTS / {tile_k} {{
                     let word: u{word} = {};
                     let at = (first / {tile_k} + tile) * {tile_bytes} + ({row_bit}) / 8;
                     // SAFETY: the caller answers for a whole panel.
                     unsafe {{ codes.add(at).cast::<[u8; {}]>().write(word.to_le_bytes()) }};
                 }}",
                parts.join(" | "),
                word / 8
            )
        }
        (None, None, None) => format!(
            "for (element, &value) in values.iter().enumerate() {{
                 let code = code_{name}(value);
                 let k = first + element;
                 let at = {packed_k};
                 let bit = {row_bit} + K_BITS_{upper}[at % {tile_k}];
                 // SAFETY: the caller answers for a whole panel.
                 unsafe {{ *codes.add(at / {tile_k} * {tile_bytes} + bit / 8) |= code << (bit % 8) }};
             }}"
        ),
    };
    let (items, begin, end) = match trits {
        Some(trits) => (trits.items, trits.begin, trits.end),
        None => (String::new(), String::new(), String::new()),
    };
    let code = if pack.trits() {
        format!("(TRITS_{upper}[usize::from(byte)] >> (2 * K_TRITS_{upper}[at % {tile_k}])) & 3")
    } else if let Some(planes) = &planes {
        format!("(byte >> (bit % 8)) & {:#x} | {}", (1u32 << pack.field_bits()) - 1, planes.read)
    } else if bits == 8 {
        "byte".to_owned()
    } else {
        format!("(byte >> (bit % 8)) & {:#x}", (1u32 << bits) - 1)
    };
    format!(
        "{items}/// The code of a value in packing `{name}`.
         #[inline(always)]
         fn code_{name}(value: Int) -> u8 {{ {encode} }}

         {tables}/// Bit of element k of a tile's first row in packing `{name}`.
         const K_BITS_{upper}: [usize; {tile_k}] = [{}];

         /// Rows of blocks to one panel of `{name}`.
         ///
         /// # Safety
         ///
         /// As [`PackFn`](gristmill_runtime::abi::PackFn) says.
         #[inline(always)]
         unsafe fn pack_{name}(
             src: *const u8, row_stride: usize, rows: usize, k: usize,
             codes: *mut u8, {scales_name}: *mut f32, {mins_name}: *mut f32,
         ) -> Result<(), Fault> {{
             for row in 0..rows {{
                 {begin}
                 for index in 0..k / ELEMENTS {{
                     let first = index * ELEMENTS;
                     // SAFETY: the caller answers for `rows` rows of `k / ELEMENTS` blocks.
                     let block = unsafe {{ &*src.add(row * row_stride + index * BYTES).cast::<[u8; BYTES]>() }};
                     let values = values(block).map_err(|fault| number::offset(fault, row * k + first))?;
                     {scales}
                     {store}
                 }}
                 {end}
             }}
             Ok(())
         }}

         /// One row of a panel of `{name}` to values.
         ///
         /// # Safety
         ///
         /// As [`UnpackFn`](gristmill_runtime::abi::UnpackFn) says.
         unsafe fn unpack_{name}(
             codes: *const u8, {scales_name}: *const f32, {mins_name}: *const f32, outer: f32, row: usize, k: usize, dst: *mut f32,
         ) {{
             for k in 0..k {{
                 let at = {packed_k};
                 let bit = {row_bit} + K_BITS_{upper}[at % {tile_k}];
                 // SAFETY: the caller answers for a whole panel.
                 let byte = unsafe {{ *codes.add(at / {tile_k} * {tile_bytes} + bit / 8) }};
                 let code = {code};
                 let value = {decode};
                 let value = {{ {value} }};
                 // SAFETY: the caller answers for room for `k` values.
                 unsafe {{ dst.add(k).write(value) }};
             }}
         }}\n",
        k_bits.join(", "),
    )
}

/// Place of the integer of `run` and `row` among those of minima: pairs of runs side by side, as their sums are multiplied.
fn in_pairs(rows: u32) -> String {
    format!("run / 2 * {} + row * 2 + run % 2", 2 * rows)
}

/// Statements that write the terms of a block's super-blocks.
fn pack_parts(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, superblock: &SuperBlock) -> String {
    let rows = pack.packing.rows;
    let words = pack.terms.words(superblock.runs, rows);
    let integers_at = pack.terms.shared_words(rows);
    let count = plan.groups / superblock.runs;
    let write = |to: &str, parts: &str, place: &str| {
        let shared = match terms::stored(plan, pack, to, count) {
            Some(stored) => format!("let (_, integers) = {parts}(block);\nlet shared = {stored};"),
            None => format!("let (shared, integers) = {parts}(block);"),
        };
        format!(
            "{shared}
             for i in 0..SUPERBLOCKS {{
                 // SAFETY: the caller answers for room for so many words a super-block, and for the row.
                 unsafe {{
                     let to = {to}.add((index * SUPERBLOCKS + i) * {words});
                     {write};
                     let to = to.add({integers_at}).cast::<i8>();
                     for run in 0..SUPERBLOCK {{ to.add({place}).write(integers[i * SUPERBLOCK + run]); }}
                 }}
             }}\n",
            write = terms::write(pack.terms, to, "to", "row", "shared[i]"),
        )
    };
    let mut out = write("scales", "scale_parts", &format!("run * {rows} + row"));
    if superblock.min.is_some() {
        out.push_str(&write("mins", "min_parts", &in_pairs(rows)));
    }
    out
}

/// Bits of the word that the codes of a row in a tile make, if they do and blocks are whole tiles.
fn whole_words(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> Option<u32> {
    let tile = pack.tile;
    let word = tile.k * pack.bits();
    let row = |row: u32| pack.bit(row, 0);
    let apart = (0..pack.packing.rows).all(|r| row(r) % word == 0 && row(r) == r * row(1));
    let together = (0..tile.k).all(|k| pack.bit(0, k) + pack.bits() <= word);
    let blocks = plan.format.elements.is_multiple_of(tile.k);
    let units = plan.unit == 0 || plan.unit.is_multiple_of(pack.multiple);
    ([8, 16, 32, 64].contains(&word) && apart && together && blocks && units).then_some(word)
}
