//! A model file to a GGUF file.

use super::super::error::{CliError, Outcome};
use super::super::json::print_json;
use super::super::memory::Need;
use super::super::run::threads;
use super::super::table::{Side, Table, bytes, counted};
use super::super::{files, output, progress, request};
use super::arguments::Arguments;
use super::importance::{self, Weighing};
use gristmill::gguf::{GgufWriter, MAX_DIMS, TensorStream, TypeNumbers, Value};
use gristmill::registry::FormatInfo;
use gristmill::runtime::import::Tiled;
use gristmill::text::Printable;
use gristmill::weights_file::{SourceTensor, WeightFile};
use gristmill::{Dequantizer, Prepared, QuantizedMatrix, Quantizer, REGISTRY, Request, Shape, Threads};
use serde_json::json;
use std::io::Write;
use std::path::Path;

/// What becomes of a tensor.
#[derive(Clone, Copy)]
enum Fate {
    /// Rows and elements of a row.
    Quantize(usize, usize),
    /// Copied in this type, with so many bytes.
    Copy { type_id: u32, bytes: u64 },
    /// Not written, as was asked for.
    Leave,
}

/// Types of safetensors files that GGUF has too, with its ids.
const COPIED: [(&str, u32); 8] =
    [("F32", 0), ("F16", 1), ("BF16", 30), ("I8", 24), ("I16", 25), ("I32", 26), ("I64", 27), ("F64", 28)];

/// Tensors that are named in a refusal.
const NAMED: usize = 8;

/// How a quantized tensor differs from f32.
#[derive(Clone, Copy, Default)]
struct Difference {
    /// `sum((q - x)^2) / sum(x^2)`.
    nmse: f64,
    /// The same with each term times the importance of its column, where there is one.
    weighted: Option<f64>,
    /// Largest `|q - x|`.
    worst: f64,
}

struct Line {
    tensor: String,
    shape: String,
    type_name: String,
    bytes: u64,
    difference: Option<Difference>,
}

/// The kernels, and the threads they run on.
struct Work {
    format: &'static FormatInfo,
    quantize: Prepared,
    dequantize: Prepared,
    threads: Threads,
    types: TypeNumbers,
    weighing: Option<Weighing>,
}

pub fn run(arguments: &Arguments, output: &Path, out: &mut dyn Write) -> Result<Outcome, CliError> {
    if let Some(layout) = Tiled::from_name(&arguments.format) {
        return Err(CliError::usage(
            format!("{} is {}: it is read, not written", layout.name(), layout.doc()),
            "--format i2_s holds the same weights, and --tiles or --kernel-config reads a file of such tensors",
        ));
    }
    let format = request::format(&arguments.format)?;
    let Some(type_id) = format.gguf else {
        let known: Vec<&str> = REGISTRY.formats.iter().filter(|f| f.gguf.is_some()).map(|f| f.name).collect();
        return Err(CliError::usage(
            format!("format `{}` has no GGUF type id, so no GGUF file can hold it", format.name),
            format!(
                "formats with an id: {}; `quantize --raw` makes raw files of any format",
                known.join(", ")
            ),
        ));
    };
    let name = arguments.quantizer.as_deref();
    let mut work = Work {
        format,
        quantize: REGISTRY.prepare_from_env(&Request::quantize(format.name, name, 1, format.elements))?,
        dequantize: REGISTRY.prepare_from_env(&Request::dequantize(format.name, 1, format.elements))?,
        threads: Threads::new(threads(arguments.threads))?,
        types: arguments.types.numbers()?,
        weighing: None,
    };
    // Refused before anything is written.
    let kernel = work.quantize.decide_as_asked().kernel()?.name;
    output::spares(output, &[&arguments.input])?;
    if let Some(path) = &arguments.imatrix {
        output::spares(output, &[path])?;
        importance::taken_by(&Quantizer::new(&work.quantize.decide_as_asked())?)?;
    }
    let source = files::open_weights(&arguments.input, &work.types)?;
    let fates = fates(arguments, &source, format, &work.types)?;
    if !fates.iter().any(|(_, fate)| matches!(fate, Fate::Quantize(..))) {
        return Err(CliError::usage(
            format!(
                "`{}` holds no matrix whose rows are whole blocks of {}",
                arguments.input.display(),
                format.elements
            ),
            "choose a format with smaller blocks: `gristmill list` prints them",
        ));
    }
    if let Some(path) = &arguments.imatrix {
        let matrices = fates.iter().filter_map(|(tensor, fate)| match fate {
            Fate::Quantize(_, k) => Some((tensor.name(), *k)),
            Fate::Copy { .. } | Fate::Leave => None,
        });
        work.weighing = Some(Weighing::open(path, matrices)?);
    }
    for (tensor, fate) in &fates {
        if let Fate::Quantize(n, k) = *fate {
            // As f32, quantized, and back.
            let need = Need::new().and(&[n, k], 8).and(&[format.tensor_bytes(n, k)?], 1);
            let what = || format!("tensor `{}` ({n}x{k})", Printable(tensor.name()));
            need.check(what, "a tensor is quantized as a whole: free memory, or leave it out")?;
        }
    }
    let writer = declare(&source, &fates, &work, type_id)?;
    let bar = progress::bar(fates.len() as u64);
    let mut lines = Vec::new();
    writer.create(output, |stream| {
        for (tensor, fate) in &fates {
            progress::tensor(&bar, tensor.name());
            lines.push(one(&work, tensor, *fate, stream)?);
            bar.inc(1);
        }
        Ok::<(), CliError>(())
    })?;
    bar.finish_and_clear();
    report(arguments, output, kernel, &lines, out)
}

