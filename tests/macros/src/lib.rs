//! Nothing of its own: `tests/` holds what the macros accept, refuse and expand to.
