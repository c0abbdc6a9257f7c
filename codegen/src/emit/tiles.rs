//! The packed matmul by a matrix unit: operands wait in a buffer as in [`staged`](super::staged), and are multiplied tile by tile.
//!
//! The unit sums 64 k of sixteen rows and sixteen tokens at once, so what is done with its sums decides the speed. Where runs have
//! integers, each value is multiplied with that of its run before it goes into the buffer: a product of both fits in two bytes, the unit sums up
//! over a whole super-block, and low and high bytes are put together once ([`tile_steps`]; runs of few k with an f32 each: [`tile_runs`]). The unit and vectors take turns: after each tile of k that the unit is
//! given of the next super-block or run, vectors scale the sums of some tokens of the last one.

use super::function::{Function, constants};
use super::matmul::epilogue_by_token;
use super::staged;
use super::sums::zero_point;
use super::superblock_terms;
use super::tile_products::{add, sum_of, tokens_at_once, uncorrected};
use super::{tile_runs, tile_steps};
use crate::plan::{MatmulPlan, TileOperands, TileSums, Tiles, enabled};

/// Tokens whose sums wait at once; codes are decoded anew for the next ones.
const TOKENS: u32 = 6 * Tiles::TOKENS;

/// The module of a variant by tiles: `stage`, `tile` (of rows that are one run) or `products` and `multiply`, `panel` and `matmul`.
pub(super) fn emit(plan: &MatmulPlan<'_>, tiles: &Tiles) -> String {
    let features = enabled(&plan.features);
    let runs = match &plan.format.superblock {
        Some(superblock) => superblock_terms::constants(plan, superblock),
        None => String::new(),
    };
    let stage = match &plan.format.superblock {
        Some(_) => stage(plan, tiles, &features),
        None => staged::stage_values(plan, &features, |operand| match tiles.operands {
            TileOperands::Values if plan.format.min() != 0 => format!("amx::values({operand}, a.min)"),
            _ => operand,
        }),
    };
    let mut head: Vec<(&str, &dyn std::fmt::Display, &str)> = vec![
        ("ROWS", &plan.pack.packing.rows, "Rows of a panel."),
        ("CODES_K", &plan.pack.tile.k, "Elements of a row in a tile of codes."),
        ("STEP_K", &tiles.step, "Elements of k that are never apart."),
        ("STEPS", &tiles.steps, "Steps that are decoded at once."),
        ("TILE_K", &tiles.k, "Elements of k in a tile."),
        ("TOKENS", &TOKENS, "Tokens whose sums wait at once."),
    ];
    let operands = format!("[u8; {} * ROWS]", tiles.bytes_of_a_row());
    let mut fields =
        vec![("Operands, four k of all rows of a panel side by side.", "operands", operands.as_str())];
    let sums_of_step = match tiles.sums {
        TileSums::OfRows => None,
        TileSums::OfSteps => Some("4 * amx::TOKENS * LANES"),
        TileSums::InRegisters => Some("amx::TOKENS * LANES"),
    };
    if let Some(sums) = &sums_of_step {
        head.push(("SUMS", sums, "Sums of all tiles of a step."));
        fields.push((
            "Sums of tiles, those that are scaled and the next ones.",
            "of_tiles",
            "[[i32; SUMS]; 2]",
        ));
    }
    if plan.format.superblock.as_ref().is_some_and(|superblock| superblock.min.is_some()) {
        let pairs = "Sums of activations of a super-block's runs, two by two, for each token of a tile.";
        fields.push((pairs, "x_sums", "[i32; 2 * amx::TOKENS * RUNS / 2]"));
    }
    let around = [
        "// SAFETY: the processor has tiles: the caller answers for the variant's features.\n\
         let found = unsafe { amx::found() };",
        "// SAFETY: the processor has tiles, as above.\nunsafe { amx::give_back(&found) };",
    ];
    let parts = [
        runs,
        staged::buffer("vectors and tiles", &fields),
        stage,
        match tiles.sums {
            TileSums::OfRows => tile(plan, tiles, &features),
            TileSums::OfSteps => tile_steps::functions(plan, tiles, &features),
            TileSums::InRegisters => tile_runs::functions(plan, tiles, &features),
        },
        panel(plan, tiles, &features),
        staged::matmul(plan, &features, around),
    ];
    staged::module(plan, &["amx"], &constants(&head), &parts)
}