/// What becomes of each tensor.
///
/// # Errors
/// Where some can neither be quantized nor copied and nobody said to leave them out, or the file has no such tensor as was
/// to be left out.
fn fates<'s>(
    arguments: &Arguments,
    source: &'s WeightFile,
    format: &FormatInfo,
    types: &TypeNumbers,
) -> Result<Vec<(SourceTensor<'s>, Fate)>, CliError> {
    let known: Vec<&str> = source.tensors().map(|tensor| tensor.name()).collect();
    if let Some(unknown) = arguments.leave_out.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(CliError::usage(
            format!("`{}` has no tensor `{}`", arguments.input.display(), Printable(unknown)),
            "`gristmill inspect FILE` lists its tensors",
        ));
    }
    let (mut fates, mut refused) = (Vec::new(), Vec::new());
    for tensor in source.tensors() {
        if arguments.leave_out.iter().any(|name| name == tensor.name()) {
            fates.push((tensor, Fate::Leave));
            continue;
        }
        match fate(source, &tensor, format, types) {
            Ok(fate) => fates.push((tensor, fate)),
            Err(why) => refused.push(format!("`{}` ({why})", Printable(tensor.name()))),
        }
    }
    if refused.is_empty() {
        return Ok(fates);
    }
    let count = refused.len();
    let more = count.saturating_sub(NAMED);
    refused.truncate(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(CliError::usage(
        format!("{} can't be copied to GGUF: {}{more}", counted(count, "tensor"), refused.join(", ")),
        "--leave-out TENSOR writes the file without one; nothing was written",
    ))
}

/// What becomes of a tensor: matrices that fit are quantized, the rest is copied. The error says why it can't be.
fn fate(
    source: &WeightFile,
    tensor: &SourceTensor<'_>,
    format: &FormatInfo,
    types: &TypeNumbers,
) -> Result<Fate, String> {
    let is_matrix = |shape: &[u64]| match shape {
        [n, k] => Some((usize::try_from(*n).ok()?, usize::try_from(*k).ok()?)),
        _ => None,
    };
    // Without tile sizes they are copied as they are.
    let imported = tensor.gguf().is_some_and(|raw| {
        matches!(files::kind(types, &raw), files::Kind::Tiled(..))
            && files::matrix(raw.dims()).is_some_and(|(n, k)| types.tiles().of(n, k).is_ok())
    });
    if (tensor.dtype().is_some() || imported)
        && let Some((n, k)) = is_matrix(tensor.shape())
        && format.tensor_bytes(n, k).is_ok()
        && n > 0
        && k > 0
    {
        return Ok(Fate::Quantize(n, k));
    }
    if let Some(raw) = source.gguf().and_then(|file| file.tensor(tensor.name())) {
        return match raw.size() {
            Ok(bytes) => Ok(Fate::Copy { type_id: raw.type_id(), bytes }),
            Err(error) => Err(error.reason.to_string()),
        };
    }
    let Some((_, type_id)) = COPIED.iter().find(|(name, _)| *name == tensor.type_name()) else {
        return Err(format!("of type {}, which GGUF does not have", tensor.type_name()));
    };
    if tensor.shape().len() > MAX_DIMS as usize {
        return Err(format!("of {} dimensions, GGUF has {MAX_DIMS} at most", tensor.shape().len()));
    }
    let bytes = tensor.size().map_err(|error| error.to_string())?;
    Ok(Fate::Copy { type_id: *type_id, bytes })
}

