//! One layer on several devices, which share its tokens.

use super::options::DivideOptions;
use super::shares;
use super::state::{self, LostGpu, Part, lost_gpu, nobody};
use crate::activations::Input;
use crate::cuda::{DeviceBuffer, behind};
use crate::device::Device;
use crate::error::Error;
use crate::gpu::NoGpu;
use crate::linear::{Linear, LinearOptions, Policy};
use crate::observe::{Locked, recovered};
use crate::operands::quantized_buf::QuantizedBuf;
use crate::operands::sizes::{check_len, product_of};
use crate::receipt::{PartNote, Recording};
use crate::recovery::{Recovery, RecoveryStep};
use crate::registry::Registry;
use crate::threads::Threads;
use crate::workspace::{Workspace, WorkspaceSize};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

/// A layer of which several devices have all weights each, and of whose tokens each computes some: data parallel. For many tokens at a time;
/// one token is one device's.
///
/// A run enqueues the tokens of every GPU before it waits for one, and computes the processor's meanwhile; int8 activations, and tokens that a
/// device has no memory for at once, follow. Int8 products have the bits of one device, whichever computed a token; products of floats keep
/// their bounds.
///
/// Where a device is lost, what the others computed stays, its tokens are computed again by those that are left, by their shares, and it stays out of the
/// layer; the step in the receipt is [`RecoveryStep::TakenOver`]. Under [`Policy::Cpu`] the processor takes over where no device is left.
#[derive(Debug)]
pub struct ReplicatedLinear<'w> {
    registry: &'static Registry,
    weights: QuantizedBuf<'w>,
    options: LinearOptions,
    keep_division: bool,
    devices: Vec<Device>,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    replicas: Vec<Replica>,
    lost: Vec<LostGpu>,
    recording: Option<Recording>,
}

/// All rows on a device.
#[derive(Debug)]
struct Replica {
    part: Part,
    share: f64,
}

/// Operands of a run, and the tokens of it that are meant.
struct Tokens<'r> {
    input: Input<'r>,
    m: usize,
    n: usize,
    bias: Option<&'r [f32]>,
    threads: &'r Threads,
}

/// Tokens that a device did not compute, since it was lost.
struct Missing {
    tokens: Range<usize>,
    lost: LostGpu,
}

impl<'r> Tokens<'r> {
    fn of(&self, tokens: &Range<usize>) -> Input<'r> {
        let (_, behind) = self.input.split_at(tokens.start, self.m);
        behind.split_at(tokens.len(), self.m - tokens.start).0
    }
}

