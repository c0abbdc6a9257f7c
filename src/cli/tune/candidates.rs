//! Kernels that are measured together.

use gristmill::registry::{Entry, FormatInfo};
use gristmill::vocab::{Isa, Op};
use gristmill::{REGISTRY, Threads};

/// Kernels of a format and quantizer that this processor can run; the scalar reference only where it is the only one.
pub(super) fn candidates(op: Op, format: &FormatInfo, quantizer: usize) -> Vec<&'static Entry> {
    let of_format = |entry: &&Entry| {
        let named = REGISTRY.formats.get(entry.format).is_some_and(|info| info.name == format.name);
        let quantized_so = !op.info().by_quantizer || entry.quantizer == quantizer;
        named && entry.op == op && quantized_so && gristmill::json::runs_here(entry)
    };
    let all: Vec<&Entry> = REGISTRY.entries.iter().filter(of_format).collect();
    let fast: Vec<&Entry> = all.iter().copied().filter(|entry| entry.isa != Some(Isa::Scalar)).collect();
    if fast.is_empty() { all } else { fast }
}

/// Whether an order says something: which of several kernels, or on how many threads.
pub(super) fn worth_writing<K>(order: &[(K, f64)], threads: &[Threads]) -> bool {
    order.len() > 1 || (threads.len() > 1 && !order.is_empty())
}
