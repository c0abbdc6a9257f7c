//! `[value]` and `[[quantize]]` of a format file, and the words that quantizers share with activations.

use super::name::ident;
use super::search;
use crate::model::{Rounding, ScaleRule, Search, Statistic, Via};
use crate::toml_walk::{At, Node, Span, Table};

/// `[value]` as it was written.
#[derive(Debug)]
pub(crate) struct RawValue {
    pub span: Span,
    pub code: At<String>,
    pub map: RawMap,
    pub signs: Option<At<String>>,
    pub parity: bool,
    pub shift: Option<(At<String>, Vec<i32>, Span)>,
    pub unit: At<f64>,
    pub scale: Vec<At<String>>,
    pub add: Vec<At<String>>,
    pub subtract: Vec<At<String>>,
}

/// How codes become integers, as it was written.
#[derive(Debug)]
pub(crate) enum RawMap {
    Affine { times: i32, zero: i32, span: Span },
    Levels { levels: Vec<i32>, span: Span },
    Codebook { name: At<String>, times: i32, stride: At<u32> },
}

/// `[[quantize]]` as it was written.
#[derive(Debug)]
pub(crate) struct RawQuantizer {
    pub name: At<String>,
    pub span: Span,
    pub rule: RawRule,
}

/// What a quantizer does, as it was written.
#[derive(Debug)]
pub(crate) enum RawRule {
    Round(RawRound),
    Search(At<Search>),
}

/// A scale and rounding, as it was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawRound {
    pub scale: ScaleRule,
    pub round: Rounding,
    pub threshold: f64,
    pub clamp: Option<At<(i32, i32)>>,
}

pub(crate) const VALUE_KEYS: &[&str] = &[
    "code",
    "zero",
    "times",
    "levels",
    "codebook",
    "stride",
    "signs",
    "sign_rule",
    "shift",
    "unit",
    "scale",
    "add",
    "subtract",
];

const QUANTIZE_KEYS: &[&str] = &[
    "name",
    "scale",
    "levels",
    "via",
    "floor",
    "precision",
    "round",
    "threshold",
    "clamp",
    "algorithm",
    "weights",
    "metric",
    "start",
    "steps",
];

/// Integers that values and levels may be written with; the checks have tighter bounds.
const INTEGER: std::ops::RangeInclusive<i32> = -32768..=32767;

pub(crate) fn parse_value(table: &Table<'_>) -> Option<RawValue> {
    let file = table.file;
    let code = table.need("code").and_then(|n| n.string());
    let map = map(table);
    let signs = table.get("signs").map(|n| n.string());
    let parity = table.get("sign_rule").map(|n| n.word("sign rule", &[("mask", false), ("parity", true)]));
    if let (None, Some(span)) = (&signs, table.key_span("sign_rule")) {
        file.report(file.error("conflicting-keys", span, "`sign_rule` without `signs` has nothing to rule"));
    }
    let shift = table.get("shift").map(|n| shift(&n));
    let unit = match table.get("unit") {
        None => Some(At { value: 1.0, span: table.span }),
        Some(node) => node.number().and_then(|at| power_of_two(&node, at)),
    };
    let [scale, add, subtract] = ["scale", "add", "subtract"].map(|key| match table.get(key) {
        None => Some(Vec::new()),
        Some(node) => node.strings(),
    });
    Some(RawValue {
        span: table.span,
        code: code?,
        map: map?,
        signs: signs.map_or(Some(None), |s| s.map(Some))?,
        parity: parity.map_or(Some(false), |p| p.map(|at| at.value))?,
        shift: shift.map_or(Some(None), |s| s.map(Some))?,
        unit: unit?,
        scale: scale?,
        add: add?,
        subtract: subtract?,
    })
}

fn power_of_two(node: &Node<'_>, at: At<f64>) -> Option<At<f64>> {
    let mantissa = at.value.to_bits() & ((1 << 52) - 1);
    let is_power = mantissa == 0 && at.value.is_normal() && at.value > 0.0;
    // A number of a format's types times it is a number of f32, where it is not near the least or the greatest of these.
    let wrong = if !is_power {
        Some(("unit-not-power-of-two", format!("`unit` is {}, which is not a power of two", at.value)))
    } else if !(2f64.powi(-32)..=2f64.powi(32)).contains(&at.value) {
        Some(("out-of-range", format!("`unit` is {:e}, which is not from 2^-32 to 2^32", at.value)))
    } else {
        None
    };
    let Some((code, message)) = wrong else { return Some(at) };
    let error = node.file.error(code, at.span, message);
    node.file
        .report(error.help("write a power of two from 2^-32 to 2^32, and put other factors into a scale"));
    None
}