impl<'w> ReplicatedLinear<'w> {
    /// The layer. It needs `weights` for as long as it lives: own, or lent from a file that is mapped. `options` are those of [`Linear::new`], but
    /// for the device; shares say how many tokens each device gets.
    ///
    /// # Errors
    /// [`Error::Division`] for devices or shares that nothing can be divided by; [`Error::NoGpu`]; else as for [`Linear::new`]. Nobody takes over
    /// while the layer is made.
    pub fn new(
        registry: &'static Registry,
        weights: QuantizedBuf<'w>,
        options: &LinearOptions,
        divide: &DivideOptions,
        threads: &Threads,
    ) -> Result<ReplicatedLinear<'w>, Error> {
        let options = options.fixed(registry)?;
        let DivideOptions { devices, shares, keep_division } = divide;
        let shares = shares::of(devices, shares)?;
        let (devices, keep_division) = (devices.clone(), *keep_division);
        let mut layer =
            ReplicatedLinear { registry, weights, options, keep_division, devices, state: RwLock::default() };
        let mut replicas = Vec::new();
        for (device, share) in layer.devices.iter().zip(shares).filter(|(_, share)| *share > 0.0) {
            replicas.push(Replica { part: layer.part(*device, threads)?, share });
        }
        layer.state = RwLock::new(State { replicas, ..State::default() });
        Ok(layer)
    }

    /// Rows of the weights: outputs.
    pub fn n(&self) -> usize {
        self.weights.n()
    }

    /// Elements of a row: inputs.
    pub fn k(&self) -> usize {
        self.weights.k()
    }

    /// Bytes of the weights that are kept besides those on devices, for the processor to take over.
    pub fn kept_bytes(&self) -> usize {
        self.weights.data().len()
    }

    /// The devices that compute tokens at the moment, each with the bytes of its weights.
    pub fn replicas(&self) -> Vec<(Device, usize)> {
        let of = |replica: &Replica| (replica.part.note.device, replica.part.linear.weight_bytes());
        self.read().replicas.iter().map(of).collect()
    }

    /// The devices that were lost so far, in that order.
    pub fn lost(&self) -> Vec<LostGpu> {
        self.read().lost.clone()
    }

    /// As [`Linear::record`]: launches on all devices count, and the receipt says who computed tokens in how many runs, and who took over.
    ///
    /// # Errors
    /// As for [`Linear::record`].
    pub fn record(&self, recording: Option<&Recording>) -> Result<(), Error> {
        let state = &mut *self.write();
        let parts = state.replicas.iter_mut().map(|replica| &mut replica.part);
        state::record(parts, &mut state.recording, recording)
    }

    /// What a workspace must hold for up to `m` tokens: for those on the processor. What runs need on GPUs comes with the first. A run
    /// that takes over makes the one that it is given larger if need be.
    ///
    /// # Errors
    /// As for [`Linear::workspace_size`].
    pub fn workspace_size(&self, m: usize, threads: &Threads) -> Result<WorkspaceSize, Error> {
        self.read().workspace_size(m, threads)
    }

    /// How many tokens each device does in a second, `m` at a time: the best of five runs of each alone, without copies. In the order of
    /// [`DivideOptions::devices`]; 0 for a device that has none. [`Shares::Given`](super::Shares::Given) takes it.
    ///
    /// # Errors
    /// As for [`forward`](ReplicatedLinear::forward); nobody takes over.
    pub fn speeds(&self, m: usize, threads: &Threads) -> Result<Vec<f64>, Error> {
        let (state, m) = (self.read(), m.max(1));
        let mut workspace = Workspace::of_size(state.workspace_size(m, threads)?)?;
        let speed = |device: &Device| {
            let of_device = |replica: &&Replica| replica.part.note.device == *device;
            let Some(replica) = state.replicas.iter().find(of_device) else { return Ok(0.0) };
            let time = replica.part.time([m, self.k()], &mut workspace, threads)?;
            Ok(m as f64 / time.as_secs_f64().max(1e-9))
        };
        self.devices.iter().map(speed).collect()
    }

    /// As [`Linear::forward`], by all devices. Operands are the processor's. Waits for all devices.
    ///
    /// # Errors
    /// As for [`Linear::forward`]; [`Error::NoGpu`] where no device is left, and [`Error::Gpu`] of one that was lost with
    /// [`DivideOptions::keep_division`]. `y` then holds nothing of use.
    pub fn forward(
        &self,
        input: Input<'_>,
        m: usize,
        bias: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        let (n, k) = (self.n(), self.k());
        check_len("activations", "values", product_of("activations", m, k)?, input.len())?;
        check_len("the output", "values", product_of("the output", m, n)?, y.len())?;
        bias.map_or(Ok(()), |bias| check_len("the bias", "values", n, bias.len()))?;
        if m == 0 || n == 0 {
            return Ok(());
        }
        let run = Tokens { input, m, n, bias, threads };
        let mut missing = {
            let state = self.read();
            if !state.lost.is_empty() {
                workspace.grow(state.workspace_size(m, threads)?)?;
            }
            self.attempt(&state, &run, 0..m, y, workspace)?
        };
        let mut attempt = 0;
        while !missing.is_empty() {
            attempt += 1;
            missing = self.take_over(&run, missing, attempt, y, workspace)?;
        }
        Ok(())
    }

    /// Runs tokens on the devices that there are. Those of devices that are lost meanwhile are given back.
    fn attempt(
        &self,
        state: &State,
        run: &Tokens<'_>,
        tokens: Range<usize>,
        y: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<Vec<Missing>, Error> {
        // What layers before left on devices that are lost concerns nobody here.
        workspace.forget(|index| state.lost.iter().any(|lost| lost.index == index));
        let outcome = match workspace.gpu.get_or_insert_default().finish_pending() {
            // A fault of earlier runs is theirs.
            Ok(()) => state.run(run, tokens.clone(), y, workspace),
            Err(error) => Err(error),
        };
        let outcome = match outcome {
            Err(error) => match lost_gpu(&error).filter(|index| state.has(*index)) {
                Some(index) => Ok(vec![Missing { tokens, lost: LostGpu { index, why: error.to_string() } }]),
                None => Err(error),
            },
            done => done,
        };
        match outcome {
            Ok(missing) if missing.is_empty() || !self.keep_division => Ok(missing),
            Ok(missing) => {
                let LostGpu { index, why } = missing[0].lost.clone();
                Err(Error::NoGpu { index, why: NoGpu::Lost { error: why } })
            }
            Err(error) => {
                workspace.gpu.get_or_insert_default().settle();
                Err(error)
            }
        }
    }

    /// Takes devices that were lost out of the layer, and lets the others compute their tokens.
    fn take_over(
        &self,
        run: &Tokens<'_>,
        missing: Vec<Missing>,
        attempt: u32,
        y: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<Vec<Missing>, Error> {
        let started = Instant::now();
        let mut state = self.write();
        let kernels: Vec<_> = missing.iter().map(|missing| state.lose(&missing.lost)).collect();
        workspace.forget(|index| state.lost.iter().any(|lost| lost.index == index));
        if state.replicas.is_empty() && self.options.policy == Policy::Cpu {
            let mut part = self.part(Device::CPU, run.threads)?;
            part.record(state.recording.as_ref())?;
            state.replicas.push(Replica { part, share: 1.0 });
        }
        let mut again = Vec::new();
        let outcome = match state.replicas.is_empty() {
            true => Err(nobody(&state.lost)),
            false => (|| {
                workspace.grow(state.workspace_size(run.m, run.threads)?)?;
                for Missing { tokens, .. } in &missing {
                    again.extend(self.attempt(&state, run, tokens.clone(), y, workspace)?);
                }
                Ok(())
            })(),
        };
        let success = outcome.is_ok() && again.is_empty();
        let to: Vec<String> =
            state.replicas.iter().map(|replica| replica.part.note.device.to_string()).collect();
        for (Missing { tokens, lost }, kernel) in missing.iter().zip(kernels) {
            // Somebody else was faster, and has told it.
            let Some(kernel) = kernel else { continue };
            let to = if to.is_empty() { String::from("nobody") } else { to.join(", ") };
            let (from, end, index, why) = (tokens.start, tokens.end, lost.index, &lost.why);
            let step = Recovery {
                step: RecoveryStep::TakenOver,
                op: kernel.op,
                format: self.weights.format().name.to_owned(),
                kernel: kernel.name,
                id: kernel.id,
                reason: format!("cuda:{index} was lost, tokens {from} to {end} went to {to}: {why}"),
                then: state
                    .replicas
                    .iter()
                    .find_map(|replica| replica.part.product())
                    .map(|entry| entry.name),
                attempt,
                success,
                time: started.elapsed(),
            };
            recovered(&step);
            if let Some(recording) = &state.recording {
                recording.ledger.recovered(step);
            }
        }
        outcome.map(|()| again)
    }

    /// The layer on a device.
    fn part(&self, device: Device, threads: &Threads) -> Result<Part, Error> {
        let gpu = self.options.gpu.clone().filter(|gpu| Device::cuda(gpu.profile().index) == device);
        let options = LinearOptions { device, gpu, ..self.options.clone() };
        let linear = Linear::new(self.registry, &self.weights.matrix(), &options, threads)?;
        let gpu = linear.gpu().cloned();
        let note = Arc::new(PartNote {
            format: self.weights.format().name,
            shape: [self.n(), self.k()],
            rows: 0..self.n(),
            // A policy may have moved it.
            device: linear.prepared().device(),
            runs: AtomicU64::new(0),
        });
        Ok(Part { rows: 0..self.n(), linear, gpu, note })
    }

    // What is behind the lock is whole after a panic too: replicas are added and taken away one by one.
    fn read(&self) -> Locked<RwLockReadGuard<'_, State>> {
        Locked::by(|| self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> Locked<RwLockWriteGuard<'_, State>> {
        Locked::by(|| self.state.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn workspace_size(&self, m: usize, threads: &Threads) -> Result<WorkspaceSize, Error> {
        let mut size = WorkspaceSize::default();
        for Replica { part, .. } in &self.replicas {
            size = size.max(part.linear.workspace_size(m, threads)?);
        }
        Ok(size)
    }

    fn has(&self, index: u32) -> bool {
        self.replicas.iter().any(|replica| replica.part.is_on(index))
    }

    /// Takes a device out of the layer; a kernel that it ran, if it was in it.
    fn lose(&mut self, lost: &LostGpu) -> Option<&'static crate::registry::Entry> {
        let at = self.replicas.iter().position(|replica| replica.part.is_on(lost.index))?;
        let kernel = self.replicas.remove(at).part.product();
        self.lost.push(lost.clone());
        kernel
    }

    /// Tokens by shares, each device's at once.
    fn run(
        &self,
        run: &Tokens<'_>,
        tokens: Range<usize>,
        y: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<Vec<Missing>, Error> {
        let shares: Vec<f64> = self.replicas.iter().map(|replica| replica.share).collect();
        if shares.is_empty() {
            return Err(nobody(&self.lost));
        }
        let ends = shares::ends(tokens.len(), &shares, 1);
        let mut missing = Vec::new();
        let mut lose = |error: Error, tokens: &Range<usize>| match lost_gpu(&error) {
            Some(index) if self.has(index) => {
                missing.push(Missing {
                    tokens: tokens.clone(),
                    lost: LostGpu { index, why: error.to_string() },
                });
                Ok(())
            }
            _ => Err(behind(error, tokens.start)),
        };
        let (mut enqueued, mut others) = (Vec::new(), Vec::new());
        let mut start = tokens.start;
        for (Replica { part, .. }, end) in self.replicas.iter().zip(ends) {
            let own = start..tokens.start + end;
            start = own.end;
            if own.is_empty() {
                continue;
            }
            part.note.runs.fetch_add(1, Ordering::Relaxed);
            match part.enqueue(run, &own, workspace) {
                Ok(Some(outputs)) => enqueued.push((part, own, outputs)),
                // int8 activations and the processor go another way, and so do tokens that have no room at once.
                Ok(None) | Err(Error::OutOfDeviceMemory { .. }) => others.push((part, own)),
                Err(error) => lose(error, &own)?,
            }
        }
        // The processor's before a GPU is waited for.
        others.sort_by_key(|(part, _)| part.gpu.is_some());
        let on_gpu = others.iter().position(|(part, _)| part.gpu.is_some()).unwrap_or(others.len());
        let behind_gpus = others.split_off(on_gpu);
        let forward = |part: &Part, own: &Range<usize>, y: &mut [f32], workspace: &mut Workspace| {
            let y = &mut y[own.start * run.n..own.end * run.n];
            part.linear.forward(run.of(own), own.len(), run.bias, y, workspace, run.threads)
        };
        for (part, own) in &others {
            forward(part, own, y, workspace).map_err(|error| behind(error, own.start))?;
        }
        for (_, own, outputs) in &enqueued {
            let gpu = outputs.gpu();
            let read = workspace.gpu.get_or_insert_default().finish_on(gpu);
            let read = read.and_then(|()| outputs.read(&mut y[own.start * run.n..own.end * run.n]));
            read.or_else(|error| lose(error, own))?;
        }
        for (part, own) in &behind_gpus {
            forward(part, own, y, workspace).or_else(|error| lose(error, own))?;
        }
        Ok(missing)
    }
}

impl Part {
    /// Enqueues tokens on its GPU: where their outputs will be. `None` for the processor, and for int8 activations.
    fn enqueue(
        &self,
        run: &Tokens<'_>,
        own: &Range<usize>,
        workspace: &mut Workspace,
    ) -> Result<Option<DeviceBuffer<f32>>, Error> {
        let Some(gpu) = &self.gpu else { return Ok(None) };
        let operands = |workspace: &mut Workspace| -> Result<_, Error> {
            let operands = workspace.gpu.get_or_insert_default().operands(gpu);
            let Some(held) = operands.held(gpu, run.of(own))? else { return Ok(None) };
            let len = product_of("the output", own.len(), run.n)?;
            let outputs = operands.outputs(gpu, &[len])?.pop();
            let bias = match run.bias {
                Some(bias) => operands.biases(gpu, &[bias])?.pop(),
                None => None,
            };
            Ok(outputs.map(|outputs| (held, outputs, bias)))
        };
        let Some((held, mut outputs, bias)) = operands(workspace)? else { return Ok(None) };
        self.linear.forward_on_device(held.input(), own.len(), bias.as_ref(), &mut outputs, workspace)?;
        Ok(Some(outputs))
    }
}
