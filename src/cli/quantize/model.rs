//! A model file to a GGUF file.

use super::super::environment::Environment;
use super::super::error::{CliError, Outcome};
use super::super::json::print_json;
use super::super::memory::Need;
use super::super::run::threads;
use super::super::table::{Side, Table, by_reason, bytes, counted};
use super::super::{files, progress, request};
use super::arguments::Arguments;
use super::fate::{self, Fate, Sizes};
use super::importance::{self, Weighing};
use gristmill::gguf::{GgufWriter, TensorStream, TypeNumbers, Value};
use gristmill::registry::FormatInfo;
use gristmill::runtime::import::Tiled;
use gristmill::text::Printable;
use gristmill::weights_file::{SourceTensor, WeightFile};
use gristmill::{Dequantizer, Prepared, QuantizedMatrix, Quantizer, REGISTRY, Request, Shape, Threads};
use gristmill_records::quantize::{Quantized, Tensor};
use std::io::Write;
use std::path::Path;

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
    /// Matrices that were quantized, and how many of them without importance.
    matrices: usize,
    without: usize,
    /// Why weights were not quantized.
    why_copied: Option<String>,
}

impl Line {
    /// As JSON has it. `weighed`: there is importance of some matrices.
    fn record(&self, weighed: bool) -> Tensor {
        Tensor {
            tensor: self.tensor.clone(),
            shape: self.shape.clone(),
            type_name: self.type_name.clone(),
            bytes: self.bytes,
            nmse: self.difference.map(|difference| difference.nmse),
            weighted_nmse: self.difference.and_then(|difference| difference.weighted),
            max_error: self.difference.map(|difference| difference.worst),
            matrices: self.matrices as u64,
            without_importance: weighed.then_some(self.without as u64),
            why_copied: self.why_copied.clone(),
        }
    }
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
        let raw = match format.quantizers.is_empty() {
            true => "nothing quantizes to this one, which is only read",
            false => "`quantize --raw` makes raw files of this one too",
        };
        return Err(CliError::usage(
            format!("format `{}` has no GGUF type id, so no GGUF file can hold it", format.name),
            format!("formats with an id: {}; {raw}", known.join(", ")),
        ));
    };
    let name = arguments.quantizer.as_deref();
    let environment = Environment::read()?;
    let mut work = Work {
        format,
        quantize: environment.prepare(&Request::quantize(format.name, name, 1, format.elements))?,
        dequantize: environment.prepare(&Request::dequantize(format.name, 1, format.elements))?,
        threads: Threads::new(threads(arguments.threads))?,
        types: arguments.types.numbers()?,
        weighing: None,
    };
    // Refused before anything is written.
    let kernel = work.quantize.decide_as_asked().kernel()?.name;
    if arguments.imatrix.is_some() {
        importance::taken_by(&Quantizer::new(&work.quantize.decide_as_asked())?)?;
    }
    let source = files::open_weights(&arguments.input, &work.types)?;
    let fates = fate::all(arguments, &source, format, &work.types)?;
    fate::some_quantized(arguments, &fates, format)?;
    if let Some(path) = &arguments.imatrix {
        let matrices = fates.iter().filter_map(|(tensor, fate)| match fate {
            Fate::Quantize(sizes) => Some((tensor.name(), sizes.matrices, sizes.k)),
            Fate::Copy { .. } | Fate::Leave => None,
        });
        work.weighing = Some(Weighing::open(path, matrices)?);
    }
    for (tensor, fate) in &fates {
        if let &Fate::Quantize(Sizes { matrices, n, k }) = fate {
            // As f32, quantized, and back.
            let need = Need::new().and(&[matrices, n, k], 8).and(&[format.tensor_bytes(matrices * n, k)?], 1);
            let what = || format!("tensor `{}` ({})", Printable(tensor.name()), shape(tensor));
            need.check(what, "a tensor is quantized as a whole: free memory, or leave it out")?;
        }
    }
    let writer = declare(&source, &fates, &work, type_id)?;
    let bar = progress::bar(fates.len() as u64);
    let mut lines = Vec::new();
    writer.create(output, |stream| {
        for (tensor, fate) in &fates {
            progress::tensor(&bar, tensor.name());
            lines.push(one(&work, tensor, fate, stream)?);
            bar.inc(1);
        }
        Ok::<(), CliError>(())
    })?;
    bar.finish_and_clear();
    report(arguments, output, kernel, &lines, out)
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
            Fate::Quantize(Sizes { matrices, n, k }) => {
                let bytes = work.format.tensor_bytes(matrices * n, k)? as u64;
                writer.tensor(tensor.name(), &dims, type_id, bytes)?;
            }
            Fate::Copy { type_id, bytes, .. } => writer.tensor(tensor.name(), &dims, type_id, bytes)?,
            Fate::Leave => {}
        }
    }
    Ok(writer)
}

/// Sizes of a tensor, outermost first.
fn shape(tensor: &SourceTensor<'_>) -> String {
    let sizes: Vec<String> = tensor.shape().iter().map(u64::to_string).collect();
    sizes.join("x")
}

/// Bytes that are copied at once.
const PIECE: usize = 1 << 22;

