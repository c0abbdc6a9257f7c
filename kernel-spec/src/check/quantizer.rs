//! Quantizers. Those that round to an integer need a code for every integer that they can reach; algorithms
//! need a format of their structure ([`super::search`]).

use super::search;
use super::value::Checked;
use crate::model::{Factor, FieldType, QuantizeRule, Quantizer, RoundRule, Rounding, ValueMap};
use crate::parse::format::RawFormat;
use crate::parse::value::{RawQuantizer, RawRound, RawRule};

pub(super) fn check(raw: &RawFormat<'_>, checked: &Checked) -> Vec<Quantizer> {
    let file = raw.file;
    let rounds = raw.quantizers.iter().find(|q| matches!(q.rule, RawRule::Round(_)));
    if let (Some(first), Err(reason)) = (rounds, possible(raw, checked)) {
        let error = file.error(
            "quantizer-impossible",
            first.span,
            format!("this format can't be quantized by rounding: {reason}"),
        );
        let help = "name an `algorithm` that searches for what this format has, or remove `[[quantize]]`";
        file.report(error.also(file.path, checked.span, "the value it would have to make").help(help));
        return Vec::new();
    }
    for (index, quantizer) in raw.quantizers.iter().enumerate() {
        let same = |q: &&RawQuantizer| q.name.value == quantizer.name.value;
        if let Some(first) = raw.quantizers[..index].iter().find(same) {
            let message = format!("two quantizers are called `{}`", quantizer.name.value);
            let error = file.error("duplicate-name", quantizer.name.span, message).label("again here");
            file.report(error.also(file.path, first.name.span, "first here"));
        }
    }
    raw.quantizers.iter().filter_map(|quantizer| one(raw, checked, quantizer)).collect()
}

/// A quantizer sets one scale and codes; with more to choose, rounding alone is no rule.
fn possible(raw: &RawFormat<'_>, checked: &Checked) -> Result<(), String> {
    let value = &checked.value;
    let scale = match value.scale[..] {
        [scale] => scale,
        [] => return Err("it has no scale".to_owned()),
        _ => return Err("its scale is a product of several numbers".to_owned()),
    };
    if !value.add.is_empty() || !value.subtract.is_empty() {
        return Err("it has a minimum term besides the scale".to_owned());
    }
    if matches!(value.map, ValueMap::Codebook { .. }) {
        return Err("its codes stand for entries of a codebook".to_owned());
    }
    if value.signs.is_some() || value.shift.is_some() || value.unit != 1.0 {
        return Err("it has signs, a shift or a unit apart from the code".to_owned());
    }
    let Factor::Field(index) = scale else { return Ok(()) };
    let field = raw.fields.get(index).ok_or_else(|| "its scale is not known".to_owned())?;
    let float = matches!(field.ty.value, FieldType::Scalar(scalar) if scalar.is_signed());
    if !float || field.count != 1 {
        return Err(format!("its scale `{}` is not a single f16, bf16 or f32", field.name.value));
    }
    Ok(())
}

/// The integers that have a code, sorted.
fn integers(raw: &RawFormat<'_>, checked: &Checked) -> Option<Vec<i32>> {
    let (low, high) = raw.fields.get(checked.value.code)?.ty.value.range()?;
    let mut integers: Vec<i32> = match &checked.value.map {
        ValueMap::Affine { times, zero } => {
            let value = |code: i64| i32::try_from(i64::from(*times) * code - i64::from(*zero)).ok();
            (low..=high).map(value).collect::<Option<_>>()?
        }
        ValueMap::Levels(levels) => levels.clone(),
        ValueMap::Codebook { .. } => return None,
    };
    integers.sort_unstable();
    integers.dedup();
    Some(integers)
}

