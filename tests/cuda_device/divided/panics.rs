//! Panics of an executor while rows are on their way: nothing is lost, and operands are the caller's again.

use super::{ROWS, divided, on_three, one_token, one_token_expected, over, parts};
use crate::images::values;
use crate::support::lose;
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::{Device, DivideOptions, Executor, LinearOptions, Policy, Shares, Threads, Workspace};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A thread of the program's that panics when it is told to, once.
struct Panics(Arc<AtomicBool>);

impl Executor for Panics {
    fn count(&self) -> usize {
        2
    }

    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        assert!(!self.0.swap(false, Ordering::Relaxed), "as it was told");
        (0..parts).for_each(part);
    }
}

#[test]
fn rows_are_not_lost_by_a_panic() {
    on_three("rows_are_not_lost_by_a_panic", || {
        let right = one_token_expected();
        let panics = Arc::new(AtomicBool::new(false));
        let threads = Threads::lent(Panics(Arc::clone(&panics))).expect("two threads").with_grain(1);
        for count in [1, 2] {
            let options = LinearOptions { policy: Policy::Cpu, ..LinearOptions::default() };
            let layer = divided(&options, &over(count)).expect("a layer");
            let mut workspace = Workspace::new();
            (0..count).for_each(|device| lose::at(device, 0));
            panics.store(true, Ordering::Relaxed);
            let stopped = catch_unwind(AssertUnwindSafe(|| one_token(&layer, &mut workspace, &threads)));
            assert!(stopped.is_err() && !panics.load(Ordering::Relaxed), "packing for the processor panics");
            assert!(one_token(&layer, &mut workspace, &threads).expect("runs") == right);
            assert_eq!(parts(&layer).iter().map(|(_, from, to)| to - from).sum::<usize>(), ROWS);
            drop((layer, workspace));
            (0..count).for_each(lose::never);
        }
    });
}

#[test]
fn activations_are_the_callers_again_after_a_panic() {
    on_three("activations_are_the_callers_again_after_a_panic", || {
        let panics = Arc::new(AtomicBool::new(false));
        let threads = Threads::lent(Panics(Arc::clone(&panics))).expect("two threads").with_grain(1);
        let divide = DivideOptions::over([Device::cuda(1), Device::CPU]).with_shares(Shares::Equal);
        let layer = divided(&LinearOptions::default(), &divide).expect("a layer");
        let mut workspace = layer.workspace(1, &threads).expect("memory");
        let (home, other) = (Gpu::open(0).expect("opens"), Gpu::open(1).expect("opens"));
        let x = DeviceBuffer::of(&home, &values(layer.k(), 3)).expect("memory");
        let mut y = DeviceBuffer::<f32>::zeroed(&home, ROWS).expect("memory");
        panics.store(true, Ordering::Relaxed);
        let stopped = catch_unwind(AssertUnwindSafe(|| {
            layer.forward_on_device(DeviceInput::F32(&x), 1, None, &mut y, &mut workspace, &threads)
        }));
        assert!(stopped.is_err() && !panics.load(Ordering::Relaxed), "the processor's part panics");
        // The other device copies nothing from there any more.
        drop((x, y));
        home.synchronize().expect("nothing failed");
        assert_eq!(other.synchronize(), Ok(()));
    });
}
