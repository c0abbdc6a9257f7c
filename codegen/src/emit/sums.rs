//! Integer sums of products over tiles.

use super::matrix;
use super::operands::{
    Over, POSITION, each_tile, load, multiply, multiply_fields, multiply_split, multiply_words, place, table,
    words, words_of_four,
};
use crate::plan::{Dot, MatmulPlan};
use crate::text::when;

/// Where sums in i16 are widened to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Widened<'a> {
    /// `dot`.
    Dot,
    /// `total`, times the `factors` of their rows, which these statements make.
    Total(&'a str),
}

impl Widened<'_> {
    /// The statement that adds `pairs` (an expression) of token `t` and vector `i`.
    fn add(self, pairs: &str) -> String {
        match self {
            Widened::Dot => format!("dot[t][i] = simd::widen(dot[t][i], {pairs});"),
            Widened::Total(_) => {
                format!("total[t][i] = simd::add_products(total[t][i], {pairs}, factors[i]);")
            }
        }
    }
}

/// Integer sums over tiles into `dot[t][i]`. Where `start` is given, they start at `start[t]`, else at zero.
pub(super) fn integer_sums(plan: &MatmulPlan<'_>, over: Over<'_>, start: bool) -> String {
    let alone = sums_by_token(plan, over, start, Widened::Dot);
    if !plan.pairs {
        return alone;
    }
    let paired = matrix::sums(plan, over, start);
    format!("let dot = if T == 1 {{ {alone} dot }} else {{ {paired} dot }};\n")
}

/// Integer sums over tiles, times `factors[i]`, which the statements `factors` make, added to
/// `total[t][i]`. For plans that [multiply while they widen](MatmulPlan::widens_by_integers).
pub(super) fn sums_times_factors(plan: &MatmulPlan<'_>, over: Over<'_>, factors: &str) -> String {
    sums_by_token(plan, over, false, Widened::Total(factors))
}

/// As [`integer_sums`], each token by itself.
fn sums_by_token(plan: &MatmulPlan<'_>, over: Over<'_>, start: bool, widened: Widened<'_>) -> String {
    const DOT: &str = "let mut dot = [[simd::zero(); V]; T];";
    let dot = match widened {
        Widened::Dot => DOT,
        Widened::Total(factors) => factors,
    };
    let begin = |sum: &str| {
        when(start, || format!("for t in 0..T {{ for i in 0..V {{ {sum}[t][i] = start[t]; }} }}\n"))
    };
    let (load, table) = (load(plan), table(plan));
    // What has the sums of pairs take part in those of four bytes.
    let widen = format!("for t in 0..T {{ for i in 0..V {{ {} }} }}", widened.add("sum[t][i]"));
    let alone = |body: &str| each_tile(plan, 1, over, |_| format!("{POSITION}{body}"));
    let loops = match plan.dot {
        Dot::Direct { shift_free: true } => format!(
            "// Fields are multiplied where they stand in the byte; each sum is shifted once, exactly.
             let mut sums = [[[simd::zero(); V]; T]; {fields}];
             {begin}
             {tiles}
             {DOT}
             for t in 0..T {{ for i in 0..V {{ dot[t][i] = {total}; }} }}",
            fields = plan.pack.fields,
            begin = begin("sums[0]"),
            tiles = alone(&format!("{load} {}", multiply_in_place(plan))),
            total = total_in_place(plan),
        ),
        Dot::Wide if plan.widens_runs() => format!(
            "{DOT}
             {begin}
             {words}
             {tiles}",
            begin = begin("dot"),
            words = words(&(plan.format.k_group / 4).to_string(), &format!("{} * TILE_K", over.first())),
            tiles = each_tile(plan, 1, over, |turn| format!(
                "let (at, four) = (tile * TILE, {turn} * {});
                 {load} {}",
                plan.pack.tile_fields(),
                multiply_words(plan)
            )),
        ),
        Dot::Split => format!(
            "// Of the lower halves of activations, and of the upper ones.
             let mut sum = [[[simd::zero_pairs(); V]; T]; 2];
             {tiles}
             {DOT}
             {begin}
             for t in 0..T {{
                 for i in 0..V {{
                     let upper = simd::widen_upper(dot[t][i], sum[1][t][i]);
                     dot[t][i] = simd::widen(upper, sum[0][t][i]);
                 }}
             }}",
            tiles = each_tile(plan, 1, over, |turn| format!(
                "let (at, k) = (tile * TILE, {turn} * TILE_K);
                 {load} {}",
                multiply_split(plan)
            )),
            begin = begin("dot"),
        ),
        Dot::Direct { shift_free: false } | Dot::Wide => format!(
            "{DOT}
             {}
             {}",
            begin("dot"),
            each_tile(plan, plan.step, over, |_| format!("{POSITION}{load} {}", multiply(plan, "dot")))
        ),
        Dot::PairsWithin { fields } => {
            let sum = if fields == 1 { "" } else { "let mut sum = [[simd::zero_pairs(); V]; T];" };
            let body = format!("{sum} {load} {}", multiply_within(plan, fields, widened));
            format!("{dot}\n{}\n{}", begin("dot"), alone(&body))
        }
        Dot::Pairs { .. } if plan.dot.widens_once(plan.format, &plan.pack) => format!(
            "let mut sum = [[simd::zero_pairs(); V]; T];
             {}
             {dot}
             {}
             {widen}",
            alone(&format!("{load} {}", multiply(plan, "sum"))),
            begin("dot")
        ),
        Dot::Pairs { tiles } => format!(
            "{dot}
             {}
             let mut tile = {first};
             while tile < {end} {{
                 // i16 sums stay exact over {tiles} tiles.
                 let stop = ({end}).min(tile + {tiles});
                 let mut sum = [[simd::zero_pairs(); V]; T];
                 while tile < stop {{
                     {POSITION}{load} {}
                     tile += 1;
                 }}
                 {widen}
             }}",
            begin("dot"),
            multiply(plan, "sum"),
            first = over.first(),
            end = over.end(),
        ),
    };
    format!("{table}{loops}\n")
}