fn one(raw: &RawFormat<'_>, checked: &Checked, quantizer: &RawQuantizer) -> Option<Quantizer> {
    let rule = match &quantizer.rule {
        RawRule::Round(round) => QuantizeRule::Round(rounding(raw, checked, quantizer, *round)?),
        RawRule::Search(at) => {
            if let Err(reason) = search::fits(raw, checked, at.value) {
                let name = at.value.name();
                let message = format!("`{name}` is for formats of another structure: {reason}");
                let error = raw.file.error("search-mismatch", at.span, message);
                let help = "change the format to what the algorithm fills in, name another algorithm, or remove `[[quantize]]`";
                let error = error.also(raw.file.path, checked.span, "the value it would have to make");
                raw.file.report(error.help(help));
                return None;
            }
            QuantizeRule::Search(at.value)
        }
    };
    Some(Quantizer { name: quantizer.name.value.clone(), origin: raw.file.origin(quantizer.span), rule })
}

fn rounding(
    raw: &RawFormat<'_>,
    checked: &Checked,
    quantizer: &RawQuantizer,
    RawRound { scale, round, threshold, clamp }: RawRound,
) -> Option<RoundRule> {
    let file = raw.file;
    let integers = integers(raw, checked)?;
    let (lowest, highest) = (*integers.first()?, *integers.last()?);
    let (low, high) = clamp.map_or((lowest, highest), |at| at.value);
    let reachable = match round {
        Rounding::Sign => low.max(-1)..=high.min(1),
        _ => low..=high,
    };
    let span = clamp.map_or(quantizer.name.span, |at| at.span);
    // Without a threshold there is a sign everywhere, of both zeros too.
    let no_zero = round == Rounding::Sign && threshold == 0.0 && low < 0 && high > 0;
    let mut strays = reachable.clone().filter(|v| integers.binary_search(v).is_err());
    if let Some(stray) = strays.find(|v| !(no_zero && *v == 0)) {
        let message =
            format!("quantizer `{}` can round to {stray}, which no code stands for", quantizer.name.value);
        let label = format!("reaches from {} to {}", reachable.start(), reachable.end());
        let help = format!(
            "the format's integers go from {lowest} to {highest}; narrow `clamp` to a run without gaps"
        );
        file.report(file.error("clamp-unrepresentable", span, message).label(label).help(help));
        return None;
    }
    let shifts_by_one = matches!(checked.value.map, ValueMap::Affine { times: 1, .. });
    let counts_up = match &checked.value.map {
        ValueMap::Levels(levels) => levels.windows(2).all(|pair| pair[1] - pair[0] == 1),
        ValueMap::Affine { .. } | ValueMap::Codebook { .. } => shifts_by_one,
    };
    if !counts_up {
        let message = "this format can't be quantized by rounding: the integers that its codes stand for do not count up by one";
        let error = file.error("quantizer-impossible", quantizer.span, message);
        let help = "order `levels` upward without gaps, name an `algorithm`, or remove `[[quantize]]`";
        file.report(error.also(file.path, checked.span, "the value it would have to make").help(help));
        return None;
    }
    let lowest_code = match checked.value.map {
        ValueMap::Affine { times: 1, zero } => Some(i64::from(low) + i64::from(zero)),
        ValueMap::Affine { .. } | ValueMap::Levels(_) | ValueMap::Codebook { .. } => None,
    };
    // Below 0, what cuts code + 0.5 off rounds it up.
    if round == Rounding::HalfUp && lowest_code.is_none_or(|code| code < 0) {
        let message = match lowest_code {
            None => {
                "`round = \"half-up\"` cuts code + 0.5 off, so it needs codes that count up by one (`zero`)"
                    .to_owned()
            }
            Some(code) => format!(
                "`round = \"half-up\"` cuts code + 0.5 off, so it needs codes from 0 up; these begin at {code}"
            ),
        };
        let error = file.error("quantizer-impossible", quantizer.span, message);
        let help = "write `round = \"half-even\"`, or count codes of an unsigned type from `zero`";
        file.report(error.also(file.path, checked.span, "the value it would have to make").help(help));
        return None;
    }
    Some(RoundRule { scale, round, threshold, clamp: (low, high) })
}
