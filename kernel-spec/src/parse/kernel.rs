//! Kernel files: one op, and the variants that are built for it.

use super::body::{self, RawBody, RawCpuBody};
use super::name::ident;
use crate::model::{CudaBudget, DimRule, ShapeRules};
use crate::toml_walk::{At, File, Node, Span, Table};
use crate::vocab::{CudaActivations, CudaAlgorithm, CudaSums, DType, Feature, Isa, Op, Strategy};
use toml::de::DeTable;

/// A kernel family as it was written.
#[derive(Debug)]
pub(crate) struct RawKernel<'a> {
    pub file: &'a File<'a>,
    pub name: &'a str,
    pub doc: String,
    pub op: Option<At<Op>>,
    /// `None`: every format the op applies to.
    pub formats: Option<Vec<At<String>>>,
    pub input: Option<Vec<At<DType>>>,
    pub input_span: Span,
    pub output: Option<At<DType>>,
    pub variants: Vec<RawVariant>,
    pub cuda: Vec<RawCudaVariant>,
    /// Every variant could be read.
    pub complete: bool,
    /// Where the file as a whole is pointed at: its `op`.
    pub span: Span,
}

/// One `[[cpu]]`.
#[derive(Debug)]
pub(crate) struct RawVariant {
    pub span: Span,
    pub isa: At<Isa>,
    pub requires: Vec<At<Feature>>,
    pub label: Option<At<String>>,
    pub code_bits: Option<At<u32>>,
    pub levels: Option<At<Vec<i32>>>,
    pub by_default: Option<At<bool>>,
    pub packing: Option<At<String>>,
    pub strategy: Option<At<Strategy>>,
    pub tile: Option<At<(u32, u32)>>,
    pub shape: Option<At<ShapeRules>>,
    pub body: Option<RawCpuBody>,
}

/// One `[[cuda]]`.
#[derive(Debug)]
pub(crate) struct RawCudaVariant {
    pub span: Span,
    pub algorithm: At<CudaAlgorithm>,
    pub min_cc: Option<At<(u8, u8)>>,
    pub label: Option<At<String>>,
    pub formats: Option<Vec<At<String>>>,
    pub packing: Option<At<String>>,
    pub activations: Option<At<CudaActivations>>,
    pub sums: Option<At<CudaSums>>,
    pub tile: Option<At<(u32, u32)>>,
    pub shape: Option<At<ShapeRules>>,
    pub budget: CudaBudget,
    pub body: Option<RawBody>,
}

const KEYS: &[&str] = &["doc", "op", "formats", "input", "output", "cpu", "cuda"];
const CPU_KEYS: &[&str] = &[
    "isa",
    "requires",
    "name",
    "code_bits",
    "levels",
    "default",
    "packing",
    "strategy",
    "tile",
    "shape",
    "body",
    "function",
];

const CUDA_KEYS: &[&str] = &[
    "algorithm",
    "min_cc",
    "name",
    "formats",
    "packing",
    "activations",
    "sums",
    "tile",
    "shape",
    "budget",
    "body",
    "function",
];

/// Words of the vocabulary with their spellings.
macro_rules! spelled {
    ($ty:ty) => {
        &<$ty>::ALL.iter().map(|word| (word.name(), *word)).collect::<Vec<_>>()
    };
}

pub(crate) fn op(node: &Node<'_>) -> Option<At<Op>> {
    node.word("op", spelled!(Op))
}

pub(crate) fn dtypes(node: &Node<'_>) -> Option<Vec<At<DType>>> {
    node.list(|n| n.word("data type", spelled!(DType)))
}

pub(crate) fn isas(node: &Node<'_>) -> Option<Vec<At<Isa>>> {
    node.list(|n| n.word("ISA", spelled!(Isa)))
}

