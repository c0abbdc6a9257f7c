//! Code that moves a format's rows into a packing and back, derived from the packing's layout.

use super::format::read_alone;
use super::packer::{Packer, packed_k};
use super::planes;
use super::terms;
use super::trits;
use crate::lower::decode::weight;
use crate::lower::ir::{Expr, Type, f32, i32};
use crate::plan::{FormatPlan, Integers, PackPlan, SuperBlock, Term};
use crate::print::rust;
use crate::text::{joined, option, when};
use gristmill_spec::model::Axis;

/// `pack_NAME`, `unpack_NAME` and `PACK_NAME` for one packing.
pub(super) fn pack(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    let name = &pack.ident();
    let upper = name.to_uppercase();
    let (tile_k, tile_bytes) = (pack.tile.k, pack.tile.bytes);
    let (row_bits, row_bit) = row_bit(pack);
    let k_bits = joined((0..tile_k).map(|k| pack.bit(0, k).to_string()), ", ");
    let (encode, decode) = (encode(plan, pack), decode(plan, pack));
    let at = packed_k(plan, pack);
    let scales = write_terms(plan, pack);
    let value = value(plan, pack);
    let (scales_name, mins_name) =
        (if plan.has_scales() { "scales" } else { "_scales" }, if plan.offset { "mins" } else { "_mins" });
    let Packer { items, tables, begin, store, end, code } = match pack.upper {
        Some(plane) => planes::packer(plan, pack, plane),
        None if pack.trits() => trits::packer(plan, pack, &row_bit),
        None => packer(plan, pack, &row_bit),
    };
    format!(
        "{items}/// The code of a value in packing `{name}`.
         #[inline(always)]
         fn code_{name}(value: Int) -> u8 {{ {encode} }}

         {row_bits}{tables}/// Bit of element k of a tile's first row in packing `{name}`.
         const K_BITS_{upper}: [usize; {tile_k}] = [{}];

         /// Rows of blocks to one panel of `{name}`.
         ///
         /// # Safety
         ///
         /// As `abi::PackFn` of the runtime says.
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
         /// As `abi::UnpackFn` of the runtime says.
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
         }}\n{}",
        k_bits,
        info(plan, pack),
    )
}

/// `PACK_NAME`: what the registry says of a packing.
fn info(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    let held = match pack.terms.suffix().as_str() {
        "" => String::new(),
        suffix => format!(", scales as {}", suffix.trim_start_matches('_')),
    };
    format!(
        "/// `{name}` in packing `{packing}`{held}.
         // SAFETY: these facts, the functions and the kernels that read the packing are of one plan.
         pub static PACK_{upper}: PackInfo = unsafe {{ PackInfo::new(PackFacts {{
             name: {packing:?}, rows: {rows}, tile_k: {tile_k}, tile_bytes: {tile_bytes}, scale_bytes: {scales}, min_bytes: {mins}, runs: {runs}, span: {span},
             scale_integer_bits: {scale_integer_bits}, min_integer_bits: {min_integer_bits}, flag_bits: {flag_bits}, meaning: {meaning:?}, min: {min}, table: {table},
             pack: pack_{ident}, unpack: unpack_{ident},
         }}) }};\n",
        name = plan.format.name,
        ident = pack.ident(),
        packing = pack.packing.name,
        upper = pack.ident().to_uppercase(),
        rows = pack.packing.rows,
        tile_k = pack.tile.k,
        tile_bytes = pack.tile.bytes,
        scales = if plan.has_scales() { pack.terms.scale.bits() / 8 } else { 0 },
        mins = if plan.offset { pack.terms.min.bits() / 8 } else { 0 },
        runs = plan.runs(),
        span = pack.terms.span,
        scale_integer_bits = pack.terms.scale_integers.bits(),
        min_integer_bits = pack.terms.min_integers.bits(),
        flag_bits = pack.terms.flag_bits(),
        meaning = pack.meaning(),
        min = plan.min(),
        table = option(pack.table.as_ref().map(|table| format!("&{table:?}"))),
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
            let bits = joined((0..rows).map(|row| pack.bit(row, 0).to_string()), ", ");
            (
                format!(
                    "/// Bit of a row's first element in a tile of packing `{name}`.
                     const ROW_BITS_{upper}: [usize; {rows}] = [{}];\n",
                    bits
                ),
                format!("ROW_BITS_{upper}[row % {rows}]"),
            )
        }
    }
}

