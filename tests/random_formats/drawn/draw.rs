//! Drawing: what a format is made of, within what docs/spec-reference.md allows, and now and then a step beyond it.

use super::format::{Book, Drawn, Factor, Field, Float, Kind, Map, mapped};
use super::places::{Slice, chance, divisors, pick, place, shuffle};
use super::{quantizers, text};
use crate::random::Random;
use std::collections::BTreeSet;

const ELEMENTS: [usize; 27] = [
    4, 8, 12, 16, 20, 24, 30, 32, 32, 36, 40, 48, 48, 56, 60, 64, 64, 72, 80, 96, 96, 128, 160, 256, 288,
    512, 1024,
];

pub fn draw(seed: u64, index: usize) -> Drawn {
    let random = &mut Random::new(seed, &format!("random format {index}"));
    let elements = pick(random, &ELEMENTS);
    let (kind, map, group) = codes(random, elements);
    let mut drawn = Drawn {
        name: format!("rf_{seed:x}_{index}"),
        elements,
        bytes: 0,
        fields: vec![field("code", kind, elements / group)],
        unused: Vec::new(),
        code: 0,
        map,
        signs: None,
        shift: None,
        unit: None,
        scale: Vec::new(),
        add: Vec::new(),
        subtract: Vec::new(),
        row: None,
        tensor: None,
        activations: None,
        quantizers: Vec::new(),
        doubt: None,
    };
    signs(random, &mut drawn);
    shift(random, &mut drawn);
    if chance(random, 20) {
        drawn.unit =
            Some(if chance(random, 90) { random.below(13) as i32 - 8 } else { random.below(65) as i32 - 32 });
    }
    factors(random, &mut drawn);
    activations(random, &mut drawn);
    quantizers::draw(random, &mut drawn);
    doubts(&mut drawn);
    names_and_order(random, &mut drawn);
    lay_out(random, &mut drawn);
    drawn
}

fn field(name: &str, kind: Kind, count: usize) -> Field {
    Field {
        name: name.to_owned(),
        kind,
        count,
        times: 1,
        plus: 0,
        bits: Vec::new(),
        digits: Vec::new(),
        text: String::new(),
    }
}

fn between(random: &mut Random, low: i64, high: i64) -> i64 {
    low + random.below((high - low + 1) as u64) as i64
}

/// The codes' type, what they stand for, and for how many elements each.
fn codes(random: &mut Random, elements: usize) -> (Kind, Map, usize) {
    if chance(random, 18)
        && let Some(found) = book(random, elements)
    {
        return found;
    }
    let kind = match random.below(100) {
        0..9 => Kind::Digit(3),
        9..15 => Kind::Digit(pick(random, &[5, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15])),
        15..75 => Kind::Unsigned(pick(random, &[1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 5, 6, 7, 8, 8])),
        75..98 => Kind::Signed(pick(random, &[2, 2, 3, 4, 4, 5, 6, 7, 8, 8])),
        _ => pick(random, &[Kind::Unsigned(9), Kind::Unsigned(12), Kind::Signed(10), Kind::Signed(16)]),
    };
    let most = i64::from(kind.codes()) - 1;
    if !matches!(kind, Kind::Signed(_)) && kind.codes() <= 256 && chance(random, 35) {
        let count = 1 + random.below(u64::from(kind.codes())) as usize;
        let count = if chance(random, 50) { kind.codes() as usize } else { count };
        let low = between(random, -128, 0);
        let step = between(random, 1, (255 / most.max(1)).max(1));
        let mut levels: Vec<i64> = match chance(random, 30) {
            true => (0..count as i64).map(|i| low + i * step).collect(),
            false => (0..count).map(|_| low + between(random, 0, 255)).collect(),
        };
        match random.below(3) {
            0 => {}
            1 => levels.sort_unstable(),
            _ => levels.sort_unstable_by(|a, b| b.cmp(a)),
        }
        return (kind, Map::Levels(levels), 1);
    }
    let room = (255 / most.max(1)).max(1);
    let times = match random.below(10) {
        0..6 => 1,
        6 => -1,
        7 => -between(random, 1, room),
        _ => between(random, 1, room),
    };
    let zero = match random.below(10) {
        0..3 => 0,
        3..9 => between(random, 0, most + 1) * times,
        _ => between(random, -400, 400),
    };
    (kind, Map::Affine { times, zero }, 1)
}

