//! Activation files: how rows become int8.

use super::format::MAX_ELEMENTS;
use super::value::{clamp, rounding, scale_rule};
use crate::model::{Rounding, ScaleRule, Via};
use crate::toml_walk::{At, File, Node, Span, Table};
use crate::vocab::PrologueStep;
use toml::de::{DeTable, DeValue};

/// An activation format as it was written; `rule` is missing if it could not be read.
#[derive(Debug)]
pub(crate) struct RawActivations<'a> {
    pub file: &'a File<'a>,
    pub name: &'a str,
    pub doc: String,
    /// `Some(None)`: the whole row.
    pub block: Option<Option<u32>>,
    pub rule: Option<Rule>,
    /// Missing if it could not be read.
    pub prologue: Option<Vec<PrologueStep>>,
}

/// `[quantize]` of an activation file.
#[derive(Debug)]
pub(crate) struct Rule {
    pub scale: ScaleRule,
    pub keeps_multiplier: bool,
    pub stored_f16: bool,
    pub round: Rounding,
    pub clamp: (i32, i32),
}

const KEYS: &[&str] = &["doc", "block", "quantize", "prologue"];
const RULE_KEYS: &[&str] =
    &["scale", "levels", "via", "floor", "precision", "keep", "store", "round", "clamp"];

pub(crate) fn parse<'a>(file: &'a File<'a>, name: &'a str, table: &DeTable<'_>) -> RawActivations<'a> {
    let table = Table::open(file, "an activation format", table, Span::default(), KEYS);
    let block = table.need("block").and_then(|node| match node.value {
        DeValue::String(word) if word == "row" => Some(None),
        DeValue::Integer(_) => node.unsigned(1..=MAX_ELEMENTS).map(|at| Some(at.value)),
        _ => {
            let message = "`block` must be a number of elements, or `\"row\"` for the whole row";
            file.report(file.error("wrong-type", node.span, message));
            None
        }
    });
    let rules = table.need("quantize").and_then(|n| n.table("`[quantize]`", RULE_KEYS));
    let rule = rules.as_ref().and_then(rule);
    if let (Some(Some(_)), Some(rules), Some(true)) =
        (block, &rules, rule.as_ref().map(|rule| rule.keeps_multiplier))
    {
        let span = rules.get("keep").map_or(rules.span, |node| node.span);
        let error =
            file.error("conflicting-keys", span, "only rows keep a multiplier; blocks keep their step");
        file.report(error.help("leave `keep` out, or write `block = \"row\"`"));
    }
    let prologue = table.get("prologue").map_or(Some(Vec::new()), |node| prologue(&node));
    RawActivations { file, name, doc: table.doc(name), block, rule, prologue }
}

/// Steps in the order in which they are taken, each once.
fn prologue(node: &Node<'_>) -> Option<Vec<PrologueStep>> {
    let words: Vec<(&str, PrologueStep)> =
        PrologueStep::ALL.iter().map(|step| (step.name(), *step)).collect();
    let steps = node.list(|item| item.word("step", &words))?;
    for (position, step) in steps.iter().enumerate() {
        if let Some(first) = steps[..position].iter().find(|first| first.value == step.value) {
            let message = format!("`{}` stands in the prologue twice", step.value);
            let error = node.file.error("duplicate-name", step.span, message);
            node.file.report(error.also(node.file.path, first.span, "first here"));
            return None;
        }
    }
    Some(steps.into_iter().map(|step| step.value).collect())
}

fn rule(table: &Table<'_>) -> Option<Rule> {
    let file = table.file;
    let scale = scale_rule(table, None);
    let keep = table.get("keep").map(|n| n.word("number", &[("step", false), ("multiplier", true)]));
    let store = table.get("store").map(|n| n.word("storage type", &[("f32", false), ("f16", true)]));
    let round = table.need("round").and_then(|n| rounding(&n));
    let clamp = table.get("clamp").map(|n| clamp(&n));
    let round = round.and_then(|round| match round.value {
        Rounding::Sign | Rounding::HalfUp => {
            let message = "activations round to nearest: half-even, half-away or half-toward-zero";
            file.report(file.error("out-of-range", round.span, message));
            None
        }
        _ => Some(round),
    });
    let clamp = match clamp {
        None => Some(At { value: (-128, 127), span: table.span }),
        Some(clamp) => clamp.and_then(|at| {
            let sound = at.value.0 >= -128 && at.value.1 <= 127;
            if !sound {
                let message = format!("int8 can't hold {} to {}", at.value.0, at.value.1);
                file.report(
                    file.error("clamp-unrepresentable", at.span, message).help("stay within -128 to 127"),
                );
            }
            sound.then_some(at)
        }),
    };
    let keeps_multiplier = keep.map_or(Some(false), |k| k.map(|at| at.value))?;
    let stored_f16 = store.map_or(Some(false), |s| s.map(|at| at.value))?;
    if keeps_multiplier && stored_f16 {
        let span = table.key_span("store").unwrap_or(table.span);
        let message = "a multiplier is kept in f32; only a step can be stored as f16";
        file.report(file.error("conflicting-keys", span, message));
        return None;
    }
    let scale = scale?;
    if keeps_multiplier && scale.via == Via::Divide {
        let span = table.get("via").map_or(table.span, |node| node.span);
        let error = file.error("conflicting-keys", span, "division makes no multiplier that could be kept");
        file.report(error.help("leave `keep` out, or write `via = \"multiplier\"`"));
        return None;
    }
    Some(Rule { scale, keeps_multiplier, stored_f16, round: round?.value, clamp: clamp?.value })
}
