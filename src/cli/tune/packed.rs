//! Weights as the kernels that are measured take them.

use super::super::error::CliError;
use gristmill::{Matmul, PackedMatrix, QuantizedMatrix, Threads};

/// Weights as kernels take them, once for all kernels that take the same; beside them copies for cold runs.
pub(super) type Packed = Vec<(Matmul, Vec<PackedMatrix>)>;

/// Where among the packed weights those of `matmul` are; they are packed where nobody did so yet.
pub(super) fn place_of_packing(
    packed: &mut Packed,
    matmul: &Matmul,
    matrix: &QuantizedMatrix<'_>,
    threads: &Threads,
) -> Result<usize, CliError> {
    if let Some(at) = packed.iter().position(|(other, _)| other.shares_packing_with(matmul)) {
        return Ok(at);
    }
    packed.push((matmul.clone(), vec![matmul.pack_on(matrix, threads)?]));
    Ok(packed.len() - 1)
}
