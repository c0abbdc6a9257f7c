//! From packed codes to operands, and their products with activations.

use crate::plan::{Dot, MatmulPlan, Prefetch, UpperPlane};
use crate::text::when;
use std::cmp::Ordering;
use std::fmt::Write;

/// Rows, four bytes each, to a cache line.
pub(super) const LINE: u32 = 16;

/// Byte `at`, or that of a tile of the same step further on, and so many bytes behind.
fn at_byte(tile: u32, bytes: u32) -> String {
    format!("at + {tile} * TILE + {bytes}")
}

/// Byte of vector `word` of the codes of a step, counted through its tiles.
fn at_word(plan: &MatmulPlan<'_>, word: u32) -> String {
    let words = plan.pack.words;
    at_byte(word / words, byte_of_word(plan, word % words))
}

/// Byte of the tile at which its vector `word` begins.
fn byte_of_word(plan: &MatmulPlan<'_>, word: u32) -> u32 {
    plan.pack.upper.map_or(0, |upper| upper.lower) + word * 4 * plan.pack.packing.rows
}

/// Statements that load the tiles of a step, from byte `at` on, of every row vector into `packed0[vector]`,
/// `packed1[vector]` and so on, and prefetch later ones. Of tiles with an upper plane only that is loaded, into
/// `upper0[vector]` and so on: the vectors below it wait until their fields are decoded, as do all where a tile has several.
pub(super) fn load(plan: &MatmulPlan<'_>) -> String {
    (0..plan.step).map(|tile| load_tile(plan, tile)).collect()
}

/// Statements that load vector `word` of a step.
pub(super) fn load_word(plan: &MatmulPlan<'_>, word: u32) -> String {
    format!(
        "let mut packed{word} = [simd::zero(); V];
         for i in 0..V {{ packed{word}[i] = simd::load(codes[i].add({})); }}\n",
        at_word(plan, word)
    )
}

/// Statements that load the upper plane of tile `tile` of a step, a byte for each of four k.
pub(super) fn load_upper(tile: u32, upper: UpperPlane) -> String {
    let from = if upper.nibbles {
        format!("simd::nibbles(uppers[i].add({}))", at_byte(tile, 0))
    } else {
        format!("simd::load(codes[i].add({}))", at_byte(tile, upper.offset))
    };
    format!("let mut upper{tile} = [simd::zero(); V];\nfor i in 0..V {{ upper{tile}[i] = {from}; }}\n")
}

fn load_tile(plan: &MatmulPlan<'_>, tile: u32) -> String {
    let at = at_byte(tile, 0);
    let mut out = match plan.pack.upper {
        Some(upper) => load_upper(tile, upper),
        None if plan.pack.words == 1 => load_word(plan, tile),
        None => String::new(),
    };
    if let Some(prefetch) = plan.prefetch {
        let [begin, end] = guard(prefetch);
        let distance = if prefetch.is_told() { "distance" } else { "PREFETCH_DISTANCE" };
        let _ = write!(
            out,
            "{begin}let ahead = if V * LANES == ROWS || {at} + {distance} < a.stride {{
                 {at} + {distance}
             }} else {{
                 ({at} + {distance}).wrapping_add(next)
             }};\n"
        );
        let mut add = |of_a_line: &str, address: &str| {
            let _ = writeln!(
                out,
                "for i in 0..V {{ if (i * LANES).is_multiple_of({of_a_line}) {{ simd::prefetch({address}); }} }}"
            );
        };
        let ahead = |bytes: u32| format!("codes[i].wrapping_add(ahead + {bytes})");
        match plan.pack.upper {
            Some(UpperPlane { nibbles: true, .. }) => add("2 * LINE", "uppers[i].wrapping_add(ahead)"),
            Some(UpperPlane { offset, .. }) => add("LINE", &ahead(offset)),
            None => {}
        }
        for word in 0..plan.pack.words {
            add("LINE", &ahead(byte_of_word(plan, word)));
        }
        out.push_str(end);
    }
    if plan.pack.trits() {
        let _ = write!(
            out,
            "let mut fifth{tile} = [simd::zero(); V];
             for i in 0..V {{ (packed{tile}[i], fifth{tile}[i]) = simd::trits(&trits, packed{tile}[i]); }}\n"
        );
    }
    out
}

