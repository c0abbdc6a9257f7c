//! One run of all parts: enqueued on every device before one is waited for.

use super::state::{Part, State};
use crate::activations::Input;
use crate::cuda::{
    Activation, Columns, DeviceBuffer, DeviceInput, Gpu, Halves, HeldInput, InFront, Scratch, UnderWay,
    in_halves,
};
use crate::device::Device;
use crate::error::Error;
use crate::operands::output::Output;
use crate::operands::sizes::{check_len, product_of};
use crate::room::{filled, zeros};
use crate::threads::Threads;
use crate::workspace::Workspace;
use half::slice::HalfBitsSliceExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A run.
pub(super) struct Run<'r> {
    pub(super) m: usize,
    pub(super) bias: Option<&'r [f32]>,
    pub(super) threads: &'r Threads,
    pub(super) operands: Operands<'r>,
}

/// Where activations are and outputs go.
pub(super) enum Operands<'r> {
    Processor(Input<'r>, &'r mut [f32]),
    Gpu(DeviceInput<'r>, &'r mut DeviceBuffer<f32>),
}

/// Some tokens in the processor's memory, and where their outputs go.
struct InMemory<'r> {
    input: Input<'r>,
    m: usize,
    y: &'r mut [f32],
}

impl Halves for InMemory<'_> {
    fn tokens(&self) -> usize {
        self.m
    }

    fn halves(self) -> ([Self; 2], InFront) {
        let InMemory { input, m, y } = self;
        let first = m / 2;
        let (input, behind) = input.split_at(first, m);
        let (y, y_behind) = y.split_at_mut(y.len() / m * first);
        let halves = [InMemory { input, m: first, y }, InMemory { input: behind, m: m - first, y: y_behind }];
        (halves, InFront { tokens: first, rows: first })
    }
}

impl Run<'_> {
    /// Compares operands with the layer.
    pub(super) fn check(&self, [n, k]: [usize; 2]) -> Result<(), Error> {
        let (inputs, outputs) = match &self.operands {
            Operands::Processor(input, y) => (input.len(), y.len()),
            Operands::Gpu(input, y) => {
                let kernel = "divided product";
                if !Arc::ptr_eq(input.gpu(), y.gpu()) {
                    return Err(Error::WrongDevice { kernel, index: y.gpu().profile().index });
                }
                if input.overlaps(y) {
                    return Err(Error::Overlap { kernel, what: "the activations" });
                }
                (input.len(), y.len())
            }
        };
        check_len("activations", "values", product_of("activations", self.m, k)?, inputs)?;
        check_len("the output", "values", product_of("the output", self.m, n)?, outputs)?;
        self.bias.map_or(Ok(()), |bias| check_len("the bias", "values", n, bias.len()))
    }

    /// The GPU with the operands: what is lost with it is lost.
    pub(super) fn home(&self) -> Option<u32> {
        match &self.operands {
            Operands::Processor(..) => None,
            Operands::Gpu(_, y) => Some(y.gpu().profile().index),
        }
    }
}

/// Outputs of a part on its device.
type Computed<'p> = (&'p Part, DeviceBuffer<f32>);

/// The columns that a part has of `m` rows of `n` outputs.
fn columns(part: &Part, m: usize, n: usize) -> Columns {
    Columns { count: m, width: part.rows.len(), first: part.rows.start, stride: n }
}

fn scratch(workspace: &mut Workspace) -> &mut Scratch {
    workspace.gpu.get_or_insert_default()
}

impl State {
    /// Runs all parts once. After an error nothing is under way any more.
    pub(super) fn run(
        &self,
        run: &mut Run<'_>,
        shape: [usize; 2],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let [n, _] = shape;
        let had: usize = self.parts.iter().map(|part| part.rows.len()).sum();
        if had != n {
            return Err(Error::Division { why: format!("devices have {had} of its {n} rows") });
        }
        // What layers before left on devices that are lost concerns nobody here.
        scratch(workspace).forget(|gpu| self.is_lost(Device::cuda(gpu.profile().index)));
        // A fault of earlier runs is theirs.
        scratch(workspace).finish_pending()?;
        let Run { m, bias, threads, ref mut operands } = *run;
        let outcome = match operands {
            Operands::Processor(input, y) => self.all_or_halves(*input, [m, n], bias, y, workspace, threads),
            Operands::Gpu(input, y) => self.on_gpu(*input, [m, n], bias, y, workspace, threads),
        };
        match outcome {
            Ok(()) => self.parts.iter().for_each(|part| {
                part.note.runs.fetch_add(1, Ordering::Relaxed);
            }),
            Err(_) => scratch(workspace).settle(),
        }
        outcome
    }

