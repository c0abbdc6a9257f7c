//! The packed product by table lookup: one loop for every ISA, over the primitives of `gristmill_runtime::simd`.
//!
//! A row is a byte of a vector. Tables are made of some activations, all rows go through them, then come the next
//! activations; between, the sums of a row wait in its place of the output. The f32 sums of a row are taken in the
//! order of k, as everywhere.

use super::function::{self, Function, imports};
use super::matmul::{entry, epilogue, format_words, through_rows};
use super::terms;
use crate::lower::ir::{f32, i32};
use crate::plan::{LookupPlan, SuperBlock, enabled};
use crate::text::{joined, when};
use std::fmt::Write;

/// Name of the loop a plan needs, without the ISA.
pub fn shape_name(plan: &LookupPlan<'_>) -> String {
    let format = plan.format;
    let mut name = format!("{}_{}bit_sums", plan.pack.packing.name, plan.pack.bits());
    name.push_str(&format_words(format, false));
    name.push_str(&plan.pack.terms.suffix());
    name.push_str(&plan.pack.terms.factor_word());
    name
}

/// What is made at once: the tables of runs, which are units, or blocks of a row that is one unit.
struct Runs {
    /// What a run is, and its tiles.
    word: &'static str,
    tiles: u32,
    /// Expression of their number.
    count: String,
    /// Runs of a super-block, which stays whole.
    whole: u32,
}

impl Runs {
    fn of(plan: &LookupPlan<'_>) -> Runs {
        let (word, tiles, count) = match plan.format.unit {
            0 => ("block", plan.block, format!("a.k.div_ceil({})", plan.pack.multiple)),
            _ => ("unit", plan.unit_tiles(), "a.units".to_string()),
        };
        Runs { word, tiles, count, whole: plan.format.runs() }
    }
}

/// The module of one lookup variant: `fill`, `tile` and `matmul`.
pub fn emit(plan: &LookupPlan<'_>) -> String {
    let (features, runs) = (enabled(&plan.features), Runs::of(plan));
    [
        constants(plan, &runs),
        fill(plan, &features),
        access(&features),
        tile(plan, &runs, &features),
        matmul(plan, &runs, &features),
    ]
    .join("\n")
}

/// Constants, and the types of what is in hand.
fn constants(plan: &LookupPlan<'_>, runs: &Runs) -> String {
    let pack = &plan.pack;
    let sets = 4 / plan.codes;
    let each =
        |set| format!("[{}]", joined((0..16).map(|index| format!("{:?}", counts(plan, set, index))), ", "));
    let Runs { word: run, tiles: run_tiles, whole, .. } = runs;
    let tile_k = pack.tile.k;
    let head = function::constants(&[
        ("ROWS", &pack.packing.rows, "Rows of a panel, a byte each."),
        (
            "TILE",
            &pack.tile.bytes,
            &format!("Bytes of a tile of codes: all rows of a panel, {tile_k} elements each, two indices."),
        ),
        ("TILE_K", &tile_k, "Elements of a row in a tile."),
        ("BYTES", &"4 * LANES", "Rows of a vector."),
        ("TABLE", &32, "Bytes of a table: the low digits of sixteen sums, and the high ones."),
        ("RUN", run_tiles, &format!("Tiles of a {run}.")),
        (
            "AT_ONCE",
            &(plan.tables / (2 * run_tiles) / whole * whole),
            &format!("The most {run}s whose tables are made at once."),
        ),
        ("T", &1, "Tokens of a tile."),
    ]);
    format!(
        "{imports}
         {head}
         /// What four activations count for in the sums of each index: one set of sixteen for a table.
         static OPERANDS: [[[u8; 4]; 16]; {sets}] = [{constants}];

         /// Tables of the activations in hand.
         #[repr(C, align(64))]
         struct Tables(std::mem::MaybeUninit<[u8; AT_ONCE * RUN * 2 * TABLE]>);",
        imports = imports(&[], plan.module),
        constants = joined((0..sets).map(each), ", "),
    )
}

