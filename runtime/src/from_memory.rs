//! Weights that are read from memory at each step, because those of the whole model do not stay in the caches.

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
