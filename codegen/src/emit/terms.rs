//! Scales and minima in the panels of a packing: how loops address and widen them, and how they get there.

use super::fields::read_raw;
use super::format::window;
use super::text::float;
use crate::plan::{FormatPlan, Integers, PackPlan, TermTypes, word};
use gristmill_spec::model::Scalar;

/// The type of `scales` or `mins`.
fn of(types: TermTypes, name: &str) -> Scalar {
    if name.starts_with("min") { types.min } else { types.scale }
}

/// The Rust type whose values lie in panels.
fn rust(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::F32 => "f32",
        Scalar::F16 | Scalar::Bf16 => "u16",
        Scalar::E8m0Half | Scalar::Ue4m3Half => "u8",
    }
}

/// An address in words as one of the type's values.
fn cast(scalar: Scalar, address: &str) -> String {
    match scalar {
        Scalar::F32 => address.to_string(),
        _ => format!("{address}.cast::<{}>()", rust(scalar)),
    }
}

/// The argument `scales` or `mins` of a kernel, as a pointer to its values.
pub(super) fn pointer(types: TermTypes, name: &str) -> String {
    cast(of(types, name), &format!("a.{name}"))
}

/// An address in words as one of values of scales, of which super-blocks have one type.
pub(super) fn cast_words(types: TermTypes, address: &str) -> String {
    cast(types.scale, address)
}

/// The vector of f32 at value `at` behind `name[i]`, which points to values.
pub(super) fn load(types: TermTypes, name: &str, at: &str) -> String {
    widened(types, name, &format!("simd::load_{}({name}[i].add({at}))", word(of(types, name))))
}

/// `loaded`, a vector of f32, times the constant that scales are stored without.
fn widened(types: TermTypes, name: &str, loaded: &str) -> String {
    match factor(types, name) {
        None => loaded.to_string(),
        Some(factor) => format!("simd::mul_f32({loaded}, simd::splat_f32({}))", float(factor)),
    }
}

fn factor(types: TermTypes, name: &str) -> Option<f32> {
    let of_scales = !name.starts_with("min") && types.factor != TermTypes::F32.factor;
    of_scales.then(|| f32::from_bits(types.factor))
}

/// The integers of codes, which stand below others in the lanes of a vector (an expression).
pub(super) fn integer(integers: Integers, lanes: &str) -> String {
    let Integers::Nibbles { shift, plus } = integers else { return lanes.to_string() };
    let code = format!("simd::and({lanes}, simd::splat(15))");
    let times = if shift == 0 { code } else { format!("simd::shift_left::<{shift}>({code})") };
    if plus == 0 { times } else { format!("simd::add({times}, simd::splat({plus}))") }
}

/// The same of two runs, as the i16 halves of lanes.
pub(super) fn integer_pair(integers: Integers, halves: &str) -> String {
    let Integers::Nibbles { shift, plus } = integers else { return halves.to_string() };
    let times =
        if shift == 0 { halves.to_string() } else { format!("simd::shift_left::<{shift}>({halves})") };
    if plus == 0 { times } else { format!("simd::add({times}, simd::splat({}))", plus << 16 | plus) }
}

/// The code of an integer (an expression), where two share a byte.
pub(super) fn code_of(shift: u32, plus: u32, integer: &str) -> String {
    let less = if plus == 0 { integer.to_string() } else { format!("({integer} - {plus})") };
    if shift == 0 { format!("({less} as u8)") } else { format!("(({less} >> {shift}) as u8)") }
}

/// The integer of `run`, as f32, of the codes at byte `at` that it shares with another run.
pub(super) fn integer_of_half(shift: u32, plus: u32, at: &str) -> String {
    format!("f32::from((({at}.read() >> (run % 2 * 4) & 15) << {shift}) + {plus})")
}

/// The same behind `address`, which points to words.
pub(super) fn load_from(types: TermTypes, name: &str, address: &str, at: &str) -> String {
    let scalar = of(types, name);
    widened(types, name, &format!("simd::load_{}({}.add({at}))", word(scalar), cast(scalar, address)))
}

/// Values of a type to a cache line.
pub(super) fn of_a_line(types: TermTypes, name: &str) -> u32 {
    8 * 64 / of(types, name).bits()
}

/// An expression for the array of `count` numbers of a block as the packing holds them, for each run or super-block: of the
/// scale, or of what is subtracted. None where they are f32, which the format's own functions make.
pub(super) fn stored(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, name: &str, count: u32) -> Option<String> {
    let scalar = of(pack.terms, name);
    if scalar == Scalar::F32 {
        return None;
    }
    let min = name.starts_with("min");
    let index = if min { plan.min_field()? } else { plan.scale_field()? };
    let field = &plan.format.fields[index];
    let raw = match field.count {
        1 => "raw[0]".to_string(),
        number if number == count => "raw[i]".to_string(),
        number => format!("raw[i * {number} / {count}]"),
    };
    let value = match scalar {
        // Added instead of subtracted.
        Scalar::F16 | Scalar::Bf16 if min && !plan.format.value.add.is_empty() => format!("{raw} ^ 0x8000"),
        // Bit 7 means nothing, and the largest code zero.
        Scalar::Ue4m3Half => format!("if {raw} & 0x7f == 0x7f {{ 0 }} else {{ {raw} & 0x7f }}"),
        _ => raw,
    };
    Some(format!(
        "{{
             {}let raw = {};
             let mut each = [0{}; {count}];
             for i in 0..{count} {{ each[i] = {value}; }}
             each
         }}",
        window(&[field]),
        read_raw(field),
        rust(scalar)
    ))
}

/// `value`, one number of [`stored`] or an f32, written at value `at` behind `address`, which points to words.
pub(super) fn write(types: TermTypes, name: &str, address: &str, at: &str, value: &str) -> String {
    format!("{}.add({at}).write({value})", cast(of(types, name), address))
}

/// The f32 of the number at value `at` behind `address`, which points to words.
pub(super) fn read(types: TermTypes, name: &str, address: &str, at: &str) -> String {
    let scalar = of(types, name);
    let raw = format!("{}.add({at}).read()", cast(scalar, address));
    let value = match scalar {
        Scalar::F32 => raw,
        _ => format!("number::{}_to_f32({raw})", word(scalar)),
    };
    match factor(types, name) {
        None => value,
        Some(factor) => format!("({value} * {})", float(factor)),
    }
}
