//! Measurements of `gristmill bench --json`: an array of [`Line`]s.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A measurement on the processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// When, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// The processor, by the name that tuning files use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// What the kernel was compiled with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiler: Option<String>,
    /// The kernel's name.
    pub kernel: String,
    /// Its identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The weight format.
    pub format: String,
    /// The instruction set.
    #[serde(default)]
    pub isa: Option<String>,
    /// Tokens.
    pub m: u64,
    /// Rows of the weights.
    pub n: u64,
    /// Elements of a row.
    pub k: u64,
    /// Threads.
    pub threads: u64,
    /// `hot` or `cold` weights.
    pub memory: String,
    /// Whether quantizing the activations is part of the time; null for ops without activations.
    #[serde(default)]
    pub includes_activation_quantization: Option<bool>,
    /// Median microseconds.
    pub us: f64,
    /// Medians of the rounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds_us: Vec<f64>,
    /// 1e9 multiply-accumulates a second; null where nothing is multiplied.
    #[serde(default)]
    pub gmac_s: Option<f64>,
    /// 1e9 bytes a second.
    pub gb_s: f64,
    /// The ceiling: `read` or `multiply`.
    #[serde(default)]
    pub ceiling: Option<String>,
    /// Percent of it.
    #[serde(default)]
    pub percent: Option<f64>,
    /// Bits of a weight in a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bits_per_weight: Option<f64>,
    /// Bits of a weight in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bits_per_weight: Option<f64>,
}

/// A product on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuProduct {
    /// When, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// What the program was compiled with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiler: Option<String>,
    /// `matmul`.
    pub op: String,
    /// The kernel's name.
    pub kernel: String,
    /// Its identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The weight format.
    pub format: String,
    /// `cuda:0`.
    pub device: String,
    /// The device's name, compute capability and driver, as tuning files have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Type of the activations.
    pub input: String,
    /// Tokens.
    pub m: u64,
    /// Rows of the weights.
    pub n: u64,
    /// Elements of a row.
    pub k: u64,
    /// `hot` or `cold` operands.
    pub memory: String,
    /// Median seconds by the device's clock, what is done to the activations included.
    pub seconds: f64,
    /// Seconds of each round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<f64>,
    /// 1e9 multiply-accumulates a second.
    pub gmac_s: f64,
    /// 1e9 bytes of weights as in a file a second.
    pub gb_s: f64,
    /// 1e9 bytes a second of a copy on the device, read and written.
    pub copy_gb_s: f64,
    /// Percent of it.
    pub percent_of_copy: f64,
    /// Bits of a weight in a file.
    pub file_bits_per_weight: f64,
    /// Bits of a weight on the device.
    pub memory_bits_per_weight: f64,
    /// Percent of cuBLASLt's int8 rate, where that was measured.
    pub percent_of_cublaslt_int8: Option<f64>,
    /// Percent of its f16 rate.
    pub percent_of_cublaslt_f16: Option<f64>,
}

/// Quantizing or dequantizing on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuConversion {
    /// When, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// What the program was compiled with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiler: Option<String>,
    /// `quantize` or `dequantize`.
    pub op: String,
    /// The kernel's name.
    pub kernel: String,
    /// Its identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The weight format.
    pub format: String,
    /// `cuda:0`.
    pub device: String,
    /// As of a product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Rows.
    pub n: u64,
    /// Elements of a row.
    pub k: u64,
    /// `hot` or `cold` operands.
    pub memory: String,
    /// Median seconds of a launch with both operands on the device.
    pub seconds: f64,
    /// Seconds of each round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<f64>,
    /// 1e9 bytes a second, read and written.
    pub gb_s: f64,
    /// 1e9 bytes a second of a copy on the device.
    pub copy_gb_s: f64,
    /// Percent of it.
    pub percent_of_copy: f64,
    /// Median seconds with both operands in the processor's memory.
    pub seconds_with_copies: f64,
    /// The processor's kernel.
    pub cpu_kernel: String,
    /// Its seconds, on one thread.
    pub cpu_seconds: f64,
    /// How many times as fast the device is.
    pub times_cpu: f64,
    /// The same with copies.
    pub times_cpu_with_copies: f64,
}

