//! `gristmill inspect`: what is in a model file.

use super::error::{CliError, Outcome};
use super::files::{self, Decided, Kind};
use super::json::print_json;
use super::table::{Side, Table, by_reason, bytes, counted};
use gristmill::REGISTRY;
use gristmill::gguf::{GgufFile, Tensor, TypeNumbers, Value};
use gristmill::oracle::{BadScale, FormatOracle, Oracle};
use gristmill::text::Printable;
use gristmill::weights_file::{SourceTensor, WeightFile};
use gristmill_records::inspect::{self as record, Metadata, MetadataArray};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// Show the tensors of a GGUF or safetensors file, or the values of one
///
/// Exits with 1 if the data of the tensor that is named are defective: a scale that is NaN or infinite, a quantized weight beyond f32, a
/// code without a meaning.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// GGUF or safetensors file
    pub(super) file: PathBuf,
    /// Tensor whose values, scales and invalid codes to show
    tensor: Option<String>,
    /// Print every metadata entry (GGUF)
    #[arg(long)]
    metadata: bool,
    #[command(flatten)]
    types: files::TypeArguments,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Values shown of a tensor, and elements shown of an array.
const SHOWN: usize = 16;

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let types = arguments.types.numbers()?;
    let file = files::open_weights(&arguments.file, &types)?;
    match &arguments.tensor {
        Some(name) => {
            let Some(tensor) = file.tensor(name) else {
                let known: Vec<String> = file.tensors().map(|tensor| tensor.name().to_owned()).collect();
                let nearest = super::request::nearest(name, known.iter().map(String::as_str));
                let meant = nearest
                    .map_or(String::new(), |nearest| format!(" (did you mean `{}`?)", Printable(nearest)));
                return Err(CliError::usage(
                    format!("`{}` has no tensor `{}`{meant}", arguments.file.display(), Printable(name)),
                    "`gristmill inspect FILE` lists its tensors",
                ));
            };
            let seen = look(&types, &tensor)?;
            if arguments.json {
                print_json(out, &seen.json(&tensor))?
            } else {
                seen.print(&tensor, out)?
            }
            if seen.is_defective() {
                return Ok(Outcome::Failed);
            }
        }
        None if arguments.json => list_json(&file, &types, out)?,
        None => list(arguments, &file, &types, out)?,
    }
    Ok(Outcome::Yes)
}

/// Type and size of a tensor, as far as they are known.
fn type_and_size(types: &TypeNumbers, tensor: &SourceTensor<'_>) -> (String, Option<u64>) {
    match tensor.gguf() {
        Some(raw) => (types.name_of(&raw), raw.size().ok()),
        None => {
            // The file says where its data end, whatever the type.
            (tensor.type_name().to_lowercase(), tensor.size().ok())
        }
    }
}

fn shape(tensor: &SourceTensor<'_>) -> String {
    tensor.shape().iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}