/// Statements that add to `dot[t][i]` the products of run `run` of a buffer (an expression), whose operands are values as i16.
pub(super) fn sums_of_words(plan: &MatmulPlan<'_>, run: &str) -> String {
    let widened = match plan.widens_parts() {
        true => format!("let words = &*words.add({run});\n"),
        false => words("FOURS", &format!("4 * FOURS * {run}")),
    };
    format!(
        "{widened}
         for four in 0..FOURS {{
             let at = ({run} * FOURS + four) * TILE;
             let mut w = [[simd::zero(); 2]; V];
             for i in 0..V {{
                 w[i] = [simd::load(codes[i].add(at)), simd::load(codes[i].add(at + 4 * ROWS))];
             }}
             for t in 0..T {{
                 {words_of_four}
                 for i in 0..V {{
                     dot[t][i] = simd::add_products(dot[t][i], w[i][0], even);
                     dot[t][i] = simd::add_products(dot[t][i], w[i][1], odd);
                 }}
             }}
         }}\n",
        words_of_four = words_of_four("four"),
    )
}

/// Statements that multiply fields where they stand in the byte, each into sums of its own.
fn multiply_in_place(plan: &MatmulPlan<'_>) -> String {
    multiply_fields(plan, |field, function| {
        format!("sums[{field}][t][i] = simd::{function}(sums[{field}][t][i], w{field}[i], x);")
    })
}

/// An expression of the sum of those.
fn total_in_place(plan: &MatmulPlan<'_>) -> String {
    (1..plan.pack.fields).fold("sums[0][t][i]".to_string(), |total, field| match place(plan, field) {
        Some(bit) => format!("simd::add({total}, simd::shift_lanes::<{bit}>(sums[{field}][t][i]))"),
        None => format!("simd::add({total}, sums[{field}][t][i])"),
    })
}

/// Statements that multiply fields into i16 sums, which are exact over `most` fields and are widened behind those.
fn multiply_within(plan: &MatmulPlan<'_>, most: u32, widened: Widened<'_>) -> String {
    multiply_fields(plan, |field, function| {
        // Fields are taken in order, and each group of them starts anew.
        let begins = field % most == 0;
        let ends = field % most == most - 1 || field == plan.pack.tile_fields() * plan.step - 1;
        let so_far = if begins { "simd::zero_pairs()" } else { "sum[t][i]" };
        let pairs = format!("simd::{function}({so_far}, w{field}[i], x)");
        if ends { widened.add(&pairs) } else { format!("sum[t][i] = {pairs};") }
    })
}

/// The zero-point correction of a sum, which operands leave out: value = operand + min, or (operand - 128) + (min + 128).
pub(super) fn zero_point(plan: &MatmulPlan<'_>) -> &'static str {
    if plan.biased { "simd::splat(x_sum * (a.min + 128))" } else { "simd::splat(x_sum * a.min)" }
}

/// Whether integer sums are corrected by the sum of the activations.
pub(super) fn needs_sum(plan: &MatmulPlan<'_>) -> bool {
    (plan.format.min() != 0 && !plan.signs) || plan.biased
}