fn declare(
    source: &WeightFile,
    fates: &[(SourceTensor<'_>, Fate)],
    work: &Work,
    type_id: u32,
) -> Result<GgufWriter, CliError> {
    let mut writer = GgufWriter::new();
    let weighed = work.weighing.is_some();
    match source.gguf() {
        // The file type said what most tensors were in, which is not so any more.
        Some(file) => writer.copy_metadata(file, |key| {
            key != "general.file_type" && !(weighed && key.starts_with(importance::KEYS))
        })?,
        None => {
            writer.metadata("general.architecture", Value::String("unknown"))?;
            if let Some(stem) = source.path().file_stem().and_then(|stem| stem.to_str()) {
                writer.metadata("general.name", Value::String(stem))?;
            }
        }
    }
    if let Some(weighing) = &work.weighing {
        weighing.declare(&mut writer)?;
    }
    for (tensor, fate) in fates {
        let dims: Vec<u64> = tensor.shape().iter().rev().copied().collect();
        match *fate {
            Fate::Quantize(n, k) => {
                writer.tensor(tensor.name(), &dims, type_id, work.format.tensor_bytes(n, k)? as u64)?;
            }
            Fate::Copy { type_id, bytes } => writer.tensor(tensor.name(), &dims, type_id, bytes)?,
            Fate::Leave => {}
        }
    }
    Ok(writer)
}

/// Bytes that are copied at once.
const PIECE: usize = 1 << 22;

fn one<W: Write>(
    work: &Work,
    tensor: &SourceTensor<'_>,
    fate: Fate,
    stream: &mut TensorStream<W>,
) -> Result<Line, CliError> {
    let shape: Vec<String> = tensor.shape().iter().map(u64::to_string).collect();
    let mut line = Line {
        tensor: tensor.name().to_owned(),
        shape: shape.join("x"),
        type_name: String::new(),
        bytes: 0,
        difference: None,
    };
    match fate {
        Fate::Leave => line.type_name = format!("left out ({})", tensor.type_name().to_lowercase()),
        Fate::Copy { bytes, .. } => {
            line.type_name = match tensor.gguf() {
                Some(raw) => format!("{} (copied)", work.types.name_of(&raw)),
                None => format!("{} (copied)", tensor.type_name().to_lowercase()),
            };
            line.bytes = bytes;
            // Both containers are little-endian.
            for start in (0..bytes).step_by(PIECE) {
                let piece = tensor.part(start, (bytes - start).min(PIECE as u64))?;
                stream.data(tensor.name(), &piece)?;
            }
        }
        Fate::Quantize(n, k) => {
            let values = values(work, tensor)?;
            let importance = work.weighing.as_ref().and_then(|weighing| weighing.of(tensor.name()));
            let quantized = quantize(work, &values, importance, n, k).map_err(|error| match error {
                CliError::Runtime(error) => CliError::usage(
                    format!("tensor `{}`: {error}", Printable(tensor.name())),
                    "another format or quantizer may take it",
                ),
                other => other,
            })?;
            stream.data(tensor.name(), &quantized)?;
            line.type_name = work.format.name.to_owned();
            line.bytes = quantized.len() as u64;
            line.difference = Some(difference(work, &values, importance, &quantized, n, k)?);
        }
    }
    Ok(line)
}

/// The weights of a tensor of floats, or of one in a layout that depends on tile sizes.
fn values(work: &Work, tensor: &SourceTensor<'_>) -> Result<Vec<f32>, CliError> {
    let Some(raw) = tensor.gguf() else { return Ok(tensor.to_f32()?) };
    let files::Kind::Tiled(layout, format) = files::kind(&work.types, &raw) else {
        return Ok(tensor.to_f32()?);
    };
    let read = work.types.import(&raw, layout)?;
    let matrix = read.matrix();
    let prepared = REGISTRY.prepare(&Request::dequantize(format.name, matrix.n(), matrix.k()))?;
    let mut values = vec![0.0; matrix.n() * matrix.k()];
    Dequantizer::new(&prepared.decide_as_asked())?.run_on(&matrix, &mut values, &work.threads)?;
    Ok(values)
}

fn quantize(
    work: &Work,
    values: &[f32],
    importance: Option<&[f32]>,
    n: usize,
    k: usize,
) -> Result<Vec<u8>, CliError> {
    let format = work.format;
    let kernel = Quantizer::new(&work.quantize.decide(Shape::matrix(n, k)))?;
    let mut bytes = vec![0; format.tensor_bytes(n, k)?];
    match importance {
        Some(importance) => kernel.run_weighted(values, importance, n, k, &mut bytes, &work.threads)?,
        None => kernel.run_on(values, n, k, &mut bytes, &work.threads)?,
    }
    Ok(bytes)
}

fn difference(
    work: &Work,
    values: &[f32],
    importance: Option<&[f32]>,
    quantized: &[u8],
    n: usize,
    k: usize,
) -> Result<Difference, CliError> {
    let kernel = Dequantizer::new(&work.dequantize.decide(Shape::matrix(n, k)))?;
    let mut back = vec![0.0; n * k];
    kernel.run_on(&QuantizedMatrix::new(work.format, n, k, quantized)?, &mut back, &work.threads)?;
    let (mut error, mut energy, mut worst) = (0.0, 0.0, 0f64);
    for (x, q) in values.iter().zip(&back) {
        let (x, q) = (f64::from(*x), f64::from(*q));
        error += (q - x) * (q - x);
        energy += x * x;
        worst = worst.max((q - x).abs());
    }
    let nmse = |error: f64, energy: f64| if error == 0.0 { 0.0 } else { error / energy };
    let weighted = importance.map(|importance| {
        let (mut error, mut energy) = (0.0, 0.0);
        for ((x, q), w) in values.iter().zip(&back).zip(importance.iter().cycle()) {
            let (x, q, w) = (f64::from(*x), f64::from(*q), f64::from(*w));
            error += w * (q - x) * (q - x);
            energy += w * x * x;
        }
        nmse(error, energy)
    });
    Ok(Difference { nmse: nmse(error, energy), weighted, worst })
}

fn report(
    arguments: &Arguments,
    output: &Path,
    kernel: &str,
    lines: &[Line],
    out: &mut dyn Write,
) -> Result<Outcome, CliError> {
    let total: u64 = lines.iter().map(|line| line.bytes).sum();
    if arguments.json {
        let value = json!({
            "output": output.display().to_string(),
            "format": arguments.format,
            "kernel": kernel,
            "bytes": total,
            "tensors": lines.iter().map(|line| json!({
                "tensor": line.tensor,
                "shape": line.shape,
                "type": line.type_name,
                "bytes": line.bytes,
                "nmse": line.difference.map(|difference| difference.nmse),
                "weighted_nmse": line.difference.and_then(|difference| difference.weighted),
                "max_error": line.difference.map(|difference| difference.worst),
            })).collect::<Vec<_>>(),
        });
        print_json(out, &value)?;
        return Ok(Outcome::Yes);
    }
    let weighed = arguments.imatrix.is_some();
    let mut columns = vec![
        ("tensor", Side::Left),
        ("shape", Side::Right),
        ("type", Side::Left),
        ("size", Side::Right),
        ("NMSE", Side::Right),
        ("max error", Side::Right),
    ];
    if weighed {
        columns.insert(5, ("weighted", Side::Right));
    }
    let mut table = Table::new(&columns);
    for line in lines {
        let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.2e}"));
        let mut cells = vec![
            line.tensor.clone(),
            line.shape.clone(),
            line.type_name.clone(),
            bytes(line.bytes),
            number(line.difference.map(|difference| difference.nmse)),
            number(line.difference.map(|difference| difference.worst)),
        ];
        if weighed {
            cells.insert(5, number(line.difference.and_then(|difference| difference.weighted)));
        }
        table.row(cells);
    }
    table.print(out)?;
    let quantized = lines.iter().filter(|line| line.difference.is_some()).count();
    let (tensors, size) = (counted(lines.len(), "tensor"), bytes(total));
    writeln!(out, "\n{}: {size}; {quantized} of {tensors} quantized by {kernel}", output.display())?;
    if let Some(imatrix) = &arguments.imatrix {
        let errors = "`weighted` is the NMSE with each column counted by its importance";
        writeln!(out, "errors weighed by {}; {errors}", imatrix.display())?;
        let without: Vec<&str> = lines
            .iter()
            .filter(|line| line.difference.is_some_and(|difference| difference.weighted.is_none()))
            .map(|line| line.tensor.as_str())
            .collect();
        if !without.is_empty() {
            writeln!(out, "{}", importance::without(&without))?;
        }
    }
    Ok(Outcome::Yes)
}