/// The code of `value`.
fn encode(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    let min = plan.min();
    let above = i32("i32::from(value)") - Expr::int(Type::I32, min.into());
    if pack.table.is_none() {
        return rust::expr(&(above >> pack.spacing).to(Type::U8));
    }
    let mut index = vec![0u8; (plan.max() - min + 1) as usize];
    for (i, value) in plan.values.iter().enumerate() {
        index[(value - min) as usize] = i as u8;
    }
    format!("{{ const INDEX: [u8; {}] = {index:?}; INDEX[({}) as usize] }}", index.len(), rust::expr(&above))
}

/// The integer that `code` stands for.
fn decode(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    let difference = match (pack.spacing, &pack.shifted) {
        (0, _) => "i32::from(code)".to_string(),
        (spacing, None) => format!("(i32::from(code) << {spacing})"),
        (spacing, Some(shifted)) => {
            let (runs, rows) = (plan.runs(), pack.packing.rows);
            let elements = plan.k_group * runs;
            format!(
                "{{
                     let words = k / {elements} * {words};
                     // SAFETY: the caller answers for packed scales.
                     let flags = unsafe {{ scales.add(words + {before}).cast::<{ty}>().add(row).read() }};
                     (i32::from(code) << {spacing}) + {by} * i32::from(flags >> (k % {elements} / {group}) & 1 != 0)
                 }}",
                words = pack.terms.words(Term::Scale, runs, rows),
                before = pack.terms.words_before_flags(runs, rows),
                ty = flag_type(pack),
                by = shifted.by,
                group = shifted.group,
            )
        }
    };
    match (&pack.table, plan.min()) {
        (None, min) => rust::expr(&(i32(difference) + Expr::int(Type::I32, min.into()))),
        (Some(_), _) => format!(
            "{{ const VALUES: [i32; {}] = {:?}; VALUES[usize::from(code) % VALUES.len()] }}",
            plan.values.len(),
            plan.values
        ),
    }
}

/// The place of the term of element `k` of a row, for formats with one for each sum or for some of them.
fn place_of_term(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    let rows = pack.packing.rows;
    format!("(k / {}) * {rows} + row", plan.k_group * pack.terms.span)
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
    let write = |term: Term, value: &str| terms::write(pack.terms, term, term.array(), &place, value);
    // As the block holds them, or what they come to.
    let narrow = |term| terms::stored(plan, pack, term, plan.groups);
    let mut pattern = match (narrow(Term::Scale), plan.offset.then(|| narrow(Term::Min))) {
        (Some(_), None | Some(Some(_))) => String::new(),
        (_, None) => "let scale = terms(block, 1.0);\n".to_string(),
        (Some(_), Some(None)) => "let (_, offset) = terms(block, 1.0);\n".to_string(),
        (None, Some(Some(_))) => "let (scale, _) = terms(block, 1.0);\n".to_string(),
        (None, Some(None)) => "let (scale, offset) = terms(block, 1.0);\n".to_string(),
    };
    for (variable, term) in ["scale", "offset"].into_iter().zip(plan.terms()) {
        if let Some(stored) = narrow(term) {
            pattern.push_str(&format!("let {variable} = {stored};\n"));
        }
    }
    let mins = when(plan.offset, || format!("{};", write(Term::Min, "offset[run]")));
    format!(
        "{pattern}
         for start in (0..ELEMENTS).step_by({run}) {{
             let (run, k) = (start / RUN, first + start);
             // SAFETY: the caller answers for room for one value a scale and row.
             unsafe {{ {scales}; {mins} }}
         }}",
        run = plan.k_group * pack.terms.span,
        scales = write(Term::Scale, "scale[run]"),
    )
}