fn list(
    arguments: &Arguments,
    file: &WeightFile,
    types: &TypeNumbers,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    if let Some(gguf) = file.gguf() {
        header(arguments, gguf, out)?;
    }
    let mut table = Table::new(&[
        ("tensor", Side::Left),
        ("type", Side::Left),
        ("shape", Side::Right),
        ("size", Side::Right),
    ]);
    let (mut count, mut total) = (0, 0u64);
    let (mut decided, mut unknown) = (Decided::default(), Vec::new());
    for tensor in file.tensors() {
        let (type_name, size) = type_and_size(types, &tensor);
        count += 1;
        total = total.saturating_add(size.unwrap_or(0));
        if let Some(raw) = tensor.gguf() {
            decided.add(types, &raw);
            if let Some(why) = why_unknown(types, &raw) {
                unknown.push((tensor.name().to_owned(), why));
            }
        }
        let size = size.map_or_else(|| "unknown".to_owned(), bytes);
        table.row([tensor.name().to_owned(), type_name, shape(&tensor), size]);
    }
    table.print(out)?;
    writeln!(out, "\n{}, {}", counted(count, "tensor"), bytes(total))?;
    decided.print(types, out)?;
    if let Some(gguf) = file.gguf() {
        files::print_transforms(gguf, out)?;
    }
    for line in by_reason(unknown.iter().map(|(name, why)| (name.as_str(), why.as_str())), SHOWN) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Why the type or the size of a tensor is not known; `None` where both are.
fn why_unknown(types: &TypeNumbers, tensor: &Tensor<'_>) -> Option<String> {
    match types.of(tensor) {
        Err(_) => Some(files::why_other(types, tensor)),
        Ok(_) => tensor.size().err().map(|error| error.reason.to_string()),
    }
}

fn header(arguments: &Arguments, gguf: &GgufFile, out: &mut dyn Write) -> Result<(), CliError> {
    let entries = gguf.metadata().len();
    let entries =
        if entries == 1 { "1 metadata entry".to_owned() } else { format!("{entries} metadata entries") };
    let architecture = gguf.architecture().unwrap_or("no architecture stated");
    let file_type = gguf.file_type().map_or(String::new(), |id| format!(", file type {id}"));
    let (version, alignment) = (gguf.version(), gguf.alignment());
    let architecture = Printable(architecture);
    writeln!(out, "GGUF version {version}: {architecture}{file_type}, {entries}, alignment {alignment}")?;
    if arguments.metadata {
        for (key, value) in gguf.metadata() {
            writeln!(out, "  {} = {}", Printable(key), shown(&value))?;
        }
    }
    writeln!(out)?;
    Ok(())
}

/// A metadata value for people: long strings and arrays are cut.
fn shown(value: &Value<'_>) -> String {
    match value {
        Value::String(text) if text.chars().count() > 80 => {
            format!("{:?}...", text.chars().take(80).collect::<String>())
        }
        Value::String(text) => format!("{text:?}"),
        Value::Array(array) => {
            let items: Vec<String> =
                array.elements().take(SHOWN).filter_map(Result::ok).map(|v| shown(&v)).collect();
            let more = if array.len() > SHOWN as u64 { ", ..." } else { "" };
            format!("[{}{more}] ({} of {})", items.join(", "), array.len(), array.element_type())
        }
        Value::U8(v) => v.to_string(),
        Value::I8(v) => v.to_string(),
        Value::U16(v) => v.to_string(),
        Value::I16(v) => v.to_string(),
        Value::U32(v) => v.to_string(),
        Value::I32(v) => v.to_string(),
        Value::U64(v) => v.to_string(),
        Value::I64(v) => v.to_string(),
        Value::F32(v) => v.to_string(),
        Value::F64(v) => v.to_string(),
        Value::Bool(v) => v.to_string(),
    }
}

/// A metadata value as JSON has it: of an array its type, its length and its first elements.
fn metadata(value: &Value<'_>) -> Metadata {
    match value {
        Value::String(text) => Metadata::Text((*text).to_owned()),
        Value::Array(array) => Metadata::Array(MetadataArray {
            of: array.element_type().to_string(),
            length: array.len(),
            first: array.elements().take(SHOWN).filter_map(Result::ok).map(|of| metadata(&of)).collect(),
        }),
        Value::U8(v) => Metadata::Unsigned((*v).into()),
        Value::I8(v) => Metadata::Signed((*v).into()),
        Value::U16(v) => Metadata::Unsigned((*v).into()),
        Value::I16(v) => Metadata::Signed((*v).into()),
        Value::U32(v) => Metadata::Unsigned((*v).into()),
        Value::I32(v) => Metadata::Signed((*v).into()),
        Value::U64(v) => Metadata::Unsigned(*v),
        Value::I64(v) => Metadata::Signed(*v),
        Value::F32(v) => float((*v).into()),
        Value::F64(v) => float(*v),
        Value::Bool(v) => Metadata::Bool(*v),
    }
}

/// JSON has no numbers that are not finite.
fn float(value: f64) -> Metadata {
    Metadata::Float(Some(value).filter(|value| value.is_finite()))
}

fn list_json(file: &WeightFile, types: &TypeNumbers, out: &mut dyn Write) -> Result<(), CliError> {
    let tensor = |tensor: SourceTensor<'_>| {
        let (type_name, bytes) = type_and_size(types, &tensor);
        let raw = tensor.gguf();
        record::Tensor {
            tensor: tensor.name().to_owned(),
            type_name,
            shape: tensor.shape().to_vec(),
            bytes,
            type_number: raw.map(|raw| raw.type_id()),
            type_decided_by: raw.and_then(|raw| files::decided_by(types, &raw)).map(str::to_owned),
            unknown: raw.and_then(|raw| why_unknown(types, &raw)),
        }
    };
    let inspected = record::File {
        tensors: file.tensors().map(tensor).collect(),
        metadata: file
            .gguf()
            .map(|gguf| gguf.metadata().map(|(key, value)| (key.to_owned(), metadata(&value))).collect()),
        transform: file.gguf().and_then(files::transforms_json),
    };
    print_json(out, &inspected)
}

