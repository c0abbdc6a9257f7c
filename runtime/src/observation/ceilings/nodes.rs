//! How fast each NUMA node reads its own memory.

use super::read::{Level, ReadBuffers};
use crate::device::CpuProfile;

impl CpuProfile {
    /// [`detect`](CpuProfile::detect)'s profile with [`read_mb_s`](crate::device::Node::read_mb_s) measured, in about `ms` milliseconds a node besides
    /// the time to fill some hundred MB of its memory: one node after the other, by a thread on each of its cores that this program
    /// may use. What can't be measured (no memory, no processors, not enough of either) stays `None`.
    pub fn measured(ms: u32) -> CpuProfile {
        let mut profile = CpuProfile::detect().clone();
        let rates: Vec<Option<u64>> = profile
            .topology
            .nodes
            .iter()
            .map(|node| {
                let cpus = profile.topology.cores_of(node);
                if cpus.is_empty() || node.memory == Some(0) {
                    return None;
                }
                let bytes = Level::Dram.typical_bytes(&profile.caches, cpus.len());
                let mut buffers = ReadBuffers::on_processors(bytes, &cpus)?;
                Some((buffers.rate(ms)? * 1e3).round() as u64)
            })
            .collect();
        for (node, rate) in profile.topology.nodes.iter_mut().zip(rates) {
            node.read_mb_s = rate;
        }
        profile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_this_machine_have_a_rate_and_else_nothing_changes() {
        if cfg!(miri) {
            eprintln!("skipped: an interpreter has no rate, and takes hours to fill memory");
            return;
        }
        let mut measured = CpuProfile::measured(8);
        for node in &mut measured.topology.nodes {
            if !node.cpus.is_empty() && node.memory != Some(0) {
                assert!(node.read_mb_s.take().is_some_and(|rate| rate > 0), "node {}", node.id);
            }
            assert_eq!(node.read_mb_s, None);
        }
        assert_eq!(&measured, CpuProfile::detect());
    }

    #[test]
    fn a_processor_that_is_not_there_is_no_rate() {
        assert!(ReadBuffers::on_processors(1 << 16, &[usize::MAX]).is_none());
    }
}
