//! What others have published of the same products on other machines. Nothing here was measured by us; it stands beside our
//! figures so that nobody has to look it up.

use super::super::super::table::{Side, Table, measured};
use super::super::plan::{Measured, Plan};
use gristmill_records::bench::{self as records, Line};
use std::io::{self, Write};

/// A published time.
#[derive(Clone, Copy)]
pub struct Published {
    n: usize,
    k: usize,
    /// Microseconds of bitnet.cpp's kernel: two-bit weights, int8 activations, one token.
    w2a8: f64,
    /// Microseconds of a bf16 product of the same shape.
    bf16: f64,
}

/// Who, on what, and where it is to be read.
const BY: &str = "bitnet.cpp, W2A8 kernel";
const ON: &str = "A100 40GB";
const SOURCE: &str = "https://github.com/microsoft/BitNet/blob/main/gpu/README.md";

const fn of(n: usize, k: usize, w2a8: f64, bf16: f64) -> Published {
    Published { n, k, w2a8, bf16 }
}

const ALL: &[Published] = &[
    of(2560, 2560, 13.32, 18.32),
    of(3840, 2560, 14.90, 18.87),
    of(13_824, 2560, 18.75, 59.51),
    of(2560, 6912, 14.49, 37.78),
    of(20_480, 3200, 30.99, 112.39),
];

/// Those of the shapes that a plan measures for one token and ternary weights.
pub fn beside(plan: &Plan) -> Vec<Published> {
    let ternary = plan.formats.iter().any(|format| format.name == "i2_s");
    let wanted = ternary && plan.tokens.contains(&1) && plan.ops.contains(&Measured::MATMUL);
    let same = |published: &&Published| plan.shapes.contains(&(published.n, published.k));
    if wanted { ALL.iter().filter(same).copied().collect() } else { Vec::new() }
}

/// A line for each, marked as published.
pub fn lines(published: &[Published]) -> impl Iterator<Item = Line> {
    published.iter().map(|Published { n, k, w2a8, bf16 }| {
        Line::Published(records::Published {
            kernel: BY.to_owned(),
            published: true,
            source: SOURCE.to_owned(),
            device: ON.to_owned(),
            m: 1,
            n: *n as u64,
            k: *k as u64,
            seconds: w2a8 / 1e6,
            bf16_seconds: bf16 / 1e6,
        })
    })
}

/// A table of them, if there are any.
///
/// # Errors
/// Those of `out`.
pub fn print(published: &[Published], out: &mut dyn Write) -> io::Result<()> {
    if published.is_empty() {
        return Ok(());
    }
    writeln!(out, "\npublished by {BY}, on an {ON}; not measured here ({SOURCE}):")?;
    let mut table = Table::new(&[
        ("NxK", Side::Right),
        ("m", Side::Right),
        ("us", Side::Right),
        ("bf16 us", Side::Right),
    ]);
    for Published { n, k, w2a8, bf16 } in published {
        table.row([format!("{n}x{k}"), "1".to_owned(), measured(*w2a8), measured(*bf16)]);
    }
    table.print(out)
}