/// `fill`: the tables of some activations.
fn fill(plan: &LookupPlan<'_>, features: &str) -> String {
    let LookupPlan { bias, split, .. } = plan;
    let sets = 4 / plan.codes;
    let function = Function {
        doc: &format!(
            "Tables for `tiles` tiles: each sum plus {bias}, in a low digit of {split} bits and a high one."
        ),
        safety: "`x` holds the activations of the tiles, and `tables` has room for two tables each.",
        features,
        declaration: "unsafe fn fill(x: *const i8, tiles: usize, tables: *mut u8)",
    };
    function.with(&format!(
        "for group in 0..tiles * TILE_K / 4 {{
             // SAFETY: the caller answers for activations and room; `OPERANDS` has sixteen lanes a set.
             unsafe {{
                 let x = simd::broadcast(x.add(4 * group));
                 for (set, operands) in OPERANDS.iter().enumerate() {{
                     let mut sums = [simd::splat({bias}); 16 / LANES];
                     for (i, sum) in sums.iter_mut().enumerate() {{
                         let operands = simd::load(operands.as_ptr().add(i * LANES).cast());
                         *sum = simd::widen(*sum, simd::pairs(simd::zero_pairs(), operands, x));
                     }}
                     simd::store_digits::<{split}>(sums, tables.add((group * {sets} + set) * TABLE));
                 }}
             }}
         }}"
    ))
}

/// What loads and stores vectors of outputs, whose last ones may not be there.
fn access(features: &str) -> String {
    format!(
        "/// `LANES` values, or the first `count` and zeros.
         ///
         /// # Safety
         ///
         /// `count` values, if not more than `LANES`, are readable at `from`.
         #[inline]
         #[target_feature(enable = \"{features}\")]
         unsafe fn load_rows(from: *const f32, count: usize) -> simd::F {{
             // SAFETY: the caller answers for `count` values.
             unsafe {{ if count >= LANES {{ simd::load_f32(from) }} else {{ load_some(from, count) }} }}
         }}

         /// `count` values, fewer than `LANES`, and zeros: the last rows of the weights.
         ///
         /// # Safety
         ///
         /// `count` values are readable at `from`.
         #[cold]
         #[inline(never)]
         #[target_feature(enable = \"{features}\")]
         unsafe fn load_some(from: *const f32, count: usize) -> simd::F {{
             let mut lanes = [0f32; LANES];
             // SAFETY: the caller answers for `count` values, and `lanes` holds a vector.
             unsafe {{
                 lanes.as_mut_ptr().copy_from_nonoverlapping(from, count);
                 simd::load_f32(lanes.as_ptr())
             }}
         }}

         /// `LANES` values, or the first `count` of them.
         ///
         /// # Safety
         ///
         /// `count` values, if not more than `LANES`, are writable at `to`.
         #[inline]
         #[target_feature(enable = \"{features}\")]
         unsafe fn store_rows(to: *mut f32, count: usize, y: simd::F) {{
             // SAFETY: the caller answers for room.
             unsafe {{ if count >= LANES {{ simd::store_f32(to, y) }} else {{ store_some(to, count, y) }} }}
         }}

         /// The first `count`, fewer than `LANES`, of a vector's values.
         ///
         /// # Safety
         ///
         /// `count` values are writable at `to`.
         #[cold]
         #[inline(never)]
         #[target_feature(enable = \"{features}\")]
         unsafe fn store_some(to: *mut f32, count: usize, y: simd::F) {{
             let mut lanes = [0f32; LANES];
             // SAFETY: the caller answers for room, and `lanes` holds a vector.
             unsafe {{
                 simd::store_f32(lanes.as_mut_ptr(), y);
                 to.copy_from_nonoverlapping(lanes.as_ptr(), count);
             }}
         }}"
    )
}

