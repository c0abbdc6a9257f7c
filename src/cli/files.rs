//! Model files: which format a tensor is in, and what its bytes take.

use super::error::CliError;
use gristmill::gguf::{self, GgufFile, Origin, SizeAnswer, SizeQuery, Tensor, Unquantized};
use gristmill::registry::FormatInfo;
use gristmill::text::Printable;
use gristmill::{REGISTRY, Reason, Rejection};
use std::path::Path;

/// What a tensor of a GGUF file is.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// In a format of this build.
    Format(&'static FormatInfo),
    /// Not quantized.
    Plain(Unquantized),
    /// In no format of this build, or in one that this file does not tell from another.
    Other,
}

/// The formats of this build with a type id. bitnet.cpp numbers some types as ggml numbers others.
fn candidates(type_id: u32) -> impl Iterator<Item = &'static FormatInfo> {
    REGISTRY.formats.iter().filter(move |format| format.gguf == Some(type_id))
}

/// Type ids that bitnet.cpp uses for TL2, which no spec describes, and ggml for something else.
const COLLIDING: [u32; 2] = [39, 42];

fn answer(format: &FormatInfo, dims: &[u64]) -> SizeAnswer {
    let header = format.row_header.map_or(0, |outer| outer.bytes() as u64);
    let tail = format.tensor_tail.map_or(0, |(_, bytes)| bytes as u64);
    gguf::blocked_size(dims, format.elements as u64, format.bytes as u64, header, tail)
}

/// The size of a quantized tensor, by the formats of this build.
fn sizes(query: &SizeQuery<'_>) -> SizeAnswer {
    let mut formats = candidates(query.type_id);
    let Some(format) = formats.next() else { return SizeAnswer::Unknown };
    if let Some(other) = formats.next() {
        return SizeAnswer::Ambiguous(format!("{} and {} have this id", format.name, other.name));
    }
    let size = answer(format, query.dims);
    if !COLLIDING.contains(&query.type_id) {
        return size;
    }
    match (query.origin, &size) {
        (Some(Origin::Ggml), _) => size,
        (Some(Origin::BitnetCpp), _) => SizeAnswer::Unknown,
        // The file does not tell; a size that fits the room to within its padding decides.
        (None, SizeAnswer::Bytes(bytes)) if [*bytes, bytes.next_multiple_of(32)].contains(&query.room) => {
            size
        }
        (None, _) => SizeAnswer::Ambiguous(format!("{} in ggml, tl2 in bitnet.cpp", format.name)),
    }
}

/// Opens a GGUF file, with the formats of this build.
///
/// # Errors
/// As [`GgufFile::open`].
pub fn open(path: &Path) -> Result<GgufFile, CliError> {
    Ok(GgufFile::open(path, &sizes)?)
}

/// Opens a file of weights, GGUF or safetensors.
///
/// # Errors
/// As [`gristmill::weights_file::WeightFile::open_with`].
pub fn open_weights(path: &Path) -> Result<gristmill::weights_file::WeightFile, CliError> {
    Ok(gristmill::weights_file::WeightFile::open_with(path, &sizes)?)
}

/// What a tensor is.
pub fn kind(tensor: &Tensor<'_>) -> Kind {
    if let Some(plain) = gguf::unquantized(tensor.type_id()) {
        return Kind::Plain(plain);
    }
    match candidates(tensor.type_id()).next() {
        // The reader asked `sizes`, which knows collisions.
        Some(format) if tensor.size().is_ok() => Kind::Format(format),
        Some(_) | None => Kind::Other,
    }
}

/// Names of types that no spec of this build describes, so that messages can say more than a number.
const OTHER_TYPES: [(u32, &str); 18] = [
    (9, "q8_1"),
    (15, "q8_k"),
    (16, "iq2_xxs"),
    (17, "iq2_xs"),
    (18, "iq3_xxs"),
    (19, "iq1_s"),
    (21, "iq3_s"),
    (22, "iq2_s"),
    (23, "iq4_xs"),
    (29, "iq1_m"),
    (34, "tq1_0"),
    (35, "tq2_0"),
    (36, "i2_s"),
    (37, "i8_s"),
    (38, "tl1"),
    (134, "iq1_bn"),
    (135, "iq2_bn"),
    (335, "iq2_bn_r4"),
];

