//! Products by a matrix unit whose sums are scaled every few k: runs that have an f32 each.
//!
//! Here vectors have as much to do as the unit, so what they hold matters: the f32 accumulators of sixteen rows and sixteen tokens stay in
//! registers while a part of a row passes. The unit is given the next run before the last one is scaled.

use super::function::Function;
use super::matmul::epilogue_by_token;
use super::runs;
use super::sums::zero_point;
use super::terms;
use super::tile_products::{add, uncorrected};
use crate::lower::ir::f32;
use crate::plan::{MatmulPlan, Term, Tiles};
use std::fmt::Write;

/// Statements for `count` tokens from `token` of a part.
pub(super) const MULTIPLY: &str = "if count == amx::TOKENS {
         multiply::<V, true>(a, part, row, token, token - begin, count);
     } else {
         multiply::<V, false>(a, part, row, token, token - begin, count);
     }";

/// The function that gives the unit a run, and the one that multiplies a part with up to sixteen tokens.
pub(super) fn functions(plan: &MatmulPlan<'_>, tiles: &Tiles, features: &str) -> String {
    format!("{}\n{}", products(tiles, features), multiply(plan, tiles, features))
}

/// The function that gives the unit a run.
fn products(tiles: &Tiles, features: &str) -> String {
    let function = Function {
        doc: "The integer sums of a run whose activations begin at `x`, and its operands of sixteen rows at `operands`.",
        safety: "As [`MatmulArgs`] says; the run is staged, `sums` has room for a tile, and tiles are configured for as many tokens as there are.",
        features,
        declaration: "#[inline]\nunsafe fn products(a: &MatmulArgs, x: *const i8, operands: *const u8, sums: *mut i32)",
    };
    let body = format!(
        "amx::clear();
         for tile in 0..STEP_K / TILE_K {{
             let k = tile * TILE_K;
             {}
         }}
         amx::store::<1, 1>(sums);",
        add(tiles, "x.add(k)", "k", "1", "1"),
    );
    let why = "the caller answers for the buffers of `a`, see `MatmulArgs`, for the run and the tiles";
    function.with_unsafe("", why, &body)
}

/// The function that multiplies a part with up to sixteen tokens.
fn multiply(plan: &MatmulPlan<'_>, tiles: &Tiles, features: &str) -> String {
    let format = plan.format;
    let function = Function {
        doc: "`V` vectors of rows from `row` by `count` tokens from `token`, whose sums wait at token `at` of the buffer. `ALL`: there are as many\n\
              tokens as a tile has.",
        safety: "As [`MatmulArgs`] says; the rows lie within its panels and are staged, the tokens are below `m`, and those from `at` on\n\
                 within the buffer; tiles are configured for `count` tokens.",
        features,
        declaration: "unsafe fn multiply<const V: usize, const ALL: bool>(a: &MatmulArgs, part: Part, row: usize, token: usize, at: usize, count: usize)",
    };
    let mut of_run = String::new();
    for each in format.terms() {
        let _ = writeln!(of_run, "let {} = {};", each.one(), term(plan, each));
    }
    let sum = "simd::load(sums.add(t * LANES).cast())";
    let body = format!(
        "// A constant, for which accumulators stay in registers.
         let count = if ALL {{ amx::TOKENS }} else {{ count }};
         let x = a.x.add(token * a.x_stride);
         let operands = (&raw const (*part.buffer).operands.0).cast::<u8>();
         let waiting = (&raw mut (*part.buffer).sums.0).cast::<f32>().add(at * ROWS);
         let mut of_tiles = (&raw mut (*part.buffer).of_tiles.0).cast::<i32>();
         let mut of_next = of_tiles.add(SUMS);
         {pointers}
         for i in 0..V {{
             let operands = operands.add(i * LANES * 4);
             let mut y = [simd::splat_f32(0.0); amx::TOKENS];
             if part.first > 0 {{
                 for t in 0..count {{ y[t] = simd::load_f32(waiting.add(t * ROWS + i * LANES)); }}
             }}
             products(a, x.add(part.first * STEP_K), operands, of_tiles);
             for unit in part.first..part.last {{
                 let next = unit + 1;
                 if next < part.last {{
                     let operands = operands.add((next - part.first) * STEP_K * ROWS);
                     products(a, x.add(next * STEP_K), operands, of_next);
                 }}
                 let sums = of_tiles.cast_const();
                 {of_run}
                 for t in 0..count {{
                     {of_token}
                     {of_sum}
                 }}
                 (of_tiles, of_next) = (of_next, of_tiles);
             }}
             for t in 0..count {{ simd::store_f32(waiting.add(t * ROWS + i * LANES), y[t]); }}
         }}
         if part.last < steps(a) {{ return; }}
         {epilogue}",
        pointers = runs::terms_of_k_groups(plan),
        of_token = of_token(plan, tiles),
        of_sum = add_scaled(plan, tiles, "y[t]", sum, |term| term.one().to_string()),
        epilogue = epilogue_by_token(format, "simd::load_f32(waiting.add(t * ROWS + i * LANES))"),
    );
    let why = "the caller answers for the buffers of `a`, see `MatmulArgs`, for the part and the tiles";
    function.with_unsafe("", why, &body)
}

/// A term of run `unit` in vector `i` of rows.
pub(super) fn term(plan: &MatmulPlan<'_>, term: Term) -> String {
    let types = plan.pack.terms;
    terms::load(types, term, &format!("{} * {}", types.of_unit("unit"), plan.pack.packing.rows))
}

/// Statements that read what token `t` has for run `unit`.
pub(super) fn of_token(plan: &MatmulPlan<'_>, tiles: &Tiles) -> String {
    let mut read = String::new();
    if uncorrected(plan, tiles) || plan.format.offset {
        read.push_str("let x_sum = *a.x_sums.add((token + t) * a.units + unit);\n");
    }
    read.push_str(&terms::x_scale(plan.format, "(token + t)", "unit", tiles.step));
    read
}

/// Statements that add what is due of run `unit` to `y`, given its integer `sum` as the unit has it.
pub(super) fn add_scaled(
    plan: &MatmulPlan<'_>,
    tiles: &Tiles,
    y: &str,
    sum: &str,
    number: impl Fn(Term) -> String,
) -> String {
    let corrected = match uncorrected(plan, tiles) {
        true => format!("simd::add({sum}, {})", zero_point(plan)),
        false => sum.to_string(),
    };
    let x_sum = plan.format.offset.then(|| f32("simd::splat_f32(x_sum as f32)"));
    terms::add(plan.format, y, &corrected, x_sum, number)
}
