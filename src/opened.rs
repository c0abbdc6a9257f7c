//! A device that is kept open while handles on it come and go.

use crate::Device;

/// A GPU that stays open while handles come and go, since opening it takes a tenth of a second and more. One that can't be opened is told of
/// by the first handle.
pub(crate) struct Opened {
    #[cfg(feature = "cuda")]
    gpu: Option<std::sync::Arc<crate::cuda::Gpu>>,
}

impl Opened {
    /// This device; nothing on the processor.
    #[cfg(feature = "cuda")]
    pub(crate) fn of(device: Device) -> Opened {
        Opened {
            gpu: (device.kind == crate::vocab::DeviceKind::Cuda)
                .then(|| crate::cuda::Gpu::open(device.index).ok())
                .flatten(),
        }
    }

    #[cfg(not(feature = "cuda"))]
    pub(crate) fn of(_: Device) -> Opened {
        Opened {}
    }

    /// Lets go of it and opens it anew: it may have been lost.
    pub(crate) fn renew(&mut self, device: Device) {
        #[cfg(feature = "cuda")]
        {
            self.gpu = None;
        }
        *self = Opened::of(device);
    }
}
