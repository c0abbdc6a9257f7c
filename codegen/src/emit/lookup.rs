//! The packed product by table lookup: one loop for every ISA, over the primitives of `gristmill_runtime::simd`.
//!
//! A row is a byte of a vector. Tables are made of some activations, all rows go through them, then come the next
//! activations; between, the sums of a row wait in its place of the output. The f32 sums of a row are taken in the
//! order of k, as everywhere.

use super::function::{self, Function, imports};
use super::lookup_sums::{TileText, by_k_group, whole_row};
use super::matmul::{Rows, entry, epilogue, format_words, through_rows};
use crate::plan::{LookupPlan, enabled};
use crate::text::{joined, when};

/// Name of the loop a plan needs, without the ISA.
pub fn shape_name(plan: &LookupPlan<'_>) -> String {
    let format = plan.format;
    let mut name = format!("{}_{}bit_sums", plan.pack.packing.name, plan.pack.bits());
    name.push_str(&format_words(format, false));
    name.push_str(&plan.pack.terms.suffix());
    name.push_str(&plan.pack.terms.factor_word());
    name
}

/// What is made at once: the tables of runs, which are K groups, or blocks of a row that is one.
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
        let (word, tiles, count) = match plan.format.k_group {
            0 => ("block", plan.block, format!("a.k.div_ceil({})", plan.pack.multiple)),
            _ => ("unit", plan.k_group_tiles(), "a.units".to_string()),
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
    let TileText { sums, waits, last } =
        if plan.format.k_group == 0 { whole_row(plan) } else { by_k_group(plan) };
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
    let of_a_panel = plan.pack.packing.rows / (4 * plan.lanes);
    let Rows { end, loops } = through_rows(plan.vectors, of_a_panel, "BYTES", |rows| {
        format!("tile::<{rows}>(a, tables, row, token, first, last);")
    });
    let body = format!(
        "{end}
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
                     {loops}
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
