//! A picture of records of whole models: tokens a second of our decoder and of each peer in its best setting.

use crate::error::Error;
use crate::picture::{GREY, OURS, PEERS, WIDTH, block, failed, label};
use crate::record::read;
use gristmill_records::peers::Models;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Tests and threads of the panels, and what they are.
const PANELS: [(&str, usize, &str); 4] = [
    ("pp512", 1, "prompt of 512, one thread"),
    ("pp512", 2, "prompt of 512, two threads"),
    ("tg128", 1, "generation, one thread"),
    ("tg128", 2, "generation, two threads"),
];

const TOP: i32 = 72;
/// Where names of models end and bars begin.
const NAMES: i32 = 190;
const BAR: i32 = 10;
const GAP: i32 = 8;
/// A machine's line above its rows.
const MACHINE: i32 = 20;

/// Draws to `svg` the newest of `records` of each processor, the newest of all at the top.
pub fn run(records: &[PathBuf], svg: &Path) -> Result<(), Error> {
    let mut records = records.iter().map(|record| read(record)).collect::<Result<Vec<Models>, _>>()?;
    records.sort_by(|a, b| b.date.cmp(&a.date).then_with(|| a.machine.cpu.cmp(&b.machine.cpu)));
    let mut seen = HashSet::new();
    records.retain(|record| seen.insert(record.machine.cpu.clone()));
    let text = draw(&records).map_err(Error::Draw)?;
    std::fs::write(svg, text).map_err(Error::file("write", svg))
}

/// The picture as SVG text, or what plotters said.
fn draw(records: &[Models]) -> Result<String, String> {
    let row = 2 * BAR + GAP;
    let height_of = |record: &Models| MACHINE + record.models.len() as i32 * row;
    let height = TOP + records.iter().map(height_of).sum::<i32>() + 8;
    let panel_width = (WIDTH - NAMES) / PANELS.len() as i32;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH as u32, height as u32)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let label =
            |text: &str, at, size, colour: &RGBColor, side| label(&root, text, at, size, colour, side);
        let bar = |from: (i32, i32), length: i32, colour| {
            block(&root, [from, (from.0 + length, from.1 + BAR - 1)], colour)
        };
        let title = "Tokens a second, whole models of random numbers in the shapes of published ones";
        label(title, (10, 16), 15, &BLACK, HPos::Left)?;
        bar((10, 32), 10, OURS)?;
        label("gristmill", (24, 37), 11, &BLACK, HPos::Left)?;
        bar((90, 32), 10, PEERS[0])?;
        let beside =
            "the peer in its best setting, and how many times its rate ours is; each panel has its own scale";
        label(beside, (104, 37), 11, &BLACK, HPos::Left)?;
        for (index, (test, threads, title)) in PANELS.into_iter().enumerate() {
            let left = NAMES + index as i32 * panel_width;
            label(title, (left, TOP - 12), 12, &BLACK, HPos::Left)?;
            let all = records.iter().flat_map(|record| &record.models);
            let most = all.filter_map(|run| run.rates(test, threads)).flatten().fold(1.0, f64::max);
            let scale = f64::from(panel_width - 72) / most;
            let mut y = TOP;
            for record in records {
                if index == 0 {
                    let machine =
                        format!("{}, {} cores, {}", record.machine.cpu, record.machine.cores, record.date);
                    label(&machine, (10, y + MACHINE / 2), 11, &GREY, HPos::Left)?;
                }
                y += MACHINE;
                for run in &record.models {
                    if index == 0 {
                        label(&run.model, (NAMES - 6, y + BAR / 2), 11, &BLACK, HPos::Right)?;
                        label(&run.peer, (NAMES - 6, y + BAR + BAR / 2), 9, &GREY, HPos::Right)?;
                    }
                    if let Some([ours, theirs]) = run.rates(test, threads) {
                        let [our_length, their_length] = [ours, theirs].map(|rate| (rate * scale) as i32);
                        bar((left, y), our_length, OURS)?;
                        bar((left, y + BAR), their_length, PEERS[0])?;
                        let at = left + our_length + 3;
                        let rate = format!("{ours:.0} ({:.2})", ours / theirs);
                        label(&rate, (at, y + BAR / 2), 9, &BLACK, HPos::Left)?;
                        let at = left + their_length + 3;
                        label(&format!("{theirs:.0}"), (at, y + BAR + BAR / 2), 9, &GREY, HPos::Left)?;
                    }
                    y += row;
                }
            }
        }
        root.present().map_err(failed)?;
    }
    Ok(text)
}
