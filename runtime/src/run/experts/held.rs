//! What experts hold on a GPU besides their weights.

use crate::cuda::{AroundExperts, DeviceBuffer};
use crate::error::Error;
use crate::kernel::Matmul;
use crate::registry::Registry;
use crate::run::launch::On;
use crate::weights::PackedMatrix;

/// What experts have on their GPU besides weights.
#[derive(Debug)]
pub(super) struct OnDevice {
    pub(super) around: AroundExperts,
    /// Of each packing, where the weights of each expert are.
    pub(super) addresses: Vec<DeviceBuffer<u64>>,
}

impl OnDevice {
    /// The kernels around products, and where the weights of `packed` are; `choices` are kernels, each with the index of what it reads. `None` on
    /// the processor.
    pub(super) fn new(
        registry: &'static Registry,
        choices: &[(&Matmul, usize)],
        packed: &[Vec<PackedMatrix>],
    ) -> Result<Option<OnDevice>, Error> {
        let Some(gpu) = choices.first().and_then(|(matmul, _)| matmul.gpu()) else { return Ok(None) };
        let around = AroundExperts::load(gpu, registry)?;
        let mut addresses = Vec::with_capacity(packed.len());
        for (at, packed) in packed.iter().enumerate() {
            let of = choices.iter().find(|(_, packed)| *packed == at);
            if let Some(On::Cuda(launcher)) = of.map(|(matmul, _)| matmul.on()) {
                addresses.push(launcher.addresses(packed)?);
            }
        }
        Ok(Some(OnDevice { around, addresses }))
    }
}
