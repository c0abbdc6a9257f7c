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
    let upper = name.to_uppercase();
    let (tile_k, tile_bytes) = (pack.tile.k, pack.tile.bytes);
    let (mut tables, row_bit) = row_bit(pack);
    let k_bits: Vec<String> = (0..tile_k).map(|k| pack.bit(0, k).to_string()).collect();
    let (encode, decode) = (encode(plan, pack), decode(plan, pack));
    let at = packed_k(plan, pack);
    let scales = write_terms(plan, pack);
    let value = value(plan, pack);
    let (scales_name, mins_name) =
        (if plan.has_scales() { "scales" } else { "_scales" }, if plan.offset { "mins" } else { "_mins" });
    let planes = planes::pack(plan, pack, &mut tables);
    let trits = pack.trits().then(|| trits::pack(plan, pack, &row_bit));
    let store = match (&trits, &planes) {
        (Some(trits), _) => trits.store.clone(),
        (None, Some(planes)) => planes.store.clone(),
        (None, None) => store(plan, pack, &row_bit),
    };
    let code = match &planes {
        _ if pack.trits() => {
            format!("(TRITS_{upper}[usize::from(byte)] >> (2 * K_TRITS_{upper}[at % {tile_k}])) & 3")
        }
        Some(planes) => {
            format!("(byte >> (bit % 8)) & {:#x} | {}", (1u32 << pack.field_bits()) - 1, planes.read)
        }
        None if pack.bits() == 8 => "byte".to_owned(),
        None => format!("(byte >> (bit % 8)) & {:#x}", (1u32 << pack.bits()) - 1),
    };
    let (items, begin, end) = match trits {
        Some(trits) => (trits.items, trits.begin, trits.end),
        None => (String::new(), String::new(), String::new()),
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
                 let at = {at};
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

/// Tables that say at which bit of a tile a row begins, and that bit for the row `row`.
fn row_bit(pack: &PackPlan<'_>) -> (String, String) {
    let mut digits = pack.tile.digits.iter().filter(|d| d.axis == Axis::Row);
    match (digits.next(), digits.next()) {
        (Some(only), None) => (String::new(), format!("row * {}", only.stride)),
        (None, _) => (String::new(), "0".to_string()),
        (Some(_), Some(_)) => {
            let (name, rows) = (pack.ident(), pack.packing.rows);
            let upper = name.to_uppercase();
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
    }
}

/// The code of `value`.
fn encode(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    let min = plan.min();
    if pack.table.is_none() {
        return match (min, pack.spacing) {
            (0, 0) => "value as u8".to_string(),
            (_, 0) => format!("(i32::from(value){}) as u8", signed(-min)),
            (_, spacing) => format!("((i32::from(value){}) >> {spacing}) as u8", signed(-min)),
        };
    }
    let mut index = vec![0u8; (plan.max() - min + 1) as usize];
    for (i, value) in plan.values.iter().enumerate() {
        index[(value - min) as usize] = i as u8;
    }
    format!(
        "{{ const INDEX: [u8; {}] = {index:?}; INDEX[(i32::from(value){}) as usize] }}",
        index.len(),
        signed(-min)
    )
}

/// The integer that `code` stands for.
fn decode(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    let difference = match pack.spacing {
        0 => "i32::from(code)".to_string(),
        spacing => format!("(i32::from(code) << {spacing})"),
    };
    match (&pack.table, plan.min()) {
        (None, 0) => difference,
        (None, min) => format!("{difference}{}", signed(min)),
        (Some(_), _) => format!(
            "{{ const VALUES: [i32; {}] = {:?}; VALUES[usize::from(code) % VALUES.len()] }}",
            plan.values.len(),
            plan.values
        ),
    }
}

/// The sum that element `k` belongs to, counted over a row.
fn unit_of_k(plan: &FormatPlan<'_>) -> String {
    match plan.unit {
        0 => "0usize".to_string(),
        unit => format!("(k / {unit})"),
    }
}

/// The place of element `k` of a row where sums are padded to what the packing's tiles take.
fn packed_k(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    let unit = plan.unit;
    match unit.next_multiple_of(pack.multiple.max(1)) {
        padded if unit == 0 || padded == unit => "k".to_string(),
        padded => format!("k / {unit} * {padded} + k % {unit}"),
    }
}

/// The place of the term of element `k` of a row, for formats with one for each sum or for some of them.
fn place_of_term(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    let rows = pack.packing.rows;
    match plan.unit {
        0 => format!("{} * {rows} + row", unit_of_k(plan)),
        unit => format!("(k / {}) * {rows} + row", unit * pack.terms.span),
    }
}

/// Statements that write the scales of a block, and its minima.
fn write_terms(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    if let Some(superblock) = &plan.superblock {
        return pack_parts(plan, pack, superblock);
    }
    if !plan.has_scales() {
        return String::new();
    }
    let place = place_of_term(plan, pack);
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
        run = plan.unit * pack.terms.span,
        scales = write("scales", "scale[run]"),
    )
}

/// What `value`, the integer of element `k`, comes to.
fn value(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    const PACKED: &str = "\n// SAFETY: the caller answers for packed scales.\n";
    if !plan.has_scales() {
        return match plan.format.value.unit {
            1.0 => "outer * value as f32".to_string(),
            unit => format!("outer * {} * value as f32", float(unit)),
        };
    }
    if plan.runs() > 1 {
        return value_of_parts(plan, pack, PACKED);
    }
    let place = place_of_term(plan, pack);
    let read = |name: &str| terms::read(pack.terms, name, name, &place);
    if plan.offset {
        format!(
            "{PACKED}let (scale, offset) = unsafe {{ ({}, {}) }};
             outer * (scale * value as f32 - offset)",
            read("scales"),
            read("mins"),
        )
    } else {
        format!(
            "{PACKED}let scale = unsafe {{ {} }};
             outer * (scale * value as f32)",
            read("scales"),
        )
    }
}

/// The same where terms are an integer of the run and what a super-block shares.
fn value_of_parts(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, packed: &str) -> String {
    let (rows, runs) = (pack.packing.rows, plan.runs());
    let shared = pack.terms.shared_words(rows);
    let rest = if plan.offset {
        format!(
            "// SAFETY: and for minima.
             let offset = unsafe {{
                 {min} * f32::from(mins.add(words + {shared}).cast::<i8>().add({place}).read())
             }};
             outer * (scale * value as f32 - offset)",
            min = terms::read(pack.terms, "mins", "mins.add(words)", "row"),
            place = in_pairs(rows),
        )
    } else {
        "outer * (scale * value as f32)".to_string()
    };
    format!(
        "let (run, words) = ({unit} % {runs}, {unit} / {runs} * {words});
         {packed}let scale = unsafe {{
             {scale} * f32::from(scales.add(words + {shared}).cast::<i8>().add(run * {rows} + row).read())
         }};
         {rest}",
        unit = unit_of_k(plan),
        words = pack.terms.words(runs, rows),
        scale = terms::read(pack.terms, "scales", "scales.add(words)", "row"),
    )
}

/// Statements that write the codes of a block. Where those of a row in a tile make a word of their own, whole blocks are
/// written word by word.
fn store(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, row_bit: &str) -> String {
    let (name, tile_k, tile_bytes) = (pack.ident(), pack.tile.k, pack.tile.bytes);
    let Some(word) = whole_words(plan, pack) else {
        return format!(
            "for (element, &value) in values.iter().enumerate() {{
                 let code = code_{name}(value);
                 let k = first + element;
                 let at = {at};
                 let bit = {row_bit} + K_BITS_{upper}[at % {tile_k}];
                 // SAFETY: the caller answers for a whole panel.
                 unsafe {{ *codes.add(at / {tile_k} * {tile_bytes} + bit / 8) |= code << (bit % 8) }};
             }}",
            at = packed_k(plan, pack),
            upper = name.to_uppercase(),
        );
    };
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
