//! Nothing of its own: a build of this package is one of `gristmill` with its command. See `Cargo.toml`.
