//! The goals of docs/cuda.md, as far as the records of a folder tell.

use gristmill_records::bench::{GpuConversion, GpuProduct, Line};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// A goal, and the best or worst figure of the records that it is about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    pub goal: &'static str,
    /// `None` where no record is about it.
    pub measured: Option<f64>,
    pub reached: Option<bool>,
    /// Which record the figure is of.
    pub of: String,
}

impl Goal {
    pub fn cells(&self) -> [String; 4] {
        let reached = match self.reached {
            None => "not measured",
            Some(true) => "yes",
            Some(false) => "no",
        };
        let measured = self.measured.map_or("-".to_owned(), |figure| format!("{figure:.1}"));
        [self.goal.to_owned(), measured, reached.to_owned(), self.of.clone()]
    }
}

/// A goal, and what of a record it is about.
struct Asked {
    goal: &'static str,
    /// The figure must be at least this, or where `below`, less.
    bound: f64,
    below: bool,
    /// `None` of records that it is not about.
    figure: fn(&Line) -> Option<f64>,
}

/// A product with operands in `memory`.
fn product<'l>(line: &'l Line, memory: &str) -> Option<&'l GpuProduct> {
    match line {
        Line::GpuProduct(product) => Some(product).filter(|of| of.op == "matmul" && of.memory == memory),
        _ => None,
    }
}

/// The percentage of a copy's rate that a conversion with cold operands comes to.
fn converted(line: &Line, op: &str) -> Option<f64> {
    match line {
        Line::GpuConversion(of) if of.op == op && of.memory == "cold" => Some(of.percent_of_copy),
        _ => None,
    }
}

fn asked() -> Vec<Asked> {
    let at_least = |goal, bound, figure| Asked { goal, bound, below: false, figure };
    vec![
        at_least("one token, 13824x2560 and larger, cold: 85 % of the rate of a copy", 85.0, |line| {
            let large = |of: &&GpuProduct| of.m == 1 && of.n.saturating_mul(of.k) >= 13_824 * 2560;
            product(line, "cold").filter(large).map(|of| of.percent_of_copy)
        }),
        Asked {
            goal: "one token, 2560x2560, in a graph: under 3 us",
            bound: 3.0,
            below: true,
            figure: |line| {
                let hot = product(line, "hot").filter(|of| (of.m, of.n, of.k) == (1, 2560, 2560));
                hot.map(|of| of.seconds * 1e6)
            },
        },
        at_least("int8, 1024 tokens and more: 70 % of cuBLASLt's int8", 70.0, |line| {
            product(line, "hot").filter(|of| of.m >= 1024)?.percent_of_cublaslt_int8
        }),
        at_least("f16, 1024 tokens and more: 90 % of cuBLASLt's f16", 90.0, |line| {
            let in_f16 = |of: &&GpuProduct| of.m >= 1024 && of.kernel.contains("f16");
            product(line, "hot").filter(in_f16)?.percent_of_cublaslt_f16
        }),
        at_least("quantize: 85 % of the rate of a copy", 85.0, |line| converted(line, "quantize")),
        at_least("dequantize: 85 % of the rate of a copy", 85.0, |line| converted(line, "dequantize")),
    ]
}

/// The goals, by the records of `bench` in `folder`. Where several records are about one, the worst counts.
pub fn goals(folder: &Path) -> Vec<Goal> {
    let text = std::fs::read_to_string(folder.join("bench.json")).unwrap_or_default();
    let lines: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
    let lines: Vec<Line> = lines.into_iter().filter_map(|line| Line::read(line).ok()).collect();
    asked().iter().map(|asked| judged(asked, &lines)).collect()
}

fn judged(asked: &Asked, lines: &[Line]) -> Goal {
    let worse = |a: f64, b: f64| if asked.below { a.total_cmp(&b) } else { b.total_cmp(&a) };
    let figures = lines.iter().filter_map(|line| Some(((asked.figure)(line)?, line)));
    let Some((measured, line)) = figures.max_by(|a, b| worse(a.0, b.0)) else {
        return Goal { goal: asked.goal, measured: None, reached: None, of: String::new() };
    };
    let reached = if asked.below { measured < asked.bound } else { measured >= asked.bound };
    Goal { goal: asked.goal, measured: Some(measured), reached: Some(reached), of: named(line) }
}

/// The kernel and the work of a record.
fn named(line: &Line) -> String {
    match line {
        Line::GpuProduct(GpuProduct { kernel, m, n, k, .. }) => format!("{kernel} m={m} {n}x{k}"),
        Line::GpuConversion(GpuConversion { kernel, n, k, .. }) => format!("{kernel} {n}x{k}"),
        Line::Processor(_) | Line::Yardstick(_) | Line::Published(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_record_counts() {
        let record = |kernel: &str, m: u64, memory: &str, percent: f64, us: f64| {
            Line::GpuProduct(GpuProduct {
                at: None,
                compiler: None,
                op: "matmul".to_owned(),
                kernel: kernel.to_owned(),
                id: None,
                format: "i2_s".to_owned(),
                device: "cuda:0".to_owned(),
                machine: None,
                input: "f16".to_owned(),
                m,
                n: 2560,
                k: 2560,
                memory: memory.to_owned(),
                seconds: us / 1e6,
                rounds: Vec::new(),
                gmac_s: 1.0,
                gb_s: 1.0,
                copy_gb_s: 1.0,
                percent_of_copy: 1.0,
                file_bits_per_weight: 2.0,
                memory_bits_per_weight: 2.0,
                percent_of_cublaslt_int8: Some(percent),
                percent_of_cublaslt_f16: None,
            })
        };
        let records = [
            record("a", 1024, "hot", 90.0, 50.0),
            record("b", 2048, "hot", 60.0, 90.0),
            record("c", 1, "hot", 1.0, 2.5),
        ];
        let of = |goal: &str| {
            let all = asked();
            let asked = all.iter().find(|asked| asked.goal.contains(goal)).expect("a goal");
            judged(asked, &records)
        };
        let int8 = of("cuBLASLt's int8");
        assert_eq!(
            (int8.measured, int8.reached, int8.of.as_str()),
            (Some(60.0), Some(false), "b m=2048 2560x2560")
        );
        let token = of("under 3 us");
        assert!(
            (token.measured.unwrap_or(0.0) - 2.5).abs() < 1e-9 && token.reached == Some(true),
            "{token:?}"
        );
        assert_eq!(of("quantize: ").reached, None);
    }
}
