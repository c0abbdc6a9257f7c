//! Guarded layers of one GPU let go of it together when it is lost, since it can be opened again only when nobody holds it: in a model
//! the first layer that fails may be the last that runs.

use super::device::holds_lost;
use super::state::{Away, State};
use crate::device::Device;
use crate::error::Error;
use crate::linear::Linear;
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError, Weak};

/// The layers of a process that were made for a GPU.
static LAYERS: Mutex<Vec<Weak<RwLock<State>>>> = Mutex::new(Vec::new());

/// Lets a layer be asked.
pub(super) fn list(layer: &Arc<RwLock<State>>) {
    let mut layers = LAYERS.lock().unwrap_or_else(PoisonError::into_inner);
    layers.retain(|layer| layer.strong_count() > 0);
    layers.push(Arc::downgrade(layer));
}

/// Layers that hold `device`, which is lost by `error`, are nowhere from now on, and open it again in their next run. One that runs at the
/// moment is passed over: its run fails, and then it lets go by itself.
pub(super) fn release(device: Device, error: &Error) {
    let layers: Vec<_> = LAYERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for layer in layers.iter().filter_map(Weak::upgrade) {
        let mut state = match layer.try_write() {
            Ok(state) => state,
            // What is behind the lock is replaced as a whole.
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => continue,
        };
        let held = |linear: &&Linear| linear.prepared().device() == device && holds_lost(linear);
        let holds = state.linear.as_ref().filter(held);
        if let Some(kernel) = holds.and_then(|linear| linear.kernels().next()) {
            state.away = Some(Away { kernel, error: error.clone(), tried: 0 });
            state.linear = None;
            state.given.let_go_of_lost();
        }
    }
}
