//! Weights on a GPU that one copy of serves every number of tokens.

/// Why weights on a GPU are held in a packing that is not the one of the kernel that is preferred for one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldOnce {
    /// The packing.
    pub packing: &'static str,
    /// The packing that the kernel reads that is preferred for one token.
    pub instead_of: &'static str,
}

impl std::fmt::Display for HeldOnce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let HeldOnce { packing, instead_of } = self;
        write!(
            f,
            "`{packing}` alone, whose kernels take every number of tokens: `{instead_of}`, preferred for one, would be a \
             second copy (GRISTMILL_PACKINGS=fastest has both)"
        )
    }
}