fn book(random: &mut Random, elements: usize) -> Option<(Kind, Map, usize)> {
    let width = pick(random, &[1, 2, 2, 3, 4, 4, 5, 6, 7, 8]);
    if !elements.is_multiple_of(width) {
        return None;
    }
    let widths: Vec<u32> = [1, 2, 3, 4, 8].into_iter().filter(|bits| bits * width as u32 <= 32).collect();
    let bits = pick(random, &widths);
    let count = 2.max(1 + random.below(1 << bits) as usize);
    let low = between(random, -60, 0);
    let values: Vec<i64> = (0..count).map(|_| between(random, low, low + 120)).collect();
    // Entries that the digits can make.
    let code_bits = 1 + random.below(10) as u32;
    let wanted = 1 + random.below(1 << code_bits);
    let mut entries = BTreeSet::new();
    for _ in 0..wanted {
        let digit = |random: &mut Random| random.below(count as u64) as u32;
        let entry = (0..width).fold(0u32, |entry, at| entry | digit(random) << (bits as usize * at));
        entries.insert(entry);
    }
    let mut entries: Vec<u32> = entries.into_iter().collect();
    if chance(random, 60) {
        shuffle(random, &mut entries);
        // The last one once more, where there is a code for it.
        if chance(random, 20) && entries.len() < 1 << code_bits {
            entries.extend(entries.last().copied());
        }
    }
    // Codes that are interleaved.
    let stride = if chance(random, 50) { 1 } else { pick(random, &divisors(elements / width)) };
    let inside = entries.len() <= 64 && chance(random, 50);
    let times = if chance(random, 80) { 1 } else { pick(random, &[-1, 2, -2]) };
    let book = Book { times, width, bits, values, entries, stride, inside };
    Some((Kind::Unsigned(code_bits), Map::Book(book), width))
}

/// The smallest and the largest weight, before scales.
fn ends(drawn: &Drawn) -> (i64, i64) {
    let all = mapped(drawn);
    let (mut low, mut high) = (all[0], all[all.len() - 1]);
    if drawn.signs.is_some() {
        (low, high) = (low.min(-high), high.max(-low));
    }
    if let Some((_, values)) = &drawn.shift {
        low += values.iter().min().copied().unwrap_or(0);
        high += values.iter().max().copied().unwrap_or(0);
    }
    (low, high)
}

fn signs(random: &mut Random, drawn: &mut Drawn) {
    let share = if matches!(drawn.map, Map::Book(_)) { 40 } else { 10 };
    if !chance(random, share) {
        return;
    }
    let parity = chance(random, 40);
    let most = if parity { 17 } else { 16 };
    let least = if parity { 2 } else { 1 };
    let runs: Vec<usize> =
        divisors(drawn.elements).into_iter().filter(|run| (least..=most).contains(run)).collect();
    let run = pick(random, &runs);
    let bits = (run - usize::from(parity)) as u32;
    drawn.signs = Some((drawn.fields.len(), parity));
    drawn.fields.push(field("signs", Kind::Unsigned(bits), drawn.elements / run));
    // Signs double the reach, so they go with smaller numbers.
    let (low, high) = ends(drawn);
    if high - low > 255 && !chance(random, 5) {
        drawn.signs = None;
        drawn.fields.pop();
    }
}

fn shift(random: &mut Random, drawn: &mut Drawn) {
    if !chance(random, 12) {
        return;
    }
    let bits = 1 + random.below(3) as u32;
    let count = pick(random, &divisors(drawn.elements));
    let (low, high) = ends(drawn);
    let room = if chance(random, 95) { (255 - (high - low)) / 2 } else { 300 };
    if room < 1 {
        return;
    }
    let values = (0..1 << bits).map(|_| between(random, -room, room)).collect();
    drawn.shift = Some((drawn.fields.len(), values));
    drawn.fields.push(field("shift", Kind::Unsigned(bits), count));
}

fn factor_kind(random: &mut Random) -> Kind {
    match random.below(100) {
        0..24 => Kind::Float(Float::F16),
        24..35 => Kind::Float(Float::Bf16),
        35..46 => Kind::Float(Float::F32),
        46..56 => Kind::Float(Float::E8m0Half),
        56..66 => Kind::Float(Float::Ue4m3Half),
        66..83 => Kind::Unsigned(1 + random.below(8) as u32),
        83..96 => Kind::Signed(2 + random.below(7) as u32),
        96..98 => Kind::Unsigned(9 + random.below(8) as u32),
        _ => Kind::Signed(9 + random.below(8) as u32),
    }
}

