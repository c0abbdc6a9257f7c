//! The table of ops: what kernels of each are written for, and which types they take.

use super::{DType, Op};

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
    /// What its kernels are numbered by.
    pub serves: Serves,
    /// Whether there is a kernel for each quantizer of a format.
    pub by_quantizer: bool,
    /// Whether activations are multiplied by weights: such kernels have packings, tiles, a precision, and other kernels in
    /// front of them that bring activations to int8.
    pub product: bool,
    /// Which side is not packed.
    pub unpacked: Unpacked,
    /// The types that this side may have.
    pub types: &'static [DType],
    /// Whether a kernel file has to say which of these types it takes; else it takes all.
    pub types_stated: bool,
    /// The type that a kernel file may write as `output`.
    pub output: Option<DType>,
}

impl Op {
    /// The op's row of the table.
    pub const fn info(self) -> &'static OpInfo {
        const F32: &[DType] = &[DType::F32];
        const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::Bf16];
        const BLOCKS: OpInfo = OpInfo {
            doc: "",
            serves: Serves::Formats,
            by_quantizer: false,
            product: false,
            unpacked: Unpacked::Input,
            types: F32,
            types_stated: false,
            output: None,
        };
        match self {
            Op::Quantize => &OpInfo {
                doc: "f32 values to packed blocks, by a quantizer of the format",
                by_quantizer: true,
                ..BLOCKS
            },
            Op::Dequantize => &OpInfo {
                doc: "packed blocks to f32 values",
                unpacked: Unpacked::Output,
                output: Some(DType::F32),
                ..BLOCKS
            },
            Op::Matmul => &OpInfo {
                doc: "y[m,n] = sum_k x[m,k] * w[n,k] (+ bias[n]) with packed w",
                product: true,
                types: DType::ALL,
                types_stated: true,
                output: Some(DType::F32),
                ..BLOCKS
            },
            Op::QuantizeActivations => &OpInfo {
                doc: "f32 activation rows to int8 with scales and sums",
                serves: Serves::Activations,
                ..BLOCKS
            },
            Op::Embed => &OpInfo {
                doc: "rows of packed blocks by index, as f32, f16 or bf16 values",
                unpacked: Unpacked::Output,
                types: FLOATS,
                ..BLOCKS
            },
        }
    }

    /// Whether kernels of both are numbered by formats of the same kind.
    pub const fn serves_like(self, other: Op) -> bool {
        matches!(
            (self.info().serves, other.info().serves),
            (Serves::Formats, Serves::Formats) | (Serves::Activations, Serves::Activations)
        )
    }
}
