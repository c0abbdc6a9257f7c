//! Products of two rows by two tokens in one instruction, where the ISA has it.
//!
//! The instruction takes eight k of two rows and eight k of two tokens. A packed vector holds four k of each of its
//! rows, so two vectors are brought together lane by lane before they are decoded: neighbouring tiles, or where a byte
//! holds four codes and more, a tile and the same tile moved down by a code. That costs two instructions for all the
//! fields above one another; the activations of two tokens cost one for each operand. Where codes lie in planes, they are
//! put together first.

use super::operands::{Over, POSITION, code_at, decode, each_tile, load_upper, load_word, operand, table};
use crate::plan::MatmulPlan;
use std::fmt::Write;

/// How the eight k of an operand come together from vectors that hold sixteen of a token.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Eight neighbouring k.
    Neighbours,
    /// Groups of four k, every second one: what tiles of eight k bring together.
    EverySecond,
}

/// Integer sums over tiles into `dot[t][i]`, for an even number of tokens. Where `start` is given, they start at `start[t]`, else at
/// zero.
pub(super) fn sums(plan: &MatmulPlan<'_>, over: Over<'_>, start: bool) -> String {
    let begin = if start {
        "for p in 0..T / 2 {
             let both = simd::in_turn::<0>(start[2 * p], start[2 * p + 1]);
             for i in 0..V { sum[2 * p][i] = both; sum[2 * p + 1][i] = both; }
         }\n"
    } else {
        ""
    };
    format!(
        "{table}// Of a pair of tokens by the first two rows of a vector, then by the other two.
         let mut sum = [[simd::zero(); V]; T];
         {begin}{steps}
         let mut dot = [[simd::zero(); V]; T];
         for p in 0..T / 2 {{
             for i in 0..V {{
                 dot[2 * p][i] = simd::every_second::<0>(sum[2 * p][i], sum[2 * p + 1][i]);
                 dot[2 * p + 1][i] = simd::every_second::<1>(sum[2 * p][i], sum[2 * p + 1][i]);
             }}
         }}\n",
        table = table(plan),
        steps = each_tile(plan, plan.step, over, |_| format!("{POSITION}{}", step(plan))),
    )
}

/// Statements that decode the tiles of a step at byte `at` and multiply them with the activations at element `k`.
fn step(plan: &MatmulPlan<'_>) -> String {
    let (bits, fields, tiles) = (plan.pack.bits(), plan.pack.fields, plan.step);
    let mut out = String::new();
    if plan.pack.upper.is_some() || plan.pack.shifted.is_some() {
        for tile in 0..tiles {
            out.push_str(
                &plan.pack.upper.map_or_else(|| load_word(plan, tile), |upper| load_upper(tile, upper)),
            );
        }
        let operands: Vec<u32> = (0..tiles * plan.pack.tile_fields() / 2).collect();
        for (vector, two) in operands.chunks(2).enumerate() {
            for (j, operand) in (0..).zip(two) {
                out.push_str(&together(plan, 2 * operand, j));
            }
            multiply(&mut out, "rows", vector, two.len(), Order::Neighbours);
        }
        return out;
    }
    (0..tiles).for_each(|tile| out.push_str(&load_word(plan, tile)));
    // What is brought together: pairs of tiles, or one tile and its next codes.
    let pairs = tiles.div_ceil(2);
    for pair in 0..pairs {
        let (a, b) = if tiles == 1 {
            ("packed0[i]".to_string(), format!("simd::shift::<{bits}>(packed0[i])"))
        } else {
            (format!("packed{}[i]", 2 * pair), format!("packed{}[i]", 2 * pair + 1))
        };
        out.push_str(&in_turn(pair, &a, &b));
    }
    // Operands, each of eight k: (pair, bit of its codes), in the order of k.
    let operands: Vec<(u32, u32)> = if tiles == 1 {
        (0..fields / 2).map(|j| (0, 2 * j * bits)).collect()
    } else {
        (0..pairs).flat_map(|pair| (0..fields).map(move |field| (pair, field * bits))).collect()
    };
    let order = if tiles > 1 && fields == 2 { Order::EverySecond } else { Order::Neighbours };
    // As many as a vector of activations has, so that few wait in registers.
    for (vector, two) in operands.chunks(2).enumerate() {
        for (j, (pair, bit)) in two.iter().enumerate() {
            // The upper of two tiles' codes needs no mask; of a tile moved down by a code, half the bytes do.
            let alone = tiles > 1 && bit + bits == 8;
            let text =
                |half: u32| operand(plan, &code_at(plan, &format!("rows{pair}[i][{half}]"), *bit, alone));
            let _ = write!(
                out,
                "let mut w{j} = [[simd::zero(); 2]; V];
                 for i in 0..V {{ w{j}[i] = [{}, {}]; }}\n",
                text(0),
                text(1)
            );
        }
        multiply(&mut out, "w", vector, two.len(), order);
    }
    out
}

/// Statements that multiply operands `NAME0` and so on with vector `vector` of the activations at element `k`.
fn multiply(out: &mut String, name: &str, vector: usize, operands: usize, order: Order) {
    let at = format!("k + {}", 16 * vector);
    let _ = write!(
        out,
        "for p in 0..T / 2 {{
             let (x0, x1) = (simd::activations::<{bytes}>(x[2 * p].add({at})), simd::activations::<{bytes}>(x[2 * p + 1].add({at})));\n",
        bytes = 8 * operands,
    );
    for j in 0..operands {
        let function = match order {
            Order::Neighbours => "halves",
            Order::EverySecond => "every_second",
        };
        let _ = write!(
            out,
            "let x = simd::{function}::<{j}>(x0, x1);
             for i in 0..V {{
                 sum[2 * p][i] = simd::matrix(sum[2 * p][i], {name}{j}[i][0], x);
                 sum[2 * p + 1][i] = simd::matrix(sum[2 * p + 1][i], {name}{j}[i][1], x);
             }}\n"
        );
    }
    out.push_str("}\n");
}

/// Statements that decode fields `field` and the next, and bring their rows together as operand `j`.
fn together(plan: &MatmulPlan<'_>, field: u32, j: u32) -> String {
    let next = field + 1;
    let rows = in_turn(j, &format!("w{field}[i]"), &format!("w{next}[i]"));
    format!("{}{}{rows}", decode(plan, field), decode(plan, next))
}

/// Statements that make `rows` number `j` of two vectors (expressions): rows of one and of the other, in turn.
fn in_turn(j: u32, a: &str, b: &str) -> String {
    format!(
        "let mut rows{j} = [[simd::zero(); 2]; V];
         for i in 0..V {{
             let (a, b) = ({a}, {b});
             rows{j}[i] = [simd::in_turn::<0>(a, b), simd::in_turn::<1>(a, b)];
         }}\n"
    )
}
