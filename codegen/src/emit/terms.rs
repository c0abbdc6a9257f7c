//! Scales and minima in the panels of a packing: how loops address and widen them, and how they get there.

use super::fields::read_raw;
use super::format::window;
use crate::plan::{FormatPlan, PackPlan, TermTypes, word};
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
    format!("simd::load_{}({name}[i].add({at}))", word(of(types, name)))
}

/// The same behind `address`, which points to words.
pub(super) fn load_from(types: TermTypes, name: &str, address: &str, at: &str) -> String {
    let scalar = of(types, name);
    format!("simd::load_{}({}.add({at}))", word(scalar), cast(scalar, address))
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
    match scalar {
        Scalar::F32 => raw,
        _ => format!("number::{}_to_f32({raw})", word(scalar)),
    }
}
