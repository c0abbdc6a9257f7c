//! Several guarded products as one job.

use super::failure::Failure;
use super::guard::Run;
use super::kept::Kept;
use super::linear::{GuardedLinear, KeptMatrix};
use super::seen::{Seen, message};
use super::state::State;
use super::work::Work;
use crate::activations::QuantizedActivations;
use crate::error::Error;
use crate::linear::Linear;
use crate::observe::{Locked, catching};
use crate::operands::output::Output;
use crate::run::product::Batch;
use crate::threads::Threads;
use crate::workspace::Workspace;
use std::sync::RwLockReadGuard;

/// A [`Batch`] of products of guarded layers, on the processor. Where one of them fails, each is computed by itself, with the steps of its layer;
/// results are the same. A run without a failure costs what those of the layers cost, a lock each.
///
/// ```
/// use gristmill_runtime::{Error, GuardedBatch, GuardedLinear, Input, Threads, Workspace};
///
/// /// Gate and up of some tokens.
/// fn both(
///     [gate, up]: [&GuardedLinear<'_>; 2],
///     (x, m): (&[f32], usize),
///     [gates, ups]: [&mut [f32]; 2],
///     workspace: &mut Workspace,
///     threads: &Threads,
/// ) -> Result<(), Error> {
///     let shared = gate.quantize(Input::F32(x), m, workspace, threads)?;
///     let mut batch = GuardedBatch::new();
///     batch.push(gate, &shared, None, gates);
///     batch.push(up, &shared, None, ups);
///     batch.run(threads)
/// }
/// # let _ = both;
/// ```
#[derive(Debug, Default)]
pub struct GuardedBatch<'a> {
    products: Vec<Product<'a>>,
}

#[derive(Debug)]
struct Product<'a> {
    layer: &'a GuardedLinear<'a>,
    x: &'a QuantizedActivations<'a>,
    bias: Option<&'a [f32]>,
    y: &'a mut [f32],
}

impl<'a> GuardedBatch<'a> {
    /// An empty batch.
    pub fn new() -> GuardedBatch<'a> {
        GuardedBatch::default()
    }

    /// Adds a product, whose results will be in `y` (`m * n`). What is wrong with it is said when it is run.
    pub fn push(
        &mut self,
        layer: &'a GuardedLinear<'a>,
        x: &'a QuantizedActivations<'a>,
        bias: Option<&'a [f32]>,
        y: &'a mut [f32],
    ) {
        self.products.push(Product { layer, x, bias, y });
    }

    /// How many products were added.
    pub fn len(&self) -> usize {
        self.products.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.products.is_empty()
    }

    /// Computes all of them.
    ///
    /// # Errors
    /// As for [`GuardedLinear::forward_quantized`], of the first product that has one; results of others may be written.
    pub fn run(mut self, threads: &Threads) -> Result<(), Error> {
        let runs: Vec<Run<'_>> = self.products.iter().map(|product| product.layer.0.begin(threads)).collect();
        let outcomes = self.run_together(&runs, threads)?;
        for ((Product { layer, x, bias, y }, run), outcome) in
            self.products.into_iter().zip(runs).zip(outcomes)
        {
            if let Outcome::Again { failed, remade } = outcome {
                let mut work = Work::OfQuantized { x, bias, y };
                layer.0.recover((failed, 0), remade, run, &mut work, &mut Workspace::new())?;
            }
        }
        Ok(())
    }

    /// Runs all of them as one job, if all are ready.
    fn run_together(&mut self, runs: &[Run<'_>], threads: &Threads) -> Result<Vec<Outcome>, Error> {
        let states: Vec<(*const (), Locked<RwLockReadGuard<'_, State<Linear>>>)> =
            to_lock(self.products.iter().map(|product| product.layer))
                .into_iter()
                .map(|layer| (place(layer), layer.0.read()))
                .collect();
        let state_of = |layer: &GuardedLinear<'_>| {
            let found = states.iter().find(|(known, _)| *known == place(layer));
            found.map(|(_, state)| &**state)
        };
        let again = |product: &Product<'_>, failed| Outcome::Again {
            failed,
            remade: state_of(product.layer).map_or(0, |state| state.remade),
        };
        let Some(jobs) = jobs_of(&mut self.products, runs, &state_of)? else {
            return Ok(self.products.iter().map(|product| again(product, None)).collect());
        };
        // A run that is cut off leaves numbers that mean nothing in its results, and the pool as it was.
        let panicked = catching(|| jobs.run(threads)).err();
        let panicked =
            panicked.map(|payload| format!("a batch that it was part of panicked: {}", message(&*payload)));
        let mut outcomes = Vec::new();
        for (product, run) in self.products.iter_mut().zip(runs) {
            let guard = &product.layer.0;
            let layer = state_of(product.layer).and_then(|state| state.layer.as_ref());
            let failed = layer.and_then(|layer| match &panicked {
                // Whose kernel it was is seen by each alone.
                Some(why) => {
                    let kernel = KeptMatrix::kernels_of(layer, &product.work())?.kernel;
                    Some(Failure::Kernel(Seen { kernel, panicked: true, why: why.clone() }))
                }
                None => guard.seen(layer, &product.work(), &Workspace::new(), run),
            });
            outcomes.push(match (failed, &panicked) {
                (None, None) => Outcome::Good,
                (failed, _) => again(product, failed),
            });
        }
        Ok(outcomes)
    }
}

