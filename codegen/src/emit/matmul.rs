//! The packed matmul: one loop for every ISA, over the primitives of `gristmill_runtime::simd`.
//!
//! A register tile is `V` vectors of rows by `T` tokens. A row is a lane, so nothing is ever summed
//! across lanes, and the f32 sums of a row are taken in the order of k whatever the tile and the ISA:
//! all variants of a format give the same bits.
//!
//! Vectors are handled in loops over arrays and never in closures: a closure that is not inlined, as happens
//! without link-time optimization, passes every vector through memory.

use super::float;
use super::format::uses_outer;
use super::{matrix, runs};
use crate::plan::{Dot, FormatPlan, MatmulPlan, trits};
use std::fmt::Write;

/// How far ahead weights are asked for. Hardware prefetchers stop at the end of a page, so this is a page.
pub(super) const AHEAD: u32 = 4096;

/// Bytes of activations that all rows go through at once: half of the smallest second cache of the processors meant, so
/// that they stay there while weights pass by.
const SHARE: u32 = 256 << 10;

/// Rows, four bytes each, to a cache line.
const LINE: u32 = 16;

/// Name of the loop a plan needs, without the ISA: all that its text depends on. Formats that differ only
/// in what packing has evened out (their layout, their smallest value, their table) share one.
pub fn shape_name(plan: &MatmulPlan<'_>) -> String {
    let (format, pack) = (plan.format, &plan.pack);
    let code = if pack.trits() { "trits".to_string() } else { format!("{}bit", pack.bits()) };
    let mut name = format!("{}_{code}", pack.packing.name);
    if pack.table.is_some() {
        name.push_str("_lookup");
    }
    name.push_str(&format_words(format, format.min() != 0));
    if plan.biased {
        name.push_str("_biased");
    }
    name.push_str(&constant_word(format));
    if let Dot::Pairs { tiles } = plan.dot {
        let _ = write!(name, "_widen{tiles}");
    }
    name
}

/// What a loop's name says of the formats it serves, whatever multiplies: runs, activations, terms. `centred`: its text
/// takes a smallest value into account.
pub(crate) fn format_words(format: &FormatPlan<'_>, centred: bool) -> String {
    let mut words = match format.unit {
        0 => "_rows".to_string(),
        unit => format!("_by{unit}"),
    };
    if format.runs() > 1 {
        let _ = write!(words, "x{}", format.runs());
    }
    let _ = write!(words, "_{}", format.activations.name);
    for (word, used) in [
        ("scales", format.has_scales()),
        ("mins", format.offset),
        ("centred", centred),
        ("outer", uses_outer(format)),
    ] {
        if used {
            let _ = write!(words, "_{word}");
        }
    }
    words
}

/// The constant factor of formats without scales, where it stands in the loop.
pub(crate) fn constant_word(format: &FormatPlan<'_>) -> String {
    let unit = format.format.value.unit;
    if format.has_scales() || unit == 1.0 { String::new() } else { format!("_unit{:08x}", unit.to_bits()) }
}

