//! Guarded layers of one GPU let go of it together when it is lost, since it can be opened again only when nobody holds it: in a model
//! the first layer that fails may be the last that runs.

use super::device::holds_lost;
use super::kept::Layer;
use super::state::{Away, State};
use crate::device::Device;
use crate::error::Error;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError, Weak};

/// Whatever holds a GPU.
trait Holder: Debug + Send + Sync {
    /// Lets go of `device`, which is lost by `error`, if it holds it.
    fn let_go(&self, device: Device, error: &Error);
}

/// The layers of a process that were made for a GPU.
static LAYERS: Mutex<Vec<Weak<dyn Holder>>> = Mutex::new(Vec::new());

impl<L: Layer> Holder for RwLock<State<L>> {
    fn let_go(&self, device: Device, error: &Error) {
        let mut state = match self.try_write() {
            Ok(state) => state,
            // What is behind the lock is replaced as a whole.
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let held = |layer: &&L| layer.device() == device && holds_lost(*layer);
        let holds = state.layer.as_ref().filter(held);
        if let Some(kernel) = holds.and_then(|layer| layer.kernels().next()) {
            state.away = Some(Away { kernel, error: error.clone(), tried: 0 });
            state.layer = None;
            state.given.let_go_of_lost();
        }
    }
}

/// Lets a layer be asked.
pub(super) fn list<L: Layer>(layer: &Arc<RwLock<State<L>>>) {
    let mut layers = LAYERS.lock().unwrap_or_else(PoisonError::into_inner);
    layers.retain(|layer| layer.strong_count() > 0);
    let layer: Arc<dyn Holder> = Arc::clone(layer) as _;
    layers.push(Arc::downgrade(&layer));
}

/// Layers that hold `device`, which is lost by `error`, are nowhere from now on, and open it again in their next run. One that runs at the
/// moment is passed over: its run fails, and then it lets go by itself.
pub(super) fn release(device: Device, error: &Error) {
    let layers: Vec<_> = LAYERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    layers.iter().filter_map(Weak::upgrade).for_each(|layer| layer.let_go(device, error));
}
