//! Decisions, and what they follow from.

use super::registry::image;
use gristmill_records::decision as record;
use gristmill_runtime::registry::{Code, CudaCode};
use gristmill_runtime::{Decision, FromMemory, HeldOnce, ProductMemory, Rejection, Shape, Threads, TunedBy};

/// Into how many parts k is divided (split-K) for the shape and device of a decision; 1 on the processor.
pub fn split_k(decision: &Decision<'_>) -> u32 {
    match (decision.chosen().map(|entry| &entry.code), decision.prepared().gpu()) {
        (Some(Code::Cuda(CudaCode { launch, .. })), Some(gpu)) => {
            launch.split_k(decision.shape(), gpu.multiprocessors)
        }
        _ => 1,
    }
}

/// Why weights are held in the packing with the fewest bytes.
pub fn from_memory(why: &FromMemory) -> record::FromMemory {
    record::FromMemory {
        packing: why.packing.to_owned(),
        instead_of: why.instead_of.to_owned(),
        working_set: why.working_set,
        cache: why.cache,
    }
}

/// Why weights are held in one packing on a GPU that is not the preferred one for a token.
pub fn held_once(why: &HeldOnce) -> record::HeldOnce {
    record::HeldOnce { packing: why.packing.to_owned(), instead_of: why.instead_of.to_owned() }
}

/// What a tuning says of a decision.
pub fn tuned_by(tuned: &TunedBy) -> record::TunedBy {
    record::TunedBy {
        threads: tuned.threads as u64,
        fewer_threads: tuned.fewer_threads.map(|threads| threads as u64),
        us: tuned.us,
        fastest: tuned.fastest.map(|(name, _)| name.to_owned()),
        fastest_us: tuned.fastest.map(|(_, us)| us),
        packing: tuned.packing.map(str::to_owned),
    }
}

fn shape(Shape { m, n, k }: Shape) -> record::Shape {
    record::Shape { m: m as u64, n: n as u64, k: k as u64 }
}

fn memory(memory: ProductMemory) -> record::Memory {
    record::Memory {
        packing: memory.packing.map(str::to_owned),
        weight_bytes: memory.weight_bytes as u64,
        bits_per_weight: memory.bits_per_weight,
        workspace_bytes: memory.workspace.bytes() as u64,
    }
}

fn rejected(rejection: Rejection) -> record::Rejected {
    record::Rejected {
        kernel: rejection.kernel.map(str::to_owned),
        reason: rejection.reason.to_string(),
        help: rejection.reason.help(),
    }
}

/// A decision, with the memory of one thread.
pub fn decision(decision: &Decision<'_>) -> record::Decision {
    let prepared = decision.prepared();
    let loaded = decision.chosen().zip(decision.image());
    record::Decision {
        op: prepared.op().name().to_owned(),
        format: prepared.format_name().to_owned(),
        input: prepared.input().name().to_owned(),
        device: prepared.device().to_string(),
        shape: shape(decision.shape()),
        chosen: decision.chosen().map(|entry| entry.name.to_owned()),
        plan: decision.chosen().map(|entry| entry.plan.to_owned()),
        image: loaded.map(|(entry, of)| image(entry, of)),
        occupancy: decision.occupancy().map(|of| record::Occupancy {
            blocks_per_multiprocessor: of.blocks,
            limited_by: of.limit.name().to_owned(),
        }),
        split_k: split_k(decision),
        memory: decision.memory(&Threads::single()).ok().map(memory),
        from_memory: decision.packing_reason().map(from_memory),
        held_once: decision.once_reason().map(held_once),
        tuned_by: decision.tuned_by().as_ref().map(tuned_by),
        rejected: decision.rejected().map(rejected).collect(),
    }
}
