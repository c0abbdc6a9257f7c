//! A file of its own, which the build script compiles, too.

/// Version of this interface: raised whenever a function, a type or a status of an existing program would change. A program
/// compares it with `gm_abi_version()` of the library that it runs with.
pub const GM_ABI_VERSION: u32 = 1;
