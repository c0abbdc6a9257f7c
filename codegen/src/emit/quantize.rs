//! Code of quantizers that round: statistic, step, rounding, stores.

use super::fields::{raw_type, write_raw};
use super::text::float;
use crate::Error;
use crate::plan::{Decode, FormatPlan};
use gristmill_spec::model::{Factor, QuantizeRule, Quantizer, Rounding, ScaleRule, Statistic, Via};
use std::fmt::Write;

/// Rust for the statistic of `x` (a slice), given `magnitude`, the largest |x|.
fn statistic(rule: &ScaleRule) -> &'static str {
    match rule.of {
        Statistic::AbsMax => "magnitude",
        Statistic::SignedAbsMax => "number::signed_abs_max(x, magnitude)",
        Statistic::AbsMean => "number::abs_mean(x)",
    }
}

/// Statements that bind what x is multiplied or divided by, and what is stored, to these names (`_` where it is not read),
/// from the slice `x` and its `magnitude`.
pub fn step(rule: &ScaleRule, apply: &str, stored: &str) -> String {
    let statistic = statistic(rule);
    let levels = float(rule.levels);
    let mut out = format!("let s = {statistic};\n");
    // A bound of 0 is none: a statistic with a sign may be negative.
    let bounded = rule.floor != 0.0;
    let (s, over, under) = if rule.f64_division {
        let s =
            if bounded { format!("f64::from(s).max({:?})", rule.floor) } else { "f64::from(s)".to_owned() };
        let levels = format!("{:?}f64", f64::from(rule.levels));
        let (over, under) = (format!("({s} / {levels}) as f32"), format!("({levels} / {s}) as f32"));
        (None, over, under)
    } else {
        let s = bounded.then(|| format!("let s = s.max({});\n", float(rule.floor as f32)));
        (s, format!("s / {levels}"), format!("{levels} / s"))
    };
    out.push_str(s.as_deref().unwrap_or_default());
    let _ = match rule.via {
        Via::Step => writeln!(
            out,
            "// A block too small for a finite inverse counts as all zero.
             let step = {over};
             let ({apply}, {stored}) = match 1.0 / step {{
                 inverse if inverse.is_finite() => (inverse, step),
                 _ => (0.0, 0.0 / {levels}),
             }};"
        ),
        Via::Multiplier => writeln!(
            out,
            "let apply = {under};
             let ({apply}, {stored}) = match apply.is_finite() {{ true => (apply, 1.0 / apply), false => (0.0, 0.0) }};"
        ),
        Via::Divide => writeln!(
            out,
            "let apply = {over};
             let ({apply}, {stored}) = match apply != 0.0 {{ true => (apply, apply), false => (f32::INFINITY, 0.0) }};"
        ),
    };
    out
}

/// An expression of the rounded, clamped integer (as f32) of `x`, given `apply`.
pub fn rounded(rule: &ScaleRule, round: Rounding, threshold: f64, clamp: (i32, i32), zero: i32) -> String {
    let scaled = match rule.via {
        Via::Divide => "(x / apply)",
        Via::Step | Via::Multiplier => "(x * apply)",
    };
    let nearest = match round {
        Rounding::HalfEven => format!("{scaled}.round_ties_even()"),
        Rounding::HalfAway => format!("{scaled}.round()"),
        Rounding::HalfTowardZero => format!("number::round_half_toward_zero({scaled})"),
        Rounding::HalfUp => {
            format!("(({scaled} + {}).trunc() - {})", float(zero as f32 + 0.5), float(zero as f32))
        }
        Rounding::Sign => format!("number::sign(x, {threshold:?})"),
    };
    format!("{nearest}.max({}).min({})", float(clamp.0 as f32), float(clamp.1 as f32))
}

/// The code of a quantizer.
pub struct Quantized {
    /// `quantize_NAME`, and where there is a step in front of it `step_NAME`.
    pub text: String,
    /// The scale covers more than a block, so that a step is computed first.
    pub has_step: bool,
    /// It weighs errors by the importance of the weights, where that is given.
    pub weighs: bool,
}

/// The bits of a code.
fn code_mask(plan: &FormatPlan<'_>) -> u32 {
    if plan.code_bits >= 16 { u32::from(u16::MAX) } else { (1u32 << plan.code_bits) - 1 }
}