/// How many values a factor has: one, or one for each of some runs.
fn factor_count(random: &mut Random, elements: usize) -> usize {
    match random.below(100) {
        0..40 => 1,
        40..95 => {
            let counts: Vec<usize> =
                divisors(elements).into_iter().filter(|count| elements / count >= 4).collect();
            pick(random, &counts)
        }
        _ => pick(random, &divisors(elements)),
    }
}

fn term(random: &mut Random, drawn: &mut Drawn, fields: usize, outer: Option<Factor>) -> Vec<Factor> {
    let mut factors = Vec::new();
    for _ in 0..fields {
        // A field of another term, now and then.
        let known: Vec<Factor> = drawn.factors().filter(|known| matches!(known, Factor::Field(_))).collect();
        if !known.is_empty() && chance(random, 10) {
            factors.push(pick(random, &known));
            continue;
        }
        let kind = factor_kind(random);
        let mut new = field(&format!("f{}", drawn.fields.len()), kind, factor_count(random, drawn.elements));
        if !matches!(kind, Kind::Float(_)) && chance(random, 40) {
            new.times = pick(random, &[1, 2, 2, 3, -1, -2, 7]);
            new.plus = between(random, -9, 9);
            if chance(random, 4) {
                new.times = pick(random, &[32768, -32768]);
                new.plus = pick(random, &[32767, -32768]);
            }
        }
        factors.push(Factor::Field(drawn.fields.len()));
        drawn.fields.push(new);
    }
    // Integers mostly stand behind the numbers that they are steps of, as super-blocks want them.
    if chance(random, 60) {
        factors.sort_by_key(|factor| match factor {
            Factor::Field(at) => (!matches!(drawn.fields[*at].kind, Kind::Float(_)), drawn.fields[*at].count),
            Factor::Row | Factor::Tensor => (false, 0),
        });
    }
    if let Some(outer) = outer {
        let at = random.below(factors.len() as u64 + 1) as usize;
        factors.insert(at, outer);
    }
    factors
}

fn factors(random: &mut Random, drawn: &mut Drawn) {
    let plain = [Float::F16, Float::Bf16, Float::F32];
    let outer = match random.below(100) {
        0..16 => Some(Factor::Row),
        16..32 => Some(Factor::Tensor),
        _ => None,
    };
    if outer == Some(Factor::Row) || chance(random, 1) {
        drawn.row = Some(pick(random, &plain));
    }
    if outer == Some(Factor::Tensor) {
        let float = pick(random, &plain);
        let tail = chance(random, 30).then(|| float.bits() as usize / 8 + random.below(30) as usize);
        drawn.tensor = Some((float, tail));
    }
    let count = match (outer, random.below(100)) {
        (Some(_), 0..60) => 0,
        (None, 0..4) => 0,
        (_, 0..75) => 1,
        (_, 75..95) => 2,
        _ => 3,
    };
    drawn.scale = term(random, drawn, count, outer);
    if outer == Some(Factor::Tensor) && drawn.row.is_some() {
        // A number before each row and one behind the tensor.
        drawn.scale.push(Factor::Row);
    } else if drawn.row.is_some() && outer != Some(Factor::Row) {
        drawn.row = None;
    }
    let shared = |random: &mut Random| outer.filter(|_| chance(random, 95));
    if chance(random, 20) {
        let (fields, outer) = (1 + random.below(2) as usize, shared(random));
        drawn.add = term(random, drawn, fields, outer);
    }
    if chance(random, 20) {
        let (fields, outer) = (1 + random.below(2) as usize, shared(random));
        drawn.subtract = term(random, drawn, fields, outer);
    }
}

/// How many elements share a factor of the block.
fn runs(drawn: &Drawn) -> Vec<usize> {
    let run = |factor| match factor {
        Factor::Field(field) => Some(drawn.elements / drawn.fields[field].count),
        Factor::Row | Factor::Tensor => None,
    };
    drawn.factors().filter_map(run).collect()
}

/// The activation format by name or by the default that the reference states.
fn effective(drawn: &Drawn) -> &'static str {
    drawn.activations.unwrap_or(match drawn.elements {
        _ if runs(drawn).is_empty() => "int8_row",
        n if !n.is_multiple_of(32) => "int8_row",
        n if n.is_multiple_of(256) => "q8_k",
        _ => "q8_0",
    })
}

/// Whether activations and weights that share a scale go into each other.
fn go_together(drawn: &Drawn) -> bool {
    let block = match effective(drawn) {
        "q8_0" => 32,
        "q8_k" => 256,
        _ => return true,
    };
    let fits = |run: usize| run.is_multiple_of(block) || block.is_multiple_of(run);
    runs(drawn).into_iter().all(fits) && fits(drawn.elements)
}

