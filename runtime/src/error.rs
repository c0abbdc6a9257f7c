//! Everything that can go wrong at run time, with what would help.

mod class;

pub use class::ErrorClass;

use crate::descriptions::disagreement::Disagreement;
use crate::descriptions::names::{List, Meant};
use crate::device::Device;
use crate::gpu::NoGpu;
use crate::reason::{BrokenRule, Refusal};
use gristmill_spec::vocab::{DType, DeviceKind, Feature, Op};

/// An error of this package.
///
/// Positions are zero-based: `row` is a row of weights or a token, `column` an element along k.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No format of this name was described.
    #[error("unknown format `{name}`{}\n  help: this build knows: {}", Meant(.nearest), List(.known))]
    UnknownFormat {
        /// What was asked for.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
        /// Formats of this build.
        known: Vec<&'static str>,
    },
    /// No import layout of this name was described.
    #[error("unknown import layout `{name}`{}\n  help: this build knows: {}", Meant(.nearest), List(.known))]
    UnknownImport {
        /// What was asked for.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
        /// Import layouts of this build.
        known: Vec<&'static str>,
    },
    /// A layout interleaves more rows than there are, or not a whole number of its panels.
    #[error(
        "{n} rows can't be in the layout `{layout}`, which interleaves {rows} at a time\n  help: are the tensor's dimensions \
         the wrong way round, or is it in another layout?"
    )]
    RowsNotMultiple {
        /// The import layout.
        layout: &'static str,
        /// Rows of its panels.
        rows: usize,
        /// Rows of the tensor.
        n: usize,
    },
    /// No kernel of this name is in the binary.
    #[error(
        "unknown kernel `{name}`{}\n  help: `gristmill list --kernels` prints those of this build; names may come from GRISTMILL_KERNEL \
         and GRISTMILL_DISABLE",
        Meant(.nearest)
    )]
    UnknownKernel {
        /// What was asked for.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
    },
    /// No kernel of the binary reads a packing of this name.
    #[error(
        "unknown packing `{name}`{}\n  help: kernels of this build read {}; the name may come from GRISTMILL_PACKING",
        Meant(.nearest),
        known.join(", ")
    )]
    UnknownPacking {
        /// What was asked for.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
        /// The packings that there are.
        known: Vec<&'static str>,
    },
    /// Nothing of the vocabulary is called that.
    #[error("unknown {what} `{name}`\n  help: there are {}", List(.known))]
    UnknownWord {
        /// What was named: an op, a type.
        what: &'static str,
        /// What was asked for.
        name: String,
        /// The words that there are.
        known: Vec<&'static str>,
    },
    /// No device is called that.
    #[error("unknown device `{name}`{}\n  help: devices are written cpu, cuda:0, rocm:0, metal:0", Meant(.nearest))]
    UnknownDevice {
        /// What was asked for.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
    },
    /// An environment variable holds what it can't mean.
    #[error("environment variable {variable} is `{value}`: {why}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: String,
        /// What is wrong with that, and what it may hold.
        why: String,
    },
    /// A quarantine that a folder is to keep, and can't.
    #[error(
        "can't {doing}, of the quarantine in `{path}`: {why}\n  help: GRISTMILL_QUARANTINE, or who opens it, names a folder that this program may \
         write; unset it to go without"
    )]
    Quarantine {
        /// The folder, or the file in it.
        path: String,
        /// What was being done.
        doing: &'static str,
        /// What went wrong.
        why: String,
    },
    /// The format is described, but this build left it out.
    #[error(
        "format `{format}` is described but not compiled into this build\n  \
         help: build with the cargo feature that compiles it: `cargo build --features {feature}`"
    )]
    NotCompiled {
        /// The format.
        format: &'static str,
        /// The cargo feature that compiles it.
        feature: &'static str,
    },
    /// Nothing can do what was asked; the refusal says why, kernel by kernel.
    #[error("{0}")]
    NoKernel(Box<Refusal>),
    /// A handle was asked of a kernel that computes something else.
    #[error("kernel `{kernel}` computes {found}, not {expected}")]
    WrongOp {
        /// The kernel.
        kernel: &'static str,
        /// What the handle is for.
        expected: Op,
        /// What the kernel computes.
        found: Op,
    },
    /// The kernel needs features that this processor lacks (a decision for a pretended processor).
    #[error("kernel `{kernel}` can't run on this processor, which lacks {}", List(.missing))]
    CannotRunHere {
        /// The kernel.
        kernel: &'static str,
        /// The features.
        missing: Vec<Feature>,
    },
    /// The kernel is for a device that this build can't drive.
    #[error("kernel `{kernel}` runs on {device}, which this build can't drive")]
    CannotDrive {
        /// The kernel.
        kernel: &'static str,
        /// Its device.
        device: Device,
    },
    /// A shape is outside what the kernel takes.
    #[error("kernel `{kernel}` can't take this shape: {rule}\n  help: decide again for this shape")]
    ShapeRule {
        /// The kernel.
        kernel: &'static str,
        /// The rule and the number that breaks it.
        rule: BrokenRule,
    },
    /// A quantizer was given the importance of columns and weighs no errors.
    #[error(
        "kernel `{kernel}` takes no importance of columns\n  help: quantizers that search for a scale do, on the processor; `{quantizer}` of \
         format `{format}` quantizes without"
    )]
    NoImportance {
        /// The kernel.
        kernel: &'static str,
        /// Its format.
        format: &'static str,
        /// Its quantizer.
        quantizer: &'static str,
    },
    /// The importance of a column is no number that errors can count by.
    #[error("the importance of column {column} is {value}\n  help: it has to be finite and not negative")]
    Importance {
        /// The column.
        column: usize,
        /// What it is.
        value: f32,
    },
    /// Rows of a format are whole blocks.
    #[error(
        "k = {k} is not a multiple of {elements}, the block of format `{format}`\n  \
         help: pad rows to {}", padded(*.k, *.elements)
    )]
    KNotMultiple {
        /// The format.
        format: &'static str,
        /// Elements of its block.
        elements: usize,
        /// The row length.
        k: usize,
    },
    /// A buffer does not have the size that the shape gives it.
    #[error("{what} holds {found} {unit}, expected {expected}")]
    ShapeMismatch {
        /// Which buffer.
        what: &'static str,
        /// What is counted: `bytes`, `values`, `elements`, `rows`, `tokens`, `elements a row`.
        unit: &'static str,
        /// The size that the shape gives.
        expected: usize,
        /// The size found.
        found: usize,
    },
    /// Rows overlap: the leading dimension is smaller than a row.
    #[error(
        "rows of {what} are {stride} values apart and hold {row}\n  help: the stride is the distance from row to row, {row} at least"
    )]
    StrideTooSmall {
        /// Which operand.
        what: &'static str,
        /// Values from one row to the next.
        stride: usize,
        /// Values of a row.
        row: usize,
    },
    /// A range of rows that ends before it begins, or behind the matrix.
    #[error("rows {begin} to {end} are not a range of a matrix of {rows} rows")]
    RowRange {
        /// The first row.
        begin: usize,
        /// The row behind the last.
        end: usize,
        /// Rows of the matrix.
        rows: usize,
    },
    /// A product of a batch that starts from activations that are not quantized.
    #[error(
        "product {index} of the batch starts from activations that are not quantized\n  \
         help: quantize them with `Linear::quantize`, and add what `Linear::product_of` gives"
    )]
    NotQuantized {
        /// Its number in the batch, from 0.
        index: usize,
    },
    /// Something that products can be asked for on the processor alone.
    #[error(
        "kernel `{kernel}` runs on {device}, where products have no {option} so far\n  \
         help: run the product without, into memory of its own, or ask for a layer on the processor"
    )]
    ProductOption {
        /// The kernel.
        kernel: &'static str,
        /// Its device.
        device: DeviceKind,
        /// What was asked for.
        option: &'static str,
    },
    /// A matrix of one format met a kernel of another.
    #[error("the matrix has format `{found}`, kernel `{kernel}` takes `{expected}`")]
    WrongFormat {
        /// The kernel.
        kernel: &'static str,
        /// Its format.
        expected: &'static str,
        /// The matrix' format.
        found: &'static str,
    },
    /// Weights were packed for a kernel with another packing.
    #[error(
        "the weights are packed as `{found}`, kernel `{kernel}` reads `{expected}`\n  help: pack them with this kernel"
    )]
    WrongPacking {
        /// The kernel.
        kernel: &'static str,
        /// What it reads.
        expected: &'static str,
        /// What the matrix has.
        found: &'static str,
    },
    /// The handle was not made for this input type.
    #[error("kernel `{kernel}` takes {}, not {found}", List(.expected))]
    WrongInput {
        /// The kernel.
        kernel: &'static str,
        /// What it is described for.
        expected: Vec<DType>,
        /// What came.
        found: DType,
    },
    /// A finite number is too large for the type that a product rounds it to.
    #[error(
        "{what} at row {row}, column {column} is beyond what the precision of the product holds\n  \
         help: ask for `bf16` or `f32`, or scale the values"
    )]
    BeyondPrecision {
        /// Of which operand.
        what: &'static str,
        /// Its row.
        row: usize,
        /// Its column.
        column: usize,
    },
    /// A row index beyond the matrix.
    #[error("row {row} is beyond the matrix, which has {rows}")]
    NoSuchRow {
        /// The row asked for.
        row: usize,
        /// Rows of the matrix.
        rows: usize,
    },
    /// An index that names no row of the matrix.
    #[error("index {index} (at position {position}) is of no row: the matrix has {rows}")]
    RowIndexOutOfRange {
        /// Where it stands among the indices.
        position: usize,
        /// The index.
        index: u32,
        /// Rows of the matrix.
        rows: usize,
    },
    /// Run never allocates, so the workspace must be large enough before.
    #[error(
        "the workspace is too small: {what} needs {needed} values, found {found}\n  \
         help: make it for the largest m, with `Workspace::for_all` for layers or `Workspace::for_` for a kernel"
    )]
    WorkspaceTooSmall {
        /// Which part.
        what: &'static str,
        /// Values needed.
        needed: usize,
        /// Values there.
        found: usize,
    },
    /// A size overflows the address space.
    #[error("the size of {what} overflows")]
    TooLarge {
        /// Of what.
        what: &'static str,
    },
    /// The system has no more memory.
    #[error("out of memory: {required} bytes could not be allocated")]
    OutOfMemory {
        /// Bytes asked for.
        required: usize,
    },
    /// A device has no more memory.
    #[error(
        "out of memory on cuda:{index}: {required} bytes could not be allocated{}",
        match .available { Some(free) => format!(", {free} are free"), None => String::new() }
    )]
    OutOfDeviceMemory {
        /// Which device.
        index: u32,
        /// Bytes asked for.
        required: usize,
        /// Bytes that were free; `None` where the driver does not say.
        available: Option<usize>,
    },
    /// Weights can't be divided over devices as was asked.
    #[error(
        "weights can't be divided so: {why}\n  help: name each device once, with shares that are finite, not negative and not all 0"
    )]
    Division {
        /// What is wrong.
        why: String,
    },
    /// There is no such GPU, or nothing can be asked of it.
    #[error("cuda:{index}: {why}\n  help: {}", .why.help())]
    NoGpu {
        /// Which device.
        index: u32,
        /// Why.
        why: NoGpu,
    },
    /// The kernel can't run on this GPU (a decision for a pretended one).
    #[error("kernel `{kernel}` can't run on cuda:{index}: {why}")]
    CannotRunOnGpu {
        /// The kernel.
        kernel: &'static str,
        /// Which device.
        index: u32,
        /// Why.
        why: String,
    },
    /// Matrices that were to be packed together have different formats.
    #[error("matrices of formats `{first}` and `{other}` can't be packed together")]
    MixedFormats {
        /// That of the first.
        first: &'static str,
        /// That of another.
        other: &'static str,
    },
    /// No matrices were given to be packed together.
    #[error("no matrices were given to be stacked: one at least is needed")]
    NothingStacked,
    /// Activations were quantized for a kernel that reads them differently.
    #[error(
        "kernel `{kernel}` reads activations as {expected}; these are {found}\n  \
         help: quantize them for this product too, or ask `shares_activations_with` before"
    )]
    ActivationLayout {
        /// The kernel.
        kernel: &'static str,
        /// What it reads.
        expected: String,
        /// What they were quantized to.
        found: String,
    },
    /// Something that only the processor does.
    #[error(
        "{what} are for the processor so far, not for {device}\n  \
         help: on a GPU, `Linear::quantize_on_device` makes activations that several layers share, and `Linear::stacked` \
         packs matrices that share their input as one"
    )]
    ProcessorOnly {
        /// What.
        what: &'static str,
        /// The device that was asked for.
        device: DeviceKind,
    },
    /// A token goes to an expert that there is not.
    #[error("token {token}, position {position}: there is no expert {expert}, only {experts}")]
    NoSuchExpert {
        /// The token.
        token: usize,
        /// Where in its list.
        position: usize,
        /// The number there.
        expert: u32,
        /// How many experts there are.
        experts: usize,
    },
    /// A token goes to one expert twice.
    #[error(
        "token {token}, position {position}: expert {expert} stands in this token's list already\n  \
         help: name each expert once, with the sum of its weights"
    )]
    DuplicateExpert {
        /// The token.
        token: usize,
        /// Where in its list.
        position: usize,
        /// The expert.
        expert: u32,
    },
    /// A token's list of experts ends before it begins.
    #[error("token {token}: its list of experts begins at {begin} and ends at {end}")]
    ExpertLists {
        /// The token.
        token: usize,
        /// Where its list begins: the end of the list before it.
        begin: usize,
        /// Where it ends.
        end: usize,
    },
    /// NaN or an infinity among the weights of a sum over experts.
    #[error("token {token}, position {position}: the weight of this expert is not finite")]
    NonFiniteWeight {
        /// The token.
        token: usize,
        /// Where in its list of experts.
        position: usize,
    },
    /// An operand is not on the kernel's device.
    #[error(
        "kernel `{kernel}` runs on cuda:{index}, an operand is elsewhere\n  help: operands are of the stream that the kernel's handle was \
         made for; `DeviceBuffer::lent` lends memory of another stream, behind an event"
    )]
    WrongDevice {
        /// The kernel.
        kernel: &'static str,
        /// Its device.
        index: u32,
    },
    /// A GPU that was opened is not the device that decisions are for.
    #[cfg(feature = "cuda")]
    #[error("decisions are for {expected}, the GPU is {found}\n  help: ask for {found} in the request")]
    OtherGpu {
        /// What decisions are for.
        expected: Device,
        /// The GPU.
        found: Device,
    },
    /// A context, a stream or memory that an engine lends can't be used.
    #[cfg(feature = "cuda")]
    #[error("{what} lent for cuda:{index}: {why}")]
    Lent {
        /// What was lent.
        what: &'static str,
        /// The device.
        index: u32,
        /// What is wrong with it.
        why: Box<crate::cuda::LentFault>,
    },
    /// The output of a kernel shares memory with something that it reads.
    #[cfg(feature = "cuda")]
    #[error(
        "kernel `{kernel}`: {what} and the output share memory\n  help: kernels read their inputs while they write; give the output memory of its own"
    )]
    Overlap {
        /// The kernel.
        kernel: &'static str,
        /// What is read.
        what: &'static str,
    },
    /// Something that no graph can hold, while one is captured.
    #[cfg(feature = "cuda")]
    #[error(
        "cuda:{index} captures a graph, in which nothing can be {what}\n  help: run the same once before the capture, so that all memory is there; copy inputs and wait for results outside of it"
    )]
    Capturing {
        /// The device.
        index: u32,
        /// What was to be done.
        what: &'static str,
    },
    /// The driver of a GPU reports an error.
    #[cfg(feature = "cuda")]
    #[error("{0}")]
    Gpu(Box<crate::cuda::GpuFailure>),
    /// NCCL could not do what it was asked for.
    #[cfg(feature = "nccl")]
    #[error("NCCL, {doing}: {why}\n  help: {help}")]
    Nccl {
        /// What was being done.
        doing: &'static str,
        /// Why not.
        why: String,
        /// What would help.
        help: &'static str,
    },
    /// A code that the format gives no meaning.
    #[error("row {row}, column {column}: the code there means nothing in format `{format}`")]
    InvalidCode {
        /// The format.
        format: &'static str,
        /// The row.
        row: usize,
        /// The element in the row.
        column: usize,
    },
    /// NaN or an infinity in the input.
    #[error("row {row}, column {column}: the input is not finite")]
    NonFinite {
        /// The row, or the token.
        row: usize,
        /// The element in the row.
        column: usize,
    },
    /// NaN or an infinity among the scales that a caller gave with int8 activations.
    #[error("token {row}, block {block}: the scale is not finite")]
    NonFiniteScale {
        /// The token.
        row: usize,
        /// The block of activations.
        block: usize,
    },
    /// A scale is too large for the type that stores it.
    #[error(
        "row {row}, block {block}: the scale does not fit its storage type\n  help: the values there are too large for this format"
    )]
    ScaleOverflow {
        /// The row.
        row: usize,
        /// The block in the row.
        block: usize,
    },
    /// A Hadamard transform that there is not, or that a layer can't apply.
    #[error("a Hadamard transform of rows of {width} in blocks of {block}: {why}")]
    Hadamard {
        /// Elements of a row.
        width: usize,
        /// Elements of a block.
        block: usize,
        /// Why.
        why: String,
    },
    /// A prologue that there is not, or that activations of a format can't go through.
    #[error("a prologue of rows of {k}: {why}")]
    Prologue {
        /// Elements of a row.
        k: usize,
        /// Why.
        why: String,
    },
    /// A kernel panicked or computed something else than the portable one, and no other is left for the layer.
    #[error(
        "kernel `{kernel}` failed and no other one is left: {why}\n  \
         help: `gristmill verify` looks at every kernel of this build on this machine"
    )]
    KernelFailed {
        /// The kernel.
        kernel: &'static str,
        /// What was seen.
        why: String,
    },
    /// A program has one observer of launches.
    #[error("this program has an observer of launches already\n  help: start the monitor once, and keep it")]
    SecondObserver,
    /// A recording can only take launches of the registry it was made for.
    #[error("the recording belongs to the registry of `{recording}`, the kernel to that of `{kernel}`")]
    ForeignRecording {
        /// Package of the recording's registry.
        recording: &'static str,
        /// Package of the kernel's registry.
        kernel: &'static str,
    },
    /// More threads than can share a job.
    #[error(
        "can't start {count} threads: at most {most} can share a job\n  help: ask for one for each processor"
    )]
    TooManyThreads {
        /// How many were asked for.
        count: usize,
        /// The most that can be had.
        most: usize,
    },
    /// Threads could not be started.
    #[error("can't start {count} threads: {why}")]
    Threads {
        /// How many were asked for.
        count: usize,
        /// What the system said.
        why: String,
    },
    /// A processor that a thread can't be kept on.
    #[error(
        "processor {cpu} is not one that this program may use\n  help: the number is the system's, as in `taskset -pc $$` on Linux"
    )]
    Processor {
        /// Its number.
        cpu: usize,
    },
    /// The system does not let a thread stay on the processors of a NUMA node.
    #[error(
        "the calling thread can't stay on the processors of node {node}: {cpus:?}\n  \
         help: the program must be allowed to use one of them (`taskset -pc $$` on Linux)"
    )]
    NodeProcessors {
        /// The node's number.
        node: usize,
        /// The processors, as the system numbers them.
        cpus: Vec<usize>,
    },
    /// Two registries have one name for what is not the same.
    #[error("{0}")]
    Joined(Box<Disagreement>),
    /// The registry contradicts itself. Generated ones don't; a hand-written one can.
    #[error("the registry of `{package}` contradicts itself at `{at}`: {what}")]
    BrokenRegistry {
        /// The package.
        package: &'static str,
        /// The entry or format.
        at: &'static str,
        /// The contradiction.
        what: &'static str,
    },
}

fn padded(k: usize, elements: usize) -> String {
    match k.checked_next_multiple_of(elements) {
        Some(next) => next.to_string(),
        None => String::from("whole blocks"),
    }
}