    /// Operands in the processor's memory. Where a device has no memory for all tokens, halves of them follow one another, down to
    /// single tokens.
    fn all_or_halves(
        &self,
        input: Input<'_>,
        [m, n]: [usize; 2],
        bias: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        let run = |part: &mut InMemory<'_>, workspace: &mut Workspace| {
            let InMemory { input, m, ref mut y } = *part;
            match input {
                Input::I8 { .. } => self.one_by_one(input, [m, n], bias, y, workspace, threads),
                Input::F32(_) | Input::F16(_) | Input::Bf16(_) => {
                    self.on_processor(input, [m, n], bias, y, workspace, threads)
                }
            }
        };
        let give_back = |workspace: &mut Workspace| {
            // What other devices are doing is given up.
            scratch(workspace).settle();
            scratch(workspace).give_back()
        };
        in_halves(InMemory { input, m, y }, workspace, &run, &give_back).map(drop)
    }

    /// The same for all tokens at once.
    fn on_processor(
        &self,
        input: Input<'_>,
        [m, n]: [usize; 2],
        bias: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        let mut computed = Vec::new();
        for (gpu, parts) in self.by_gpu() {
            let held = scratch(workspace).operands(gpu).held(gpu, input)?;
            // int8 activations go another way.
            let Some(held) = held else { continue };
            enqueue(gpu, parts, held.input(), m, bias, workspace, &mut computed)?;
        }
        for part in self.of_processor() {
            let product = part.linear.product(input, m).y_stride(n);
            let product = match bias {
                Some(bias) => product.bias(&bias[part.rows.clone()]),
                None => product,
            };
            product.run(Output::F32(&mut y[part.rows.start..]), workspace, threads)?;
        }
        workspace.finish()?;
        for (part, outputs) in &computed {
            outputs.read_columns(y, columns(part, m, n))?;
        }
        Ok(())
    }

    /// int8 activations, which GPUs are given by the processor: a part behind the other.
    fn one_by_one(
        &self,
        input: Input<'_>,
        [m, n]: [usize; 2],
        bias: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        for part in &self.parts {
            let width = part.rows.len();
            let bias = bias.map(|bias| &bias[part.rows.clone()]);
            let mut outputs = zeros(m * width)?;
            part.linear.forward(input, m, bias, &mut outputs, workspace, threads)?;
            for (to, from) in y.chunks_exact_mut(n).zip(outputs.chunks_exact(width)) {
                to[part.rows.clone()].copy_from_slice(from);
            }
        }
        Ok(())
    }

    /// Operands on a GPU.
    fn on_gpu(
        &self,
        input: DeviceInput<'_>,
        [m, n]: [usize; 2],
        bias: Option<&[f32]>,
        y: &mut DeviceBuffer<f32>,
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        let home = Arc::clone(y.gpu());
        // What was enqueued there made the activations, or still reads the outputs before.
        home.synchronize()?;
        let mut computed = Vec::new();
        // Copies of the caller's memory, which it has back whole also where this ends early: dropped, they are waited for.
        let mut under_way = Vec::new();
        for (gpu, parts) in self.by_gpu() {
            if Arc::ptr_eq(gpu, &home) {
                enqueue(gpu, parts, input, m, bias, workspace, &mut computed)?;
                continue;
            }
            let scratch = scratch(workspace);
            let held = match input {
                DeviceInput::F32(x) => HeldInput::F32(brought(scratch, gpu, x, &mut under_way)?),
                DeviceInput::F16(x) => HeldInput::F16(brought(scratch, gpu, x, &mut under_way)?),
                DeviceInput::Bf16(x) => HeldInput::Bf16(brought(scratch, gpu, x, &mut under_way)?),
            };
            enqueue(gpu, parts, held.input(), m, bias, workspace, &mut computed)?;
        }
        if self.of_processor().next().is_some() {
            match input {
                DeviceInput::F32(x) => {
                    self.rest(Input::F32(&x.to_vec()?), [m, n], bias, y, workspace, threads)
                }
                DeviceInput::F16(x) => {
                    let x = x.to_vec()?;
                    self.rest(Input::F16(x.reinterpret_cast()), [m, n], bias, y, workspace, threads)
                }
                DeviceInput::Bf16(x) => {
                    let x = x.to_vec()?;
                    self.rest(Input::Bf16(x.reinterpret_cast()), [m, n], bias, y, workspace, threads)
                }
            }?;
        }
        // Enqueued behind the products, by whoever made the outputs.
        for (part, outputs) in &computed {
            let gpu = outputs.gpu();
            if gpu.reaches(&home)? {
                let from = (outputs, Columns::dense(m, part.rows.len()));
                // SAFETY: outputs and `y` live until what is under way has been waited for. On the home device nothing is enqueued on
                // `y` but other columns.
                under_way.push(unsafe { y.pull_columns(gpu, columns(part, m, n), from) }?);
            }
        }
        under_way.into_iter().try_for_each(UnderWay::wait)?;
        workspace.finish()?;
        for (part, outputs) in &computed {
            let gpu = outputs.gpu();
            gpu.synchronize()?;
            if !gpu.reaches(&home)? {
                let pinned = scratch(workspace).operands(gpu).pinned::<f32>(gpu, outputs.len())?;
                pinned.fill(outputs, Columns::dense(m, part.rows.len()))?;
                // SAFETY: all of it lives until it is waited for: in the same breath.
                unsafe { pinned.empty(y, columns(part, m, n)) }?.wait()?;
            }
        }
        Ok(())
    }

    /// Parts of the processor, to `y` on a device.
    fn rest(
        &self,
        input: Input<'_>,
        [m, n]: [usize; 2],
        bias: Option<&[f32]>,
        y: &mut DeviceBuffer<f32>,
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        for part in self.of_processor() {
            let bias = bias.map(|bias| &bias[part.rows.clone()]);
            let mut outputs = zeros(m * part.rows.len())?;
            part.linear.forward(input, m, bias, &mut outputs, workspace, threads)?;
            y.write_columns(&outputs, columns(part, m, n))?;
        }
        Ok(())
    }

    fn of_processor(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.gpu.is_none())
    }

    /// GPUs, each with its parts.
    fn by_gpu(&self) -> Vec<(&Arc<Gpu>, Vec<&Part>)> {
        let mut all: Vec<(&Arc<Gpu>, Vec<&Part>)> = Vec::new();
        for part in &self.parts {
            let Some(gpu) = &part.gpu else { continue };
            match all.iter_mut().find(|(known, _)| Arc::ptr_eq(known, gpu)) {
                Some((_, parts)) => parts.push(part),
                None => all.push((gpu, vec![part])),
            }
        }
        all
    }
}

