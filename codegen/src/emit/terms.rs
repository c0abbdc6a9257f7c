//! Scales and minima in the panels of a packing: how loops address and widen them, and how they get there.

use super::fields::read_one;
use super::format::{read_alone, window};
use super::text::float;
use crate::lower::ir::{Expr, Type, f32, i32};
use crate::lower::product;
use crate::lower::stored::widened as widened_number;
use crate::plan::{FormatPlan, Integers, MatmulPlan, PackPlan, Term, TermTypes};
use crate::print::{rust, simd};
use crate::text::when;
use gristmill_spec::model::Scalar;

/// The type of the bits that lie in panels.
fn raw_type(scalar: Scalar) -> Type {
    Type::unsigned(scalar.bits())
}

/// An address in words as one of the type's values.
fn cast(scalar: Scalar, address: &str) -> String {
    match scalar {
        Scalar::F32 => address.to_string(),
        _ => format!("{address}.cast::<{}>()", rust::name(raw_type(scalar))),
    }
}

/// The argument of a kernel that holds a term, as a pointer to its values.
pub(super) fn pointer(types: TermTypes, term: Term) -> String {
    cast(types.scalar(term), &format!("a.{}", term.array()))
}

/// An address in words as one of values of scales, of which super-blocks have one type.
pub(super) fn cast_words(types: TermTypes, address: &str) -> String {
    cast(types.scale, address)
}

/// The statement that binds the scale of activations in every lane, where a row of them has several: that of token `token` for run or
/// super-block `number` (expressions), which are of so many `elements`.
pub(super) fn x_scale(format: &FormatPlan<'_>, token: &str, number: &str, elements: u32) -> String {
    format.activations.block.map_or_else(String::new, |block| {
        // The checks let one go into the other.
        let at = if elements.is_multiple_of(block) {
            format!("{number} * {}", elements / block)
        } else {
            format!("{number} / {}", block / elements)
        };
        format!("let x_scale = simd::splat_f32(*a.x_scales.add({token} * a.x_blocks + {at}));\n")
    })
}

/// Statements that add the term of a run or super-block to `y`, given its integer `sum`, and subtract that of its minimum, given the sum
/// that this is multiplied with; `number` is what it has of a term.
pub(super) fn add(
    format: &FormatPlan<'_>,
    y: &str,
    sum: &str,
    low: Option<Expr>,
    number: impl Fn(Term) -> String,
) -> String {
    let scaled = product::scaled(format, f32(number(Term::Scale)), f32("x_scale"), i32(sum));
    let low = low.map(|low| product::term(format, Some(f32(number(Term::Min))), f32("x_scale"), low));
    let steps = [Some(f32(y) + scaled), low.map(|low| f32(y) - low)];
    steps.iter().flatten().map(|step| format!("{y} = {};\n", simd::expr(step))).collect()
}

/// The vector of f32 at value `at` behind the pointer of vector `i` to values of a term.
pub(super) fn load(types: TermTypes, term: Term, at: &str) -> String {
    let (word, array) = (types.scalar(term).word(), term.array());
    widened(types, term, &format!("simd::load_{word}({array}[i].add({at}))"))
}

/// `loaded`, a vector of f32, times the constant that scales are stored without.
fn widened(types: TermTypes, term: Term, loaded: &str) -> String {
    match factor(types, term) {
        None => loaded.to_string(),
        Some(factor) => format!("simd::mul_f32({loaded}, simd::splat_f32({}))", float(factor)),
    }
}

fn factor(types: TermTypes, term: Term) -> Option<f32> {
    let there = term == Term::Scale && types.factor != TermTypes::F32.factor;
    there.then(|| f32::from_bits(types.factor))
}

/// The integers in the lanes of a vector that was loaded from behind `bytes` (expressions): those of a run, or `paired` those of two, as
/// the i16 halves of lanes. `shift` brings the half of the bytes down that belongs to the rows.
pub(super) fn integers(
    plan: &MatmulPlan<'_>,
    of: Integers,
    bytes: &str,
    shift: &str,
    paired: bool,
) -> String {
    let Integers::Nibbles { shift: times, plus } = of else {
        let load = if paired { "integer_pairs" } else { "integers" };
        return format!("simd::{load}({bytes})");
    };
    let (load, each) = if paired { ("unsigned_pairs", 2) } else { ("unsigned_integers", 1) };
    // In both halves of a lane, where there are two.
    let constant = |value: u32| match (paired, value) {
        (false, value) => format!("simd::splat({value})"),
        (true, value) => format!("simd::splat({value:#x}_{value:04x})"),
    };
    let codes = if plan.primitives.lanes == plan.pack.packing.rows {
        // A vector has the rows of both halves.
        format!(
            "{{
                 let mut each = [0u8; ROWS * {each}];
                 for (at, code) in each.iter_mut().enumerate() {{
                     *code = *{bytes}.add(at % (HALF * {each})) >> (at / (HALF * {each}) * 4);
                 }}
                 simd::{load}(each.as_ptr())
             }}"
        )
    } else {
        format!("simd::shift_by(simd::{load}({bytes}), {shift})")
    };
    let codes = if times == 0 { codes } else { format!("simd::shift_left::<{times}>({codes})") };
    let multiples = format!("simd::and({codes}, {})", constant(15 << times));
    match plus {
        0 => multiples,
        // No bit is in both: with the mask it is one instruction where there are some of three operands.
        _ if plus < 1 << times => format!("simd::or({multiples}, {})", constant(plus)),
        _ => format!("simd::add({multiples}, {})", constant(plus)),
    }
}