/// What stands in front of statements that prefetch and behind them.
pub(super) fn guard(prefetch: Prefetch) -> [&'static str; 2] {
    if prefetch.is_told() { ["if PREFETCH {\n", "}\n"] } else { ["", ""] }
}

/// Statements that decode field `field` of the loaded tiles, counted through all of them, into `wFIELD[vector]`.
pub(super) fn decode(plan: &MatmulPlan<'_>, field: u32) -> String {
    let pack = &plan.pack;
    let (word, of_word) = (field / pack.fields, field % pack.fields);
    let apart = pack.trits() && of_word == pack.fields - 1;
    let vectors = if apart { format!("fifth{word}") } else { format!("packed{word}") };
    let load = when((pack.upper.is_some() || pack.words > 1) && of_word == 0, || load_word(plan, word));
    if pack.fields == 1 && pack.are_operands() && !plan.biased {
        return format!("{load}let w{field} = {vectors};\n");
    }
    let from = format!("{vectors}[i]");
    let shift = pack.place(of_word);
    let shift_free = plan.dot == Dot::Direct { shift_free: true };
    let mut text = if shift_free && place(plan, of_word).is_some() {
        masked(&from, pack.field_bits(), shift)
    } else {
        code_at(plan, &from, shift, place(plan, of_word).is_none())
    };
    if let Some(upper) = pack.upper {
        text = format!("simd::or({text}, {})", upper_bits(plan, upper, field));
    }
    if let Some(shifted) = pack.shifted {
        let bit = 1u32 << shifted.group_of_field(of_word);
        let flagged = format!("simd::flagged(flags[i], simd::splat({bit}), simd::bytes({:#x}))", shifted.by);
        text = format!("simd::or({text}, {flagged})");
    }
    let text = operand(plan, &text);
    format!("{load}let mut w{field} = [simd::zero(); V];\nfor i in 0..V {{ w{field}[i] = {text}; }}\n")
}

/// The upper bits of field `field` of the loaded tiles, at their place in the code.
fn upper_bits(plan: &MatmulPlan<'_>, upper: UpperPlane, field: u32) -> String {
    let pack = &plan.pack;
    let (tile, of_tile) = (field / pack.tile_fields(), field % pack.tile_fields());
    let (from, to) = (of_tile * upper.bits, pack.field_bits());
    masked(&moved(&format!("upper{tile}[i]"), from, to), upper.bits, to)
}

/// The bytes of `vector` (an expression) with what stands at bit `from` at bit `to`.
fn moved(vector: &str, from: u32, to: u32) -> String {
    match from.cmp(&to) {
        Ordering::Less => format!("simd::shift_left::<{}>({vector})", to - from),
        Ordering::Equal => vector.to_string(),
        Ordering::Greater => format!("simd::shift::<{}>({vector})", from - to),
    }
}

/// The same with so many bits of each byte, from bit `at` on, and no others.
fn masked(vector: &str, bits: u32, at: u32) -> String {
    format!("simd::and({vector}, simd::bytes({:#x}))", ((1u32 << bits) - 1) << at)
}

/// The code at bit `shift` of every byte of `packed` (an expression), at the bit where an operand has it; `alone`: nothing stands above it.
pub(super) fn code_at(plan: &MatmulPlan<'_>, packed: &str, shift: u32, alone: bool) -> String {
    let to = plan.pack.spacing;
    let shifted = moved(packed, shift, to);
    if to == 0 && (plan.pack.fields == 1 || alone) {
        shifted
    } else {
        masked(&shifted, plan.pack.field_bits(), to)
    }
}

/// The operand that a code (an expression) stands for.
pub(super) fn operand(plan: &MatmulPlan<'_>, code: &str) -> String {
    match (plan.pack.table.is_some(), plan.biased) {
        (true, _) => format!("simd::lookup(table, {code})"),
        (false, true) => format!("simd::signed({code})"),
        (false, false) => code.to_string(),
    }
}

