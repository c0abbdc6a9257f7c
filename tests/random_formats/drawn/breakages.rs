//! Right formats with one mistake, and the code that the checker must answer with.

use super::format::{Drawn, Factor, Map};
use super::places::pick;
use super::text;
use crate::random::Random;

/// A format with a mistake.
#[derive(Clone, Debug)]
pub struct Breakage {
    pub name: String,
    pub text: String,
    /// The code that must be among the answers.
    pub code: &'static str,
}

/// A mistake in a format, if the one that is drawn is possible in it.
pub fn broken(drawn: &Drawn, random: &mut Random) -> Option<Breakage> {
    let mut wrong = drawn.clone();
    let any = random.below(drawn.fields.len() as u64) as usize;
    let code = pick(
        random,
        &[
            "bits-uncovered",
            "field-beyond-block",
            "field-overlap",
            "unknown-name",
            "wrong-field-type",
            "too-many-levels",
            "unit-not-power-of-two",
            "unknown-key",
            "count-mismatch",
            "sign-width",
            "value-range",
            "duplicate-name",
            "out-of-range",
            "conflicting-keys",
            "missing-key",
            "wrong-type",
        ],
    );
    let replaced = |wrong: &Drawn, from: &str, to: &str| {
        let text = text::format(wrong);
        text.contains(from).then(|| text.replacen(from, to, 1))
    };
    let mut text = None;
    match code {
        "bits-uncovered" => wrong.bytes += 1,
        "field-beyond-block" => wrong.bytes = (wrong.bytes > 1).then(|| wrong.bytes - 1)?,
        "field-overlap" => wrong.unused.push((random.below(8 * drawn.bytes as u64) as usize, 1)),
        "unknown-name" => wrong.fields[wrong.code].name = "lost".to_owned(),
        "wrong-field-type" => wrong.scale.push(Factor::Field(wrong.code)),
        "too-many-levels" => match (&mut wrong.map, &mut wrong.shift) {
            (Map::Levels(levels), _) => levels.resize(drawn.fields[drawn.code].kind.codes() as usize + 1, 0),
            (_, Some((_, values))) => values.push(0),
            _ => return None,
        },
        "unit-not-power-of-two" => {
            text = Some(replaced(&wrong, "[value]\n", "[value]\nunit = 0.75\n")?)
                .filter(|_| wrong.unit.is_none())
        }
        "unknown-key" => text = replaced(&wrong, "[value]\n", "[value]\nfactor = 2\n"),
        "count-mismatch" => wrong.elements *= 2,
        "sign-width" => {
            let (_, parity) = wrong.signs.as_mut()?;
            *parity = !*parity;
        }
        "value-range" => match &mut wrong.map {
            Map::Affine { zero, .. } => *zero = 40_000,
            Map::Levels(_) | Map::Book(_) => return None,
        },
        "duplicate-name" => {
            let name = wrong.fields[any].name.clone();
            let other = (0..wrong.fields.len()).find(|at| *at != any)?;
            wrong.fields[other].name = name;
        }
        "out-of-range" => text = replaced(&wrong, "block = { elements = ", "block = { elements = 70000"),
        "conflicting-keys" => {
            text = Some(text::format(&wrong).replacen("[value]\n", "[value]\nzero = 0\nlevels = [0]\n", 1))
                .filter(|_| matches!(drawn.map, Map::Affine { zero: 0, .. }));
        }
        "missing-key" => {
            let name = &wrong.fields[any].name;
            text = replaced(&wrong, &format!("name = \"{name}\"\n"), "");
        }
        _ => {
            let kind = wrong.fields[any].kind.name();
            text = replaced(&wrong, &format!("type = \"{kind}\""), "type = 8");
        }
    }
    let is_text = matches!(
        code,
        "unit-not-power-of-two"
            | "unknown-key"
            | "out-of-range"
            | "conflicting-keys"
            | "missing-key"
            | "wrong-type"
    );
    let mut said = match is_text {
        true => text?,
        false => text::format(&wrong),
    };
    if code == "unknown-name" {
        // The value still names the field as it was.
        let name = &drawn.fields[drawn.code].name;
        said = said.replacen("code = \"lost\"", &format!("code = \"{name}\""), 1);
    }
    Some(Breakage { name: drawn.name.clone(), text: said, code })
}
