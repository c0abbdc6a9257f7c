//! The packed matmul: one loop for every ISA, over the primitives of `gristmill_runtime::simd`.
//!
//! A register tile is `V` vectors of rows by `T` tokens. A row is a lane, so nothing is ever summed
//! across lanes, and the f32 sums of a row are taken in the order of k whatever the tile and the ISA:
//! all variants of a format give the same bits.
//!
//! Vectors are handled in loops over arrays and never in closures: a closure that is not inlined, as happens
//! without link-time optimization, passes every vector through memory.

use super::function::{Function, constants, imports};
use super::operands::{LINE, Over};
use super::runs::{self, Extent};
use super::sums::{integer_sums, needs_sum, zero_point};
use super::superblocks;
use crate::lower::ir::f32;
use crate::lower::product as lower;
use crate::plan::{Dot, FormatPlan, MatmulPlan, Prefetch, SPLIT_RUNS, Scaled, UpperPlane, enabled, trits};
use crate::print::simd;
use crate::text::when;
use std::fmt::Write;

/// Name of the loop a plan needs, without the ISA: all that its text depends on. Formats that differ only
/// in what packing has evened out (their layout, their smallest value, their table) share one.
pub fn shape_name(plan: &MatmulPlan<'_>) -> String {
    let (format, pack) = (plan.format, &plan.pack);
    let code = if pack.trits() { "trits".to_string() } else { format!("{}bit", pack.bits()) };
    let mut name = format!("{}_{code}", pack.packing.name);
    if pack.table.is_some() {
        name.push_str("_lookup");
    }
    if pack.spacing > 0 {
        let _ = write!(name, "_by{}", 1 << pack.spacing);
    }
    if let Some(shifted) = pack.shifted {
        let _ = write!(name, "_or{}for{}", shifted.by, shifted.group);
    }
    name.push_str(&format_words(format, format.min() != 0));
    name.push_str(&pack.terms.suffix());
    name.push_str(&pack.terms.factor_word());
    if plan.biased {
        name.push_str("_biased");
    }
    if plan.signs {
        name.push_str("_signs");
    }
    name.push_str(&constant_word(format));
    if let Dot::Pairs { tiles } = plan.dot {
        let _ = write!(name, "_widen{tiles}");
    }
    if let Some(staged) = &plan.staged {
        let _ = match staged.scaled {
            None => write!(name, "_staged{}", if staged.halved { "_halved" } else { "" }),
            Some(Scaled::Bytes { zero, halved }) => {
                let halved = if halved { "_halved" } else { "" };
                write!(name, "_scaled_from{}{halved}", zero.unsigned_abs())
            }
            Some(Scaled::Words) => write!(name, "_words"),
        };
    }
    if let Some(tiles) = plan.tiles {
        let _ = write!(name, "_{}", tiles.operands.word());
    }
    name
}

