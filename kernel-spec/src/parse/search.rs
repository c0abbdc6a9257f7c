//! `algorithm` of a quantizer, and the parameters that each algorithm has.

use crate::model::Search;
use crate::toml_walk::{At, Node, Table};

/// Parameters of algorithms.
const PARAMETERS: [&str; 4] = ["weights", "metric", "start", "steps"];

/// Keys of quantizers that round.
const ROUNDING: [&str; 8] = ["scale", "levels", "via", "floor", "precision", "round", "threshold", "clamp"];

/// Reports parameters of algorithms in a quantizer that names none.
pub(super) fn none(table: &Table<'_>) {
    misplaced(table, &PARAMETERS, "belongs to a quantizer with an `algorithm`", None);
}

fn misplaced(table: &Table<'_>, keys: &[&str], why: &str, help: Option<&str>) {
    for key in keys {
        if let Some(span) = table.key_span(key) {
            let error = table.file.error("conflicting-keys", span, format!("`{key}` {why}"));
            table.file.report(match help {
                Some(help) => error.help(help),
                None => error,
            });
        }
    }
}

/// The algorithm that `node` names, with its parameters from `table`.
pub(super) fn parse(table: &Table<'_>, node: &Node<'_>) -> Option<At<Search>> {
    // With parameters that are replaced below.
    let words = [
        Search::MinMax,
        Search::Mean,
        Search::KMin { rms: false, square: false, start: 0.0, steps: 0 },
        Search::KRefine { steps: 0 },
        Search::KScan { steps: 0 },
        Search::LevelScan { steps: 0 },
        Search::NearestLevel,
        Search::GridSearch { steps: 0 },
        Search::Alternating { steps: 0 },
    ]
    .map(|search| (search.name(), search));
    let at = node.word("algorithm", &words)?;
    let name = at.value.name();
    misplaced(
        table,
        &ROUNDING,
        "does not go with `algorithm`",
        Some("an algorithm finds scale and codes together"),
    );
    let allowed = match at.value {
        Search::KMin { .. } => &PARAMETERS[..],
        Search::KRefine { .. }
        | Search::KScan { .. }
        | Search::LevelScan { .. }
        | Search::GridSearch { .. }
        | Search::Alternating { .. } => &PARAMETERS[3..],
        Search::MinMax | Search::Mean | Search::NearestLevel => &[],
    };
    let stray: Vec<&str> = PARAMETERS.into_iter().filter(|key| !allowed.contains(key)).collect();
    misplaced(table, &stray, &format!("is no parameter of `{name}`"), None);
    let steps = || table.need("steps").and_then(|n| n.unsigned(1..=64)).map(|at| at.value);
    let value = match at.value {
        Search::KMin { .. } => {
            let rms = table
                .need("weights")
                .and_then(|n| n.word("weighting of errors", &[("abs", false), ("rms-abs", true)]));
            let square =
                table.need("metric").and_then(|n| n.word("metric", &[("abs", false), ("square", true)]));
            let start = table.need("start").and_then(|n| start(&n));
            let steps = steps();
            Search::KMin { rms: rms?.value, square: square?.value, start: start?, steps: steps? }
        }
        Search::KRefine { .. } => Search::KRefine { steps: steps()? },
        Search::KScan { .. } => Search::KScan { steps: steps()? },
        Search::LevelScan { .. } => Search::LevelScan { steps: steps()? },
        Search::GridSearch { .. } => Search::GridSearch { steps: steps()? },
        Search::Alternating { .. } => Search::Alternating { steps: steps()? },
        same @ (Search::MinMax | Search::Mean | Search::NearestLevel) => same,
    };
    Some(At { value, span: at.span })
}

/// More than -1 step would leave a one-bit code no step at all.
fn start(node: &Node<'_>) -> Option<f32> {
    let at = node.number()?;
    if !(-1.0..=16.0).contains(&at.value) {
        node.file.report(node.file.error("out-of-range", at.span, "`start` must be from -1 to 16"));
        return None;
    }
    Some(at.value as f32)
}
