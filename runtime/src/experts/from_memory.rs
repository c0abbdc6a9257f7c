//! Experts on a GPU, of operands in the processor's memory: copied there and back, in parts of the tokens where the device has no memory for all.

use super::device::DeviceExpertInput;
use super::routes::Routes;
use super::{ExpertInput, Experts};
use crate::activations::Input;
use crate::cuda::behind;
use crate::error::Error;
use crate::launch::cannot_drive;
use crate::workspace::Workspace;
use gristmill_spec::vocab::DType;
use std::time::Instant;

/// What a run reads, in the processor's memory.
#[derive(Clone, Copy)]
struct Operands<'r> {
    input: ExpertInput<'r>,
    routes: Routes<'r>,
    weights: Option<&'r [f32]>,
}

impl Experts {
    /// As [`Experts::forward_on_device`], with everything in the processor's memory, and waited for. Where the device has no memory for all
    /// tokens, halves of them follow one another, down to single ones.
    pub(super) fn forward_from_memory(
        &self,
        input: ExpertInput<'_>,
        routes: &Routes<'_>,
        weights: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let all = Operands { input, routes: *routes, weights };
        let why = match self.at_once(all, y, workspace) {
            Err(why @ Error::OutOfDeviceMemory { .. }) if routes.tokens() >= 2 => why,
            done => return done,
        };
        let started = Instant::now();
        let told = workspace.gpu.get_or_insert_default().goes_in_parts(&why);
        self.in_parts(all, y, workspace)?;
        if !told {
            self.any().matmul.went_in_parts(self.format, &why, started);
        }
        Ok(())
    }

    /// A run of tokens that are too many at once.
    fn in_parts(&self, all: Operands<'_>, y: &mut [f32], workspace: &mut Workspace) -> Result<(), Error> {
        // What there is for so many tokens stands in the way of fewer, and so does what the pool keeps.
        workspace.gpu.get_or_insert_default().give_back()?;
        let tokens = all.routes.tokens();
        let first = tokens / 2;
        let (parts, rows) = all.split_at(first);
        let (y, y_behind) = y.split_at_mut(self.n * if all.weights.is_some() { first } else { rows.pairs });
        let mut half = |part: Operands<'_>, y: &mut [f32]| match self.at_once(part, y, workspace) {
            Err(Error::OutOfDeviceMemory { .. }) if part.routes.tokens() >= 2 => {
                self.in_parts(part, y, workspace)
            }
            done => done,
        };
        half(parts[0], y)?;
        half(parts[1], y_behind).map_err(|error| match error {
            Error::NoSuchExpert { token, position, expert, experts } => {
                Error::NoSuchExpert { token: first + token, position, expert, experts }
            }
            Error::DuplicateExpert { token, position, expert } => {
                Error::DuplicateExpert { token: first + token, position, expert }
            }
            error => behind(error, rows.of_input),
        })
    }

    fn at_once(
        &self,
        Operands { input, routes, weights }: Operands<'_>,
        y: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let Some(gpu) = self.any().matmul.gpu() else {
            return Err(cannot_drive(self.any().matmul.entry(), 0));
        };
        self.check_results(&routes, weights, y.len())?;
        let (ExpertInput::Tokens(given) | ExpertInput::Pairs(given)) = input else {
            let (what, device) = ("activations in its memory", self.prepared.device().kind);
            return Err(Error::ProcessorOnly { what, device });
        };
        let dtype = given.dtype();
        self.any().matmul.check_dtype(dtype)?;
        let scratch = workspace.gpu.get_or_insert_default();
        // A fault of earlier runs is theirs.
        scratch.finish_pending()?;
        let held = scratch.operands(gpu).held(gpu, given)?;
        let mut outputs = scratch.operands(gpu).outputs(gpu, &[y.len()])?;
        let (Some(held), Some(there)) = (held, outputs.first_mut()) else {
            let expected = vec![DType::F32, DType::F16, DType::Bf16];
            let kernel = self.any().matmul.entry().name;
            return Err(Error::WrongInput { kernel, expected, found: dtype });
        };
        let input = match input {
            ExpertInput::Pairs(_) => DeviceExpertInput::Pairs(held.input()),
            ExpertInput::Tokens(_) | ExpertInput::Quantized(_) => DeviceExpertInput::Tokens(held.input()),
        };
        self.forward_on_device(input, &routes, weights, there, workspace)?;
        workspace.finish()?;
        there.read(y)
    }
}

/// What the first part of a run has.
struct RowsOfFirst {
    pairs: usize,
    of_input: usize,
}

impl<'r> Operands<'r> {
    /// Those of the first `tokens`, and of those behind them.
    fn split_at(self, tokens: usize) -> ([Operands<'r>; 2], RowsOfFirst) {
        let Operands { input, routes, weights } = self;
        let parts = routes.split_at(tokens);
        let pairs = parts.0.pairs();
        let halves = |input: Input<'r>, first, all| input.split_at(first, all);
        let (inputs, of_input) = match input {
            ExpertInput::Tokens(x) => {
                let (first, others) = halves(x, tokens, routes.tokens());
                ([ExpertInput::Tokens(first), ExpertInput::Tokens(others)], tokens)
            }
            ExpertInput::Pairs(x) => {
                let (first, others) = halves(x, pairs, routes.pairs());
                ([ExpertInput::Pairs(first), ExpertInput::Pairs(others)], pairs)
            }
            // Refused before anything is divided.
            ExpertInput::Quantized(_) => ([input, input], tokens),
        };
        let weights = weights.map(|weights| weights.split_at(pairs));
        let first = Operands { input: inputs[0], routes: parts.0, weights: weights.map(|(first, _)| first) };
        let others =
            Operands { input: inputs[1], routes: parts.1, weights: weights.map(|(_, others)| others) };
        ([first, others], RowsOfFirst { pairs, of_input })
    }
}
