//! Integer sums of products over tiles.

use super::matrix;
use super::operands::{load, multiply, multiply_fields, multiply_words, place, steps, table, words};
use crate::plan::{Dot, MatmulPlan};
use crate::text::when;

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

/// As [`integer_sums`], each token by itself.
fn sums_by_token(plan: &MatmulPlan<'_>, first: &str, count: &str, start: bool) -> String {
    let begin = |sum: &str| {
        when(start, || format!("for t in 0..T {{ for i in 0..V {{ {sum}[t][i] = start[t]; }} }}\n"))
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
        Dot::Wide if plan.widens_runs() => format!(
            "{table}let mut dot = [[simd::zero(); V]; T];
             {begin}
             {words}
             for tile in {first}..{first} + {count} {{
                 let at = tile * TILE;
                 let four = (tile - {first}) * {fields};
                 {load} {multiply}
             }}\n",
            begin = begin("dot"),
            words = words(&(plan.format.unit / 4).to_string(), &format!("{first} * TILE_K")),
            fields = plan.pack.tile_fields(),
            multiply = multiply_words(plan),
        ),
        Dot::Direct { shift_free: false } | Dot::Wide => format!(
            "{table}let mut dot = [[simd::zero(); V]; T];
             {}
             {}\n",
            begin("dot"),
            steps(plan.step, first, count, &format!("{load} {}", multiply(plan, "dot")))
        ),
        Dot::PairsWithin { fields: most } => {
            let multiply = multiply_fields(plan, |field, function| {
                // Fields are taken in order, and each group of them starts anew.
                let begins = field % most == 0;
                let ends = field % most == most - 1 || field == plan.pack.tile_fields() * plan.step - 1;
                let pairs = |sum: &str| format!("simd::{function}({sum}, w{field}[i], x)");
                match (begins, ends) {
                    (true, true) => {
                        format!("dot[t][i] = simd::widen(dot[t][i], {});", pairs("simd::zero_pairs()"))
                    }
                    (true, false) => format!("sum[t][i] = {};", pairs("simd::zero_pairs()")),
                    (false, false) => format!("sum[t][i] = {};", pairs("sum[t][i]")),
                    (false, true) => format!("dot[t][i] = simd::widen(dot[t][i], {});", pairs("sum[t][i]")),
                }
            });
            let sum = if most == 1 { "" } else { "let mut sum = [[simd::zero_pairs(); V]; T];" };
            format!(
                "{table}let mut dot = [[simd::zero(); V]; T];
                 {}
                 for tile in {first}..{first} + {count} {{ {position} {sum} {load} {multiply} }}\n",
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

/// The zero-point correction of a sum, which operands leave out: value = operand + min, or (operand - 128) + (min + 128).
pub(super) fn zero_point(plan: &MatmulPlan<'_>) -> &'static str {
    if plan.biased { "simd::splat(x_sum * (a.min + 128))" } else { "simd::splat(x_sum * a.min)" }
}

/// Whether integer sums are corrected by the sum of the activations.
pub(super) fn needs_sum(plan: &MatmulPlan<'_>) -> bool {
    plan.format.min() != 0 || plan.biased
}