/// Enqueues the parts of a GPU, whose outputs come to the workspace's memory there.
fn enqueue<'p>(
    gpu: &Arc<Gpu>,
    parts: Vec<&'p Part>,
    input: DeviceInput<'_>,
    m: usize,
    bias: Option<&[f32]>,
    workspace: &mut Workspace,
    computed: &mut Vec<Computed<'p>>,
) -> Result<(), Error> {
    let too_large = Error::TooLarge { what: "the output" };
    let lengths: Option<Vec<usize>> = parts.iter().map(|part| m.checked_mul(part.rows.len())).collect();
    let outputs = scratch(workspace).operands(gpu).outputs(gpu, &lengths.ok_or(too_large)?)?;
    let biases = match bias {
        Some(bias) => {
            let of_parts: Vec<&[f32]> = parts.iter().map(|part| &bias[part.rows.clone()]).collect();
            scratch(workspace).operands(gpu).biases(gpu, &of_parts)?
        }
        None => Vec::new(),
    };
    for (at, (part, mut y)) in parts.into_iter().zip(outputs).enumerate() {
        part.linear.forward_on_device(input, m, biases.get(at), &mut y, workspace)?;
        computed.push((part, y));
    }
    Ok(())
}

/// Activations of another device on this one: enqueued on its stream, behind which they are read.
fn brought<T: Activation>(
    scratch: &mut Scratch,
    gpu: &Arc<Gpu>,
    x: &DeviceBuffer<T>,
    under_way: &mut Vec<UnderWay>,
) -> Result<DeviceBuffer<T>, Error> {
    let mut here = scratch.operands(gpu).activations::<T>(gpu, x.len())?;
    let all = Columns::dense(1, x.len());
    if gpu.reaches(x.gpu())? {
        // SAFETY: whoever has what is under way waits for it before its caller has the activations back, and enqueues nothing on their
        // device that writes them.
        under_way.push(unsafe { here.pull_columns(gpu, all, (x, all)) }?);
        return Ok(here);
    }
    // Each device has page-locked memory of its own for it, since another one may still read what there is.
    let pinned = scratch.operands(gpu).pinned::<T>(gpu, x.len())?;
    pinned.fill(x, all)?;
    // SAFETY: likewise.
    under_way.push(unsafe { pinned.empty(&mut here, all) }?);
    Ok(here)
}

impl Part {
    /// The best of five runs, of which the first is not counted.
    pub(super) fn time(
        &self,
        [m, k]: [usize; 2],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<Duration, Error> {
        let mut best = Duration::MAX;
        let x = filled(1.0, product_of("activations", m, k)?)?;
        let mut y = zeros(product_of("the output", m, self.rows.len())?)?;
        let on_gpu = match &self.gpu {
            Some(gpu) => Some((gpu, DeviceBuffer::of(gpu, &x)?, DeviceBuffer::<f32>::zeroed(gpu, y.len())?)),
            None => None,
        };
        let mut on_gpu = on_gpu;
        for run in 0..6 {
            let time = match &mut on_gpu {
                Some((gpu, x, y)) => {
                    let product =
                        || self.linear.forward_on_device(DeviceInput::F32(x), m, None, y, workspace);
                    let ((), time) = gpu.time(product)?;
                    workspace.finish()?;
                    time
                }
                None => {
                    let begin = Instant::now();
                    self.linear.forward(Input::F32(&x), m, None, &mut y, workspace, threads)?;
                    begin.elapsed()
                }
            };
            if run > 0 {
                best = best.min(time);
            }
        }
        Ok(best)
    }
}
