//! Arrays in shared memory, as kernels declare them and functions take them.

use crate::text::joined;

/// An array.
#[derive(Clone, Copy)]
pub(super) struct Array {
    pub(super) ty: &'static str,
    pub(super) name: &'static str,
    /// Elements: of a stage, or all.
    pub(super) count: u32,
}

impl Array {
    /// Bytes of its elements.
    pub(super) fn bytes(&self) -> u32 {
        let each = match self.ty {
            "u8" | "i8" => 1,
            "u64" => 8,
            _ => 4,
        };
        self.count * each
    }
}

/// Those of a kernel's arrays that it uses.
pub(super) fn used(
    all: impl IntoIterator<Item = (bool, &'static str, &'static str, u32)>,
) -> impl Iterator<Item = Array> {
    all.into_iter().filter_map(|(used, ty, name, count)| used.then_some(Array { ty, name, count }))
}

/// Template parameters for the types of arrays.
pub(super) fn types(arrays: &[Array]) -> String {
    joined(arrays.iter().map(|array| format!("class A{}", array.name)), ", ")
}

/// Parameters of those types.
pub(super) fn parameters(arrays: &[Array]) -> String {
    joined(arrays.iter().map(|Array { name, .. }| format!("A{name} &{name}")), ", ")
}

/// The arrays as arguments.
pub(super) fn arguments(arrays: &[Array]) -> String {
    joined(arrays.iter().map(|array| array.name), ", ")
}