/// What `inspect --json` prints of a tensor.
#[derive(Serialize)]
struct SeenTensor<'a> {
    tensor: &'a str,
    #[serde(rename = "type")]
    type_name: &'a str,
    shape: &'a [u64],
    bytes: Option<u64>,
    /// The first values of the tensor.
    first: &'a [f32],
    values: u64,
    zeros: u64,
    non_finite: u64,
    /// Of the values that are finite, as `max` and both means.
    min: Option<f32>,
    max: Option<f32>,
    mean: f64,
    mean_magnitude: f64,
    min_scale: Option<f32>,
    max_scale: Option<f32>,
    rows_with_bad_scales: u64,
    first_bad_scale: Option<String>,
    invalid_codes: u64,
}

/// What the values of a tensor are like.
#[derive(Default)]
struct Seen {
    type_name: String,
    size: Option<u64>,
    first: Vec<f32>,
    count: u64,
    zeros: u64,
    non_finite: u64,
    least: Option<f32>,
    greatest: Option<f32>,
    sum: f64,
    sum_of_magnitudes: f64,
    /// Smallest and largest scale of those that are finite.
    scales: Option<(f32, f32)>,
    /// Rows with a scale that is NaN or infinite.
    bad_rows: u64,
    first_bad: Option<BadScale>,
    invalid: u64,
    first_invalid: Option<(usize, usize)>,
    /// Whether the values are decoded from blocks.
    quantized: bool,
}

impl Seen {
    fn add(&mut self, values: &[f32]) {
        let room = SHOWN - self.first.len().min(SHOWN);
        self.first.extend(values.iter().take(room));
        for &value in values {
            self.count += 1;
            self.zeros += u64::from(value == 0.0);
            if !value.is_finite() {
                self.non_finite += 1;
                continue;
            }
            self.least = Some(self.least.map_or(value, |least| least.min(value)));
            self.greatest = Some(self.greatest.map_or(value, |greatest| greatest.max(value)));
            self.sum += f64::from(value);
            self.sum_of_magnitudes += f64::from(value.abs());
        }
    }

    /// Whether its data are no weights, as `run` says it. Numbers that are not quantized may be infinite on purpose.
    fn is_defective(&self) -> bool {
        self.bad_rows > 0 || self.invalid > 0 || (self.quantized && self.non_finite > 0)
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / (self.count - self.non_finite).max(1) as f64
    }

    fn print(&self, tensor: &SourceTensor<'_>, out: &mut dyn Write) -> Result<(), CliError> {
        let size = self.size.map_or_else(|| "size unknown".to_owned(), bytes);
        writeln!(out, "{}: {} {}, {size}", Printable(tensor.name()), self.type_name, shape(tensor))?;
        let first: Vec<String> = self.first.iter().map(f32::to_string).collect();
        let more = if self.count > self.first.len() as u64 { " ..." } else { "" };
        writeln!(out, "  first values    {}{more}", first.join(" "))?;
        if let (Some(least), Some(greatest)) = (self.least, self.greatest) {
            writeln!(out, "  range           {least} to {greatest}")?;
            let (mean, magnitude) = (self.mean(self.sum), self.mean(self.sum_of_magnitudes));
            writeln!(out, "  mean            {mean:.6}, of magnitudes {magnitude:.6}")?;
        }
        let percent = 100.0 * self.zeros as f64 / self.count.max(1) as f64;
        writeln!(out, "  zeros           {} of {} ({percent:.1} %)", self.zeros, self.count)?;
        if let Some((least, greatest)) = self.scales {
            writeln!(out, "  scales          {least} to {greatest}")?;
        }
        if let Some(bad) = &self.first_bad {
            let rows = counted(usize::try_from(self.bad_rows).unwrap_or(usize::MAX), "row");
            writeln!(out, "  bad scales      in {rows}, the first at {bad}")?;
        }
        if self.non_finite > 0 {
            writeln!(out, "  not finite      {}", self.non_finite)?;
        }
        if let Some((row, column)) = self.first_invalid {
            writeln!(out, "  invalid codes   {}, the first at row {row}, column {column}", self.invalid)?;
        }
        Ok(())
    }