fn map(table: &Table<'_>) -> Option<RawMap> {
    let file = table.file;
    let ways: Vec<(&str, Span)> =
        ["zero", "levels", "codebook"].iter().filter_map(|key| Some((*key, table.key_span(key)?))).collect();
    if let [(first, span), (second, other), ..] = ways[..] {
        let message = format!("`{first}` and `{second}` both say what a code means");
        let error =
            file.error("conflicting-keys", other, message).help("keep one of `zero`, `levels`, `codebook`");
        file.report(error.also(file.path, span, "the other one"));
        return None;
    }
    if let (None, Some(span)) = (table.get("codebook"), table.key_span("stride")) {
        let error =
            file.error("conflicting-keys", span, "`stride` without `codebook` has nothing to space out");
        file.report(error.help("a code without a codebook stands for one element"));
    }
    let times = match table.get("times") {
        None => Some(1),
        Some(node) => node.signed(INTEGER).and_then(|at| nonzero(&node, at)).map(|at| at.value),
    };
    if let Some(node) = table.get("levels") {
        if let Some(span) = table.key_span("times") {
            file.report(
                file.error("conflicting-keys", span, "`times` does not go with `levels`")
                    .help("multiply the levels"),
            );
        }
        let levels = node.list(|n| n.signed(INTEGER))?;
        if levels.is_empty() {
            file.report(file.error("out-of-range", node.span, "`levels` is empty"));
            return None;
        }
        return Some(RawMap::Levels { levels: levels.iter().map(|at| at.value).collect(), span: node.span });
    }
    if let Some(node) = table.get("codebook") {
        let stride = match table.get("stride") {
            None => Some(At { value: 1, span: node.span }),
            Some(node) => node.unsigned(1..=65536),
        };
        return Some(RawMap::Codebook { name: node.string()?, times: times?, stride: stride? });
    }
    let zero = match table.get("zero") {
        None => Some(0),
        Some(node) => node.signed(-65536..=65536).map(|at| at.value),
    };
    let span = table.key_span("zero").or(table.key_span("times")).or(table.key_span("code"));
    Some(RawMap::Affine { times: times?, zero: zero?, span: span.unwrap_or(table.span) })
}

fn nonzero(node: &Node<'_>, at: At<i32>) -> Option<At<i32>> {
    if at.value == 0 {
        node.file.report(node.file.error(
            "out-of-range",
            at.span,
            "`times = 0` would make every weight the same",
        ));
        return None;
    }
    Some(at)
}

fn shift(node: &Node<'_>) -> Option<(At<String>, Vec<i32>, Span)> {
    let table = node.table("`shift`", &["field", "values"])?;
    let field = table.need("field").and_then(|n| n.string());
    let values = table.need("values").and_then(|n| n.list(|n| n.signed(INTEGER)));
    Some((field?, values?.iter().map(|at| at.value).collect(), node.span))
}

pub(crate) fn parse_quantizers(format: &Table<'_>) -> Vec<RawQuantizer> {
    let tables = format.tables("quantize", "a quantizer", QUANTIZE_KEYS).unwrap_or_default();
    tables.iter().filter_map(quantizer).collect()
}

fn quantizer(table: &Table<'_>) -> Option<RawQuantizer> {
    let file = table.file;
    let name = table.need("name").and_then(|n| ident(&n));
    if let Some(node) = table.get("algorithm") {
        let search = search::parse(table, &node);
        return Some(RawQuantizer { name: name?, span: table.span, rule: RawRule::Search(search?) });
    }
    search::none(table);
    let scale = scale_rule(table, Some(1.0));
    let round = table.need("round").and_then(|n| rounding(&n));
    let threshold = table.get("threshold").map(|n| not_negative(&n));
    let clamp = table.get("clamp").map(|n| clamp(&n));
    if let (Some(round), Some(span)) = (&round, table.key_span("threshold"))
        && round.value != Rounding::Sign
    {
        let error =
            file.error("threshold-without-sign", span, "`threshold` only goes with `round = \"sign\"`");
        file.report(error.also(file.path, round.span, "this rounds by nearness"));
    }
    Some(RawQuantizer {
        name: name?,
        span: table.span,
        rule: RawRule::Round(RawRound {
            scale: scale?,
            round: round?.value,
            threshold: threshold.unwrap_or(Some(0.0))?,
            clamp: clamp.map_or(Some(None), |c| c.map(Some))?,
        }),
    })
}

