//! How much a workspace must hold.

/// How much a workspace must hold, in values of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WorkspaceSize {
    /// int8 activations.
    pub q: usize,
    /// Scales of activation blocks.
    pub scales: usize,
    /// Sums of units.
    pub sums: usize,
    /// f32 values for rows that come as f16 or bf16, and for those of a layer that transforms its activations.
    pub rows: usize,
    /// f32 results of experts, before they are sorted or added up.
    pub outputs: usize,
    /// Numbers by which rows are sorted by expert.
    pub indices: usize,
}

impl WorkspaceSize {
    /// Enough for either of two jobs.
    pub fn max(self, other: WorkspaceSize) -> WorkspaceSize {
        WorkspaceSize {
            q: self.q.max(other.q),
            scales: self.scales.max(other.scales),
            sums: self.sums.max(other.sums),
            rows: self.rows.max(other.rows),
            outputs: self.outputs.max(other.outputs),
            indices: self.indices.max(other.indices),
        }
    }

    /// The same in bytes.
    pub fn bytes(self) -> usize {
        let four = |values: usize| values.saturating_mul(4);
        self.q
            .saturating_add(four(self.scales))
            .saturating_add(four(self.sums))
            .saturating_add(four(self.rows))
            .saturating_add(four(self.outputs))
            .saturating_add(four(self.indices))
    }
}