/// The module of one packed variant: `tile` and `matmul`.
pub fn emit(plan: &MatmulPlan<'_>) -> String {
    let features: Vec<&str> = plan.features.iter().map(|f| f.name()).collect();
    let features = features.join(",");
    let pack = &plan.pack;
    let vectors = plan.vectors;
    let mut out = String::new();
    let _ = write!(
        out,
        "use gristmill_runtime::abi::MatmulArgs;
         use gristmill_runtime::simd::{}::{{self as simd, LANES}};

         /// Rows of a panel.
         const ROWS: usize = {};
         /// Bytes of a tile of codes: all rows of a panel, {} elements each.
         const TILE: usize = {};
         /// Elements of a row in a tile.
         const TILE_K: usize = {};\n",
        plan.primitives.module, pack.packing.rows, pack.tile.k, pack.tile.bytes, pack.tile.k,
    );
    if asks_ahead(plan) {
        let _ = write!(
            out,
            "/// Weights are read once and perhaps from memory: they are asked for so many bytes ahead.
             const AHEAD: usize = {AHEAD};
             /// Rows to a cache line of codes.
             const LINE: usize = {LINE};\n"
        );
    }
    if plan.tokens > 1 {
        let _ = write!(
            out,
            "/// Bytes of activations that all rows go through at once.
             const SHARE: usize = {SHARE};\n"
        );
    }
    if pack.trits() {
        let trits::Tables { plain, escaped, fifth } = trits::tables();
        let _ = write!(
            out,
            "/// What a byte stands for, by its low six bits: four trits in two bits each; the same for bytes with both
             /// upper bits set; and the fifth trit of those, in the upper two bits. Other bytes hold it there themselves.
             static TRITS: [[u8; 64]; 3] = [{plain:?}, {escaped:?}, {fifth:?}];\n"
        );
    }
    let sums = match (plan.format.unit, &plan.format.superblock) {
        (0, _) => whole_row(plan),
        (_, Some(superblock)) => runs::by_superblock(plan, superblock),
        (_, None) => runs::by_unit(plan),
    };
    let _ = write!(
        out,
        "/// `V` vectors of rows from `row` by `T` tokens from `token`.
         ///
         /// # Safety
         ///
         /// As [`MatmulArgs`] says; the rows lie within its panels and the tokens below `m`.
         #[target_feature(enable = \"{features}\")]
         unsafe fn tile<const V: usize, const T: usize>(a: &MatmulArgs, row: usize, token: usize) {{
             // SAFETY: of the whole function: the caller answers for the buffers of `a`, see `MatmulArgs`.
             unsafe {{
                 let mut codes = [a.codes.add(row / ROWS * a.stride + row % ROWS * 4); V];
                 for i in 1..V {{
                     let row = row + i * LANES;
                     codes[i] = if ROWS.is_multiple_of(V * LANES) {{
                         // In the same panel.
                         codes[0].add(i * LANES * 4)
                     }} else {{
                         a.codes.add(row / ROWS * a.stride + row % ROWS * 4)
                     }};
                 }}
                 let mut x = [a.x; T];
                 for t in 0..T {{ x[t] = a.x.add((token + t) * a.x_stride); }}
                 {next}
                 {sums}
                 {finish}
             }}
         }}

         /// `y = x * w^T (+ bias)`.
         ///
         /// # Safety
         ///
         /// As [`MatmulArgs`] says.
         #[target_feature(enable = \"{features}\")]
         pub unsafe fn matmul(a: &MatmulArgs) {{
             let end = a.row_end.next_multiple_of(LANES);
             {shares}
             // SAFETY: panels are whole, so `end` lies within them; tokens stay below `m`.
             unsafe {{
                 let mut row = a.row_begin;\n",
        shares = if plan.tokens > 1 {
            format!(
                "// All rows go through some tokens, whose activations stay in the caches, then through the next.
                 let shares = a.m.div_ceil((SHARE / a.x_stride.max(1)).max(1));
                 let share = a.m.div_ceil(shares.max(1)).next_multiple_of({});
                 let mut first = 0;
                 while first < a.m {{ let last = a.m.min(first + share);",
                plan.tokens
            )
        } else {
            "let (first, last) = (0, a.m);".to_string()
        },
        next = if asks_ahead(plan) {
            "// From the end of these rows' panels to the rows that come next.
             let after = row + V * LANES;
             let next = (after / ROWS * a.stride + after % ROWS * 4)
                 .wrapping_sub(row / ROWS * a.stride + row % ROWS * 4 + a.stride);"
        } else {
            ""
        },
        finish = finish(plan.format, "V", "y[t][i]"),
    );
    for rows in if vectors > 1 { vec![vectors, 1] } else { vec![1] } {
        let span = if rows == 1 { "LANES".to_string() } else { format!("{rows} * LANES") };
        let _ = write!(out, "while row + {span} <= end {{ let mut token = first;");
        for step in token_steps(plan) {
            // Two tiles of four instead of one of six and one of two.
            let evenly = if step.is_power_of_two() || plan.pairs {
                String::new()
            } else {
                format!(" && token + {} != last", step.next_power_of_two())
            };
            // Clippy's form of `token + 1 <= last`.
            let left = if step == 1 { "token < last".to_owned() } else { format!("token + {step} <= last") };
            let _ = write!(
                out,
                "while {left}{evenly} {{ tile::<{rows}, {step}>(a, row, token); token += {step}; }}"
            );
        }
        let _ = writeln!(out, "row += {span}; }}");
    }
    out.push_str(if plan.tokens > 1 { "} first = last; } }\n" } else { "} }\n" });
    out
}

/// `k`, or `k` and so many elements further.
fn at_k(further: u32) -> String {
    if further == 0 { "k".to_string() } else { format!("k + {further}") }
}

/// Byte `at`, or that of a tile of the same step further on.
pub(super) fn at_tile(tile: u32) -> String {
    if tile == 0 { "at".to_string() } else { format!("at + {tile} * TILE") }
}

/// Token counts of the tiles that cover any m, the largest first: the planned one, powers of two or halves of it below, and
/// one; all of them even where tokens go in pairs, but one.
fn token_steps(plan: &MatmulPlan<'_>) -> Vec<u32> {
    let tokens = plan.tokens;
    let mut steps = vec![tokens];
    if plan.pairs {
        let mut half = tokens;
        while half > 2 {
            half = ((half / 2) & !1).max(2);
            steps.push(half);
        }
    } else if tokens >= 4 {
        let below = tokens.next_power_of_two() / 2;
        steps.push(below);
        if !tokens.is_power_of_two() && below > 2 {
            steps.push(below / 2);
        }
    }
    if tokens > 1 {
        steps.push(1);
    }
    steps
}

/// Statements that load the tiles of a step, from byte `at` on, of every row vector into `packed0[vector]`,
/// `packed1[vector]` and so on, and ask for later ones.
fn load(plan: &MatmulPlan<'_>) -> String {
    (0..plan.step).map(|tile| load_tile(plan, tile)).collect()
}

fn load_tile(plan: &MatmulPlan<'_>, tile: u32) -> String {
    let at = at_tile(tile);
    let mut out = format!(
        "let mut packed{tile} = [simd::zero(); V];
         for i in 0..V {{ packed{tile}[i] = simd::load(codes[i].add({at})); }}\n",
    );
    if asks_ahead(plan) {
        let _ = write!(
            out,
            "let ahead = if V * LANES == ROWS || {at} + AHEAD < a.stride {{
                 {at} + AHEAD
             }} else {{
                 ({at} + AHEAD).wrapping_add(next)
             }};
             for i in 0..V {{ if (i * LANES).is_multiple_of(LINE) {{ simd::prefetch(codes[i].wrapping_add(ahead)); }} }}\n"
        );
    }
    if plan.pack.trits() {
        let _ = write!(
            out,
            "let mut fifth{tile} = [simd::zero(); V];
             for i in 0..V {{ (packed{tile}[i], fifth{tile}[i]) = simd::trits(&trits, packed{tile}[i]); }}\n"
        );
    }
    out
}

/// Whether weights are asked for ahead: where a token reads them once, and where it was measured to pay for several.
pub(super) fn asks_ahead(plan: &MatmulPlan<'_>) -> bool {
    plan.tokens == 1 || plan.primitives.ahead
}

/// Statements that decode field `field` of the loaded tiles, counted through all of them, into `wFIELD[vector]`.
fn decode(plan: &MatmulPlan<'_>, field: u32) -> String {
    let pack = &plan.pack;
    let (tile, of_tile) = (field / pack.fields, field % pack.fields);
    let apart = pack.trits() && of_tile == pack.fields - 1;
    let from = if apart { format!("fifth{tile}[i]") } else { format!("packed{tile}[i]") };
    let shift = pack.place(of_tile);
    let shift_free = plan.dot == Dot::Direct { shift_free: true };
    let text = if shift_free && place(plan, of_tile).is_some() {
        format!("simd::and({from}, simd::bytes({:#x}))", ((1u32 << pack.bits()) - 1) << shift)
    } else {
        code_at(plan, &from, shift, place(plan, of_tile).is_none())
    };
    let text = operand(plan, &text);
    format!("let mut w{field} = [simd::zero(); V];\nfor i in 0..V {{ w{field}[i] = {text}; }}\n")
}

/// The code at bit `shift` of every byte of `packed` (an expression); `alone`: nothing stands above it.
pub(super) fn code_at(plan: &MatmulPlan<'_>, packed: &str, shift: u32, alone: bool) -> String {
    let shifted = if shift == 0 { packed.to_string() } else { format!("simd::shift::<{shift}>({packed})") };
    if plan.pack.fields == 1 || alone {
        shifted
    } else {
        format!("simd::and({shifted}, simd::bytes({:#x}))", (1u32 << plan.pack.bits()) - 1)
    }
}

/// The operand that a code (an expression) stands for.
pub(super) fn operand(plan: &MatmulPlan<'_>, code: &str) -> String {
    match (plan.pack.table.is_some(), plan.biased) {
        (true, _) => format!("simd::lookup(table, {code})"),
        (false, true) => format!("simd::signed({code})"),
        (false, false) => code.to_string(),
    }
}

/// The statement that makes the tables by which codes become operands, where there are any.
pub(super) fn table(plan: &MatmulPlan<'_>) -> &'static str {
    match (plan.pack.table.is_some(), plan.biased) {
        (false, _) if plan.pack.trits() => "let trits = simd::trit_tables(&TRITS);\n",
        (true, true) => "let table = simd::signed(simd::table(&*a.table));\n",
        (true, false) => "let table = simd::table(&*a.table);\n",
        (false, _) => "",
    }
}

/// The bit at which a field stands in its byte where it needn't be moved; none for a topmost field that is
/// shifted down at the price of a mask.
fn place(plan: &MatmulPlan<'_>, field: u32) -> Option<u32> {
    let bit = plan.pack.place(field);
    let top = field > 0 && bit + plan.pack.bits() == 8 && plan.primitives.byte_shift;
    (!top).then_some(bit)
}

/// Statements that take the fields of the loaded tile one after the other, so that few of them are held at once, and
/// multiply each with the activations at element `k` of each unit or row. `step` writes the one for a field, given the
/// primitive that multiplies; `x` holds the activations in it.
fn multiply_fields(plan: &MatmulPlan<'_>, step: impl Fn(u32, &str) -> String) -> String {
    let mut out = String::new();
    let fields = plan.pack.fields * plan.step;
    if plan.primitives.grouped && (2..=4).contains(&fields) {
        let _ = writeln!(
            out,
            "let mut group = [simd::zero(); T];\nfor t in 0..T {{ group[t] = simd::activations::<{}>(x[t].add(k)); }}",
            4 * fields
        );
        for field in in_order(plan) {
            let step = step(field, &format!("dot_group::<{field}>"));
            out.push_str(&decode(plan, field));
            let _ = writeln!(out, "for t in 0..T {{ let x = group[t]; for i in 0..V {{ {step} }} }}");
        }
        return out;
    }
    let function = match plan.dot {
        Dot::Direct { .. } => "dot",
        Dot::Pairs { .. } | Dot::PairsAtOnce => "pairs",
        Dot::Wide => "wide",
    };
    for field in in_order(plan) {
        out.push_str(&decode(plan, field));
        let _ = write!(
            out,
            "for t in 0..T {{
                 let x = simd::broadcast(x[t].add({}));
                 for i in 0..V {{ {} }}
             }}\n",
            at_k(4 * field),
            step(field, function)
        );
    }
    out
}

/// The order in which fields are taken. The fifth trit comes first: what it is looked up from is not needed any more then.
fn in_order(plan: &MatmulPlan<'_>) -> Vec<u32> {
    let mut fields: Vec<u32> = (0..plan.pack.fields * plan.step).collect();
    if plan.pack.trits() {
        fields.rotate_right(1);
    }
    fields
}

/// As [`multiply_fields`], all into the sums of this name.
fn multiply(plan: &MatmulPlan<'_>, sum: &str) -> String {
    multiply_fields(plan, |field, function| {
        format!("{sum}[t][i] = simd::{function}({sum}[t][i], w{field}[i], x);")
    })
}

/// Integer sums over `count` tiles from `first` on (expressions) into `dot[t][i]`. Where `start` is given, they start at
/// `start[t]`, else at zero.
pub(super) fn integer_sums(plan: &MatmulPlan<'_>, first: &str, count: &str, start: bool) -> String {
    let alone = sums_by_token(plan, first, count, start);
    if !plan.pairs {
        return alone;
    }
    let paired = matrix::sums(plan, first, count, start);
    format!("let dot = if T == 1 {{ {alone} dot }} else {{ {paired} dot }};\n")
}

/// A loop over `count` tiles from `first` on, `step` at once: `tile` is the first of them in `body`.
pub(super) fn steps(step: u32, first: &str, count: &str, body: &str) -> String {
    let position = "let (at, k) = (tile * TILE, tile * TILE_K);";
    if step == 1 {
        return format!("for tile in {first}..{first} + {count} {{ {position} {body} }}\n");
    }
    let steps = match count.parse::<u32>() {
        Ok(count) => (count / step).to_string(),
        Err(_) => format!("{count} / {step}"),
    };
    format!("for step in 0..{steps} {{ let tile = {first} + step * {step}; {position} {body} }}\n")
}

/// As [`integer_sums`], each token by itself.
fn sums_by_token(plan: &MatmulPlan<'_>, first: &str, count: &str, start: bool) -> String {
    let begin = |sum: &str| {
        if start {
            format!("for t in 0..T {{ for i in 0..V {{ {sum}[t][i] = start[t]; }} }}\n")
        } else {
            String::new()
        }
    };
    let load = load(plan);
    let table = table(plan);
    let position = "let (at, k) = (tile * TILE, tile * TILE_K);";
    match plan.dot {
        Dot::Direct { shift_free: true } => {
            let fields = plan.pack.fields;
            let multiply = multiply_fields(plan, |field, function| {
                format!("sums[{field}][t][i] = simd::{function}(sums[{field}][t][i], w{field}[i], x);")
            });
            let mut total = String::from("sums[0][t][i]");
            for field in 1..fields {
                total = match place(plan, field) {
                    Some(bit) => {
                        format!("simd::add({total}, simd::shift_lanes::<{bit}>(sums[{field}][t][i]))")
                    }
                    None => format!("simd::add({total}, sums[{field}][t][i])"),
                };
            }
            format!(
                "{table}// Fields are multiplied where they stand in the byte; each sum is shifted once, exactly.
                 let mut sums = [[[simd::zero(); V]; T]; {fields}];
                 {begin}
                 for tile in {first}..{first} + {count} {{ {position} {load} {multiply} }}
                 let mut dot = [[simd::zero(); V]; T];
                 for t in 0..T {{ for i in 0..V {{ dot[t][i] = {total}; }} }}\n",
                begin = begin("sums[0]"),
            )
        }
        Dot::Direct { shift_free: false } | Dot::Wide => format!(
            "{table}let mut dot = [[simd::zero(); V]; T];
             {}
             {}\n",
            begin("dot"),
            steps(plan.step, first, count, &format!("{load} {}", multiply(plan, "dot")))
        ),
        Dot::PairsAtOnce => {
            let multiply = multiply_fields(plan, |field, function| {
                format!(
                    "dot[t][i] = simd::widen(dot[t][i], simd::{function}(simd::zero_pairs(), w{field}[i], x));"
                )
            });
            format!(
                "{table}let mut dot = [[simd::zero(); V]; T];
                 {}
                 for tile in {first}..{first} + {count} {{ {position} {load} {multiply} }}\n",
                begin("dot")
            )
        }
        // A unit that fits i16 sums is widened once, at its end.
        Dot::Pairs { tiles }
            if plan.format.unit != 0 && tiles >= plan.format.unit.div_ceil(plan.pack.tile.k) =>
        {
            format!(
                "{table}let mut sum = [[simd::zero_pairs(); V]; T];
             for tile in {first}..{first} + {count} {{ {position} {load} {} }}
             let mut dot = [[simd::zero(); V]; T];
             {}
             for t in 0..T {{ for i in 0..V {{ dot[t][i] = simd::widen(dot[t][i], sum[t][i]); }} }}\n",
                multiply(plan, "sum"),
                begin("dot")
            )
        }
        Dot::Pairs { tiles } => format!(
            "{table}let mut dot = [[simd::zero(); V]; T];
             {}
             let mut tile = {first};
             while tile < {first} + {count} {{
                 // i16 sums stay exact over {tiles} tiles.
                 let stop = ({first} + {count}).min(tile + {tiles});
                 let mut sum = [[simd::zero_pairs(); V]; T];
                 while tile < stop {{
                     {position} {load} {}
                     tile += 1;
                 }}
                 for t in 0..T {{ for i in 0..V {{ dot[t][i] = simd::widen(dot[t][i], sum[t][i]); }} }}
             }}\n",
            begin("dot"),
            multiply(plan, "sum")
        ),
    }
}

/// What the operands leave out: value = operand + min, or (operand - 128) + (min + 128).
pub(super) fn left_out(plan: &MatmulPlan<'_>) -> &'static str {
    if plan.biased { "simd::splat(x_sum * (a.min + 128))" } else { "simd::splat(x_sum * a.min)" }
}

/// Whether integer sums are corrected by the sum of the activations.
pub(super) fn needs_sum(plan: &MatmulPlan<'_>) -> bool {
    plan.format.min() != 0 || plan.biased
}

fn whole_row(plan: &MatmulPlan<'_>) -> String {
    let sums = integer_sums(plan, "0", "a.stride / TILE", false);
    let corrected = if needs_sum(plan) {
        format!("simd::to_f32(simd::add(dot[t][i], {}))", left_out(plan))
    } else {
        "simd::to_f32(dot[t][i])".to_string()
    };
    let x_sum = if needs_sum(plan) { "let x_sum = *a.x_sums.add(token + t);" } else { "" };
    format!(
        "{sums}
         let mut y = [[simd::splat_f32(0.0); V]; T];
         for t in 0..T {{
             {x_sum}
             for i in 0..V {{ y[t][i] = {corrected}; }}
         }}\n"
    )
}

/// Activation scale, outer scale, bias, store: the order of the scalar reference. `vectors` is how many
/// vectors of rows there are, and `y` the f32 sums of vector `i` and token `t`.
pub(super) fn finish(format: &FormatPlan<'_>, vectors: &str, y: &str) -> String {
    let value = &format.format.value;
    let mut steps = String::new();
    if format.activations.block.is_none() {
        let function = if format.activations.keeps_multiplier { "div_f32" } else { "mul_f32" };
        let _ = writeln!(steps, "let y = simd::{function}(y, simd::splat_f32(*a.x_scales.add(token + t)));");
    }
    if uses_outer(format) {
        steps.push_str("let y = simd::mul_f32(y, simd::load_f32(a.outer.add(row)));\n");
    }
    if !format.has_scales() && value.unit != 1.0 {
        let _ = writeln!(steps, "let y = simd::mul_f32(y, simd::splat_f32({}));", float(value.unit));
    }
    format!(
        "for i in 0..{vectors} {{
             let row = row + i * LANES;
             if row >= a.row_end {{ break; }}
             let whole = row + LANES <= a.row_end;
             let bias = if a.bias.is_null() {{
                 None
             }} else if whole {{
                 Some(simd::load_f32(a.bias.add(row)))
             }} else {{
                 let mut lanes = [0f32; LANES];
                 lanes.as_mut_ptr().copy_from_nonoverlapping(a.bias.add(row), a.row_end - row);
                 Some(simd::load_f32(lanes.as_ptr()))
             }};
             for t in 0..T {{
                 let y = {y};
                 {steps}
                 let y = match bias {{ Some(bias) => simd::add_f32(y, bias), None => y }};
                 let out = a.y.add((token + t) * a.n + row);
                 if whole {{
                     simd::store_f32(out, y);
                 }} else {{
                     let mut lanes = [0f32; LANES];
                     simd::store_f32(lanes.as_mut_ptr(), y);
                     out.copy_from_nonoverlapping(lanes.as_ptr(), a.row_end - row);
                 }}
             }}
         }}\n"
    )
}
