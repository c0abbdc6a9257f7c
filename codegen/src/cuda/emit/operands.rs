//! Packed codes to operands.

use super::product::CudaMatmul;
use crate::text::when;

/// Names of the four words of sixteen bytes.
pub(super) const WORDS: [&str; 4] = ["x", "y", "z", "w"];

/// The emitted `lookup`, where codes are looked up.
pub(super) fn lookup(plan: &CudaMatmul<'_>) -> String {
    when(plan.pack.table.is_some(), || include_str!("../../../cuda/lookup.h"))
}

/// Expressions of the operands in a word of packed codes, field by field.
pub(super) fn fields(plan: &CudaMatmul<'_>, word: &str) -> Vec<String> {
    let bits = plan.pack.bits();
    let mask = (0..4).fold(0u32, |mask, byte| mask | ((1u32 << bits) - 1) << (8 * byte));
    (0..plan.pack.fields)
        .map(|field| {
            let shift = field * bits;
            let text = match (plan.pack.fields, plan.shift_free, shift) {
                (1, _, _) => word.to_string(),
                (_, true, _) => format!("{word} & {:#x}u", mask << shift),
                (_, false, 0) => format!("{word} & {mask:#x}u"),
                (_, false, _) => format!("{word} >> {shift} & {mask:#x}u"),
            };
            if plan.pack.table.is_some() { format!("lookup(table, {text})") } else { text }
        })
        .collect()
}

/// The table in registers, where codes are looked up.
pub(super) fn load_table(plan: &CudaMatmul<'_>) -> &'static str {
    if plan.pack.table.is_some() {
        "const u32x4 table = gm_load_early((const u32x4 *)a.table);\n    "
    } else {
        ""
    }
}

/// A parameter and an argument for the table of values, where codes are looked up.
pub(super) fn table_of(plan: &CudaMatmul<'_>) -> (&'static str, &'static str) {
    if plan.pack.table.is_some() { (", u32x4 table", ", table") } else { ("", "") }
}
