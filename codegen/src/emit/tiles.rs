//! The packed matmul by a matrix unit: operands wait in a buffer as in [`staged`](super::staged), and are multiplied tile by tile.
//!
//! The unit sums 64 k of sixteen rows and sixteen tokens at once, so what is done with its sums decides the speed. Where runs have
//! integers, each value is multiplied with that of its run before it goes into the buffer: a product of both fits in two bytes, the unit sums up
//! over a whole super-block, and low and high bytes are put together once. The products of the next super-block or run are on their way while
//! vectors scale those of the last one.

use super::function::{Function, constants, imports};
use super::matmul::{epilogue, trit_tables};
use super::runs;
use super::staged;
use super::sums::{needs_sum, zero_point};
use super::superblock_terms;
use super::terms;
use crate::lower::ir::{f32, i32};
use crate::plan::{MatmulPlan, SuperBlock, Term, TileOperands, Tiles, enabled};
use std::fmt::Write;

/// Tokens whose sums wait at once; codes are decoded anew for the next ones.
const TOKENS: u32 = 6 * Tiles::TOKENS;

/// The module of a variant by tiles: `stage`, `tile` and `matmul`.
pub(super) fn emit(plan: &MatmulPlan<'_>, tiles: &Tiles) -> String {
    let features = enabled(&plan.features);
    let runs = match &plan.format.superblock {
        Some(superblock) => superblock_terms::constants(plan, superblock, superblock.min.is_some()),
        None => String::new(),
    };
    let stage = match &plan.format.superblock {
        Some(_) => stage(plan, tiles, &features),
        None => staged::stage(plan, &features, |operand| match tiles.operands {
            TileOperands::Values if plan.format.min() != 0 => format!("amx::values({operand}, a.min)"),
            _ => operand,
        }),
    };
    let head = constants(&[
        ("ROWS", &plan.pack.packing.rows, "Rows of a panel."),
        ("CODES_K", &plan.pack.tile.k, "Elements of a row in a tile of codes."),
        ("STEP_K", &tiles.step, "Elements of k that are never apart."),
        ("STEPS", &tiles.steps, "Steps that are decoded at once."),
        ("TILE_K", &tiles.k, "Elements of k in a tile."),
        ("TOKENS", &TOKENS, "Tokens whose sums wait at once."),
        ("SUMS", &"4 * amx::TOKENS * LANES", "Sums of all tiles of a step."),
    ]);
    let operands = format!("[u8; {} * ROWS]", tiles.bytes_of_a_row());
    let mut fields = vec![
        ("Operands, four k of all rows of a panel side by side.", "operands", operands.as_str()),
        ("Sums of tiles, those that are scaled and the next ones.", "of_tiles", "[[i32; SUMS]; 2]"),
    ];
    if plan.format.superblock.as_ref().is_some_and(|superblock| superblock.min.is_some()) {
        let pairs = "Sums of activations of a super-block's runs, two by two, for each token of a tile.";
        fields.push((pairs, "x_sums", "[i32; 2 * amx::TOKENS * RUNS / 2]"));
    }
    let buffer = staged::buffer("vectors and tiles", &fields);
    format!(
        "{imports}
         use std::mem::MaybeUninit;

         {head}
         {runs}
         {trits}
         {buffer}

         {stage}
         {tile}
         {panel}
         {matmul}",
        imports = imports(&["amx"], plan.primitives.module),
        trits = trit_tables(plan),
        tile = tile(plan, tiles, &features),
        panel = panel(plan, tiles, &features),
        matmul = staged::matmul(
            plan,
            &features,
            [
                "// SAFETY: the processor has tiles: the caller answers for the variant's features.\n\
                 let found = unsafe { amx::found() };",
                "// SAFETY: the processor has tiles, as above.\nunsafe { amx::give_back(&found) };",
            ],
        ),
    )
}

