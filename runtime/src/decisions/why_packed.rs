//! Why weights are held in the packing that they are, where it is not the one that is fastest for them.

/// Why weights are held in the packing with the fewest bytes and not in the one that is fastest from caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FromMemory {
    /// The packing.
    pub packing: &'static str,
    /// The packing that would be taken if the weights stayed in the caches.
    pub instead_of: &'static str,
    /// Bytes of weights that take turns: [`Request::working_set`](crate::Request::working_set).
    pub working_set: u64,
    /// Bytes that the last-level cache holds.
    pub cache: u64,
}

impl std::fmt::Display for FromMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let FromMemory { packing, instead_of, working_set, cache } = self;
        let (working_set, cache) = (Mib(*working_set), Mib(*cache));
        write!(
            f,
            "`{packing}` instead of `{instead_of}`: {working_set} of weights take turns, a cache of {cache} does not \
             hold them, and it has the fewest bytes to read"
        )
    }
}

/// Bytes in MiB.
struct Mib(u64);

impl std::fmt::Display for Mib {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

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