impl Product<'_> {
    fn work(&mut self) -> Work<'_> {
        Work::OfQuantized { x: self.x, bias: self.bias, y: &mut *self.y }
    }
}

/// All of them as a batch; `None` where one is to run by itself, and so all are.
fn jobs_of<'j, 's: 'j>(
    products: &'j mut [Product<'_>],
    runs: &[Run<'_>],
    state_of: &impl Fn(&GuardedLinear<'_>) -> Option<&'s State<Linear>>,
) -> Result<Option<Batch<'j>>, Error> {
    let mut jobs = Batch::new();
    for (product, run) in products.iter_mut().zip(runs) {
        let guard = &product.layer.0;
        let ready = state_of(product.layer).filter(|state| guard.is_ready(state, run.number));
        let Some((state, layer)) = ready.and_then(|state| Some((state, state.layer.as_ref()?))) else {
            return Ok(None);
        };
        let of_layer = layer.product_of(product.x);
        let of_layer = match product.bias {
            Some(bias) => of_layer.bias(bias),
            None => of_layer,
        };
        match jobs.push(of_layer, Output::F32(&mut *product.y)) {
            Ok(()) => {}
            // By itself each is laid out anew.
            Err(Error::ActivationLayout { .. }) if state.remade > 0 => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(jobs))
}

/// Which one it is.
fn place<T>(layer: &T) -> *const () {
    std::ptr::from_ref(layer).cast()
}

/// Each once, in the order of their places: a thread that reads a lock twice may wait for a writer that waits for it, and so may threads that
/// read the same locks in different orders.
fn to_lock<'a, T>(layers: impl Iterator<Item = &'a T>) -> Vec<&'a T> {
    let mut layers: Vec<&T> = layers.collect();
    layers.sort_by_key(|layer| place(*layer));
    layers.dedup_by_key(|layer| place(*layer));
    layers
}

/// How a product of a batch ended.
enum Outcome {
    Good,
    /// It is to run by itself, with the steps of its layer.
    Again {
        failed: Option<Failure>,
        remade: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::to_lock;

    #[test]
    fn layers_are_locked_once_and_in_one_order() {
        let [a, b, c] = &[1, 2, 3];
        for pushed in [[a, b, c], [c, b, a], [b, c, a]] {
            assert_eq!(to_lock(pushed.into_iter().chain([b, a])), [a, b, c]);
        }
    }
}