/// The code of an integer (an expression), where two rows share a byte.
pub(super) fn code_of(shift: u32, plus: u32, integer: &str) -> String {
    let less = if plus == 0 { integer.to_string() } else { format!("({integer} - {plus})") };
    if shift == 0 { format!("({less} as u8)") } else { format!("(({less} >> {shift}) as u8)") }
}

/// Writes the code of an integer to the byte `at` that a row of a panel shares with the one half a panel further on: rows come in order.
pub(super) fn write_code(at: &str, row: &str, half: u32, code: &str) -> String {
    format!(
        "let at = {at};
         if {row} < {half} {{ at.write({code}); }} else {{ at.write(at.read() & 15 | {code} << 4); }}"
    )
}

/// The integer, as f32, of the code that `row` has in the byte `at`.
pub(super) fn integer_of_half(shift: u32, plus: u32, at: &str, half: u32) -> String {
    format!("f32::from((({at}.read() >> (row / {half} * 4) & 15) << {shift}) + {plus})")
}

/// As [`load`], behind `address`, which points to words.
pub(super) fn load_from(types: TermTypes, term: Term, address: &str, at: &str) -> String {
    let scalar = types.scalar(term);
    widened(types, term, &format!("simd::load_{}({}.add({at}))", scalar.word(), cast(scalar, address)))
}

/// Values of a term to a cache line.
pub(super) fn of_a_line(types: TermTypes, term: Term) -> u32 {
    8 * 64 / types.scalar(term).bits()
}

/// An expression for the array of `count` numbers of a block as the packing holds them: a term of each run or super-block. None where they
/// are f32, which the format's own functions make.
pub(super) fn stored(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, term: Term, count: u32) -> Option<String> {
    let scalar = pack.terms.scalar(term);
    if scalar == Scalar::F32 {
        return None;
    }
    let field = &plan.format.fields[plan.field_of(term)?];
    let value = match scalar {
        // Added instead of subtracted.
        Scalar::F16 | Scalar::Bf16 if term == Term::Min && !plan.format.value.add.is_empty() => {
            "raw ^ 0x8000"
        }
        // Bit 7 means nothing, and the largest code zero.
        Scalar::Ue4m3Half => "if raw & 0x7f == 0x7f { 0 } else { raw & 0x7f }",
        _ => "raw",
    };
    Some(match field.count {
        number if number == count && value == "raw" => read_alone(field),
        1 => format!(
            "{{ {}let raw = {}; [{value}{}] }}",
            window(&[field]),
            read_one(field),
            when(count > 1, || format!("; {count}"))
        ),
        number => format!(
            "{{
                 let raw = {};
                 let mut each = [0{}; {count}];
                 for i in 0..{count} {{ let raw = raw[{}]; each[i] = {value}; }}
                 each
             }}",
            read_alone(field),
            rust::name(raw_type(scalar)),
            if number == count { "i".to_string() } else { format!("i * {number} / {count}") },
        ),
    })
}

/// `value`, one number of [`stored`] or an f32, written at value `at` behind `address`, which points to words.
pub(super) fn write(types: TermTypes, term: Term, address: &str, at: &str, value: &str) -> String {
    format!("{}.add({at}).write({value})", cast(types.scalar(term), address))
}

/// The f32 of the number at value `at` behind `address`, which points to words. Of bytes it is a block, behind which nothing may stand:
/// where a statement can begin, what follows a block is another one. [`read_factor`] is for that.
pub(super) fn read(types: TermTypes, term: Term, address: &str, at: &str) -> String {
    let scalar = types.scalar(term);
    let raw = format!("{}.add({at}).read()", cast(scalar, address));
    let number = |raw: &str| {
        let number = match scalar {
            Scalar::F32 => f32(raw),
            _ => widened_number(scalar, Expr::name(raw_type(scalar), raw)),
        };
        rust::expr(&match factor(types, term) {
            None => number,
            Some(factor) => number * Expr::f32(factor),
        })
    };
    // The expression names bytes more than once.
    if scalar.bits() == 8 { format!("{{ let raw = {raw}; {} }}", number("raw")) } else { number(&raw) }
}

/// [`read`] as the first factor of a product.
pub(super) fn read_factor(types: TermTypes, term: Term, address: &str, at: &str) -> String {
    let number = read(types, term, address, at);
    if types.scalar(term).bits() == 8 { format!("({number})") } else { number }
}

#[cfg(test)]
mod tests {
    use super::{read, read_factor};
    use crate::plan::{Term, TermTypes};
    use gristmill_spec::model::Scalar;
    use syn::{Block, Stmt};

    /// Where a statement can begin, too: a block with a sign behind it would be two.
    #[test]
    fn what_is_read_is_one_expression_wherever_it_stands() -> syn::Result<()> {
        let scalars = [
            (Scalar::F32, TermTypes::F32.factor),
            (Scalar::F16, 8f32.to_bits()),
            (Scalar::Bf16, 8f32.to_bits()),
            (Scalar::E8m0Half, TermTypes::F32.factor),
            (Scalar::E8m0Half, 8f32.to_bits()),
            (Scalar::Ue4m3Half, 8f32.to_bits()),
        ];
        for (scale, factor) in scalars {
            let types = TermTypes { scale, factor, ..TermTypes::F32 };
            let alone = read(types, Term::Scale, "scales", "at");
            let product = format!("{} * integer", read_factor(types, Term::Scale, "scales", "at"));
            for text in [alone, product] {
                let block: Block = syn::parse_str(&format!("{{ {text} }}"))?;
                assert!(matches!(block.stmts.as_slice(), [Stmt::Expr(_, None)]), "{text}");
            }
        }
        Ok(())
    }
}
