//! Products by a matrix unit whose sums are scaled after each step: a super-block, or a run with an f32 of its own.
//!
//! The unit and vectors work on different steps: while vectors scale the sums of the last one, the unit is given the next, of the same part and
//! tokens, of the next tokens, or of the next part. They take turns by tiles of k, since a processor looks only so far ahead.

use super::function::Function;
use super::matmul::epilogue_by_token;
use super::runs;
use super::superblock_terms;
use super::terms;
use super::tile_products::{add, sum_of, tokens_at_once};
use super::tile_runs;
use crate::lower::ir::i32;
use crate::plan::{MatmulPlan, SuperBlock, Term, TileOperands, Tiles};
use std::fmt::Write;

/// Statements before the parts of a turn of tokens, those for `count` tokens from `token` of a part, and those after all parts.
pub(super) const BEGIN: &str = "let mut done = None;
     let mut of_tiles = (&raw mut (*buffer).of_tiles.0).cast::<i32>();
     let mut of_next = of_tiles.add(SUMS);\n";
pub(super) const MULTIPLY: &str = "for step in part.first..part.last {
         let x = a.x.add(token * a.x_stride + step * STEP_K);
         let operands = (&raw const (*buffer).operands.0).cast::<u8>().add((step - part.first) * STEP_K * ROWS);
         let next = Step { step, token, count, x, operands, of_tiles, at: token - begin };
         multiply::<V>(a, buffer, row, Some(next), done);
         done = Some(next);
         (of_tiles, of_next) = (of_next, of_tiles);
     }";
pub(super) const END: &str = "multiply::<V>(a, buffer, row, None, done);";

/// The type of a step with some tokens, the function that gives the unit a tile of its k, and the one that multiplies it while the last is scaled.
pub(super) fn functions(plan: &MatmulPlan<'_>, tiles: &Tiles, features: &str) -> String {
    format!("{STEP}\n{}\n{}", products(tiles, features), multiply(plan, tiles, features))
}

const STEP: &str = "/// A step of `count` tokens from `token`.
     #[derive(Clone, Copy)]
     struct Step {
         step: usize,
         token: usize,
         count: usize,
         /// Its activations.
         x: *const i8,
         /// Its operands in the buffer.
         operands: *const u8,
         /// The place of its sums of tiles.
         of_tiles: *mut i32,
         /// Where the first token's f32 sums wait.
         at: usize,
     }";

/// The function that gives the unit a tile of k.
fn products(tiles: &Tiles, features: &str) -> String {
    let function = Function {
        doc: "Adds the products of tile `tile` of a step's k to the sums of the unit; the last tile writes them.",
        safety: "As [`MatmulArgs`] says; the step is staged, its tokens are below `m`, and tiles are configured for so many.",
        features,
        declaration: "#[inline]\nunsafe fn products<const V: usize>(a: &MatmulArgs, of: Step, tile: usize)",
    };
    let by_tokens = |statement: &dyn Fn(&str) -> String| match tiles.operands.in_digits() {
        // The sums of high digits have the place of those of a second tile of tokens.
        true => statement("2"),
        false => format!("if of.count > amx::TOKENS {{ {} }} else {{ {} }}", statement("2"), statement("1")),
    };
    let body = format!(
        "let k = tile * TILE_K;
         let operands = of.operands;
         {}
         if k + TILE_K == STEP_K {{ {} }}",
        by_tokens(&|tokens| add(tiles, "of.x.add(k)", "k", "V", tokens)),
        by_tokens(&|tokens| format!("amx::store::<V, {tokens}>(of.of_tiles);")),
    );
    let why = "the caller answers for the buffers of `a`, see `MatmulArgs`, for the step and the tiles";
    function.with_unsafe("", why, &body)
}