/// What `value`, the integer of element `k`, comes to.
fn value(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> String {
    const PACKED: &str = "\n// SAFETY: the caller answers for packed scales.\n";
    if !plan.has_scales() {
        let unit = plan.format.value.unit;
        let scale = Expr::product([Some(f32("outer")), (unit != 1.0).then(|| Expr::f32(unit))]);
        return rust::expr(&weight(scale, i32("value"), None));
    }
    if plan.runs() > 1 {
        return value_of_parts(plan, pack, PACKED);
    }
    let place = place_of_term(plan, pack);
    let read = |term: Term| terms::read(pack.terms, term, term.array(), &place);
    let weight = weight_of_terms(plan);
    if plan.offset {
        let (scale, min) = (read(Term::Scale), read(Term::Min));
        format!("{PACKED}let (scale, offset) = unsafe {{ ({scale}, {min}) }};\n{weight}")
    } else {
        format!("{PACKED}let scale = unsafe {{ {} }};\n{weight}", read(Term::Scale))
    }
}

/// The weight of an element's integer, scale and offset, and of the factor outside its block.
fn weight_of_terms(plan: &FormatPlan<'_>) -> String {
    let within = weight(f32("scale"), i32("value"), plan.offset.then(|| f32("offset")));
    rust::expr(&(f32("outer") * within))
}

/// The same where terms are an integer of the run and what a super-block shares.
fn value_of_parts(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, packed: &str) -> String {
    let (rows, runs) = (pack.packing.rows, plan.runs());
    let shared = pack.terms.shared_words(rows);
    // A term of the run, whose super-block's begins at `words`.
    let product = |term: Term| {
        let (name, integers) = (term.array(), pack.terms.integers(term));
        let bytes = place_of_integer(term, integers, rows);
        let integer = match integers {
            Integers::Bytes => {
                format!("f32::from({name}.add(words + {shared}).cast::<i8>().add({bytes}).read())")
            }
            Integers::Nibbles { shift, plus } => {
                let at = format!("{name}.add(words + {shared}).cast::<u8>().add({bytes})");
                terms::integer_of_half(shift, plus, &at, rows / 2)
            }
        };
        let shared = terms::read_factor(pack.terms, term, &format!("{name}.add(words)"), "row");
        format!("{shared} * {integer}")
    };
    let unit = format!("(k / {})", plan.k_group);
    let rest = when(plan.offset, || {
        format!(
            "let words = {unit} / {runs} * {words};
             // SAFETY: and for minima.
             let offset = unsafe {{ {min} }};",
            words = pack.terms.words(Term::Min, runs, rows),
            min = product(Term::Min),
        )
    });
    format!(
        "let (run, words) = ({unit} % {runs}, {unit} / {runs} * {words});
         {packed}let scale = unsafe {{ {scale} }};
         {rest}
         {weight}",
        weight = weight_of_terms(plan),
        words = pack.terms.words(Term::Scale, runs, rows),
        scale = product(Term::Scale),
    )
}

/// For codes of bits in one piece.
fn packer(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, row_bit: &str) -> Packer {
    let code = match pack.bits() {
        8 => "byte".to_owned(),
        bits => format!("(byte >> (bit % 8)) & {:#x}", (1u32 << bits) - 1),
    };
    Packer { store: store(plan, pack, row_bit), code, ..Packer::default() }
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

/// Place of the byte with the integer of `run` and `row` among those of a term. Those of minima lie in pairs of runs side by side, as their
/// sums are multiplied.
fn place_of_integer(term: Term, integers: Integers, rows: u32) -> String {
    let half = rows / 2;
    match (term, integers) {
        (Term::Scale, Integers::Bytes) => format!("run * {rows} + row"),
        (Term::Scale, Integers::Nibbles { .. }) => format!("run * {half} + row % {half}"),
        (Term::Min, Integers::Bytes) => format!("run / 2 * {} + row * 2 + run % 2", 2 * rows),
        (Term::Min, Integers::Nibbles { .. }) => format!("run / 2 * {rows} + row % {half} * 2 + run % 2"),
    }
}

/// Statements that write the terms of a block's super-blocks.
fn pack_parts(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, superblock: &SuperBlock) -> String {
    let (rows, types) = (pack.packing.rows, pack.terms);
    let integers_at = types.shared_words(rows);
    let count = plan.groups / superblock.runs;
    let (flags, write_flags) = flags(plan, pack, superblock);
    let write = |term: Term| {
        let (to, parts) = (term.array(), format!("{}_parts", term.one()));
        let flags = if term == Term::Scale { write_flags.as_str() } else { "" };
        let place = place_of_integer(term, types.integers(term), rows);
        let integers = match types.integers(term) {
            Integers::Bytes => format!(
                "let to = to.add({integers_at}).cast::<i8>();
                 for run in 0..SUPERBLOCK {{ to.add({place}).write(integers[i * SUPERBLOCK + run]); }}"
            ),
            Integers::Nibbles { shift, plus } => format!(
                "let to = to.add({integers_at}).cast::<u8>();
                 for run in 0..SUPERBLOCK {{
                     let code = {};
                     {}
                 }}",
                terms::code_of(shift, plus, "integers[i * SUPERBLOCK + run]"),
                terms::write_code(&format!("to.add({place})"), "row", rows / 2, "code"),
            ),
        };
        let shared = match terms::stored(plan, pack, term, count) {
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
                     {flags}
                     {integers}
                 }}
             }}\n",
            words = types.words(term, superblock.runs, rows),
            write = terms::write(types, term, "to", "row", "shared[i]"),
        )
    };
    flags + &plan.terms().map(write).collect::<String>()
}

