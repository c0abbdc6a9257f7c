//! Sums of products by [`lookup`](super::lookup) over the tables in hand, and how terms of runs take part in them.

use super::terms;
use crate::lower::ir::{f32, i32};
use crate::plan::{LookupPlan, SuperBlock, Term};
use std::fmt::Write;

/// Statements that add the sums of `block` tiles from `first_tile` (an expression) on to bytes, and what is done
/// with the merged sums of row vector `i`.
fn block(plan: &LookupPlan<'_>, first_tile: &str, from: &str, then: &str) -> String {
    let mut lookups = String::new();
    for index in 0..2 {
        let of = if index == 0 { "packed" } else { "simd::shift::<4>(packed)" };
        let _ = write!(
            lookups,
            "let index = simd::and({of}, mask);
             low[i] = simd::add_bytes(low[i], simd::lookup(low{index}, index));
             high[i] = simd::add_bytes(high[i], simd::lookup(high{index}, index));\n"
        );
    }
    format!(
        "let mut low = [simd::zero(); V];
         let mut high = [simd::zero(); V];
         for step in 0..{block} {{
             let tile = {first_tile} + step;
             let table = tables.add((tile - {from}) * 2 * TABLE);
             let (low0, high0) = (simd::table(&*table.cast()), simd::table(&*table.add(16).cast()));
             let (low1, high1) = (simd::table(&*table.add(32).cast()), simd::table(&*table.add(48).cast()));
             for i in 0..V {{
                 let packed = simd::load(codes[i].add(tile * TILE));
                 {lookups}
             }}
         }}
         for i in 0..V {{
             let words = simd::merge::<{step}, {split}>(low[i], high[i]);
             {then}
         }}\n",
        block = plan.block,
        step = plan.step,
        split = plan.split,
    )
}

/// What the biased sums of a tile are too large by.
fn bias_of_tile(plan: &LookupPlan<'_>) -> i64 {
    2 * i64::from(plan.bias) * i64::from(plan.step)
}

/// The sums of a run as i32 in `sum[i]`, four vectors each, of the row's blocks from `begin` to `end`, with the tables from tile `from` on.
fn long_sums(plan: &LookupPlan<'_>, begin: &str, end: &str, from: &str, most: u32) -> String {
    format!(
        "let (mut block, end) = ({begin}, {end});
         while block < end {{
             // i16 sums stay exact over {most} blocks.
             let stop = end.min(block + {most});
             let mut total = [simd::zero_words(); V];
             while block < stop {{
                 {}
                 block += 1;
             }}
             for i in 0..V {{
                 let lanes = simd::lanes(total[i]);
                 for q in 0..4 {{ sum[i][q] = simd::add(sum[i][q], lanes[q]); }}
             }}
         }}\n",
        block(plan, &format!("block * {}", plan.block), from, "total[i] = simd::add_words(total[i], words);")
    )
}

/// Statements of a tile.
pub(super) struct TileText {
    /// Sums over the runs in hand, added to what waits.
    pub(super) sums: String,
    /// What waits for the next tables, of vector `i`.
    pub(super) waits: &'static str,
    /// Makes `y` of the sums when the last tables are done.
    pub(super) last: String,
}

/// Loads what waits, through `function`, to `place`.
fn load(place: &str, function: &str) -> String {
    format!(
        "if first > 0 {{
             for i in 0..4 * V {{
                 if i * LANES < rows {{
                     {place}[i / 4][i % 4] = {function}(load_rows(waiting.add(i * LANES), rows - i * LANES));
                 }}
             }}
         }}\n"
    )
}

/// Where a row is one K group.
pub(super) fn whole_row(plan: &LookupPlan<'_>) -> TileText {
    let most = plan.blocks_in_i16.unwrap_or(1);
    let sums = format!(
        "let mut sum = [[simd::zero(); 4]; V];
         {}
         {}",
        load("sum", "simd::as_int"),
        long_sums(plan, "first", "last", &format!("first * {}", plan.block), most)
    );
    let last = format!(
        "let correction = simd::splat({} - ({} * (last * {})) as i32);
         let mut y = [[simd::splat_f32(0.0); 4]; V];
         for i in 0..4 * V {{ y[i / 4][i % 4] = simd::to_f32(simd::add(sum[i / 4][i % 4], correction)); }}",
        x_sum(plan, "a.x_sums.add(token)"),
        bias_of_tile(plan),
        plan.block,
    );
    TileText { sums, waits: "simd::as_f32(sum[i / 4][i % 4])", last }
}

/// The sum of the activations at `place`, times the smallest value.
fn x_sum(plan: &LookupPlan<'_>, place: &str) -> String {
    if plan.format.min() == 0 { "0".to_string() } else { format!("*{place} * a.min") }
}

