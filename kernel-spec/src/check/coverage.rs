//! Coverage: what `coverage.toml` requires is described by some kernel; a hole is an error by name.

use super::scope::{Named, Scope, served_index};
use crate::diagnostic::quoted;
use crate::model::{Format, Kernel, Required};
use crate::parse::Raw;
use crate::parse::coverage::Require;
use crate::toml_walk::{At, File};
use crate::vocab::{DType, Isa};

/// Returns what is required.
pub(super) fn check(
    raw: &Raw<'_>,
    kernels: &[Option<Kernel>],
    formats: &Named<Format>,
    scope: &Scope<'_>,
) -> Vec<Required> {
    // A kernel that could not be read may fill the hole.
    let whole = kernels.iter().all(Option::is_some) && raw.broken.is_empty();
    for coverage in &raw.coverage {
        for require in &coverage.require {
            one(coverage.file, require, kernels, formats, scope, whole);
        }
    }
    let of = |file: &File<'_>, require: &Require| {
        let named = |name: &At<String>| Required { file: file.path.to_owned(), name: name.value.clone() };
        require.formats.iter().map(named).collect::<Vec<_>>()
    };
    raw.coverage
        .iter()
        .flat_map(|coverage| coverage.require.iter().flat_map(|r| of(coverage.file, r)))
        .collect()
}

fn one(
    file: &File<'_>,
    require: &Require,
    kernels: &[Option<Kernel>],
    formats: &Named<Format>,
    scope: &Scope<'_>,
    whole: bool,
) {
    let op = require.op.value;
    for name in &require.formats {
        let Some(index) = served_index(file, op, name, formats, scope) else { continue };
        if !whole {
            continue;
        }
        let families: Vec<&Kernel> =
            kernels.iter().flatten().filter(|k| k.op == op && k.formats.contains(&index)).collect();
        let inputs: Vec<Option<DType>> = match &require.input[..] {
            [] => vec![None],
            inputs => inputs.iter().map(|at| Some(at.value)).collect(),
        };
        let mut holes = Vec::new();
        for input in inputs {
            for isa in &require.isa {
                if !families.iter().any(|k| serves(k, index, input, isa)) {
                    let of = input.map_or(String::new(), |dtype| format!(" {dtype}"));
                    holes.push(format!("{op} {}{of} {}", name.value, isa.value));
                }
            }
        }
        if holes.is_empty() {
            continue;
        }
        let message = format!("no kernel is described for {}", quoted(holes.iter().map(String::as_str)));
        let error = file.error("coverage-hole", name.span, message).label("required here");
        let help = "add the variant to a file in kernels/, or take it out of the requirement; one whose strategy leaves formats to \
                    others does not count";
        file.report(error.help(help));
    }
}

/// Whether a variant is there for sure: one that may leave a format to others does not count.
fn serves(kernel: &Kernel, format: usize, input: Option<DType>, isa: &At<Isa>) -> bool {
    input.is_none_or(|dtype| kernel.input.contains(&dtype))
        && kernel.cpu.iter().any(|v| v.isa == isa.value && v.formats.contains(&format) && !v.leaves_formats())
}
