//! Code of quantizers that round: statistic, step, rounding, stores.

use super::fields::write_raw;
use super::search::{self, over_blocks, signed_absmax, store_float};
use crate::lower::ir::f32;
use crate::lower::quantize as lower;
use crate::lower::stored::raw_type;
use crate::plan::{FormatPlan, QuantizerPlan, RoundingPlan};
use crate::print::rust;
use gristmill_spec::model::{Quantizer, Rounding, ScaleRule, Statistic};

/// Rust for the statistic of `x` (a slice), given `magnitude`, the largest |x|.
fn statistic(rule: &ScaleRule) -> &'static str {
    match rule.of {
        Statistic::AbsMax => "magnitude",
        Statistic::SignedAbsMax => "number::signed_abs_max(x, magnitude)",
        Statistic::AbsMean => "number::abs_mean(x)",
    }
}

/// Statements that bind those of `apply` and `stored` that are `read`, from the slice `x` and its `magnitude`.
pub fn step(rule: &ScaleRule, read: &[&str]) -> String {
    let mut bound = lower::step(rule);
    bound.retain(|bound| !["apply", "stored"].contains(&bound.name) || read.contains(&bound.name));
    format!("let s = {};\n{}", statistic(rule), rust::bindings(&bound))
}

/// Every quantizer looks for the largest, as that finds what is not finite; not every one reads it.
fn magnitude(rule: &ScaleRule) -> &'static str {
    if rule.of == Statistic::AbsMean { "_magnitude" } else { "magnitude" }
}

/// `step_NAME`: the step where it covers more than a block.
fn step_outside(name: &str, rule: &ScaleRule) -> String {
    format!(
        "/// The step of `{name}` for a row or tensor.
         ///
         /// # Safety
         ///
         /// `src` holds `len` values.
         #[inline(always)]
         unsafe fn step_{name}(src: *const f32, len: usize) -> Result<Step, Fault> {{
             // SAFETY: the caller answers for `len` values.
             let x = unsafe {{ std::slice::from_raw_parts(src, len) }};
             let {} = number::finite_abs_max(x)?;
             {}
             match stored.is_finite() {{
                 true => Ok(Step {{ apply, stored }}),
                 false => Err(Fault::ScaleOverflow(0)),
             }}
         }}\n",
        magnitude(rule),
        step(rule, &["apply", "stored"])
    )
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

/// The body of one quantizer.
pub fn quantize(plan: &FormatPlan<'_>, quantizer: &Quantizer, planned: &QuantizerPlan<'_>) -> Quantized {
    let name = &quantizer.name;
    let RoundingPlan { rule, zero, scale } = match planned {
        QuantizerPlan::Round(rounding) => *rounding,
        QuantizerPlan::Search(algorithm, search) => {
            let text = search::quantize(plan, name, algorithm, *search);
            return Quantized { text, has_step: false, weighs: true };
        }
    };
    let code = &plan.format.fields[plan.format.value.code];
    let code_type = raw_type(code);
    let rounded = lower::rounded(&rule.scale, rule.round, rule.threshold, rule.clamp, zero);
    let bits = lower::bits_of(f32("q"), plan.code_bits, code_type);
    let applied = rule.round != Rounding::Sign;
    let weighs = quantizer.weighs(plan.format);
    let (mut text, mut body, mut store) = (String::new(), String::new(), String::new());
    match scale {
        Some(scale) => {
            if weighs {
                body.push_str(&signed_absmax(plan, scale, rule, zero));
            }
            body.push_str(&step(&rule.scale, if applied { &["apply", "stored"] } else { &["stored"] }));
            store.push_str(&store_float(scale, "stored"));
        }
        None => {
            text.push_str(&step_outside(name, &rule.scale));
            if applied {
                body.push_str("let apply = step.apply;\n");
            }
        }
    }
    let has_step = scale.is_none();
    let magnitude = if has_step { "_magnitude" } else { magnitude(&rule.scale) };
    let body = format!(
        "let {magnitude} = match number::finite_abs_max(x) {{
             Ok(magnitude) => magnitude,
             Err(fault) => return Err(number::offset(fault, index * ELEMENTS)),
         }};
         {body}
         let mut code = [0{}; ELEMENTS];
         for i in 0..ELEMENTS {{
             let x = x[i];
             let q = {};
             // SAFETY: clamped to the range of the code, and `max` leaves no NaN.
             code[i] = {};
         }}
         *block = [0; BYTES];
         {}
         {store}",
        rust::name(code_type),
        rust::expr(&lower::code(rounded, zero)),
        rust::expr(&bits),
        write_raw(code),
    );
    text += &over_blocks(name, "", if has_step && applied { "step" } else { "_step" }, weighs, &body);
    Quantized { text, has_step, weighs }
}