/// Where K groups have scales.
pub(super) fn by_k_group(plan: &LookupPlan<'_>) -> TileText {
    let format = plan.format;
    let tiles = plan.k_group_tiles();
    let blocks = tiles / plan.block;
    let TermText { declare, per_unit, add, after } = match &format.superblock {
        Some(superblock) => terms_of_runs(plan, superblock),
        None => terms_of_k_groups(plan),
    };
    let correction = format!(
        "{} - {}",
        x_sum(plan, "a.x_sums.add(token * a.units + unit)"),
        bias_of_tile(plan) * i64::from(tiles)
    );
    let from = format!("first * {tiles}");
    let integers = match plan.blocks_in_i16 {
        None => {
            // i16 sums may wrap: the corrected sum fits.
            let blocks_loop = if blocks == 1 {
                block(plan, &format!("unit * {tiles}"), &from, "total[i] = words;")
            } else {
                format!(
                    "for block in unit * {blocks}..(unit + 1) * {blocks} {{ {} }}\n",
                    block(
                        plan,
                        &format!("block * {}", plan.block),
                        &from,
                        "total[i] = simd::add_words(total[i], words);"
                    )
                )
            };
            format!(
                "let correction = simd::splat_words({correction});
                 let mut total = [simd::zero_words(); V];
                 {blocks_loop}
                 for i in 0..V {{
                     let lanes = simd::lanes(simd::add_words(total[i], correction));
                     for q in 0..4 {{ let sum = lanes[q]; {add} }}
                 }}\n"
            )
        }
        Some(most) => format!(
            "let correction = simd::splat({correction});
             let mut sum = [[simd::zero(); 4]; V];
             {}
             for i in 0..V {{
                 for q in 0..4 {{ let sum = simd::add(sum[i][q], correction); {add} }}
             }}\n",
            long_sums(plan, &format!("unit * {blocks}"), &format!("(unit + 1) * {blocks}"), &from, most)
        ),
    };
    let sums = format!(
        "{declare}
         let mut y = [[simd::splat_f32(0.0); 4]; V];
         {}
         for unit in first..last {{ {per_unit} {integers} {after} }}\n",
        load("y", "")
    );
    TileText { sums, waits: "y[i / 4][i % 4]", last: String::new() }
}

/// How the integer sum of a run takes part in the result.
struct TermText {
    /// Before the runs.
    declare: String,
    /// At the start of a run.
    per_unit: String,
    /// For row vector `i`, quarter `q`, whose sum is `sum`.
    add: String,
    /// At the end of a run.
    after: String,
}

/// Each run has an f32.
fn terms_of_k_groups(plan: &LookupPlan<'_>) -> TermText {
    let format = plan.format;
    let rows = plan.pack.packing.rows;
    let types = plan.pack.terms;
    let (scale, of_a_row) = (types.of_unit("unit"), types.of_a_row());
    let mut per_unit = String::new();
    if format.offset {
        per_unit.push_str("let x_sum = simd::splat_f32(*a.x_sums.add(token * a.units + unit) as f32);\n");
    }
    per_unit.push_str(&terms::x_scale(format, "token", "unit", format.k_group));
    let add = terms::add(format, "y[i][q]", "sum", format.offset.then(|| f32("x_sum")), |term| {
        terms::load(types, term, &format!("{scale} * {rows} + q * LANES"))
    });
    let mut declare = String::new();
    for term in format.terms() {
        let _ = writeln!(
            declare,
            "let mut {name} = [{from}; V];
             for i in 0..V {{
                 let row = row + i * BYTES;
                 {name}[i] = {from}.add(row / ROWS * ROWS * {of_a_row} + row % ROWS);
             }}",
            name = term.array(),
            from = terms::pointer(types, term),
        );
    }
    TermText { declare, per_unit, add, after: String::new() }
}

/// Each run has integers, and its super-block an f32. Super-blocks are whole in what is in hand.
fn terms_of_runs(plan: &LookupPlan<'_>, superblock: &SuperBlock) -> TermText {
    let format = plan.format;
    let (rows, runs) = (plan.pack.packing.rows, superblock.runs);
    // Integers are bytes for lookups, so minima take as many words as scales.
    let words = plan.pack.terms.words(Term::Scale, runs, rows);
    let shared = plan.pack.terms.shared_words(rows);
    let has_min = superblock.min.is_some();
    let mut declare = String::from("let mut sums = [[simd::zero(); 4]; V];\n");
    let mut per_unit = format!("let (superblock, run) = (unit / {runs} * {words}, unit % {runs});\n");
    let mut add = format!(
        "let integers = simd::integers(scales[i].add(superblock + {shared}).cast::<i8>().add(run * {rows} + from[i] + q * LANES));
         sums[i][q] = simd::add_product(sums[i][q], sum, integers);\n"
    );
    declare.push_str(
        "let mut from = [0; V];
         for i in 0..V { from[i] = (row + i * BYTES) % ROWS; }\n",
    );
    for name in format.terms().map(Term::array) {
        let _ = writeln!(
            declare,
            "let mut {name} = [a.{name}; V];
             for i in 0..V {{ {name}[i] = a.{name}.add((row + i * BYTES) / ROWS * (a.units / {runs} * {words})); }}"
        );
    }
    if has_min {
        declare.push_str("let mut lows = [[simd::zero(); 4]; V];\n");
        // The other run of the pair counts for nothing.
        per_unit.push_str(
            "let x_sum = *a.x_sums.add(token * a.units + unit);
             let x_sum = simd::splat(if run % 2 == 0 { x_sum & 0xffff } else { x_sum << 16 });\n",
        );
        let _ = writeln!(
            add,
            "let integers = simd::integer_pairs(
                 mins[i].add(superblock + {shared}).cast::<i8>().add(run / 2 * {} + 2 * (from[i] + q * LANES))
             );
             lows[i][q] = simd::add_products(lows[i][q], integers, x_sum);",
            2 * rows
        );
    }
    let low = has_min.then(|| i32("lows[i][q]"));
    let mut last = terms::add(format, "y[i][q]", "sums[i][q]", low, |term| {
        // The pointer counts words, and the rows of what they share are as wide as their type.
        let words = format!("{}[i].add(superblock)", term.array());
        terms::load_from(plan.pack.terms, term, &words, "from[i] + q * LANES")
    });
    last.push_str("sums[i][q] = simd::zero();\n");
    if has_min {
        last.push_str("lows[i][q] = simd::zero();\n");
    }
    let x_scale = terms::x_scale(format, "token", "unit", format.k_group);
    let after =
        format!("if run == {} {{ {x_scale} for i in 0..V {{ for q in 0..4 {{ {last} }} }} }}\n", runs - 1);
    TermText { declare, per_unit, add, after }
}
