//! What becomes of each tensor of a file: quantized, copied as it is, or left out.

use super::super::error::CliError;
use super::super::files::{self, Kind};
use super::super::table::{counted, first_of};
use super::arguments::Arguments;
use gristmill::gguf::{MAX_DIMS, Transforms, TypeNumbers};
use gristmill::registry::FormatInfo;
use gristmill::runtime::import::ImportError;
use gristmill::text::Printable;
use gristmill::weights_file::{SourceTensor, WeightFile};

/// What becomes of a tensor.
pub(super) enum Fate {
    /// Matrices of `n` rows of `k` elements, one behind the other.
    Quantize(Sizes),
    /// Copied in this type, with so many bytes; where it holds weights, why they are not quantized.
    Copy { type_id: u32, bytes: u64, why: Option<String> },
    /// Not written, as was asked for.
    Leave,
}

/// One matrix, or a stack of several: that of each expert.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) matrices: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

impl Sizes {
    /// Those of a tensor that the format can hold; else why it can't. No reason is given for vectors, which nobody expects to be quantized.
    fn of(shape: &[u64], format: &FormatInfo) -> Result<Sizes, Option<String>> {
        let (matrices, n, k) = match *shape {
            [] | [_] => return Err(None),
            [n, k] => (1, n, k),
            [_, _, _] if format.tensor_tail.is_some() => {
                return Err(Some(format!(
                    "`{}` has one scale for a tensor, which would be that of all its matrices",
                    format.name
                )));
            }
            [matrices, n, k] => (matrices, n, k),
            _ => return Err(Some(format!("{} dimensions", shape.len()))),
        };
        let size = |size: u64| usize::try_from(size).ok().filter(|size| *size > 0);
        let (Some(matrices), Some(n), Some(k)) = (size(matrices), size(n), size(k)) else {
            return Err(Some("no elements, or more than this machine can address".to_owned()));
        };
        let rows = matrices.checked_mul(n);
        match rows.map(|rows| format.tensor_bytes(rows, k)) {
            Some(Ok(_)) => Ok(Sizes { matrices, n, k }),
            Some(Err(_)) if !k.is_multiple_of(format.elements) => {
                Err(Some(format!("rows of {k}, which are no whole blocks of {}", format.elements)))
            }
            Some(Err(_)) | None => Err(Some("more bytes than this machine can address".to_owned())),
        }
    }
}

/// Types of safetensors files that GGUF has too, with its ids.
const COPIED: [(&str, u32); 8] =
    [("F32", 0), ("F16", 1), ("BF16", 30), ("I8", 24), ("I16", 25), ("I32", 26), ("I64", 27), ("F64", 28)];

/// Tensors that are named in a message.
pub(super) const NAMED: usize = 8;

/// What becomes of each tensor.
///
/// # Errors
/// Where some can neither be quantized nor copied and nobody said to leave them out, or the file has no such tensor as was
/// to be left out.
pub(super) fn all<'s>(
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
    declared(arguments, source)?;
    let (mut fates, mut refused) = (Vec::new(), Vec::new());
    for tensor in source.tensors() {
        if arguments.leave_out.iter().any(|name| name == tensor.name()) {
            fates.push((tensor, Fate::Leave));
            continue;
        }
        match named(tensor.name()).and_then(|()| of(source, &tensor, format, types)) {
            Ok(fate) => fates.push((tensor, fate)),
            Err(why) => refused.push(format!("`{}` ({why})", Printable(tensor.name()))),
        }
    }
    if refused.is_empty() {
        return Ok(fates);
    }
    let tensors = counted(refused.len(), "tensor");
    Err(CliError::usage(
        format!("{tensors} can't be copied to GGUF: {}", first_of(&refused, NAMED)),
        "--leave-out TENSOR writes the file without one; nothing was written",
    ))
}