/// The function that decodes super-blocks, each value times the integer of its run.
fn stage(plan: &MatmulPlan<'_>, tiles: &Tiles, features: &str) -> String {
    let min = staged::smallest(plan);
    if tiles.operands != TileOperands::Digits {
        return staged::stage_products(plan, features, 1, |field| {
            let to = staged::place_of_operands(field, 1);
            format!("to.add({to}).cast::<simd::I>().write(simd::times(w{field}[i], factors[i], {min}, 0));")
        });
    }
    let stage = staged::stage_products(plan, features, 1, |field| {
        let to = staged::place_of_operands(field, 1);
        format!(
            "let (low, high) = amx::times_in_digits(w{field}[i], factors[i], {min});
             let to = to.add({to});
             to.cast::<simd::I>().write(low);
             to.add(HIGH).cast::<simd::I>().write(high);"
        )
    });
    format!(
        "/// Bytes from the low bytes of operands to the high ones.
         const HIGH: usize = STEPS * STEP_K * ROWS;

         {stage}"
    )
}

/// The call that sums up `count` tiles of `k`, into `sums`: from element `from` of the part on (expressions), or from its first.
fn products(tiles: &Tiles, from: Option<&str>, k: &str, count: &str, sums: &str) -> String {
    let (x, w) = match from {
        Some(from) => (format!("x: x.add({from})"), format!("operands.add({from} * ROWS)")),
        None => ("x".to_string(), "operands".to_string()),
    };
    let operands = format!(
        "amx::Operands {{
             {x},
             x_stride: a.x_stride,
             w: {w},
             w_stride: 4 * ROWS,
             k: {k},
             tiles: {count},
         }}"
    );
    match tiles.operands {
        TileOperands::Differences => format!("amx::unsigned::<V, X>({operands}, {sums});"),
        TileOperands::Values | TileOperands::Scaled => format!("amx::signed::<V, X>({operands}, {sums});"),
        TileOperands::Digits => format!("amx::digits::<V>({operands}, HIGH, {sums});"),
    }
}

/// The function that multiplies a part with some tokens.
fn tile(plan: &MatmulPlan<'_>, tiles: &Tiles, features: &str) -> String {
    let (body, sums) = match (plan.format.unit, &plan.format.superblock) {
        (0, _) => (whole_row(tiles), whole_sum(plan, tiles)),
        (_, Some(superblock)) => (by_superblock(plan, tiles, superblock), F32_SUM.to_string()),
        (_, None) => (by_unit(plan, tiles), F32_SUM.to_string()),
    };
    let parameters = if tiles.operands == TileOperands::Digits { "" } else { ", const X: usize" };
    let in_tiles = if parameters.is_empty() { "one tile" } else { "`X` tiles" };
    let function = Function {
        doc: &format!(
            "`V` vectors of rows from `row` by `count` tokens from `token`, which are {in_tiles}, and whose sums wait at token `at` of the\n\
             buffer."
        ),
        safety: "As [`MatmulArgs`] says; the rows lie within its panels and are staged, the tokens are below `m`, and those from `at` on\n\
                 within the buffer; tiles are configured for `count` tokens.",
        features,
        declaration: &format!(
            "unsafe fn tile<const V: usize{parameters}>(a: &MatmulArgs, part: Part, row: usize, token: usize, at: usize, count: usize)"
        ),
    };
    let body = format!(
        "let operands = (&raw const (*part.buffer).operands.0).cast::<u8>();
         let of_tiles = (&raw mut (*part.buffer).of_tiles.0).cast::<i32>();
         let waiting = (&raw mut (*part.buffer).sums.0).cast::<u32>().add(at * ROWS);
         let x = a.x.add(token * a.x_stride + part.first * STEP_K);
         {body}
         if part.last < steps(a) {{ return; }}
         {}",
        epilogue(plan.format, "V", "count", &sums),
    );
    let why = "the caller answers for the buffers of `a`, see `MatmulArgs`, for the part and the tiles";
    function.with_unsafe("", why, &body)
}

/// The f32 sum of token `t` and vector `i`, where it waits.
const F32_SUM: &str = "simd::load_f32(waiting.add(t * ROWS + i * LANES).cast())";

/// The integer sum of token `t` and vector `i` in `sums`.
const OF_TILES: &str = "simd::load(sums.add((t * V + i) * LANES).cast())";

