//! Quantizers that round, where the reference allows them.

use super::format::{Drawn, Factor, Float, Kind, Map, mapped};
use super::places::{chance, pick};
use crate::random::Random;
use std::fmt::Write as _;

/// Whether rounding alone can make the format.
fn possible(drawn: &Drawn) -> bool {
    let single = match drawn.scale[..] {
        [Factor::Field(field)] => {
            let field = &drawn.fields[field];
            field.count == 1 && matches!(field.kind, Kind::Float(Float::F16 | Float::Bf16 | Float::F32))
        }
        [Factor::Row | Factor::Tensor] => true,
        _ => false,
    };
    single
        && drawn.add.is_empty()
        && drawn.subtract.is_empty()
        && drawn.signs.is_none()
        && drawn.shift.is_none()
        && drawn.unit.is_none()
        && match &drawn.map {
            // Codes that count up by one.
            Map::Affine { times, .. } => *times == 1,
            Map::Levels(levels) => levels.windows(2).all(|pair| pair[1] - pair[0] == 1),
            Map::Book(_) => false,
        }
}

pub fn draw(random: &mut Random, drawn: &mut Drawn) {
    if !possible(drawn) || chance(random, 25) {
        return;
    }
    for number in 0..1 + random.below(2) {
        let quantizer = one(random, drawn, number);
        drawn.quantizers.push(quantizer);
    }
}

fn one(random: &mut Random, drawn: &Drawn, number: u64) -> String {
    let all = mapped(drawn);
    // A run of integers without gaps, or a part of one.
    let start = random.below(all.len() as u64) as usize;
    let (mut low, mut high) = (start, start);
    while low > 0 && all[low - 1] + 1 == all[low] && chance(random, 95) {
        low -= 1;
    }
    while high + 1 < all.len() && all[high] + 1 == all[high + 1] && chance(random, 95) {
        high += 1;
    }
    let (low, high) = (all[low], all[high]);
    let codes_count_up = matches!(drawn.map, Map::Affine { times: 1, zero } if low + zero >= 0);
    let ternary = [-1, 0, 1].iter().all(|v| (low..=high).contains(v));
    let mut rounds = vec!["half-even", "half-away", "half-toward-zero"];
    if codes_count_up {
        rounds.push("half-up");
    }
    if ternary {
        rounds.push("sign");
    }
    let round = pick(random, &rounds);
    let scale = pick(random, &["absmax", "signed-absmax", "absmean"]);
    let mut out = format!("name = \"q{number}\"\nscale = \"{scale}\"\nround = \"{round}\"\n");
    if round == "sign" && chance(random, 50) {
        out.push_str("threshold = 1e-6\n");
    }
    let levels = low.abs().max(high.abs()).max(1);
    if chance(random, 80) {
        let sign = if scale == "signed-absmax" && chance(random, 50) { "-" } else { "" };
        let _ = writeln!(out, "levels = {sign}{levels}");
    }
    if chance(random, 60) {
        let _ = writeln!(out, "via = \"{}\"", pick(random, &["step", "multiplier", "divide"]));
    }
    if chance(random, 25) && scale != "signed-absmax" {
        out.push_str("floor = 1e-5\n");
    }
    if chance(random, 30) {
        let _ = writeln!(out, "precision = \"{}\"", pick(random, &["f32", "f64"]));
    }
    // All that the codes can hold is the default.
    let whole = low == all[0] && high == all[all.len() - 1];
    if !whole || chance(random, 50) {
        let _ = writeln!(out, "clamp = [{low}, {high}]");
    }
    out
}
