//! A picture of a record: bars for ours and for each peer's, and how far the machine could go.

use crate::error::Error;
use crate::picture::{Area, GREY, OURS, PEERS, WIDTH, block, failed, label};
use crate::record::read;
use gristmill_records::peers::{ProductCell, ProductRun, Products};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use std::path::Path;

/// Tokens of the panels, and what they are.
const PANELS: &[(usize, &str)] = &[(1, "m = 1 (decode)"), (32, "m = 32"), (512, "m = 512 (prefill)")];
/// The matrix.
const SHAPE: (u64, u64) = (2560, 2560);

const TOP: i32 = 64;
/// Where names of formats end and bars begin.
const NAMES: i32 = 64;
const BAR: i32 = 9;
const GAP: i32 = 8;
const CEILING: RGBColor = RGBColor(190, 60, 50);

/// A format's bars in one panel.
struct Row<'r> {
    format: &'r str,
    ours: f64,
    ceiling: f64,
    /// Rate, name and colour.
    peers: Vec<(f64, &'r str, RGBColor)>,
}

impl Row<'_> {
    fn bars(&self) -> i32 {
        1 + self.peers.len() as i32
    }
}

/// Draws `record` to `svg`.
pub fn run(record: &Path, svg: &Path) -> Result<(), Error> {
    let record = read(record)?;
    let text = draw(&record).map_err(Error::Draw)?;
    std::fs::write(svg, text).map_err(Error::file("write", svg))
}

/// Runs in which both sides took what the processor has, and their colours.
fn shown(record: &Products) -> impl Iterator<Item = (&ProductRun, RGBColor)> {
    record.runs.iter().filter(|run| run.held_to.is_none()).zip(PEERS.iter().copied().cycle())
}

/// Rows of a panel, in the order of the record. Of several types of a peer for one format of ours, the fastest counts.
fn rows(record: &Products, m: usize) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for (run, colour) in shown(record) {
        let here = |cell: &&ProductCell| {
            (cell.m, cell.n, cell.k) == (m as u64, SHAPE.0, SHAPE.1)
                && cell.threads == 1
                && cell.memory == "hot"
        };
        let mut best: Vec<&ProductCell> = Vec::new();
        for cell in run.cells.iter().filter(here) {
            match best.iter_mut().find(|best| best.format == cell.format) {
                Some(best) if best.their_gmac_s < cell.their_gmac_s => *best = cell,
                Some(_) => {}
                None => best.push(cell),
            }
        }
        for cell in best {
            let peer = (cell.their_gmac_s, cell.theirs.as_str(), colour);
            match rows.iter_mut().find(|row| row.format == cell.format) {
                Some(row) => row.peers.push(peer),
                None => rows.push(Row {
                    format: &cell.format,
                    ours: cell.our_gmac_s,
                    ceiling: 100.0 * cell.our_gmac_s / cell.our_percent,
                    peers: vec![peer],
                }),
            }
        }
    }
    rows
}

/// The picture as SVG text, or what plotters said.
fn draw(record: &Products) -> Result<String, String> {
    let panels: Vec<(&str, Vec<Row<'_>>)> =
        PANELS.iter().map(|(m, title)| (*title, rows(record, *m))).collect();
    let height_of = |rows: &[Row<'_>]| rows.iter().map(|row| row.bars() * BAR + GAP).sum::<i32>();
    let height = TOP + panels.iter().map(|(_, rows)| height_of(rows)).max().unwrap_or(0) + 44;
    let panel_width = WIDTH / panels.len() as i32;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH as u32, height as u32)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        draw_head(&root, record)?;
        for (index, (title, rows)) in panels.iter().enumerate() {
            draw_panel(&root, index as i32 * panel_width + NAMES, panel_width, title, rows)?;
        }
        let foot = format!("{}, {}, {} cores", record.date, record.machine.cpu, record.machine.cores);
        label(&root, &foot, (10, height - 14), 10, &GREY, HPos::Left)?;
        root.present().map_err(failed)?;
    }
    Ok(text)
}

/// What is shown, and what colours mean.
fn draw_head(root: &Area<'_>, record: &Products) -> Result<(), String> {
    let title = format!(
        "GMAC/s, weights {}x{} in cache, one thread, quantizing f32 activations included; each panel has its own scale",
        SHAPE.0, SHAPE.1
    );
    label(root, &title, (10, 16), 15, &BLACK, HPos::Left)?;
    let mut x = 10;
    let legend = std::iter::once(("gristmill", OURS))
        .chain(shown(record).map(|(run, colour)| (run.peer.as_str(), colour)));
    for (name, colour) in legend {
        block(root, [(x, 32), (x + 10, 40)], colour)?;
        label(root, name, (x + 14, 37), 11, &BLACK, HPos::Left)?;
        x += 40 + 6 * name.len() as i32;
    }
    block(root, [(x, 30), (x + 2, 42)], CEILING)?;
    let mut cells = shown(record).flat_map(|(run, _)| &run.cells);
    let ceiling = match cells.all(|cell| cell.file_bits_per_weight.is_some()) {
        true => "the machine's ceiling for it, weights as large as in a file",
        false => "the machine's ceiling for it, weights as large as packed",
    };
    label(root, ceiling, (x + 8, 37), 11, &BLACK, HPos::Left)
}

/// The rows of a panel whose bars begin at `left`.
fn draw_panel(root: &Area<'_>, left: i32, width: i32, title: &str, rows: &[Row<'_>]) -> Result<(), String> {
    label(root, title, (left, TOP - 8), 12, &BLACK, HPos::Left)?;
    // Each has its own: many tokens are multiplied at ten times the rate of one.
    let most = rows.iter().map(|row| row.ceiling.max(row.ours)).fold(1.0, f64::max);
    let scale = f64::from(width - NAMES - 44) / most;
    let length = |rate: f64| (rate * scale) as i32;
    let mut y = TOP + 4;
    for row in rows {
        let height = row.bars() * BAR;
        // The figure stands behind the bar, or in it where the mark of the ceiling would cross it and the bar has room.
        let bar = |rate: f64, y: i32, colour: RGBColor| {
            let right = left + length(rate);
            block(root, [(left, y), (right, y + BAR - 1)], colour)?;
            let (at, text, side) = match length(row.ceiling - rate) {
                0..24 if right - left > 24 => (right - 3, &WHITE, HPos::Right),
                _ => (right + 3, &BLACK, HPos::Left),
            };
            label(root, &format!("{rate:.0}"), (at, y + BAR / 2), 9, text, side)
        };
        label(root, row.format, (left - 5, y + height / 2), 11, &BLACK, HPos::Right)?;
        bar(row.ours, y, OURS)?;
        let ceiling = left + length(row.ceiling);
        block(root, [(ceiling, y - 2), (ceiling + 2, y + height + 1)], CEILING)?;
        for (at, (rate, name, colour)) in row.peers.iter().enumerate() {
            let below = y + (at as i32 + 1) * BAR;
            bar(*rate, below, *colour)?;
            // The name, where it is not the row's.
            if !name.eq_ignore_ascii_case(row.format) {
                label(root, name, (left + length(*rate) + 24, below + BAR / 2), 9, &GREY, HPos::Left)?;
            }
        }
        y += height + GAP;
    }
    Ok(())
}