/// Whether integer sums lack the zero-point correction.
fn uncorrected(plan: &MatmulPlan<'_>, tiles: &Tiles) -> bool {
    tiles.operands == TileOperands::Differences && needs_sum(plan)
}

/// The f32 of the integer sum of a whole row.
fn whole_sum(plan: &MatmulPlan<'_>, tiles: &Tiles) -> String {
    let sum = "simd::load(waiting.add(t * ROWS + i * LANES).cast())";
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

/// Rows that are one run: integer sums wait.
fn whole_row(tiles: &Tiles) -> String {
    format!(
        "let k = (part.last - part.first) * STEP_K;
         // The last tile of a row may be a shorter one.
         let (whole, rest) = (k / TILE_K, k % TILE_K);
         let (sums, shorter) = (of_tiles, of_tiles.add(SUMS));
         if whole > 0 {{
             {all}
         }} else {{
             sums.write_bytes(0, SUMS);
         }}
         if rest > 0 {{
             amx::configure(count, rest, false);
             {last}
             amx::configure(count, TILE_K, false);
         }}
         for t in 0..count {{
             for i in 0..V {{
                 let mut dot = {OF_TILES};
                 if rest > 0 {{ dot = simd::add(dot, simd::load(shorter.add((t * V + i) * LANES).cast())); }}
                 let waiting = waiting.add(t * ROWS + i * LANES);
                 if part.first > 0 {{ dot = simd::add(dot, simd::load(waiting.cast())); }}
                 waiting.cast::<simd::I>().write(dot);
             }}
         }}\n",
        all = products(tiles, None, "TILE_K", "whole", "sums"),
        last = products(tiles, Some("whole * TILE_K"), "rest", "1", "shorter"),
    )
}

/// A loop over the steps of a part, named `step` in `body`, whose integer sums are in `sums`: the unit is given the next one first.
fn in_turn(tiles: &Tiles, step: &str, body: &str) -> String {
    format!(
        "for ahead in part.first..=part.last {{
             if ahead < part.last {{
                 let sums = of_tiles.add((ahead - part.first) % 2 * SUMS);
                 {products}
             }}
             if ahead == part.first {{ continue; }}
             let {step} = ahead - 1;
             let sums = of_tiles.add(({step} - part.first) % 2 * SUMS);
             {body}
         }}\n",
        products =
            products(tiles, Some("(ahead - part.first) * STEP_K"), "TILE_K", "STEP_K / TILE_K", "sums"),
    )
}

/// The sum so far of token `t` and vector `i`, from `step` on.
fn so_far(step: &str) -> String {
    format!(
        "let waiting = waiting.add(t * ROWS + i * LANES).cast::<f32>();
         let mut y = if {step} == 0 {{ simd::splat_f32(0.0) }} else {{ simd::load_f32(waiting) }};"
    )
}

/// A term of vector `i`, where it was loaded before.
fn of_vector(term: Term) -> String {
    format!("{}[i]", term.one())
}