/// `tile`: the sums of some rows over the tables in hand.
fn tile(plan: &LookupPlan<'_>, runs: &Runs, features: &str) -> String {
    let TileText { sums, waits, last } = if plan.format.unit == 0 { whole_row(plan) } else { by_unit(plan) };
    let Runs { word: run, count: runs, .. } = runs;
    let function = Function {
        doc: &format!(
            "`V` vectors of rows from `row`, over the {run}s `first..last`, whose tables are in hand."
        ),
        safety: "As [`MatmulArgs`] says; the rows lie within its panels, the token is below `m`, and `tables` are those of\nthe token.",
        features,
        declaration: "unsafe fn tile<const V: usize>(a: &MatmulArgs, tables: *const u8, row: usize, token: usize, first: usize, last: usize)",
    };
    let body = format!(
        "let mut codes = [a.codes; V];
         for i in 0..V {{
             let row = row + i * BYTES;
             codes[i] = a.codes.add(row / ROWS * a.stride + row % ROWS);
         }}
         let mask = simd::bytes(0xf);
         let waiting = a.y.add(token * a.n + row);
         let rows = a.row_end.saturating_sub(row);
         {sums}
         if last < {runs} {{
             for i in 0..4 * V {{
                 if i * LANES < rows {{ store_rows(waiting.add(i * LANES), rows - i * LANES, {waits}); }}
             }}
             return;
         }}
         {last}
         {}",
        epilogue(plan.format, "4 * V", "T", "y[i / 4][i % 4]"),
    );
    let why = "the caller answers for the buffers of `a`, see `MatmulArgs`, and for\n\
               // the tables; what waits in the output was put there by this function";
    function.with_unsafe("", why, &body)
}

/// `matmul`: the loops around both.
fn matmul(plan: &LookupPlan<'_>, runs: &Runs, features: &str) -> String {
    let through_rows = through_rows(plan.vectors, "BYTES", |rows| {
        format!("tile::<{rows}>(a, tables, row, token, first, last);")
    });
    let body = format!(
        "let end = a.row_end.next_multiple_of(BYTES);
         let runs = {runs};
         // Shares of the same size, each as large as there is room for.
         let share = runs.div_ceil(runs.div_ceil(AT_ONCE).max(1)){whole};
         let mut tables = Tables(std::mem::MaybeUninit::uninit());
         let tables = (&raw mut tables).cast::<u8>();
         for token in 0..a.m {{
             let mut first = 0;
             while first < runs {{
                 let last = runs.min(first + share);
                 // SAFETY: a share is within the room for tables and the activations; panels are whole, so
                 // `end` lies within them.
                 unsafe {{
                     fill(a.x.add(token * a.x_stride + first * RUN * TILE_K), (last - first) * RUN, tables);
                     let mut row = a.row_begin;
                     {through_rows}
                 }}
                 first = last;
             }}
         }}",
        runs = runs.count,
        whole = when(runs.whole > 1, || format!(".next_multiple_of({})", runs.whole)),
    );
    entry(features, &body)
}

/// What each of four activations counts for in entry `index` of table `set` among those of the four.
fn counts(plan: &LookupPlan<'_>, set: u32, index: u32) -> [u8; 4] {
    let bits = plan.pack.bits();
    let mut entry = [0; 4];
    for code in 0..plan.codes {
        let value = index >> (code * bits) & ((1 << bits) - 1);
        entry[(set * plan.codes + code) as usize] = plan.operands[value as usize];
    }
    entry
}

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

/// What the biased sums of `tiles` (an expression) tiles are too large by.
fn biases(plan: &LookupPlan<'_>, tiles: &str) -> String {
    let each = 2 * i64::from(plan.bias) * i64::from(plan.step);
    match tiles.parse::<i64>() {
        Ok(tiles) => (each * tiles).to_string(),
        Err(_) => format!("({each} * {tiles}) as i32"),
    }
}

/// The sums of a run as i32 in `sum[i]`, four vectors each, from blocks `blocks` of the row (a range), with the tables
/// from tile `from` on.
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
struct TileText {
    /// Sums over the runs in hand, added to what waits.
    sums: String,
    /// What waits for the next tables, of vector `i`.
    waits: &'static str,
    /// Makes `y` of the sums when the last tables are done.
    last: String,
}

/// Loads what waits, as `value`, to `place`.
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