fn activations(random: &mut Random, drawn: &mut Drawn) {
    drawn.activations = match random.below(100) {
        0..55 => None,
        55..70 => Some("int8_row"),
        70..90 => Some("q8_0"),
        _ => Some("q8_k"),
    };
    if !go_together(drawn) && !chance(random, 4) {
        drawn.activations = Some("int8_row");
    }
}

/// What the reference does not allow, or allows without a product of integers.
fn doubts(drawn: &mut Drawn) {
    let (low, high) = ends(drawn);
    let is_outer = |factors: &[Factor]| factors.iter().any(|f| !matches!(f, Factor::Field(_)));
    let differs = |term: &[Factor]| !term.is_empty() && is_outer(term) != is_outer(&drawn.scale);
    let outers = |factors: &[Factor]| factors.iter().filter(|f| !matches!(f, Factor::Field(_))).count();
    drawn.doubt = if high - low > 255 {
        Some("weights span more than eight bits")
    } else if differs(&drawn.add) || differs(&drawn.subtract) {
        Some("a term without the row or tensor factor of the scale")
    } else if drawn.row.is_some() && drawn.tensor.is_some() {
        Some("row and tensor factor")
    } else if [&drawn.scale, &drawn.add, &drawn.subtract].into_iter().any(|term| outers(term) > 1) {
        Some("a row or tensor factor twice")
    } else if !go_together(drawn) {
        Some("activations do not go with the runs")
    } else {
        None
    };
}

/// Fields in any order, with names that say nothing.
fn names_and_order(random: &mut Random, drawn: &mut Drawn) {
    let mut order: Vec<usize> = (0..drawn.fields.len()).collect();
    shuffle(random, &mut order);
    let at = |field: usize| order.iter().position(|&old| old == field).expect("every field is kept");
    let moved = |factors: &[Factor]| -> Vec<Factor> {
        factors
            .iter()
            .map(|factor| match factor {
                Factor::Field(field) => Factor::Field(at(*field)),
                outer => *outer,
            })
            .collect()
    };
    drawn.scale = moved(&drawn.scale);
    drawn.add = moved(&drawn.add);
    drawn.subtract = moved(&drawn.subtract);
    drawn.code = at(drawn.code);
    drawn.signs = drawn.signs.map(|(field, parity)| (at(field), parity));
    drawn.shift = drawn.shift.take().map(|(field, values)| (at(field), values));
    drawn.fields = order.iter().map(|&old| drawn.fields[old].clone()).collect();
}

/// What is placed of a field: a part of its bits, or the bytes of a segment of digits.
enum Piece {
    Part { field: usize },
    Segment { field: usize, first: usize, digits: usize },
}

fn lay_out(random: &mut Random, drawn: &mut Drawn) {
    let (mut pieces, mut slices) = (Vec::new(), Vec::new());
    for (at, field) in drawn.fields.iter().enumerate() {
        if let Kind::Digit(base) = field.kind {
            let room = Kind::to_a_byte(base) as usize;
            let mut first = 0;
            while first < field.count {
                let rest = field.count - first;
                let most: Vec<usize> =
                    [5, 5, 5, 4, 3, 2, 1].into_iter().filter(|d| *d <= rest.min(room)).collect();
                let digits = if slices.len() > 6 { 1 } else { pick(random, &most) };
                let all = rest / digits;
                let bytes = if slices.len() > 6 || chance(random, 60) {
                    all
                } else {
                    1 + random.below(all as u64) as usize
                };
                pieces.push(Piece::Segment { field: at, first, digits });
                slices.push(Slice { bits: 8, count: bytes, is_bytes: true });
                first += digits * bytes;
            }
            continue;
        }
        let mut rest = field.kind.bits() as usize;
        let split = chance(random, if at == drawn.code { 30 } else { 12 });
        while rest > 0 {
            let bits = if split { 1 + random.below(rest as u64) as usize } else { rest };
            pieces.push(Piece::Part { field: at });
            slices.push(Slice { bits, count: field.count, is_bytes: false });
            rest -= bits;
        }
    }
    let block = place(random, &slices);
    (drawn.bytes, drawn.unused) = (block.bytes, block.gaps);
    // Now in words.
    let mut words: Vec<Vec<String>> = vec![Vec::new(); drawn.fields.len()];
    let most_significant_first = chance(random, 50);
    for (piece, (slice, placed)) in pieces.iter().zip(slices.iter().zip(&block.slices)) {
        match *piece {
            Piece::Part { field: at } => {
                let field = &mut drawn.fields[at];
                field.bits.resize(field.count, Vec::new());
                let is_whole = slice.bits == field.kind.bits() as usize;
                for (bits, &first) in field.bits.iter_mut().zip(&placed.first) {
                    bits.extend(first..first + slice.bits);
                }
                let strides = placed.strides(random, 1);
                let bits = (!is_whole).then_some(slice.bits);
                words[at].push(text::slice(bits, &placed.shape, &strides, placed.first[0]));
            }
            Piece::Segment { field: at, first, digits } => {
                let field = &mut drawn.fields[at];
                let Kind::Digit(base) = field.kind else { unreachable!("segments are of digits") };
                let room = Kind::to_a_byte(base) as usize;
                field.digits.resize(field.count, (usize::MAX, 0));
                let (said, places) = segment(random, placed, first, (digits, room));
                words[at].push(said);
                for (element, byte, number) in places {
                    let power = if most_significant_first { room - 1 - number } else { number };
                    field.digits[element] = (byte, power as u32);
                }
            }
        }
    }
    for (field, words) in drawn.fields.iter_mut().zip(words) {
        let order = if most_significant_first { "most" } else { "least" };
        field.text = match (&words[..], field.kind) {
            (words, Kind::Digit(_)) => {
                format!("digits = \"{order}-significant-first\"\nsegments = [{}]\n", words.join(", "))
            }
            ([_], _) if text::is_default(field) => String::new(),
            ([one], _) => format!("layout = {one}\n"),
            (parts, _) => format!("parts = [{}]\n", parts.join(", ")),
        };
    }
}

