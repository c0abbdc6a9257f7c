//! The goals of docs/cuda.md, as far as the records of a folder tell.

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

/// Which records a goal is about: op, and what must hold of (m, n, k).
struct Asked {
    goal: &'static str,
    key: &'static str,
    /// The figure must be at least this, or where `below`, less.
    bound: f64,
    below: bool,
    about: fn(&Value) -> bool,
}

fn number(record: &Value, key: &str) -> u64 {
    record[key].as_u64().unwrap_or(0)
}

fn is(record: &Value, op: &str, memory: &str) -> bool {
    record["op"] == op && record["memory"] == memory
}

fn asked() -> Vec<Asked> {
    let at_least = |goal, key, bound, about| Asked { goal, key, bound, below: false, about };
    vec![
        at_least(
            "one token, 13824x2560 and larger, cold: 85 % of the rate of a copy",
            "percent_of_copy",
            85.0,
            |r| {
                is(r, "matmul", "cold")
                    && number(r, "m") == 1
                    && number(r, "n") * number(r, "k") >= 13_824 * 2560
            },
        ),
        Asked {
            goal: "one token, 2560x2560, in a graph: under 3 us",
            key: "us",
            bound: 3.0,
            below: true,
            about: |r| {
                is(r, "matmul", "hot") && (number(r, "m"), number(r, "n"), number(r, "k")) == (1, 2560, 2560)
            },
        },
        at_least(
            "int8, 1024 tokens and more: 70 % of cuBLASLt's int8",
            "percent_of_cublaslt_int8",
            70.0,
            |r| is(r, "matmul", "hot") && number(r, "m") >= 1024,
        ),
        at_least("f16, 1024 tokens and more: 90 % of cuBLASLt's f16", "percent_of_cublaslt_f16", 90.0, |r| {
            let kernel = r["kernel"].as_str().unwrap_or_default();
            is(r, "matmul", "hot") && number(r, "m") >= 1024 && kernel.contains("f16")
        }),
        at_least("quantize: 85 % of the rate of a copy", "percent_of_copy", 85.0, |r| {
            is(r, "quantize", "cold")
        }),
        at_least("dequantize: 85 % of the rate of a copy", "percent_of_copy", 85.0, |r| {
            is(r, "dequantize", "cold")
        }),
    ]
}

/// The goals, by the records of `bench` in `folder`. Where several records are about one, the worst counts.
pub fn goals(folder: &Path) -> Vec<Goal> {
    let text = std::fs::read_to_string(folder.join("bench.json")).unwrap_or_default();
    let records: Value = serde_json::from_str(&text).unwrap_or_default();
    asked().iter().map(|asked| judged(asked, records.as_array().map_or(&[][..], Vec::as_slice))).collect()
}

fn judged(asked: &Asked, records: &[Value]) -> Goal {
    let figure = |record: &Value| match asked.key {
        "us" => record["seconds"].as_f64().map(|seconds| seconds * 1e6),
        key => record[key].as_f64(),
    };
    let worse = |a: f64, b: f64| if asked.below { a.total_cmp(&b) } else { b.total_cmp(&a) };
    let about = records.iter().filter(|record| (asked.about)(record));
    let worst = about.filter_map(|record| Some((figure(record)?, record))).max_by(|a, b| worse(a.0, b.0));
    let Some((measured, record)) = worst else {
        return Goal { goal: asked.goal, measured: None, reached: None, of: String::new() };
    };
    let reached = if asked.below { measured < asked.bound } else { measured >= asked.bound };
    let tokens = record["m"].as_u64().map_or(String::new(), |m| format!(" m={m}"));
    let kernel = record["kernel"].as_str().unwrap_or_default();
    let of = format!("{kernel}{tokens} {}x{}", record["n"], record["k"]);
    Goal { goal: asked.goal, measured: Some(measured), reached: Some(reached), of }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_worst_record_counts() {
        let record = |kernel: &str, m: u64, memory: &str, percent: f64, us: f64| {
            json!({"op": "matmul", "kernel": kernel, "m": m, "n": 2560, "k": 2560, "memory": memory,
                   "percent_of_cublaslt_int8": percent, "seconds": us / 1e6})
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