fn whole_row(plan: &LookupPlan<'_>) -> TileText {
    let most = plan.blocks_in_i16.unwrap_or(1);
    let sums = format!(
        "let mut sum = [[simd::zero(); 4]; V];
         {}
         {}",
        load("sum", "simd::as_int"),
        long_sums(plan, "first", "last", &format!("first * {}", plan.block), most)
    );
    let tiles = format!("(last * {})", plan.block);
    let last = format!(
        "let correction = simd::splat({} - {});
         let mut y = [[simd::splat_f32(0.0); 4]; V];
         for i in 0..4 * V {{ y[i / 4][i % 4] = simd::to_f32(simd::add(sum[i / 4][i % 4], correction)); }}",
        x_sum(plan, "a.x_sums.add(token)"),
        biases(plan, &tiles),
    );
    TileText { sums, waits: "simd::as_f32(sum[i / 4][i % 4])", last }
}

/// The sum of the activations at `place`, times the smallest value.
fn x_sum(plan: &LookupPlan<'_>, place: &str) -> String {
    if plan.format.min() == 0 { "0".to_string() } else { format!("*{place} * a.min") }
}

fn by_unit(plan: &LookupPlan<'_>) -> TileText {
    let format = plan.format;
    let tiles = plan.unit_tiles();
    let blocks = tiles / plan.block;
    let TermText { declare, per_unit, add, after } = match &format.superblock {
        Some(superblock) => terms_of_runs(plan, superblock),
        None => terms_of_units(plan),
    };
    let correction = format!(
        "{} - {}",
        x_sum(plan, "a.x_sums.add(token * a.units + unit)"),
        biases(plan, &tiles.to_string())
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
fn terms_of_units(plan: &LookupPlan<'_>) -> TermText {
    let format = plan.format;
    let rows = plan.pack.packing.rows;
    let types = plan.pack.terms;
    let (scale, of_a_row) = (types.of_unit("unit"), types.of_a_row());
    let mut per_unit = String::new();
    if format.offset {
        per_unit.push_str("let x_sum = simd::splat_f32(*a.x_sums.add(token * a.units + unit) as f32);\n");
    }
    per_unit.push_str(&terms::x_scale(format, "token", &format!("unit * {}", format.unit)));
    let add = terms::add(format, "y[i][q]", "sum", format.offset.then(|| f32("x_sum")), |name| {
        terms::load(types, name, &format!("{scale} * {rows} + q * LANES"))
    });
    let mut declare = String::new();
    for (name, used) in [("scales", format.has_scales()), ("mins", format.offset)] {
        if used {
            let _ = writeln!(
                declare,
                "let mut {name} = [{from}; V];
                 for i in 0..V {{
                     let row = row + i * BYTES;
                     {name}[i] = {from}.add(row / ROWS * ROWS * {of_a_row} + row % ROWS);
                 }}",
                from = terms::pointer(types, name),
            );
        }
    }
    TermText { declare, per_unit, add, after: String::new() }
}

/// Each run has integers, and its super-block an f32. Super-blocks are whole in what is in hand.
fn terms_of_runs(plan: &LookupPlan<'_>, superblock: &SuperBlock) -> TermText {
    let format = plan.format;
    let (rows, runs) = (plan.pack.packing.rows, superblock.runs);
    // Integers are bytes for lookups, so minima take as many words as scales.
    let words = plan.pack.terms.scale_words(runs, rows);
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
    for name in if has_min { vec!["scales", "mins"] } else { vec!["scales"] } {
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
    let mut last = terms::add(format, "y[i][q]", "sums[i][q]", low, |name| {
        // The pointer counts words, and the rows of what they share are as wide as their type.
        let words = format!("{name}[i].add(superblock)");
        terms::load_from(plan.pack.terms, name, &words, "from[i] + q * LANES")
    });
    last.push_str("sums[i][q] = simd::zero();\n");
    if has_min {
        last.push_str("lows[i][q] = simd::zero();\n");
    }
    let x_scale = terms::x_scale(format, "token", &format!("unit * {}", format.unit));
    let after =
        format!("if run == {} {{ {x_scale} for i in 0..V {{ for q in 0..4 {{ {last} }} }} }}\n", runs - 1);
    TermText { declare, per_unit, add, after }
}