/// A product of cuBLASLt beside ours, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Yardstick {
    /// `cublaslt.int8` or `cublaslt.f16`; `cublaslt` where the library is not there.
    pub kernel: String,
    /// Always true: it tells these lines from others.
    pub yardstick: bool,
    /// `cuda:0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub m: Option<u64>,
    /// Rows of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Elements of a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k: Option<u64>,
    /// `hot` or `cold` operands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Median seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// 1e9 multiply-accumulates a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gmac_s: Option<f64>,
    /// 1e9 bytes of weights a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gb_s: Option<f64>,
    /// Why it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// A time that somebody published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// Whose.
    pub kernel: String,
    /// Always true: it tells these lines from others.
    pub published: bool,
    /// Where it is to be read.
    pub source: String,
    /// On what.
    pub device: String,
    /// Tokens.
    pub m: u64,
    /// Rows of the weights.
    pub n: u64,
    /// Elements of a row.
    pub k: u64,
    /// Seconds.
    pub seconds: f64,
    /// Seconds of a bf16 product of the same shape.
    pub bf16_seconds: f64,
}

/// An element of the array.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Line {
    /// On the processor.
    Processor(Measurement),
    /// A product on a GPU.
    GpuProduct(GpuProduct),
    /// A conversion on a GPU.
    GpuConversion(GpuConversion),
    /// cuBLASLt.
    Yardstick(Yardstick),
    /// Somebody else's.
    Published(Published),
}

impl Line {
    /// Reads an element, by what tells the kinds apart.
    ///
    /// # Errors
    /// As for [`read`](crate::read).
    pub fn read(value: Value) -> Result<Line, String> {
        let is = |name: &str| value.get(name).and_then(Value::as_bool) == Some(true);
        let on_gpu = value.get("device").is_some();
        let op = value.get("op").and_then(Value::as_str).map(str::to_owned);
        match (on_gpu, op.as_deref()) {
            _ if is("yardstick") => crate::read(value).map(Line::Yardstick),
            _ if is("published") => crate::read(value).map(Line::Published),
            (false, _) => crate::read(value).map(Line::Processor),
            (true, Some("quantize" | "dequantize")) => crate::read(value).map(Line::GpuConversion),
            (true, _) => crate::read(value).map(Line::GpuProduct),
        }
    }

    /// Reads the array of a whole run.
    ///
    /// # Errors
    /// The number of the element, from 0, and what is wrong with it.
    pub fn read_all(value: Value) -> Result<Vec<Line>, String> {
        let Value::Array(lines) = value else { return Err("it is not an array".to_owned()) };
        let read = |(index, line)| Line::read(line).map_err(|why| format!("record {index}: {why}"));
        lines.into_iter().enumerate().map(read).collect()
    }
}

impl Measurement {
    /// Its percentage, where it is one.
    pub fn usable_percent(&self) -> Option<f64> {
        self.percent.filter(|percent| is_part(*percent))
    }

    /// What is wrong with its numbers, if something is.
    ///
    /// # Errors
    /// The field, and what it would have to be.
    pub fn check(&self) -> Result<(), String> {
        check_time("us", self.us)?;
        self.rounds_us.iter().try_for_each(|us| check_time("rounds_us", *us))
    }
}

/// Whether a percentage is a part of a ceiling: of what stays in caches, memory is none.
pub fn is_part(percent: f64) -> bool {
    percent > 0.0 && percent <= 100.0
}

/// # Errors
/// If it is no time.
pub(crate) fn check_time(field: &str, time: f64) -> Result<(), String> {
    match time.is_finite() && time > 0.0 {
        true => Ok(()),
        false => Err(format!("`{field}`: {time}, expected a time above 0")),
    }
}

impl Line {
    /// What is wrong with its numbers, if something is.
    ///
    /// # Errors
    /// As for [`Measurement::check`].
    pub fn check(&self) -> Result<(), String> {
        let (seconds, rounds) = match self {
            Line::Processor(measurement) => return measurement.check(),
            Line::GpuProduct(product) => (product.seconds, &product.rounds),
            Line::GpuConversion(conversion) => (conversion.seconds, &conversion.rounds),
            Line::Yardstick(_) | Line::Published(_) => return Ok(()),
        };
        check_time("seconds", seconds)?;
        rounds.iter().try_for_each(|seconds| check_time("rounds", *seconds))
    }
}
