//! Literals of C++.

/// An f32 literal of C++.
pub(super) fn float(value: f32) -> String {
    if value.is_finite() { format!("{value:?}f") } else { format!("gm_float({:#x}u)", value.to_bits()) }
}