fn one<W: Write>(
    work: &Work,
    tensor: &SourceTensor<'_>,
    fate: &Fate,
    stream: &mut TensorStream<W>,
) -> Result<Line, CliError> {
    let mut line = Line {
        tensor: tensor.name().to_owned(),
        shape: shape(tensor),
        type_name: String::new(),
        bytes: 0,
        difference: None,
        matrices: 0,
        without: 0,
        why_copied: None,
    };
    match *fate {
        Fate::Leave => line.type_name = format!("left out ({})", tensor.type_name().to_lowercase()),
        Fate::Copy { bytes, ref why, .. } => {
            line.why_copied.clone_from(why);
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
        Fate::Quantize(sizes) => {
            let values = values(work, tensor)?;
            let of = |matrix| work.weighing.as_ref().and_then(|weighing| weighing.of(tensor.name(), matrix));
            let importance: Vec<Option<&[f32]>> = (0..sizes.matrices).map(of).collect();
            let quantized = quantize(work, tensor.name(), &values, &importance, sizes)?;
            stream.data(tensor.name(), &quantized)?;
            line.type_name = work.format.name.to_owned();
            line.bytes = quantized.len() as u64;
            line.without = importance.iter().filter(|importance| importance.is_none()).count();
            line.matrices = sizes.matrices;
            line.difference = Some(difference(work, &values, &importance, &quantized, sizes)?);
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
    let read = work.types.import_on(&raw, layout, &work.threads)?;
    let matrix = read.matrix();
    let prepared = REGISTRY.prepare(&Request::dequantize(format.name, matrix.n(), matrix.k()))?;
    let mut values = vec![0.0; matrix.n() * matrix.k()];
    Dequantizer::new(&prepared.decide_as_asked())?.run_on(&matrix, &mut values, &work.threads)?;
    Ok(values)
}

/// Matrix by matrix.
fn quantize(
    work: &Work,
    tensor: &str,
    values: &[f32],
    importance: &[Option<&[f32]>],
    Sizes { matrices, n, k }: Sizes,
) -> Result<Vec<u8>, CliError> {
    let refused = |matrix: usize, error: gristmill::Error| {
        let which = if matrices > 1 { format!(", matrix {matrix}") } else { String::new() };
        CliError::usage(
            format!("tensor `{}`{which}: {error}", Printable(tensor)),
            "another format or quantizer may take it",
        )
    };
    let first = |error| refused(0, error);
    let kernel = Quantizer::new(&work.quantize.decide(Shape::matrix(n, k))).map_err(first)?;
    let each = work.format.tensor_bytes(n, k).map_err(first)?;
    let mut bytes = vec![0; work.format.tensor_bytes(matrices * n, k).map_err(first)?];
    let parts = values.chunks_exact(n * k).zip(bytes.chunks_exact_mut(each)).zip(importance);
    for (matrix, ((values, bytes), importance)) in parts.enumerate() {
        match importance {
            Some(importance) => kernel.run_weighted(values, importance, n, k, bytes, &work.threads),
            None => kernel.run_on(values, n, k, bytes, &work.threads),
        }
        .map_err(|error| refused(matrix, error))?;
    }
    Ok(bytes)
}

fn difference(
    work: &Work,
    values: &[f32],
    importance: &[Option<&[f32]>],
    quantized: &[u8],
    Sizes { matrices, n, k }: Sizes,
) -> Result<Difference, CliError> {
    let rows = matrices * n;
    let kernel = Dequantizer::new(&work.dequantize.decide(Shape::matrix(rows, k)))?;
    let mut back = vec![0.0; rows * k];
    kernel.run_on(&QuantizedMatrix::new(work.format, rows, k, quantized)?, &mut back, &work.threads)?;
    let (mut error, mut energy, mut worst) = (0.0, 0.0, 0f64);
    for (x, q) in values.iter().zip(&back) {
        let (x, q) = (f64::from(*x), f64::from(*q));
        error += (q - x) * (q - x);
        energy += x * x;
        worst = worst.max((q - x).abs());
    }
    let nmse = |error: f64, energy: f64| if error == 0.0 { 0.0 } else { error / energy };
    // Of the matrices that have importance.
    let mut weighted = None;
    for ((x, q), importance) in values.chunks_exact(n * k).zip(back.chunks_exact(n * k)).zip(importance) {
        let Some(importance) = importance else { continue };
        let (error, energy) = weighted.get_or_insert((0.0, 0.0));
        for ((x, q), w) in x.iter().zip(q).zip(importance.iter().cycle()) {
            let (x, q, w) = (f64::from(*x), f64::from(*q), f64::from(*w));
            *error += w * (q - x) * (q - x);
            *energy += w * x * x;
        }
    }
    let weighted = weighted.map(|(error, energy)| nmse(error, energy));
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
        let quantized = Quantized {
            output: output.display().to_string(),
            format: arguments.format.clone(),
            kernel: kernel.to_owned(),
            bytes: total,
            tensors: lines.iter().map(|line| line.record(arguments.imatrix.is_some())).collect(),
        };
        print_json(out, &quantized)?;
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
    let copied = lines.iter().filter_map(|line| Some((line.tensor.as_str(), line.why_copied.as_deref()?)));
    for line in by_reason(copied, fate::NAMED) {
        writeln!(out, "copied as they are: {line}")?;
    }
    if let Some(imatrix) = &arguments.imatrix {
        let errors = "`weighted` is the NMSE with each column counted by its importance";
        writeln!(out, "errors weighed by {}; {errors}", imatrix.display())?;
        let without: Vec<(&str, usize, usize)> = lines
            .iter()
            .filter(|line| line.without > 0)
            .map(|line| (line.tensor.as_str(), line.without, line.matrices))
            .collect();
        if !without.is_empty() {
            writeln!(out, "{}", importance::without(&without))?;
        }
    }
    Ok(Outcome::Yes)
}