/// Super-blocks: the sums of each are scaled once.
fn by_superblock(plan: &MatmulPlan<'_>, tiles: &Tiles, superblock: &SuperBlock) -> String {
    let (format, types) = (plan.format, plan.pack.terms);
    let has_min = superblock.min.is_some();
    let each = superblock_terms::values_of_words(types);
    let pointers = superblock_terms::terms_of_superblocks(plan, superblock, false);
    let mut of_block = format!(
        "let mut scale = [simd::splat_f32(0.0); V];
         for i in 0..V {{ scale[i] = {}; }}\n",
        terms::load(types, Term::Scale, &format!("block * WORDS{each}"))
    );
    let mut lows = String::new();
    if has_min {
        let _ = write!(
            of_block,
            "let mut min = [simd::splat_f32(0.0); V];
             for i in 0..V {{ min[i] = {}; }}
             let mut minima = [[simd::zero(); V]; RUNS / 2];
             for pair in 0..RUNS / 2 {{
                 for i in 0..V {{ minima[pair][i] = {}; }}
             }}
             let pairs = (&raw mut (*part.buffer).x_sums.0).cast::<i32>();
             for t in 0..count {{
                 amx::pairs::<RUNS>(a.x_sums.add((token + t) * a.units + block * RUNS), pairs.add(t * (RUNS / 2)));
             }}\n",
            terms::load(types, Term::Min, &format!("block * MIN_WORDS{each}")),
            superblock_terms::integers_of_pair(plan),
        );
        let _ = writeln!(
            lows,
            "let mut low = [simd::zero(); V];
             for pair in 0..RUNS / 2 {{
                 let x = pairs.add(t * (RUNS / 2) + pair);
                 for i in 0..V {{ low[i] = amx::add_products(low[i], minima[pair][i], x); }}
             }}"
        );
    }
    let total = match tiles.operands {
        TileOperands::Digits => {
            let high = OF_TILES.replace("(t * V", "((amx::TOKENS + t) * V");
            format!("amx::joined({OF_TILES}, {high})")
        }
        TileOperands::Differences | TileOperands::Values | TileOperands::Scaled => OF_TILES.to_string(),
    };
    let body = format!(
        "{of_block}
         for t in 0..count {{
             {x_scale}
             {lows}
             for i in 0..V {{
                 let total = {total};
                 {so_far}
                 {add}
                 simd::store_f32(waiting, y);
             }}
         }}",
        x_scale = terms::x_scale(format, "(token + t)", "block", tiles.step),
        so_far = so_far("block"),
        add = terms::add(format, "y", "total", has_min.then(|| i32("low[i]")), of_vector),
    );
    format!("{pointers}{}", in_turn(tiles, "block", &body))
}

/// Runs with an f32 each.
fn by_unit(plan: &MatmulPlan<'_>, tiles: &Tiles) -> String {
    let (format, types) = (plan.format, plan.pack.terms);
    let rows = plan.pack.packing.rows;
    let place = format!("{} * {rows}", types.of_unit("unit"));
    let mut of_unit = String::new();
    for term in format.terms() {
        let _ = writeln!(
            of_unit,
            "let mut {name} = [simd::splat_f32(0.0); V];
             for i in 0..V {{ {name}[i] = {}; }}",
            terms::load(types, term, &place),
            name = term.one(),
        );
    }
    let mut of_token = String::new();
    if uncorrected(plan, tiles) || format.offset {
        of_token.push_str("let x_sum = *a.x_sums.add((token + t) * a.units + unit);\n");
    }
    of_token.push_str(&terms::x_scale(format, "(token + t)", "unit", tiles.step));
    let sum = match uncorrected(plan, tiles) {
        true => format!("simd::add({OF_TILES}, {})", zero_point(plan)),
        false => OF_TILES.to_string(),
    };
    let x_sum = format.offset.then(|| f32("simd::splat_f32(x_sum as f32)"));
    let add = terms::add(format, "y", &sum, x_sum, of_vector);
    let body = format!(
        "{of_unit}
         for t in 0..count {{
             {of_token}
             for i in 0..V {{
                 {so_far}
                 {add}
                 simd::store_f32(waiting, y);
             }}
         }}",
        so_far = so_far("unit"),
    );
    format!("{}{}", runs::terms_of_units(plan), in_turn(tiles, "unit", &body))
}

/// The function that takes a panel through tokens.
fn panel(plan: &MatmulPlan<'_>, tiles: &Tiles, features: &str) -> String {
    let digits = tiles.operands == TileOperands::Digits;
    let (at_once, call) = if digits {
        ("amx::TOKENS", "tile::<V>(a, part, row, token, token - begin, count);")
    } else {
        (
            "2 * amx::TOKENS",
            "if count > amx::TOKENS {
                 tile::<V, 2>(a, part, row, token, token - begin, count);
             } else {
                 tile::<V, 1>(a, part, row, token, token - begin, count);
             }",
        )
    };
    let body = format!(
        "let mut token = begin;
         let mut configured = 0;
         while token < end {{
             let count = (end - token).min({at_once});
             if count != configured {{
                 amx::configure(count, TILE_K, {digits});
                 configured = count;
             }}
             {call}
             token += count;
         }}"
    );
    staged::panel(plan, features, &body)
}
