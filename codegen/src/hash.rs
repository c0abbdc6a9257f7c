//! Hashes by which kernels, images and files are known.

/// 64-bit FNV-1a of texts, which are kept apart.
pub(crate) fn hash<'t>(parts: impl IntoIterator<Item = &'t str>) -> u64 {
    fnv(parts.into_iter().flat_map(|part| part.bytes().chain([0xff])))
}

/// 64-bit FNV-1a.
pub(crate) fn fnv(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
