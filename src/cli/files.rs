//! Model files: which format a tensor is in, and what its bytes take.

pub(super) use crate::json::matrix;

use super::error::CliError;
use super::limited;
use super::request;
use super::table::counted;
use gristmill::gguf::{
    DecidedBy, GgufFile, Resolved, Tensor, TensorType, TiledType, Transforms, TypeError, TypeNumbers,
    Unquantized,
};
use gristmill::registry::FormatInfo;
use gristmill::runtime::import::{ImportError, TileSizes, Tiled, Tiles};
use gristmill::text::Printable;
use gristmill::{REGISTRY, Reason, Rejection};
use gristmill_records::inspect::{Declaration, Transform};
use gristmill_records::run::WithoutKernel;
use std::path::{Path, PathBuf};

/// Bytes of the largest `kernel_config.ini` that is read: one of a model has a few sections.
const MOST_CONFIG: u64 = 1 << 20;

/// Which formats type numbers mean.
#[derive(Debug, clap::Args)]
pub struct TypeArguments {
    /// Read tensors of a type number as this format, where several have the number: 42=q2_0
    #[arg(long = "type", value_name = "NUMBER=FORMAT", value_parser = request::type_number)]
    types: Vec<(u32, String)>,
    /// Tile sizes of TL1 and TL2 tensors, which files do not hold: of one shape or of all, 1536x4096=256,128,32
    #[arg(long, value_name = "[NxK=]BM,BK,BMM", value_parser = request::tiles)]
    tiles: Vec<(Option<(usize, usize)>, Tiles)>,
    /// The kernel_config.ini that a file of TL1 or TL2 tensors was converted with
    #[arg(long, value_name = "FILE")]
    kernel_config: Option<PathBuf>,
}

impl TypeArguments {
    /// The file of tile sizes that is read.
    pub fn kernel_config(&self) -> Option<&PathBuf> {
        self.kernel_config.as_ref()
    }

    /// The formats of this build, with what the arguments name.
    ///
    /// # Errors
    /// If a format is not of this build, or the configuration of tile sizes can't be read.
    pub fn numbers(&self) -> Result<TypeNumbers, CliError> {
        if let Some((number, a, b)) = contradiction(&self.types) {
            return Err(said_twice(&format!("--type {number}=…"), a, b));
        }
        if let Some((shape, a, b)) = contradiction(&self.tiles) {
            let whose = shape.map_or(String::new(), |(n, k)| format!(" {n}x{k}=…"));
            let sizes = |tiles: &Tiles| format!("{},{},{}", tiles.bm, tiles.bk, tiles.bmm);
            return Err(said_twice(&format!("--tiles{whose}"), &sizes(a), &sizes(b)));
        }
        let mut types = TypeNumbers::new(&REGISTRY);
        for (number, format) in &self.types {
            types = types.named(*number, format)?;
        }
        let mut tiles = TileSizes::new();
        if let Some(path) = &self.kernel_config {
            let text = limited::read_text(path, MOST_CONFIG, "a kernel_config.ini")?;
            tiles = tiles.with_config(&text).map_err(|error| {
                let help = "sections have m, k, bm, bk and bmm, as bitnet.cpp's converters write them";
                CliError::usage(format!("`{}`: {error}", path.display()), help)
            })?;
        }
        for (shape, sizes) in &self.tiles {
            tiles = tiles.with(*shape, *sizes);
        }
        Ok(types.with_tiles(tiles))
    }
}

/// The first of these keys that stands with two values, and those.
fn contradiction<K: PartialEq, V: PartialEq>(all: &[(K, V)]) -> Option<(&K, &V, &V)> {
    all.iter().enumerate().find_map(|(i, (key, value))| {
        let earlier = all[..i].iter().find(|(other, said)| other == key && said != value);
        earlier.map(|(_, said)| (key, said, value))
    })
}

fn said_twice(what: &str, a: &str, b: &str) -> CliError {
    CliError::usage(format!("`{what}` is said to be `{a}` and `{b}`"), "it is one of them: say it once")
}