/// The function that decodes super-blocks, each value times the integer of its run.
fn stage(plan: &MatmulPlan<'_>, tiles: &Tiles, features: &str) -> String {
    let min = staged::smallest(plan);
    let stage = staged::stage_products(plan, features, 1, |field| {
        let to = staged::place_of_operands(field, 1);
        let times = match tiles.operands {
            TileOperands::Digits => format!("amx::times_in_digits(w{field}[i], factors[i], {min})"),
            TileOperands::SplitIntegers(bits) => {
                format!("amx::times_split::<{bits}>(w{field}[i], factors[i])")
            }
            TileOperands::Differences | TileOperands::Values | TileOperands::Scaled => {
                return format!(
                    "to.add({to}).cast::<simd::I>().write(simd::times(w{field}[i], factors[i], {min}, 0));"
                );
            }
        };
        format!(
            "let (low, high) = {times};
             let to = to.add({to});
             to.cast::<simd::I>().write(low);
             to.add(HIGH).cast::<simd::I>().write(high);"
        )
    });
    if !tiles.operands.in_digits() {
        return stage;
    }
    format!(
        "/// Bytes from the low bytes of operands to the high ones.
         const HIGH: usize = STEPS * STEP_K * ROWS;

         {stage}"
    )
}

/// The function that multiplies a part with some tokens, where a row is one run: integer sums wait.
fn tile(plan: &MatmulPlan<'_>, tiles: &Tiles, features: &str) -> String {
    let function = Function {
        doc: "`V` vectors of rows from `row` by `count` tokens from `token`, which are `X` tiles, and whose sums wait at token `at` of the\n\
              buffer.",
        safety: "As [`MatmulArgs`] says; the rows lie within its panels and are staged, the tokens are below `m`, and those from `at` on\n\
                 within the buffer; tiles are configured for `count` tokens.",
        features,
        declaration: "unsafe fn tile<const V: usize, const X: usize>(a: &MatmulArgs, part: Part, row: usize, token: usize, at: usize, count: usize)",
    };
    let products = |from: &str| add(tiles, &format!("x.add({from})"), from, "V", "X");
    let body = format!(
        "let operands = (&raw const (*part.buffer).operands.0).cast::<u8>();
         let sums = (&raw mut (*part.buffer).sums.0).cast::<i32>().add(at * ROWS);
         let x = a.x.add(token * a.x_stride + part.first * STEP_K);
         let k = (part.last - part.first) * STEP_K;
         // The last tile of a row may be a shorter one.
         let (whole, rest) = (k / TILE_K, k % TILE_K);
         if part.first > 0 {{ amx::load::<V, X>(sums); }} else {{ amx::clear(); }}
         for tile in 0..whole {{ {all} }}
         amx::store::<V, X>(sums);
         if rest > 0 {{
             amx::configure(count, rest, false);
             amx::load::<V, X>(sums);
             {last}
             amx::store::<V, X>(sums);
             amx::configure(count, TILE_K, false);
         }}
         if part.last < steps(a) {{ return; }}
         {epilogue}",
        all = products("tile * TILE_K"),
        last = products("whole * TILE_K"),
        epilogue = epilogue_by_token(plan.format, &whole_sum(plan, tiles)),
    );
    let why = "the caller answers for the buffers of `a`, see `MatmulArgs`, for the part and the tiles";
    function.with_unsafe("", why, &body)
}

/// The f32 of the integer sum of a whole row.
fn whole_sum(plan: &MatmulPlan<'_>, tiles: &Tiles) -> String {
    let sum = sum_of("t");
    if uncorrected(plan, tiles) {
        format!(
            "{{
                 let x_sum = *a.x_sums.add(token + t);
                 simd::to_f32(simd::add({sum}, {}))
             }}",
            zero_point(plan)
        )
    } else {
        format!("simd::to_f32({sum})")
    }
}

/// The function that takes a panel through tokens.
fn panel(plan: &MatmulPlan<'_>, tiles: &Tiles, features: &str) -> String {
    let whole_rows = "if count > amx::TOKENS {
             tile::<V, 2>(a, part, row, token, token - begin, count);
         } else {
             tile::<V, 1>(a, part, row, token, token - begin, count);
         }";
    let (begin, multiply, end) = match tiles.sums {
        TileSums::OfRows => ("", whole_rows, ""),
        TileSums::OfSteps => (tile_steps::BEGIN, tile_steps::MULTIPLY, tile_steps::END),
        TileSums::InRegisters => ("", tile_runs::MULTIPLY, ""),
    };
    let body = format!(
        "let mut token = begin;
         while token < end {{
             let count = (end - token).min({});
             if count != configured {{
                 amx::configure(count, TILE_K, {digits});
                 configured = count;
             }}
             {multiply}
             token += count;
         }}",
        tokens_at_once(tiles),
        digits = tiles.operands.in_digits(),
    );
    let begin = format!("let mut configured = 0;\n{begin}");
    staged::panel(plan, features, [&begin, &body, end])
}