/// The statement that makes the tables by which codes become operands, where there are any.
pub(super) fn table(plan: &MatmulPlan<'_>) -> &'static str {
    match (plan.pack.table.is_some(), plan.biased) {
        (true, _) if plan.signs => "let table = simd::values(simd::table(&*a.table), a.min);\n",
        (false, _) if plan.pack.trits() => "let trits = simd::trit_tables(&TRITS);\n",
        (true, true) => "let table = simd::signed(simd::table(&*a.table));\n",
        (true, false) => "let table = simd::table(&*a.table);\n",
        (false, _) => "",
    }
}

/// The bit at which a field stands in its byte where it needn't be moved; none for a topmost field that is
/// shifted down at the price of a mask.
pub(super) fn place(plan: &MatmulPlan<'_>, field: u32) -> Option<u32> {
    let bit = plan.pack.place(field);
    let top = field > 0 && bit + plan.pack.field_bits() == 8 && plan.primitives.byte_shift;
    (!top).then_some(bit)
}

/// Statements that take the fields of the loaded tile one after the other, so that few of them are held at once, and
/// multiply each with the activations at element `k` of each K group or row. `step` writes the one for a field, given the
/// primitive that multiplies; `x` holds the activations in it.
pub(super) fn multiply_fields(plan: &MatmulPlan<'_>, step: impl Fn(u32, &str) -> String) -> String {
    let mut out = String::new();
    let fields = plan.pack.tile_fields() * plan.step;
    // As many k as a vector holds bytes, or fewer.
    let group = fields.min(4);
    if plan.primitives.grouped && group > 1 && fields.is_multiple_of(group) {
        for field in in_order(plan) {
            let (first, of_group) = (field / group * group, field % group);
            if of_group == 0 {
                let _ = writeln!(
                    out,
                    "let mut group = [simd::zero(); T];\nfor t in 0..T {{ group[t] = simd::activations::<{}>(x[t].add(k + {})); }}",
                    4 * group,
                    4 * first
                );
            }
            let step = step(field, &format!("dot_group::<{of_group}>"));
            out.push_str(&decode(plan, field));
            let _ = writeln!(out, "for t in 0..T {{ let x = group[t]; for i in 0..V {{ {step} }} }}");
        }
        return out;
    }
    let function = match plan.dot {
        Dot::Direct { .. } => "dot",
        Dot::Pairs { .. } | Dot::PairsWithin { .. } if plan.signs => "signed_pairs",
        Dot::Pairs { .. } | Dot::PairsWithin { .. } | Dot::Split => "pairs",
        Dot::Wide => "wide",
    };
    for field in in_order(plan) {
        out.push_str(&decode(plan, field));
        let _ = write!(
            out,
            "for t in 0..T {{
                 let x = simd::broadcast(x[t].add(k + {}));
                 for i in 0..V {{ {} }}
             }}\n",
            4 * field,
            step(field, function)
        );
    }
    out
}

/// Statements that widen the activations of so many `fours` of k from element `k` of a run on (expressions), as `words`.
pub(super) fn words(fours: &str, k: &str) -> String {
    format!(
        "// As i16, once for all rows.
         let mut words = [[[0; {fours}]; 2]; T];
         for t in 0..T {{ words[t] = simd::words(x[t].add({k})); }}
         // Broadcast from memory by loads alone; in registers each would be a permutation.
         let words = std::hint::black_box(&words);\n"
    )
}

/// The statement that takes those of token `t` for the four at `four` (an expression): `even` and `odd`.
pub(super) fn words_of_four(four: &str) -> String {
    format!("let [even, odd] = [simd::splat(words[t][0][{four}]), simd::splat(words[t][1][{four}])];")
}

/// As [`multiply_fields`], into the sums `dot`, with [`words`], those of the tile from `four` on.
pub(super) fn multiply_words(plan: &MatmulPlan<'_>) -> String {
    let mut out = String::new();
    for field in in_order(plan) {
        let four = if field == 0 { "four".to_string() } else { format!("four + {field}") };
        let _ = write!(
            out,
            "{}for t in 0..T {{
                 {}
                 for i in 0..V {{ dot[t][i] = simd::wide_words(dot[t][i], w{field}[i], even, odd); }}
             }}\n",
            decode(plan, field),
            words_of_four(&four)
        );
    }
    out
}