/// `scale`, `levels`, `via`, `floor`, `precision`: shared by quantizers and activations.
pub(crate) fn scale_rule(table: &Table<'_>, default_levels: Option<f32>) -> Option<ScaleRule> {
    let of = table.need("scale").and_then(|n| {
        let words = [
            ("absmax", Statistic::AbsMax),
            ("signed-absmax", Statistic::SignedAbsMax),
            ("absmean", Statistic::AbsMean),
        ];
        n.word("scale statistic", &words)
    });
    let levels = match (table.get("levels"), default_levels) {
        (Some(node), _) => node.number().and_then(|at| levels_number(&node, at)),
        (None, Some(default)) => Some(default),
        (None, None) => table.need("levels").and(None),
    };
    let via = table.get("via").map(|n| {
        n.word("way", &[("step", Via::Step), ("multiplier", Via::Multiplier), ("divide", Via::Divide)])
    });
    let floor =
        table.get("floor").map(|n| not_negative(&n).filter(|floor| bounds_magnitude(&n, *floor, &of)));
    let precision = table.get("precision").map(|n| n.word("precision", &[("f64", true), ("f32", false)]));
    Some(ScaleRule {
        of: of?.value,
        levels: levels?,
        via: via.map_or(Some(Via::Step), |v| v.map(|at| at.value))?,
        floor: floor.unwrap_or(Some(0.0))?,
        f64_division: precision.map_or(Some(false), |p| p.map(|at| at.value))?,
    })
}

/// Whether a statistic that a floor above 0 bounds is a magnitude: a negative one would become the floor.
fn bounds_magnitude(node: &Node<'_>, floor: f64, of: &Option<At<Statistic>>) -> bool {
    let Some(signed) = of.as_ref().filter(|of| floor > 0.0 && of.value == Statistic::SignedAbsMax) else {
        return true;
    };
    let message = "`floor` is a lower bound, and `signed-absmax` may be negative";
    let error = node.file.error("conflicting-keys", node.span, message);
    let help = "leave `floor` out, or write `scale = \"absmax\"`";
    node.file.report(error.also(node.file.path, signed.span, "the statistic").help(help));
    false
}

fn levels_number(node: &Node<'_>, at: At<f64>) -> Option<f32> {
    let sound = at.value != 0.0 && at.value.abs() <= 65536.0 && f64::from(at.value as f32) == at.value;
    if !sound {
        let message = "`levels` must be a number other than 0, at most 65536 in size, that f32 holds exactly";
        node.file.report(node.file.error("out-of-range", at.span, message));
    }
    sound.then_some(at.value as f32)
}

fn not_negative(node: &Node<'_>) -> Option<f64> {
    let at = node.number()?;
    if !(0.0..=1e30).contains(&at.value) {
        let message = format!("`{}` must be from 0 to 1e30", node.key);
        node.file.report(node.file.error("out-of-range", at.span, message));
        return None;
    }
    Some(at.value)
}

pub(crate) fn rounding(node: &Node<'_>) -> Option<At<Rounding>> {
    let words = [
        ("half-even", Rounding::HalfEven),
        ("half-away", Rounding::HalfAway),
        ("half-toward-zero", Rounding::HalfTowardZero),
        ("half-up", Rounding::HalfUp),
        ("sign", Rounding::Sign),
    ];
    node.word("rounding", &words)
}

pub(crate) fn clamp(node: &Node<'_>) -> Option<At<(i32, i32)>> {
    let bounds = node.list(|n| n.signed(INTEGER))?;
    let [low, high] = bounds[..] else {
        let message = format!("`clamp` has {} numbers; it needs the lowest and the highest", bounds.len());
        node.file.report(node.file.error("out-of-range", node.span, message));
        return None;
    };
    if low.value > high.value {
        let message = format!("`clamp` from {} to {} leaves nothing", low.value, high.value);
        node.file.report(node.file.error("out-of-range", node.span, message));
        return None;
    }
    Some(At { value: (low.value, high.value), span: node.span })
}