/// What a loop's name says of the formats it serves, whatever multiplies: runs, activations, terms. `centred`: its text
/// takes a smallest value into account.
pub(crate) fn format_words(format: &FormatPlan<'_>, centred: bool) -> String {
    let mut words = match format.k_group {
        0 => "_rows".to_string(),
        k_group => format!("_by{k_group}"),
    };
    if format.runs() > 1 {
        let _ = write!(words, "x{}", format.runs());
    }
    let _ = write!(words, "_{}", format.activations.name);
    for (word, used) in [
        ("scales", format.has_scales()),
        ("mins", format.offset),
        ("centred", centred),
        ("outer", format.uses_outer()),
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

/// The module of one packed variant that decodes codes for each tile of tokens: `tile` and `matmul`.
pub fn emit(plan: &MatmulPlan<'_>) -> String {
    let features = enabled(&plan.features);
    let pack = &plan.pack;
    let (parameter, argument) =
        if is_told(plan) { (", const PREFETCH: bool", ", PREFETCH") } else { ("", "") };
    let (rows, bytes, k) = (pack.packing.rows, pack.tile.bytes, pack.tile.k);
    let of_a_tile = format!("Bytes of a tile of codes: all rows of a panel, {k} elements each.");
    let mut out = imports(&[], plan.primitives.module);
    out += &constants(&[
        ("ROWS", &rows, "Rows of a panel."),
        ("TILE", &bytes, &of_a_tile),
        ("TILE_K", &k, "Elements of a row in a tile."),
    ]);
    out.push_str(&prefetch_constants(plan));
    out.push_str(&trit_tables(plan));
    if plan.dot == Dot::Split && plan.format.superblock.is_none() {
        out += &constants(&[("SPLIT_RUNS", &SPLIT_RUNS, "Runs whose activations are split together.")]);
    }
    let sums = match (plan.format.k_group, &plan.format.superblock) {
        (0, _) => whole_row(plan),
        (_, Some(superblock)) => superblocks::by_superblock(plan, superblock, &Extent::ROW),
        (_, None) => runs::by_k_group(plan, &Extent::ROW),
    };
    let tile = Function {
        doc: "`V` vectors of rows from `row` by `T` tokens from `token`.",
        safety: "As [`MatmulArgs`] says; the rows lie within its panels and the tokens below `m`.",
        features: &features,
        declaration: &format!(
            "unsafe fn tile<const V: usize, const T: usize{parameter}>(a: &MatmulArgs, row: usize, token: usize)"
        ),
    };
    let body = format!(
        "{addresses}
         let mut x = [a.x; T];
         for t in 0..T {{ x[t] = a.x.add((token + t) * a.x_stride); }}
         {next}
         {sums}
         {epilogue}",
        addresses = addresses(plan),
        next = next(plan),
        epilogue = epilogue(plan.format, "V", "T", "y[t][i]"),
    );
    out += &tile.with_unsafe("", "the caller answers for the buffers of `a`, see `MatmulArgs`", &body);
    out + &matmul(plan, &features, argument)
}

/// Whether callers say if a kernel prefetches.
fn is_told(plan: &MatmulPlan<'_>) -> bool {
    plan.prefetch.is_some_and(Prefetch::is_told)
}

/// What prefetches are written in, where weights are prefetched.
pub(super) fn prefetch_constants(plan: &MatmulPlan<'_>) -> String {
    let Some(prefetch) = plan.prefetch else { return String::new() };
    let distance = prefetch.distance.map_or(String::new(), |bytes| {
        format!(
            "/// The prefetch distance in bytes: weights are read once and perhaps from memory.
             const PREFETCH_DISTANCE: usize = {bytes};\n"
        )
    });
    format!(
        "{distance}/// Rows to a cache line of codes.
         const LINE: usize = {LINE};\n"
    )
}

/// The tables that trits are looked up in, where codes are trits.
pub(super) fn trit_tables(plan: &MatmulPlan<'_>) -> String {
    if !plan.pack.trits() {
        return String::new();
    }
    let trits::Tables { plain, escaped, fifth } = trits::tables();
    format!(
        "/// What a byte stands for, by its low six bits: four trits in two bits each; the same for bytes with both
         /// upper bits set; and the fifth trit of those, in the upper two bits. Other bytes hold it there themselves.
         static TRITS: [[u8; 64]; 3] = [{plain:?}, {escaped:?}, {fifth:?}];\n"
    )
}

/// Where the codes of `V` vectors of rows from `row` on begin.
pub(super) fn addresses(plan: &MatmulPlan<'_>) -> String {
    let uppers = match plan.pack.upper {
        Some(UpperPlane { nibbles: true, offset, .. }) => format!(
            "// Two bytes of upper bits to a row.
             let mut uppers = [a.codes.add(row / ROWS * a.stride + row % ROWS * 2 + {offset}); V];
             for i in 1..V {{
                 let row = row + i * LANES;
                 uppers[i] = a.codes.add(row / ROWS * a.stride + row % ROWS * 2 + {offset});
             }}"
        ),
        Some(_) | None => String::new(),
    };
    format!(
        "let mut codes = [a.codes.add(row / ROWS * a.stride + row % ROWS * 4); V];
         for i in 1..V {{
             let row = row + i * LANES;
             codes[i] = if ROWS.is_multiple_of(V * LANES) {{
                 // In the same panel.
                 codes[0].add(i * LANES * 4)
             }} else {{
                 a.codes.add(row / ROWS * a.stride + row % ROWS * 4)
             }};
         }}
         {uppers}"
    )
}

/// The distance from the end of a row to what is read next, where weights are prefetched.
pub(super) fn next(plan: &MatmulPlan<'_>) -> String {
    let Some(prefetch) = plan.prefetch else { return String::new() };
    let distance = if prefetch.is_told() {
        "// The prefetch distance: weights are read once and perhaps from memory.
         let distance = a.prefetch as usize;"
    } else {
        ""
    };
    format!(
        "// From the end of these rows' panels to the rows that come next.
         let after = row + V * LANES;
         let next = (after / ROWS * a.stride + after % ROWS * 4)
             .wrapping_sub(row / ROWS * a.stride + row % ROWS * 4 + a.stride);
         {distance}"
    )
}

/// Statements that take all rows of a call through all tokens, in shares of tokens `first..last` which are tiles of so many but for the
/// last one. `prepare` stands in front; `body` is given how many vectors of rows it computes.
pub(super) fn in_shares(plan: &MatmulPlan<'_>, prepare: &str, body: impl Fn(u32) -> String) -> String {
    let (begin, end) = match plan.tokens {
        1 => ("let (first, last) = (0, a.m);".to_string(), ""),
        tokens => (
            format!(
                "// All rows go through some tokens, whose activations stay in the caches, then through the next.
                 let shares = a.m.div_ceil((a.x_share / a.x_stride.max(1)).max(1));
                 let share = a.m.div_ceil(shares.max(1)).next_multiple_of({tokens});
                 let mut first = 0;
                 while first < a.m {{ let last = a.m.min(first + share);"
            ),
            "first = last; }",
        ),
    };
    let of_a_panel = plan.pack.packing.rows / plan.primitives.lanes;
    let Rows { end: rows_end, loops } = through_rows(plan.vectors, of_a_panel, "LANES", body);
    format!(
        "{rows_end}
         {prepare}
         {begin}
         // SAFETY: panels are whole, so `end` lies within them; tokens stay below `m`.
         unsafe {{
             let mut row = a.row_begin;
             {loops}
         }}
         {end}",
    )
}

/// How a call goes through its rows.
pub(super) struct Rows {
    /// The statement that binds `end`.
    pub(super) end: String,
    /// Loops that take `row` to `end`.
    pub(super) loops: String,
}

/// A call's rows in tiles of `vectors`, or fewer where what is left of its panels, of `of_a_panel` vectors each, has no more, by the
/// statements `body`, which is given how many vectors of so many `lanes` (a name) it computes. Rows that fill up the last panel are
/// computed and not stored: tiles for less than a panel would run once a matrix, and be half of what is compiled.
pub(super) fn through_rows(vectors: u32, of_a_panel: u32, lanes: &str, body: impl Fn(u32) -> String) -> Rows {
    let divides_both = |fewest: &u32| vectors.is_multiple_of(*fewest) && of_a_panel.is_multiple_of(*fewest);
    let fewest = (1..=vectors).rev().find(divides_both).unwrap_or(1);
    let span = |rows: u32| if rows == 1 { lanes.to_string() } else { format!("{rows} * {lanes}") };
    let each: &[u32] = if vectors > fewest { &[vectors, fewest] } else { &[vectors] };
    let to_end =
        |&rows: &u32| format!("while row + {0} <= end {{ {1} row += {0}; }}\n", span(rows), body(rows));
    Rows {
        end: format!("let end = a.row_end.next_multiple_of({});", span(fewest)),
        loops: each.iter().map(to_end).collect(),
    }
}

/// Loops that take `token` to `last` by `call`, which is given how many tokens it computes from `token` on. Where a tile's last tokens
/// do not exist it begins earlier, at tokens that are computed twice to the same bits: that takes less time than smaller
/// tiles, which decode the codes once more each.
fn over_tokens(plan: &MatmulPlan<'_>, call: impl Fn(u32) -> String) -> String {
    if plan.pairs {
        return through_tokens(plan, "last", call);
    }
    let steps = token_steps(plan);
    let mut out = String::new();
    for (i, &step) in steps.iter().enumerate() {
        let call = call(step);
        let _ = match steps.get(i + 1) {
            None => write!(out, "while token < last {{ {call}; token += 1; }}"),
            Some(below) => write!(
                out,
                "while token + {below} < last && last >= {step}{} {{
                     token = token.min(last - {step});
                     {call};
                     token += {step};
                 }}",
                evenly(step, "last"),
            ),
        };
    }
    out
}

/// Loops that take `token` to `last` (an expression) by `call`, which is given how many tokens it computes, each once.
pub(super) fn through_tokens(plan: &MatmulPlan<'_>, last: &str, call: impl Fn(u32) -> String) -> String {
    let mut out = String::new();
    for step in token_steps(plan) {
        let evenly = when(!plan.pairs, || evenly(step, last));
        // Clippy's form of `token + 1 <= last`.
        let left = if step == 1 { format!("token < {last}") } else { format!("token + {step} <= {last}") };
        let _ = write!(out, "while {left}{evenly} {{ {}; token += {step}; }}", call(step));
    }
    out
}

/// That the tokens left are not two of the next smaller tiles: two tiles of four instead of one of six and one of two.
fn evenly(step: u32, last: &str) -> String {
    when(!step.is_power_of_two(), || format!(" && token + {} != {last}", step.next_power_of_two()))
}

/// The entry point of a module, and where callers say whether it prefetches, what it calls for each.
fn matmul(plan: &MatmulPlan<'_>, features: &str, argument: &str) -> String {
    let body = in_shares(plan, "", |rows| {
        let tile = |step: u32| format!("tile::<{rows}, {step}{argument}>(a, row, token)");
        format!("let mut token = first;{}", over_tokens(plan, tile))
    });
    if !is_told(plan) {
        return entry(features, &body);
    }
    let each = "// SAFETY: the caller's promise is passed on.
         unsafe { if a.prefetch == 0 { rows::<false>(a) } else { rows::<true>(a) } }";
    let doc = "As [`matmul`], with prefetches of weights or without.";
    entry(features, each) + &of_arguments(features, doc, "unsafe fn rows<const PREFETCH: bool>", &body)
}

/// The entry point of a module.
pub(super) fn entry(features: &str, body: &str) -> String {
    of_arguments(features, "`y = x * w^T (+ bias)`.", "pub unsafe fn matmul", body)
}

/// A function of the arguments of a product.
fn of_arguments(features: &str, doc: &str, name: &str, body: &str) -> String {
    let declaration = &format!("{name}(a: &MatmulArgs)");
    Function { doc, safety: "As [`MatmulArgs`] says.", features, declaration }.with(body)
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

fn whole_row(plan: &MatmulPlan<'_>) -> String {
    format!("{}{}", integer_sums(plan, Over::Row("a.stride / TILE"), false), whole_sums(plan))
}

/// From the integer sums of whole rows to f32.
pub(super) fn whole_sums(plan: &MatmulPlan<'_>) -> String {
    let corrected = if needs_sum(plan) {
        format!("simd::to_f32(simd::add(dot[t][i], {}))", zero_point(plan))
    } else {
        "simd::to_f32(dot[t][i])".to_string()
    };
    let x_sum = if needs_sum(plan) { "let x_sum = *a.x_sums.add(token + t);" } else { "" };
    format!(
        "let mut y = [[simd::splat_f32(0.0); V]; T];
         for t in 0..T {{
             {x_sum}
             for i in 0..V {{ y[t][i] = {corrected}; }}
         }}\n"
    )
}

/// Activation scale, outer scale, bias, store: the order of the scalar reference. `vectors` is how many
/// vectors of rows there are, `tokens` how many tokens, and `y` the f32 sums of vector `i` and token `t`.
pub(super) fn epilogue(format: &FormatPlan<'_>, vectors: &str, tokens: &str, y: &str) -> String {
    format!("for i in 0..{vectors} {{ {BIAS_OF_ROWS} for t in 0..{tokens} {{ {} }} }}\n", output(format, y))
}

/// The same for `V` vectors and `count` tokens, one by one, so that lines of a token that lie side by side are written together: where outputs
/// of many tokens lie in many pages, that took 0.9 of the time.
pub(super) fn epilogue_by_token(format: &FormatPlan<'_>, y: &str) -> String {
    format!("for t in 0..count {{ for i in 0..V {{ {BIAS_OF_ROWS} {} }} }}\n", output(format, y))
}

/// The row of vector `i`, unless it is beyond the last one, and its bias.
const BIAS_OF_ROWS: &str = "let row = row + i * LANES;
     if row >= a.row_end { break; }
     let whole = row + LANES <= a.row_end;
     let bias = if a.bias.is_null() {
         None
     } else if whole {
         Some(simd::load_f32(a.bias.add(row)))
     } else {
         let mut lanes = [0f32; LANES];
         lanes.as_mut_ptr().copy_from_nonoverlapping(a.bias.add(row), a.row_end - row);
         Some(simd::load_f32(lanes.as_ptr()))
     };";

/// The statements that write the output of token `t`.
fn output(format: &FormatPlan<'_>, y: &str) -> String {
    let of_token = lower::of_token(format, f32(y), f32("simd::splat_f32(*a.x_scales.add(token + t))"));
    let y = simd::expr(&lower::of_row(format, of_token, f32("simd::load_f32(a.outer.add(row))")));
    format!(
        "let y = {y};
         let y = match bias {{ Some(bias) => simd::add_f32(y, bias), None => y }};
         let out = a.y.add((token + t) * a.n + row);
         if whole {{
             simd::store_f32(out, y);
         }} else {{
             let mut lanes = [0f32; LANES];
             simd::store_f32(lanes.as_mut_ptr(), y);
             out.copy_from_nonoverlapping(lanes.as_ptr(), a.row_end - row);
         }}"
    )
}
