//! The table of ops: what kernels of each are written for, which types they take, and how their functions are called.
//!
//! The checker, the compiler, decisions, macros, the command and its pages read an op's row. What an op adds of its own is the
//! code that its kernels consist of (`CONTRIBUTING.md`, "Adding an op").

use super::{Abi, DType};

/// What an op's kernels are numbered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// Weight formats.
    Formats,
    /// Activation formats.
    Activations,
}

/// Which side of an op is not packed. Its type is the one that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpacked {
    /// What goes in: values to quantize, activations of a product.
    Input,
    /// What comes out: values of blocks.
    Output,
}

/// A row of the table of ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpInfo {
    /// What is computed, in one line.
    pub doc: &'static str,
    /// What it is called in tables of formats.
    pub letter: char,
    /// What its kernels are numbered by.
    pub serves: Serves,
    /// Whether there is a kernel for each quantizer of a format.
    pub by_quantizer: bool,
    /// Whether activations are multiplied by weights: such kernels have packings, tiles and a precision.
    pub product: bool,
    /// The op whose kernels, numbered by the format's activation format, bring float activations to int8 in front of it.
    pub quantized_by: Option<Op>,
    /// The op whose kernels do the same behind a prologue.
    pub prologue: Option<Op>,
    /// Whether there is a kernel only for activation formats with a prologue.
    pub by_prologue: bool,
    /// Which side is not packed.
    pub unpacked: Unpacked,
    /// The types that this side may have.
    pub types: &'static [DType],
    /// Whether a kernel file has to say which of these types it takes; else it takes all.
    pub types_stated: bool,
    /// The type that a kernel file may write as `output`.
    pub output: Option<DType>,
    /// How its functions are called on a processor.
    pub abi: Abi,
}

const F32: &[DType] = &[DType::F32];
const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::Bf16];

/// What most ops over blocks are: the rest of a row is its own.
const BLOCKS: OpInfo = OpInfo {
    doc: "",
    letter: ' ',
    serves: Serves::Formats,
    by_quantizer: false,
    product: false,
    quantized_by: None,
    prologue: None,
    by_prologue: false,
    unpacked: Unpacked::Input,
    types: F32,
    types_stated: false,
    output: None,
    abi: Abi::DEQUANTIZE,
};

/// Declares the ops, each by its row.
macro_rules! ops {
    ($($(#[$meta:meta])* $op:ident = $word:literal { $($row:tt)* })*) => {
        words! {
            /// What a kernel computes.
            Op { $($(#[$meta])* $op = $word,)* }
        }

        impl Op {
            /// The op's row of the table.
            pub const fn info(self) -> &'static OpInfo {
                match self { $(Op::$op => &OpInfo { $($row)*, ..BLOCKS },)* }
            }
        }
    };
}

ops! {
    /// f32 values to packed blocks, by one of the format's quantizers.
    Quantize = "quantize" {
        doc: "f32 values to packed blocks, by a quantizer of the format",
        letter: 'Q',
        by_quantizer: true,
        abi: Abi::QUANTIZE
    }
    /// Packed blocks to f32 values.
    Dequantize = "dequantize" {
        doc: "packed blocks to f32 values",
        letter: 'D',
        unpacked: Unpacked::Output,
        output: Some(DType::F32),
        abi: Abi::DEQUANTIZE
    }
    /// `y[m,n] = sum_k x[m,k] * w[n,k] (+ bias[n])` with packed `w`.
    Matmul = "matmul" {
        doc: "y[m,n] = sum_k x[m,k] * w[n,k] (+ bias[n]) with packed w",
        letter: 'M',
        product: true,
        quantized_by: Some(Op::QuantizeActivations),
        prologue: Some(Op::Prologue),
        types: DType::ALL,
        types_stated: true,
        output: Some(DType::F32),
        abi: Abi::MATMUL
    }
    /// f32 activation rows to int8 with scales and sums.
    QuantizeActivations = "quantize_activations" {
        doc: "f32 activation rows to int8 with scales and sums",
        letter: 'A',
        serves: Serves::Activations,
        abi: Abi::QUANTIZE_ACTIVATIONS
    }
    /// f32 activation rows through the steps of a prologue, then to int8 with scales and sums.
    Prologue = "prologue" {
        doc: "f32 activation rows through gate, residual, norm and transform, then to int8 with scales and sums",
        letter: 'P',
        serves: Serves::Activations,
        by_prologue: true,
        abi: Abi::PROLOGUE
    }
    /// Rows of a packed matrix by index, as f32, f16 or bf16 values.
    Embed = "embed" {
        doc: "rows of packed blocks by index, as f32, f16 or bf16 values",
        letter: 'E',
        unpacked: Unpacked::Output,
        types: FLOATS,
        abi: Abi::EMBED
    }
}

impl Op {
    /// The ops that serve formats of a kind, products last: the order in which weights are used.
    pub fn serving(kind: Serves) -> impl Iterator<Item = Op> {
        let of_kind = move |products: bool| {
            Op::ALL.iter().copied().filter(move |op| {
                let info = op.info();
                info.product == products && info.serves == kind
            })
        };
        of_kind(false).chain(of_kind(true))
    }

    /// Whether kernels of both are numbered by formats of the same kind.
    pub const fn serves_like(self, other: Op) -> bool {
        matches!(
            (self.info().serves, other.info().serves),
            (Serves::Formats, Serves::Formats) | (Serves::Activations, Serves::Activations)
        )
    }
}