/// The function that multiplies a step while the last one is scaled.
fn multiply(plan: &MatmulPlan<'_>, tiles: &Tiles, features: &str) -> String {
    let function = Function {
        doc: "Multiplies `V` vectors of rows from `row` with the tokens of step `next`, and scales the sums of step `done` meanwhile.",
        safety: "As [`MatmulArgs`] says; the rows lie within its panels, and `next` is staged; the tokens are below `m` and their places within the\n\
                 buffer; `done` was multiplied for these rows, and tiles are configured for `next`.",
        features,
        declaration: "unsafe fn multiply<const V: usize>(a: &MatmulArgs, buffer: *mut Buffer, row: usize, next: Option<Step>, done: Option<Step>)",
    };
    let Scaling { step, terms, of_token, of_sum } = match &plan.format.superblock {
        Some(superblock) => by_superblock(plan, tiles, superblock),
        None => by_k_group(plan, tiles),
    };
    let body = format!(
        "if next.is_some() {{ amx::clear(); }}
         let Some(Step {{ step: {step}, token, count, of_tiles, at, .. }}) = done else {{
             if let Some(next) = next {{
                 for tile in 0..TILES_OF_STEP {{ products::<V>(a, next, tile); }}
             }}
             return;
         }};
         let sums = of_tiles.cast_const();
         let waiting = (&raw mut (*buffer).sums.0).cast::<f32>().add(at * ROWS);
         {terms}
         for tile in 0..TILES_OF_STEP {{
             if let Some(next) = next {{ products::<V>(a, next, tile); }}
             for t in tile * TURN..count.min((tile + 1) * TURN) {{
                 {of_token}
                 for i in 0..V {{
                     let waiting = waiting.add(t * ROWS + i * LANES);
                     let mut y = if {step} == 0 {{ simd::splat_f32(0.0) }} else {{ simd::load_f32(waiting) }};
                     {of_sum}
                     simd::store_f32(waiting, y);
                 }}
             }}
         }}
         if {step} + 1 < steps(a) {{ return; }}
         {}",
        epilogue_by_token(plan.format, "simd::load_f32(waiting.add(t * ROWS + i * LANES))"),
    );
    let why = "the caller answers for the buffers of `a`, see `MatmulArgs`, for the steps and the tiles";
    let items = format!(
        "/// Tiles of k of a step.
         const TILES_OF_STEP: usize = STEP_K / TILE_K;
         /// Tokens whose sums are scaled after each.
         const TURN: usize = {}.div_ceil(TILES_OF_STEP);",
        tokens_at_once(tiles)
    );
    function.with_unsafe(&items, why, &body)
}

/// How the sums of a step are scaled.
struct Scaling {
    /// The variable that has its number.
    step: &'static str,
    /// Statements that load the terms of its weights.
    terms: String,
    /// Statements for token `t`.
    of_token: String,
    /// Statements that add what is due for vector `i` to `y`.
    of_sum: String,
}

/// A term of vector `i`, where it was loaded before.
fn of_vector(term: Term) -> String {
    format!("{}[i]", term.one())
}

/// Super-blocks: the sums of each are scaled once.
fn by_superblock(plan: &MatmulPlan<'_>, tiles: &Tiles, superblock: &SuperBlock) -> Scaling {
    let (format, types) = (plan.format, plan.pack.terms);
    let has_min = superblock.min.is_some();
    let each = superblock_terms::values_of_words(types);
    let mut terms = superblock_terms::terms_of_superblocks(plan, superblock, false);
    let _ = writeln!(
        terms,
        "let mut scale = [simd::splat_f32(0.0); V];
         for i in 0..V {{ scale[i] = {}; }}",
        terms::load(types, Term::Scale, &format!("block * WORDS{each}"))
    );
    let mut of_token = terms::x_scale(format, "(token + t)", "block", tiles.step);
    if has_min {
        let _ = writeln!(
            terms,
            "let mut min = [simd::splat_f32(0.0); V];
             for i in 0..V {{ min[i] = {}; }}
             let mut minima = [[simd::zero(); V]; RUNS / 2];
             for pair in 0..RUNS / 2 {{
                 for i in 0..V {{ minima[pair][i] = {}; }}
             }}
             let pairs = (&raw mut (*buffer).x_sums.0).cast::<i32>();
             for t in 0..count {{
                 amx::pairs::<RUNS>(a.x_sums.add((token + t) * a.units + block * RUNS), pairs.add(t * (RUNS / 2)));
             }}",
            terms::load(types, Term::Min, &format!("block * MIN_WORDS{each}")),
            superblock_terms::integers_of_pair(plan),
        );
        of_token.push_str(
            "let mut low = [simd::zero(); V];
             for pair in 0..RUNS / 2 {
                 let x = pairs.add(t * (RUNS / 2) + pair);
                 for i in 0..V { low[i] = amx::add_products(low[i], minima[pair][i], x); }
             }\n",
        );
    }
    let joined =
        |bits: u32| format!("amx::joined::<{bits}>({}, {})", sum_of("t"), sum_of("(amx::TOKENS + t)"));
    let total = match tiles.operands {
        TileOperands::Digits => joined(8),
        TileOperands::SplitIntegers(bits) => joined(bits),
        TileOperands::Differences | TileOperands::Values | TileOperands::Scaled => sum_of("t"),
    };
    let add = terms::add(format, "y", "total", has_min.then(|| i32("low[i]")), of_vector);
    Scaling { step: "block", terms, of_token, of_sum: format!("let total = {total};\n{add}") }
}

/// Runs with an f32 each.
fn by_k_group(plan: &MatmulPlan<'_>, tiles: &Tiles) -> Scaling {
    let mut terms = runs::terms_of_k_groups(plan);
    for term in plan.format.terms() {
        let _ = writeln!(
            terms,
            "let mut {name} = [simd::splat_f32(0.0); V];
             for i in 0..V {{ {name}[i] = {}; }}",
            tile_runs::term(plan, term),
            name = term.one(),
        );
    }
    let of_token = tile_runs::of_token(plan, tiles);
    let of_sum = tile_runs::add_scaled(plan, tiles, "y", &sum_of("t"), of_vector);
    Scaling { step: "unit", terms, of_token, of_sum }
}
