//! What kernels take, printed from the table of calls, and what headers take of a unit.

use crate::text::joined;
use gristmill_spec::vocab::{CudaAbi, CudaFault};

/// Numbers of faults, as kernels add them to four times the index; that of a value that is not finite is 0.
pub(super) const INVALID_CODE: u8 = CudaFault::InvalidCode as u8;
/// As above.
pub(super) const SCALE_OVERFLOW: u8 = CudaFault::ScaleOverflow as u8;
/// As above.
pub(super) const BEYOND: u8 = CudaFault::Beyond as u8;
const _: () = assert!(CudaFault::NonFinite as u8 == 0);

/// The parameters of a kernel that takes several.
pub(super) fn parameters(abi: &CudaAbi) -> String {
    abi.declarations.join(", ")
}

/// The kernel `name` of so many `threads`, which takes what the table says; `body` has its statements, lines of text.
pub(super) fn kernel(threads: u32, name: &str, abi: &CudaAbi, body: &str) -> String {
    exported(&format!("GM_KERNEL({threads})"), name, &parameters(abi), body)
}

/// A kernel that is `declared` so.
pub(super) fn exported(declared: &str, name: &str, parameters: &str, body: &str) -> String {
    format!("{declared} {name}({parameters}) {{\n{body}}}\nGM_EXPORT({name})\n")
}

/// The same as a macro, for a kernel that stands in a header.
pub(super) fn define(name: &str, abi: &CudaAbi) -> String {
    format!("#define {name} {}\n", parameters(abi))
}

/// Numbers that a header takes of the unit, and in it constants of the compiler.
pub(super) fn enumerators(numbers: &[(&str, u32)]) -> String {
    let each = joined(numbers.iter().map(|(name, number)| format!("{name} = {number}")), ", ");
    format!("enum : u32 {{ {} }};\n", each)
}

/// The struct `name`, with the fields `inner` where the table leaves room for them.
pub(super) fn fields(name: &str, abi: &CudaAbi, inner: &[&str]) -> String {
    let all = abi
        .declarations
        .iter()
        .flat_map(|one| if one.is_empty() { inner } else { std::slice::from_ref(one) });
    let lines: String = all.map(|declaration| format!("    {declaration};\n")).collect();
    format!("struct {name} {{\n{lines}}};\n\n")
}