    fn json<'a>(&'a self, tensor: &'a SourceTensor<'_>) -> SeenTensor<'a> {
        SeenTensor {
            tensor: tensor.name(),
            type_name: &self.type_name,
            shape: tensor.shape(),
            bytes: self.size,
            first: &self.first,
            values: self.count,
            zeros: self.zeros,
            non_finite: self.non_finite,
            min: self.least,
            max: self.greatest,
            mean: self.mean(self.sum),
            mean_magnitude: self.mean(self.sum_of_magnitudes),
            min_scale: self.scales.map(|scales| scales.0),
            max_scale: self.scales.map(|scales| scales.1),
            rows_with_bad_scales: self.bad_rows,
            first_bad_scale: self.first_bad.as_ref().map(ToString::to_string),
            invalid_codes: self.invalid,
        }
    }
}

/// Values that are converted at once.
const PIECE: usize = 1 << 18;

fn look(types: &TypeNumbers, tensor: &SourceTensor<'_>) -> Result<Seen, CliError> {
    let (type_name, size) = type_and_size(types, tensor);
    let mut seen = Seen { type_name, size, ..Seen::default() };
    if tensor.dtype().is_some() {
        let mut start = 0;
        let mut values = vec![0.0; PIECE];
        while start < tensor.elements() {
            let count = (tensor.elements() - start).min(PIECE as u64);
            let piece = &mut values[..count as usize];
            tensor.read_f32(start, piece)?;
            seen.add(piece);
            start += count;
        }
        return Ok(seen);
    }
    let raw = tensor.gguf();
    let kind = raw.as_ref().map(|raw| files::kind(types, raw));
    if let (Some(raw), Some(Kind::Tiled(layout, format))) = (&raw, kind) {
        if let Some(why) =
            files::matrix(raw.dims()).and_then(|(n, k)| files::not_imported(types, layout, n, k))
        {
            return Err(CliError::usage(
                format!("tensor `{}`: {why}", Printable(tensor.name())),
                "without a name, `gristmill inspect FILE` lists the tensors",
            ));
        }
        let read = types.import(raw, layout)?;
        let oracle = Oracle::new(&REGISTRY)?;
        let matrix = read.matrix();
        quantized(&mut seen, matrix.data(), (matrix.n(), matrix.k()), &oracle.format(format.name)?)?;
        return Ok(seen);
    }
    let (Some(raw), Some(Kind::Format(format))) = (&raw, kind) else {
        let why = raw
            .as_ref()
            .map_or_else(|| "it is no type of weights".to_owned(), |raw| files::why_other(types, raw));
        return Err(CliError::usage(
            format!("tensor `{}` is of type {}: {why}", Printable(tensor.name()), seen.type_name),
            "values can be shown of f32, f16, bf16 and the formats of `gristmill list`",
        ));
    };
    let oracle = Oracle::new(&REGISTRY)?;
    if let Some(shape) = files::matrix(raw.dims()) {
        quantized(&mut seen, &raw.data()?, shape, &oracle.format(format.name)?)?;
    }
    Ok(seen)
}

/// Row by row through the oracle, which needs no kernel and goes on behind an invalid code.
fn quantized(
    seen: &mut Seen,
    data: &[u8],
    (n, k): (usize, usize),
    oracle: &FormatOracle<'_>,
) -> Result<(), CliError> {
    // A file may declare any number of rows without columns: they take no bytes.
    seen.quantized = true;
    let rows = if k == 0 { 0 } else { n };
    for row in 0..rows {
        let (blocks, outer) = oracle.blocks(data, n, k, row)?;
        if let Some(bad) = oracle.bad_scale(data, n, k, row)? {
            seen.bad_rows += 1;
            seen.first_bad.get_or_insert(bad);
        }
        for scale in oracle.scales(blocks, outer).into_iter().filter(|scale| scale.is_finite()) {
            seen.scales =
                Some(seen.scales.map_or((scale, scale), |(least, most)| (least.min(scale), most.max(scale))));
        }
        match oracle.decode(blocks, outer) {
            Ok(row) => seen.add(&row.f32s),
            Err(_) => {
                let invalid = oracle.invalid_codes(blocks);
                seen.invalid += invalid.len() as u64;
                seen.first_invalid = seen.first_invalid.or(invalid.first().map(|column| (row, *column)));
            }
        }
    }
    Ok(())
}