/// Refuses to leave out what the file's transform names: the output would name a tensor that it has not, and nobody would read it.
fn declared(arguments: &Arguments, source: &WeightFile) -> Result<(), CliError> {
    let Some(file) = source.gguf().filter(|_| !arguments.leave_out.is_empty()) else { return Ok(()) };
    let Some(transforms) = Transforms::of(file)? else { return Ok(()) };
    let mut named = arguments.leave_out.iter().filter_map(|name| Some((name, transforms.key(name)?)));
    match named.next() {
        None => Ok(()),
        Some((name, key)) => Err(CliError::usage(
            format!(
                "`{}` can't be left out: metadata `{key}` names it as a tensor that is folded",
                Printable(name)
            ),
            "leave out tensors that the file's transform does not name; nothing was written",
        )),
    }
}

/// Bytes of the longest name that ggml reads: GGML_MAX_NAME less the zero behind it.
const LONGEST_NAME: usize = 63;

/// Whether other programs read a tensor of this name. The error says why not.
fn named(name: &str) -> Result<(), String> {
    match name.len() {
        0 => Err("without a name".to_owned()),
        1..=LONGEST_NAME => Ok(()),
        bytes => Err(format!("its name has {bytes} bytes, ggml reads {LONGEST_NAME} at most")),
    }
}

/// Refuses a file of which nothing would be quantized.
///
/// # Errors
/// [`CliError::Usage`] with the reasons of the first tensors of weights.
pub(super) fn some_quantized(
    arguments: &Arguments,
    fates: &[(SourceTensor<'_>, Fate)],
    format: &FormatInfo,
) -> Result<(), CliError> {
    if fates.iter().any(|(_, fate)| matches!(fate, Fate::Quantize(..))) {
        return Ok(());
    }
    let reasons: Vec<String> = fates
        .iter()
        .filter_map(|(tensor, fate)| match fate {
            Fate::Copy { why: Some(why), .. } => Some(format!("`{}` ({why})", Printable(tensor.name()))),
            _ => None,
        })
        .take(NAMED)
        .collect();
    let reasons = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join(", ")) };
    Err(CliError::usage(
        format!("`{}` holds nothing to quantize to `{}`{reasons}", arguments.input.display(), format.name),
        "matrices of f32, f16 or bf16 are quantized, in rows of whole blocks; `gristmill list` prints formats with their blocks",
    ))
}

/// What becomes of a tensor: matrices that fit are quantized, the rest is copied. The error says why it can't be.
fn of(
    source: &WeightFile,
    tensor: &SourceTensor<'_>,
    format: &FormatInfo,
    types: &TypeNumbers,
) -> Result<Fate, String> {
    let why = match weights(tensor, types).map(|()| Sizes::of(tensor.shape(), format)) {
        Ok(Ok(sizes)) => return Ok(Fate::Quantize(sizes)),
        Ok(Err(why)) | Err(why) => why,
    };
    if let Some(raw) = source.gguf().and_then(|file| file.tensor(tensor.name())) {
        return match raw.size() {
            Ok(bytes) => Ok(Fate::Copy { type_id: raw.type_id(), bytes, why }),
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
    Ok(Fate::Copy { type_id: *type_id, bytes, why })
}

/// Whether weights can be had of a tensor: it holds floats, or is in a layout that is read given its tile sizes. The error says why
/// not, where it holds weights.
fn weights(tensor: &SourceTensor<'_>, types: &TypeNumbers) -> Result<(), Option<String>> {
    if tensor.dtype().is_some() {
        return Ok(());
    }
    let Some(raw) = tensor.gguf() else { return Err(None) };
    match (files::kind(types, &raw), files::matrix(raw.dims())) {
        (Kind::Tiled(layout, _), Some((n, k))) => match types.import_of(layout, n, k) {
            // Those that were given and do not fit are an error when the tensor is read.
            Ok(_) | Err(ImportError::Tiles { .. }) => Ok(()),
            Err(why) => Err(Some(files::one_line(&why))),
        },
        (Kind::Plain(_), _) => Err(None),
        (Kind::Format(format), _) => Err(Some(format!("quantized already, to `{}`", format.name))),
        (Kind::Tiled(..), None) | (Kind::Other, _) => Err(Some(files::why_other(types, &raw))),
    }
}
