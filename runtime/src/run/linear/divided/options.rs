//! Over which devices a layer is divided, and how.

use super::shares::Shares;
use crate::device::Device;

/// How a layer is divided.
#[derive(Clone, Debug, Default)]
pub struct DivideOptions {
    /// The devices, each once; the processor may be one of them. The rows of the weights, or the tokens of a replicated layer, go to them in this order.
    pub devices: Vec<Device>,
    /// How many rows or tokens each gets.
    pub shares: Shares,
    /// Leaves it to the caller what becomes of a run whose device was lost: its error is returned, and the layer stays as it is.
    /// Without this others take over.
    pub keep_division: bool,
}

impl DivideOptions {
    /// Rows by multiprocessors and clock over these devices, others taking over where one is lost.
    pub fn over(devices: impl IntoIterator<Item = Device>) -> DivideOptions {
        DivideOptions { devices: devices.into_iter().collect(), ..DivideOptions::default() }
    }

    /// The same with other shares.
    pub fn with_shares(self, shares: Shares) -> DivideOptions {
        DivideOptions { shares, ..self }
    }
}