/// Name of a type id: that of the format, or what is known of the id.
pub fn type_name(type_id: u32) -> String {
    let described = candidates(type_id).next().map(|format| format.name);
    let plain = gguf::unquantized(type_id).map(|plain| plain.name);
    let left_out = REGISTRY.left_out.iter().find(|left_out| left_out.gguf == Some(type_id)).map(|l| l.format);
    let other = OTHER_TYPES.iter().find(|(id, _)| *id == type_id).map(|(_, name)| *name);
    match described.or(plain).or(left_out).or(other) {
        Some(name) => name.to_owned(),
        None => format!("type id {type_id}"),
    }
}

/// Why there is no kernel for a tensor of kind [`Kind::Other`].
pub fn why_other(tensor: &Tensor<'_>) -> String {
    if let Some(left_out) = REGISTRY.left_out.iter().find(|left_out| left_out.gguf == Some(tensor.type_id()))
    {
        return format!("not compiled: build with the cargo feature `{}`", left_out.feature);
    }
    match tensor.size() {
        Err(error) if candidates(tensor.type_id()).next().is_some() => error.reason.to_string(),
        Ok(_) | Err(_) => "no spec of this build describes this type".to_owned(),
    }
}

/// Distinct reasons that are said of a refusal, at most; `explain` says all.
const REASONS: usize = 3;

/// Why there is no kernel, in decide's words and one line.
pub fn why_no_kernel(error: &gristmill::Error) -> String {
    let gristmill::Error::NoKernel(refusal) = error else {
        return error.to_string().replace("\n  ", "; ");
    };
    let (mut reasons, mut help) = (Vec::new(), None);
    // What the request asks for says more than what this processor lacks, since other kernels don't ask for that.
    let lacks = |rejection: &&Rejection| matches!(rejection.reason, Reason::FeaturesMissing { .. });
    let (lacking, others): (Vec<&Rejection>, Vec<_>) = refusal.rejected.iter().partition(lacks);
    for rejection in others.into_iter().chain(lacking) {
        let reason = rejection.reason.to_string();
        if !reasons.contains(&reason) {
            reasons.push(reason);
            help = help.or_else(|| rejection.reason.help());
        }
    }
    let more = reasons.len().saturating_sub(REASONS);
    reasons.truncate(REASONS);
    if more > 0 {
        reasons.push(format!("and {more} more, which `gristmill explain` lists"));
    }
    reasons.extend(help.map(|help| format!("help: {help}")));
    reasons.join("; ")
}

/// Rows and elements of a row: the first dimension is contiguous, the others are rows.
///
/// `None` where they do not fit the address space.
pub fn matrix(dims: &[u64]) -> Option<(usize, usize)> {
    let k = usize::try_from(dims.first().copied().unwrap_or(1)).ok()?;
    let n = dims.iter().skip(1).try_fold(1u64, |n, dim| n.checked_mul(*dim))?;
    Some((usize::try_from(n).ok()?, k))
}

/// A shape as it is written here: rows first, `2560x6912`.
pub fn shape(dims: &[u64]) -> String {
    dims.iter().rev().map(u64::to_string).collect::<Vec<_>>().join("x")
}

/// Types without a kernel, with their tensors.
#[derive(Clone, Debug, Default)]
pub struct Without {
    /// Type, why, tensors.
    pub types: Vec<(String, String, Vec<String>)>,
}

impl Without {
    /// Adds a tensor.
    pub fn add(&mut self, type_name: String, why: String, tensor: &str) {
        match self.types.iter_mut().find(|(known, reason, _)| *known == type_name && *reason == why) {
            Some((_, _, tensors)) => tensors.push(tensor.to_owned()),
            None => self.types.push((type_name, why, vec![tensor.to_owned()])),
        }
    }

    /// Tensors of all types.
    pub fn count(&self) -> usize {
        self.types.iter().map(|(_, _, tensors)| tensors.len()).sum()
    }

    /// Prints a line for each type.
    ///
    /// # Errors
    /// When `out` refuses.
    pub fn print(&self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        for (type_name, why, tensors) in &self.types {
            let named: Vec<String> = tensors.iter().take(3).map(|name| Printable(name).to_string()).collect();
            let more = if tensors.len() > 3 { ", ..." } else { "" };
            writeln!(
                out,
                "without a kernel: {type_name} ({}: {}{more}): {why}",
                tensors.len(),
                named.join(", ")
            )?;
        }
        Ok(())
    }

    /// The same as JSON.
    pub fn json(&self) -> serde_json::Value {
        let one = |(type_name, why, tensors): &(String, String, Vec<String>)| serde_json::json!({"type": type_name, "reason": why, "count": tensors.len(), "tensors": tensors});
        self.types.iter().map(one).collect()
    }
}