pub(crate) fn parse<'a>(file: &'a File<'a>, name: &'a str, table: &DeTable<'_>) -> RawKernel<'a> {
    let table = Table::open(file, "a kernel", table, Span::default(), KEYS);
    let op_node = table.need("op");
    // A family may add GPUs to what another serves on processors.
    let only_cuda = table.key_span("cuda").is_some() && table.key_span("cpu").is_none();
    let tables = match only_cuda {
        true => Some(Vec::new()),
        false => table.need("cpu").and_then(|_| table.tables("cpu", "a CPU variant", CPU_KEYS)),
    };
    let all = tables.as_ref().map_or(usize::MAX, Vec::len);
    let variants: Vec<RawVariant> = tables.unwrap_or_default().iter().filter_map(variant).collect();
    let cuda_tables = match table.key_span("cuda") {
        Some(_) => table.tables("cuda", "a CUDA variant", CUDA_KEYS),
        None => Some(Vec::new()),
    };
    let all_cuda = cuda_tables.as_ref().map_or(usize::MAX, Vec::len);
    let cuda: Vec<RawCudaVariant> = cuda_tables.unwrap_or_default().iter().filter_map(cuda_variant).collect();
    let input = table.get("input");
    RawKernel {
        file,
        name,
        doc: table.doc(name),
        op: op_node.and_then(|n| op(&n)),
        formats: table.get("formats").map(|n| formats(&n)),
        input_span: input.map_or(Span::default(), |n| n.span),
        // One that can't be read is reported where it stands, and is not an empty list.
        input: input.and_then(|n| dtypes(&n)),
        output: table.get("output").and_then(|n| n.word("data type", spelled!(DType))),
        complete: variants.len() == all && cuda.len() == all_cuda,
        variants,
        cuda,
        span: op_node.map_or(Span::default(), |n| n.span),
    }
}

fn formats(node: &Node<'_>) -> Vec<At<String>> {
    let names = node.list(|n| n.string());
    if names.as_ref().is_some_and(Vec::is_empty) {
        let error =
            node.file.error("out-of-range", node.span, "`formats` is empty, so nothing would be built");
        node.file.report(error.help("leave it out to serve every format that the op applies to"));
    }
    names.unwrap_or_default()
}

fn variant(table: &Table<'_>) -> Option<RawVariant> {
    let isa = table.need("isa").and_then(|n| n.word("ISA", spelled!(Isa)));
    let requires = match table.get("requires") {
        None => Some(Vec::new()),
        Some(node) => node.list(|n| n.word("CPU feature", spelled!(Feature))),
    };
    let label = table.get("name").map(|n| ident(&n));
    let code_bits = table.get("code_bits").map(|n| n.unsigned(1..=16));
    let levels = table.get("levels").map(|n| levels(&n));
    let by_default = table.get("default").map(|n| n.boolean());
    let packing = table.get("packing").map(|n| n.string());
    let strategy = table.get("strategy").map(|n| n.word("strategy", spelled!(Strategy)));
    let tile = table.get("tile").map(|n| tile(&n));
    let shape = table.get("shape").map(|n| shape(&n));
    let body = body::cpu(table);
    Some(RawVariant {
        span: table.span,
        isa: isa?,
        requires: requires?,
        label: optional(label)?,
        code_bits: optional(code_bits)?,
        levels: optional(levels)?,
        by_default: optional(by_default)?,
        packing: optional(packing)?,
        strategy: optional(strategy)?,
        tile: optional(tile)?,
        shape: optional(shape)?,
        body: body?,
    })
}

/// The integers that the weights of served formats take, ascending.
fn levels(node: &Node<'_>) -> Option<At<Vec<i32>>> {
    let levels: Vec<i32> = node.list(|n| n.signed(-32768..=32767))?.iter().map(|at| at.value).collect();
    if levels.is_empty() || levels.windows(2).any(|pair| pair[0] >= pair[1]) {
        let message = "`levels` lists integers in ascending order, at least one";
        node.file
            .report(node.file.error("out-of-range", node.span, message).help("for example `[-1, 0, 1]`"));
        return None;
    }
    Some(At { value: levels, span: node.span })
}

fn cuda_variant(table: &Table<'_>) -> Option<RawCudaVariant> {
    let algorithm = table.need("algorithm").and_then(|n| n.word("algorithm", spelled!(CudaAlgorithm)));
    let min_cc = table.get("min_cc").map(|n| capability(&n));
    let label = table.get("name").map(|n| ident(&n));
    let formats = table.get("formats").map(|n| formats(&n));
    let packing = table.get("packing").map(|n| n.string());
    let activations = table.get("activations").map(|n| n.word("activations", spelled!(CudaActivations)));
    let sums = table.get("sums").map(|n| n.word("sums", spelled!(CudaSums)));
    let tile = table.get("tile").map(|n| cuda_tile(&n));
    let shape = table.get("shape").map(|n| shape(&n));
    let budget = match table.get("budget") {
        None => Some(CudaBudget::default()),
        Some(node) => budget(&node),
    };
    let body = body::cuda(table);
    Some(RawCudaVariant {
        span: table.span,
        algorithm: algorithm?,
        min_cc: optional(min_cc)?,
        label: optional(label)?,
        formats,
        packing: optional(packing)?,
        activations: optional(activations)?,
        sums: optional(sums)?,
        tile: optional(tile)?,
        shape: optional(shape)?,
        budget: budget?,
        body: body?,
    })
}