/// A segment of `digits` digits in each of some bytes, which have `room` for so many: its words, and the element, byte and
/// number of each digit.
fn segment(
    random: &mut Random,
    placed: &super::places::Placed,
    first: usize,
    (digits, room): (usize, usize),
) -> (String, Vec<(usize, usize, usize)>) {
    // Loops: steps, what one adds to the byte's index, and to the digit's number.
    struct Loop {
        steps: usize,
        stride: i64,
        byte: usize,
        digit: usize,
        element: usize,
    }
    let strides = placed.strides(random, 8);
    let mut loops: Vec<Loop> = Vec::new();
    for (at, (&steps, &stride)) in placed.shape.iter().zip(&strides).enumerate() {
        let byte = placed.shape[at + 1..].iter().product();
        loops.push(Loop { steps, stride, byte, digit: 0, element: 0 });
    }
    // Steps, and how far apart the digits are.
    let of_digits: &[(usize, usize)] = match (digits, random.below(2)) {
        (1, _) => &[],
        (2, 0) => &[(2, 1)],
        (2, _) if room == 2 => &[(2, 1)],
        (2, _) if room == 3 => &[(2, 2)],
        (2, _) => pick(random, &[&[(2, 2)], &[(2, 3)], &[(2, 4)]]),
        (3, 0) => &[(3, 1)],
        (3, _) if room == 3 => &[(3, 1)],
        (3, _) => &[(3, 2)],
        (4, 0) => &[(4, 1)],
        (4, _) => pick(random, &[&[(2, 2), (2, 1)], &[(2, 1), (2, 2)], &[(2, 3), (2, 1)]]),
        _ => &[(5, 1)],
    };
    loops.extend(of_digits.iter().map(|&(steps, digit)| Loop {
        steps,
        stride: 0,
        byte: 0,
        digit,
        element: 0,
    }));
    shuffle(random, &mut loops);
    // The elements are counted along the loops in another order still.
    let mut order: Vec<usize> = (0..loops.len()).collect();
    shuffle(random, &mut order);
    let mut weight = 1;
    for at in order {
        loops[at].element = weight;
        weight *= loops[at].steps;
    }
    let mut places = Vec::new();
    for step in 0..weight {
        let (mut rest, mut element, mut byte, mut number) = (step, first, 0, 0);
        for each in &loops {
            let i = rest % each.steps;
            rest /= each.steps;
            element += i * each.element;
            byte += i * each.byte;
            number += i * each.digit;
        }
        places.push((element, placed.first[byte] / 8, number));
    }
    let list = |of: &dyn Fn(&Loop) -> i64| format!("{:?}", loops.iter().map(of).collect::<Vec<i64>>());
    let said = format!(
        "{{ first = {first}, shape = {}, element = {}, stride = {}, digit = {}, offset = {} }}",
        list(&|l| l.steps as i64),
        list(&|l| l.element as i64),
        list(&|l| l.stride),
        list(&|l| l.digit as i64),
        placed.first[0]
    );
    (said, places)
}