/// Statements that read the fields of a block which say what its groups are shifted by, and those that write the flags of super-block
/// `i` behind `to`.
fn flags(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, superblock: &SuperBlock) -> (String, String) {
    let Some(shifted) = pack.shifted else { return (String::new(), String::new()) };
    let field = &plan.format.fields[shifted.field];
    let (groups, ty) = (pack.terms.flags, flag_type(pack));
    let read = format!("let shifts = {};\n", read_alone(field));
    let write = format!(
        "let mut flags = 0{ty};
         for group in 0..{groups} {{ flags |= {ty}::from(shifts[i * {groups} + group] == {}) << group; }}
         to.add({}).cast::<{ty}>().add(row).write(flags);",
        shifted.flag,
        pack.terms.words_before_flags(superblock.runs, pack.packing.rows),
    );
    (read, write)
}

/// The Rust type of a row's flags of a super-block.
fn flag_type(pack: &PackPlan<'_>) -> &'static str {
    if pack.terms.flag_bits() == 8 { "u8" } else { "u32" }
}

/// Bits of the word that the codes of a row in a tile make, if they do and blocks are whole tiles.
fn whole_words(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> Option<u32> {
    let tile = &pack.tile;
    let word = tile.k * pack.bits();
    let row = |row: u32| pack.bit(row, 0);
    let apart = (0..pack.packing.rows).all(|r| row(r) % word == 0 && row(r) == r * row(1));
    let together = (0..tile.k).all(|k| pack.bit(0, k) + pack.bits() <= word);
    let blocks = plan.format.elements.is_multiple_of(tile.k);
    let whole = plan.k_group == 0 || plan.k_group.is_multiple_of(pack.multiple);
    ([8, 16, 32, 64].contains(&word) && apart && together && blocks && whole).then_some(word)
}
