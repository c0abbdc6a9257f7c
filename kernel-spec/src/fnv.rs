//! The hash by which kernels and images are known, and streams of numbers are seeded: the same on every machine and in every version. It holds
//! against accidents, and not against somebody who looks for two texts with one number.

/// 64-bit FNV-1a (Fowler, Noll, Vo) of the bytes that it was given so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fnv(u64);

impl Fnv {
    /// That of no bytes.
    pub const EMPTY: Fnv = Fnv(0xcbf2_9ce4_8422_2325);

    /// With more bytes behind those so far.
    #[must_use]
    pub const fn with(self, bytes: &[u8]) -> Fnv {
        let (mut state, mut at) = (self.0, 0);
        while at < bytes.len() {
            state = (state ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
            at += 1;
        }
        Fnv(state)
    }

    /// The hash.
    pub const fn get(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Fnv;

    #[test]
    fn published_values() {
        assert_eq!(Fnv::EMPTY.with(b"a").get(), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(Fnv::EMPTY.with(b"foo").with(b"").with(b"bar").get(), 0x8594_4171_f739_67e8);
    }
}