/// Statements that split the activations of `count` runs from run `first` on (expressions) into `halves[run][token]`, which has room for
/// `room` runs. Nothing where activations are not split.
pub(super) fn split(plan: &MatmulPlan<'_>, room: &str, first: &str, count: &str) -> String {
    when(plan.dot == Dot::Split, || {
        let run = plan.format.k_group;
        format!(
            "// Activations as 16 * upper + lower, for a whole while ahead of the loads that broadcast them.
             let mut halves = [[[[0; {run}]; 2]; T]; {room}];
             for run in 0..{count} {{
                 for t in 0..T {{ halves[run][t] = simd::split(x[t].add(({first} + run) * {run})); }}
             }}
             let halves = std::hint::black_box(&halves);\n"
        )
    })
}

/// As [`multiply_fields`], into the sums `sum` of lower and upper halves, with `halves`, those that [`split`] made of the run, from element `k`
/// of it on.
pub(super) fn multiply_split(plan: &MatmulPlan<'_>) -> String {
    let mut out = String::new();
    for field in in_order(plan) {
        let k = 4 * field;
        let _ = write!(
            out,
            "{}for t in 0..T {{
                 let [lower, upper] = &halves[t];
                 let lower = simd::broadcast(lower.as_ptr().add(k + {k}));
                 let upper = simd::broadcast(upper.as_ptr().add(k + {k}));
                 for i in 0..V {{
                     sum[0][t][i] = simd::pairs(sum[0][t][i], w{field}[i], lower);
                     sum[1][t][i] = simd::pairs(sum[1][t][i], w{field}[i], upper);
                 }}
             }}\n",
            decode(plan, field),
        );
    }
    out
}

/// The order in which fields are taken. The fifth trit comes first: what it is looked up from is not needed any more then.
pub(super) fn in_order(plan: &MatmulPlan<'_>) -> Vec<u32> {
    let mut fields: Vec<u32> = (0..plan.pack.tile_fields() * plan.step).collect();
    if plan.pack.trits() {
        fields.rotate_right(1);
    }
    fields
}

/// As [`multiply_fields`], all into the sums of this name.
pub(super) fn multiply(plan: &MatmulPlan<'_>, sum: &str) -> String {
    multiply_fields(plan, |field, function| {
        format!("{sum}[t][i] = simd::{function}({sum}[t][i], w{field}[i], x);")
    })
}

/// The statement that binds the byte at which the codes of `tile` are, and its first element.
pub(super) const POSITION: &str = "let (at, k) = (tile * TILE, tile * TILE_K);\n";

/// The tiles that products are summed over.
#[derive(Clone, Copy)]
pub(super) enum Over<'a> {
    /// Those of a row or a part of one, so many (an expression).
    Row(&'a str),
    /// So many, from `first` (an expression) on.
    From {
        /// The first one.
        first: &'a str,
        /// How many.
        count: u32,
    },
}

impl Over<'_> {
    /// The first one, as an expression.
    pub(super) fn first(&self) -> &str {
        match self {
            Over::Row(_) => "0",
            Over::From { first, .. } => first,
        }
    }

    /// What is behind the last one, as an expression.
    pub(super) fn end(&self) -> String {
        match self {
            Over::Row(count) => format!("0 + {count}"),
            Over::From { first, count } => format!("{first} + {count}"),
        }
    }
}

/// A loop over tiles, `step` at once: `tile` is the first of them in `body`, which is given the number of the turn as an expression.
pub(super) fn each_tile(
    plan: &MatmulPlan<'_>,
    step: u32,
    over: Over<'_>,
    body: impl Fn(&str) -> String,
) -> String {
    match over {
        Over::Row(count) if step == 1 => format!("for tile in 0..{count} {{ {} }}\n", body("tile")),
        Over::Row(count) => {
            format!("for turn in 0..{count} / {step} {{ let tile = 0 + turn * {step}; {} }}\n", body("turn"))
        }
        // Whether the end has wrapped is asked each time, so LLVM leaves the loop as it is: unrolled, the additions of several tiles change
        // places, and the sums of several tokens have no registers (`q4_k` with AVX2: 9 % slower).
        Over::From { first, .. } if plan.tokens > 1 && step == 1 => {
            format!("for tile in {first}..{} {{ {} }}\n", over.end(), body(&format!("(tile - {first})")))
        }
        Over::From { first, count } => match count / step {
            1 => format!("let tile = {first};\n{}\n", body("0")),
            turns => {
                format!("for turn in 0..{turns} {{ let tile = {first} + turn * {step}; {} }}\n", body("turn"))
            }
        },
    }
}