/// A compute capability: `"7.5"`.
fn capability(node: &Node<'_>) -> Option<At<(u8, u8)>> {
    let text = node.string()?;
    let parts = text.value.split_once('.').and_then(|(major, minor)| {
        Some((major.parse::<u8>().ok()?, minor.parse::<u8>().ok().filter(|minor| *minor < 10)?))
    });
    if parts.is_none() {
        let message = format!("`{}` is no compute capability", text.value.escape_debug());
        let error = node.file.error("out-of-range", text.span, message);
        node.file.report(error.help("write it like \"7.5\": major, a point, minor"));
    }
    Some(At { value: parts?, span: text.span })
}

fn cuda_tile(node: &Node<'_>) -> Option<At<(u32, u32)>> {
    let table = node.table("a tile", &["tokens", "threads"])?;
    let tokens = table.need("tokens").and_then(|n| n.unsigned(1..=256));
    let threads = table.need("threads").and_then(|n| n.unsigned(32..=1024));
    if let Some(threads) = threads.filter(|threads| !threads.value.is_multiple_of(32)) {
        let message = format!("{} threads are no whole number of warps", threads.value);
        node.file.report(
            node.file.error("out-of-range", threads.span, message).help("a multiple of 32, up to 1024"),
        );
        return None;
    }
    Some(At { value: (tokens?.value, threads?.value), span: node.span })
}

fn budget(node: &Node<'_>) -> Option<CudaBudget> {
    let table = node.table("a budget", &["registers", "shared"])?;
    let most = CudaBudget::default();
    let number = |key, from, most: u32| match table.get(key) {
        None => Some(most),
        Some(node) => node.unsigned(from..=most).map(|at| at.value),
    };
    let (registers, shared) = (number("registers", 16, most.registers), number("shared", 0, most.shared));
    Some(CudaBudget { registers: registers?, shared: shared? })
}

/// An absent value is fine, one that could not be read is not.
fn optional<T>(value: Option<Option<T>>) -> Option<Option<T>> {
    match value {
        None => Some(None),
        Some(None) => None,
        Some(some) => Some(some),
    }
}

fn tile(node: &Node<'_>) -> Option<At<(u32, u32)>> {
    let table = node.table("a tile", &["rows", "tokens"])?;
    let rows = table.need("rows").and_then(|n| n.unsigned(1..=1024));
    let tokens = table.need("tokens").and_then(|n| n.unsigned(1..=256));
    Some(At { value: (rows?.value, tokens?.value), span: node.span })
}

fn shape(node: &Node<'_>) -> Option<At<ShapeRules>> {
    let table = node.table("`shape`", &["m", "n", "k"])?;
    let [m, n, k] = ["m", "n", "k"].map(|key| match table.get(key) {
        None => Some(DimRule::default()),
        Some(node) => dimension(&node),
    });
    Some(At { value: ShapeRules { m: m?, n: n?, k: k? }, span: node.span })
}

fn dimension(node: &Node<'_>) -> Option<DimRule> {
    let table = node.table("a dimension's rule", &["min", "max", "multiple_of"])?;
    let number = |key, least, default| match table.get(key) {
        None => Some(default),
        Some(node) => node.integer(least..=i64::MAX).map(|at| at.value.unsigned_abs()),
    };
    let none = DimRule::default();
    let (min, max) = (number("min", 0, none.min), number("max", 0, none.max));
    let multiple_of = number("multiple_of", 1, none.multiple_of);
    let rule = DimRule { min: min?, max: max?, multiple_of: multiple_of? };
    let least = rule.min.max(1).checked_next_multiple_of(rule.multiple_of);
    if least.is_none_or(|least| least > rule.max) {
        let file = table.file;
        let message = format!("no `{}` obeys this rule", node.key);
        let label =
            format!("nothing from {} to {} is a multiple of {}", rule.min.max(1), rule.max, rule.multiple_of);
        file.report(file.error("empty-shape-rule", node.span, message).label(label));
        return None;
    }
    Some(rule)
}