/// What a tensor of a GGUF file is.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// In a format of this build.
    Format(&'static FormatInfo),
    /// In a layout that depends on tile sizes, and the format that it becomes when it is read.
    Tiled(Tiled, &'static FormatInfo),
    /// Not quantized.
    Plain(Unquantized),
    /// In no format of this build, or in one that this file does not tell from another.
    Other,
}

/// Opens a GGUF file.
///
/// # Errors
/// As [`GgufFile::open`].
pub fn open(path: &Path, types: &TypeNumbers) -> Result<GgufFile, CliError> {
    Ok(GgufFile::open(path, &|query| types.size(query))?)
}

/// Opens a file of weights, GGUF or safetensors.
///
/// # Errors
/// As [`gristmill::weights_file::WeightFile::open_with`].
pub fn open_weights(
    path: &Path,
    types: &TypeNumbers,
) -> Result<gristmill::weights_file::WeightFile, CliError> {
    Ok(gristmill::weights_file::WeightFile::open_with(path, &|query| types.size(query))?)
}

/// What a tensor is.
pub fn kind(types: &TypeNumbers, tensor: &Tensor<'_>) -> Kind {
    match types.of(tensor) {
        Ok(TensorType::Plain(plain)) => Kind::Plain(plain),
        Ok(TensorType::Format(resolved)) => Kind::Format(resolved.format),
        Ok(TensorType::Tiled(tiled)) => match matrix(tensor.dims()).and_then(|(_, k)| types.imported_as(k)) {
            Some(format) => Kind::Tiled(tiled.layout, format),
            None => Kind::Other,
        },
        Err(_) => Kind::Other,
    }
}

/// Why there is no kernel for a tensor of kind [`Kind::Other`].
pub fn why_other(types: &TypeNumbers, tensor: &Tensor<'_>) -> String {
    match types.of(tensor) {
        Err(error @ TypeError::Undecided { .. }) => {
            format!("{error} with `--type {}=FORMAT`", tensor.type_id())
        }
        Err(error) => error.to_string(),
        Ok(TensorType::Tiled(tiled)) => {
            let k = matrix(tensor.dims()).map_or(0, |(_, k)| k);
            one_line(&ImportError::NoFormat { format: tiled.layout.name(), k })
        }
        // In a format, so its dimensions are what is wrong.
        Ok(_) => "its dimensions do not fit the address space".to_owned(),
    }
}

/// Type numbers that meant one of several formats in a file, and how that was told.
#[derive(Clone, Debug, Default)]
pub struct Decided {
    /// Number, format, how, tensors.
    numbers: Vec<(u32, &'static str, DecidedBy, usize)>,
    /// Layout, format, tensors.
    imported: Vec<(&'static str, &'static str, usize)>,
}

impl Decided {
    /// Counts a tensor whose number was not enough.
    pub fn add(&mut self, types: &TypeNumbers, tensor: &Tensor<'_>) {
        if let Kind::Tiled(layout, format) = kind(types, tensor) {
            let key = (layout.name(), format.name);
            match self.imported.iter_mut().find(|(layout, name, _)| (*layout, *name) == key) {
                Some((_, _, count)) => *count += 1,
                None => self.imported.push((key.0, key.1, 1)),
            }
        }
        let Some((name, by)) = not_by_number(types, tensor) else { return };
        let key = (tensor.type_id(), name, by);
        match self.numbers.iter_mut().find(|(number, name, by, _)| (*number, *name, *by) == key) {
            Some((_, _, _, count)) => *count += 1,
            None => self.numbers.push((key.0, key.1, key.2, 1)),
        }
    }

    /// Prints a line for each number and format.
    ///
    /// # Errors
    /// When `out` refuses.
    pub fn print(&self, types: &TypeNumbers, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        for (number, format, by, count) in &self.numbers {
            let others: Vec<&str> =
                types.candidates(*number).into_iter().filter(|name| name != format).collect();
            let others = if others.is_empty() { "types of forks".to_owned() } else { others.join(", ") };
            let how = match by {
                DecidedBy::Number => "its number",
                DecidedBy::Origin => "the numbering that the file follows",
                DecidedBy::Size => "the size of its tensors",
                DecidedBy::Name => "what was asked for",
            };
            let tensors = counted(*count, "tensor");
            writeln!(out, "type number {number} is {format} by {how} ({tensors}); else it is: {others}")?;
        }
        for (layout, format, count) in &self.imported {
            let tensors = counted(*count, "tensor");
            writeln!(
                out,
                "{tensors} in the layout {layout}, read as {format} given tile sizes: the same weights"
            )?;
        }
        Ok(())
    }
}

fn not_by_number(types: &TypeNumbers, tensor: &Tensor<'_>) -> Option<(&'static str, DecidedBy)> {
    let told = match types.of(tensor) {
        Ok(TensorType::Format(Resolved { format, by, .. })) => (format.name, by),
        Ok(TensorType::Tiled(TiledType { layout, by, .. })) => (layout.name(), by),
        Ok(TensorType::Plain(_)) | Err(_) => return None,
    };
    (told.1 != DecidedBy::Number).then_some(told)
}

/// Why a tensor in a layout that depends on tile sizes is not read, in one line: they are not known, or do not fit it. `None` where it is.
pub fn not_imported(types: &TypeNumbers, layout: Tiled, n: usize, k: usize) -> Option<String> {
    types.import_of(layout, n, k).err().map(|error| one_line(&error))
}

/// An error with its help, in one line, and with the arguments that say what it misses.
pub fn one_line(error: &ImportError) -> String {
    let arguments = match error {
        ImportError::NoTileSizes { n, k } => {
            format!(": `--kernel-config FILE`, or `--tiles {n}x{k}=BM,BK,BMM`")
        }
        ImportError::NoTiles { n, k, .. } => format!("; `--tiles {n}x{k}=BM,BK,BMM` gives them"),
        _ => String::new(),
    };
    error.to_string().replace("\n  ", "; ") + &arguments
}

/// How it was told what a tensor's number means, for JSON; `None` where the number is enough, or where it was not told.
pub fn decided_by(types: &TypeNumbers, tensor: &Tensor<'_>) -> Option<&'static str> {
    not_by_number(types, tensor).map(|(_, by)| by.name())
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

/// Prints what a file declares to be done to activations, if it does.
///
/// # Errors
/// When `out` refuses.
pub fn print_transforms(file: &GgufFile, out: &mut dyn std::io::Write) -> std::io::Result<()> {
    match Transforms::of(file) {
        Ok(None) => {}
        Ok(Some(transforms)) => {
            let (products, rows) = transforms.counts();
            let signs = if transforms.is_signed() { "signed" } else { "unsigned" };
            writeln!(
                out,
                "Hadamard transform in {signs} blocks of {}: of what products with {} take, and of the stored rows of {}",
                transforms.block(),
                counted(products, "tensor"),
                counted(rows, "tensor")
            )?;
        }
        Err(error) => {
            writeln!(out, "transform that is not understood, so no layer is made of this file: {error}")?;
        }
    }
    Ok(())
}

/// A declared transform as JSON has it: what it is, or which key is not understood.
pub fn transforms_json(file: &GgufFile) -> Option<Transform> {
    let what = match Transforms::of(file) {
        Ok(transforms) => {
            let transforms = transforms?;
            let (products, stored_rows) = transforms.counts();
            Declaration::Understood {
                block: transforms.block() as u64,
                signed: transforms.is_signed(),
                products: products as u64,
                stored_rows: stored_rows as u64,
            }
        }
        Err(error) => Declaration::Refused { key: error.key, why: error.why },
    };
    let understood = matches!(what, Declaration::Understood { .. });
    Some(Transform { kind: "hadamard".to_owned(), understood, what })
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
    pub fn json(&self) -> Vec<WithoutKernel> {
        let row = |(type_name, reason, tensors): &(String, String, Vec<String>)| WithoutKernel {
            type_name: type_name.clone(),
            reason: reason.clone(),
            count: tensors.len() as u64,
            tensors: tensors.clone(),
        };
        self.types.iter().map(row).collect()
    }
}