/// The body of one quantizer.
pub fn quantize(plan: &FormatPlan<'_>, quantizer: &Quantizer) -> Result<Quantized, Error> {
    let format = plan.format;
    let name = &quantizer.name;
    let rule = match &quantizer.rule {
        QuantizeRule::Round(rule) => rule,
        QuantizeRule::Search(search) => {
            let text = super::search::quantize(plan, name, *search)?;
            return Ok(Quantized { text, has_step: false, weighs: true });
        }
    };
    let code = &format.fields[format.value.code];
    let Decode::Affine { times, zero, .. } = plan.decode() else {
        return Err(Error::passed(
            plan.format,
            "rounding needs evenly spaced levels; this quantizer can't make a table's codes",
        ));
    };
    if times != 1
        || format.value.unit != 1.0
        || !format.value.add.is_empty()
        || !format.value.subtract.is_empty()
    {
        return Err(Error::passed(plan.format, "its quantizer can round to `scale * (code - zero)` only"));
    }
    let [factor] = format.value.scale.as_slice() else {
        return Err(Error::passed(plan.format, "its quantizer needs exactly one scale"));
    };
    let mut text = String::new();
    let rounded = rounded(&rule.scale, rule.round, rule.threshold, rule.clamp, zero);
    let applied = rule.round != Rounding::Sign;
    // Every quantizer looks for the largest, as that finds what is not finite; not every one reads it.
    let magnitude = if rule.scale.of == Statistic::AbsMean { "_magnitude" } else { "magnitude" };
    let (weighs, mask) = (quantizer.weighs(format), code_mask(plan));
    let mut body = String::new();
    let mut store = String::new();
    match factor {
        Factor::Field(index) => {
            let field = &format.fields[*index];
            if field.count != 1 {
                return Err(Error::passed(plan.format, "its quantizer needs one scale a block"));
            }
            let apply = if applied { "apply" } else { "_" };
            if weighs {
                body.push_str(&super::search::signed_absmax(plan, field, rule, (zero, mask))?);
            }
            body.push_str(&step(&rule.scale, apply, "stored"));
            store.push_str(&super::search::store_float(plan, field, "stored")?);
        }
        Factor::Row | Factor::Tensor => {
            let _ = write!(
                text,
                "/// The step of `{name}` for a row or tensor.
                 ///
                 /// # Safety
                 ///
                 /// `src` holds `len` values.
                 #[inline(always)]
                 unsafe fn step_{name}(src: *const f32, len: usize) -> Result<Step, Fault> {{
                     // SAFETY: the caller answers for `len` values.
                     let x = unsafe {{ std::slice::from_raw_parts(src, len) }};
                     let {magnitude} = number::finite_abs_max(x)?;
                     {}
                     match stored.is_finite() {{
                         true => Ok(Step {{ apply, stored }}),
                         false => Err(Fault::ScaleOverflow(0)),
                     }}
                 }}\n",
                step(&rule.scale, "apply", "stored")
            );
            if applied {
                body.push_str("let apply = step.apply;\n");
            }
        }
    }
    let has_step = matches!(factor, Factor::Row | Factor::Tensor);
    let magnitude = if has_step { "_magnitude" } else { magnitude };
    let signed_min = if zero == 0 { String::new() } else { format!(" + {}", float(zero as f32)) };
    let code_type = raw_type(code);
    let _ = write!(
        text,
        "/// Values to blocks by `{name}`.
         ///
         /// # Safety
         ///
         /// `src` holds `blocks * ELEMENTS` values and `dst` room for `blocks` blocks{said}.
         #[inline(always)]
         unsafe fn quantize_{name}(
             src: *const f32, dst: *mut u8, blocks: usize, {step_name}: Step, {importance}: *const f32,
         ) -> Result<(), Fault> {{
             for index in 0..blocks {{
                 // SAFETY: the caller answers for the values of `blocks` blocks.
                 let x = unsafe {{ &*src.add(index * ELEMENTS).cast::<[f32; ELEMENTS]>() }};
                 // SAFETY: the caller answers for room for `blocks` blocks.
                 let block = unsafe {{ &mut *dst.add(index * BYTES).cast::<[u8; BYTES]>() }};
                 let {magnitude} = match number::finite_abs_max(x) {{
                     Ok(magnitude) => magnitude,
                     Err(fault) => return Err(number::offset(fault, index * ELEMENTS)),
                 }};
                 {body}
                 let mut code = [0{code_type}; ELEMENTS];
                 for i in 0..ELEMENTS {{
                     let x = x[i];
                     let q = {rounded}{signed_min};
                     // SAFETY: clamped to the range of the code, and `max` leaves no NaN.
                     code[i] = (unsafe {{ q.to_int_unchecked::<i32>() }} & {mask:#x}) as {code_type};
                 }}
                 *block = [0; BYTES];
                 {}
                 {store}
             }}
             Ok(())
         }}\n",
        write_raw(code),
        step_name = if has_step && applied { "step" } else { "_step" },
        said = match weighs {
            true => "; `importance` is null or holds as many\n/// values as `src`",
            false => "",
        },
        importance = if weighs { "importance" } else { "_importance" },
    );
    Ok(Quantized { text, has_step, weighs })
}
