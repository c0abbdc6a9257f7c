//! Experts on a GPU, of operands in the processor's memory: copied there and back, in parts of the tokens where the device has no memory for all.

use super::device::DeviceExpertInput;
use super::routes::Routes;
use super::{ExpertInput, Experts};
use crate::cuda::{Halves, InFront, in_halves};
use crate::error::Error;
use crate::run::launch::cannot_drive;
use crate::workspace::Workspace;
use gristmill_spec::vocab::DType;

/// What a run reads, and where its results go.
struct Operands<'r> {
    input: ExpertInput<'r>,
    routes: Routes<'r>,
    weights: Option<&'r [f32]>,
    y: &'r mut [f32],
}

impl Halves for Operands<'_> {
    fn tokens(&self) -> usize {
        self.routes.tokens()
    }

    fn halves(self) -> ([Self; 2], InFront) {
        let Operands { input, routes, weights, y } = self;
        let tokens = routes.tokens() / 2;
        let (first, others) = routes.split_at(tokens);
        let pairs = first.pairs();
        let (inputs, rows) = match input {
            ExpertInput::Tokens(x) => {
                let (x, behind) = x.split_at(tokens, routes.tokens());
                ([ExpertInput::Tokens(x), ExpertInput::Tokens(behind)], tokens)
            }
            ExpertInput::Pairs(x) => {
                let (x, behind) = x.split_at(pairs, routes.pairs());
                ([ExpertInput::Pairs(x), ExpertInput::Pairs(behind)], pairs)
            }
            // Refused before anything is divided.
            ExpertInput::Quantized(_) => ([input, input], tokens),
        };
        // Sums are one for each token, other results one for each pair.
        let (results, of_all) = match weights {
            Some(_) => (tokens, routes.tokens()),
            None => (pairs, routes.pairs()),
        };
        let (y, y_behind) = y.split_at_mut(y.len() / of_all.max(1) * results);
        let weights = weights.map(|weights| weights.split_at(pairs));
        let first = Operands { input: inputs[0], routes: first, weights: weights.map(|both| both.0), y };
        let others =
            Operands { input: inputs[1], routes: others, weights: weights.map(|both| both.1), y: y_behind };
        ([first, others], InFront { tokens, rows })
    }
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
        let all = Operands { input, routes: *routes, weights, y };
        let run = |part: &mut Operands<'_>, workspace: &mut Workspace| self.at_once(part, workspace);
        let give_back = |workspace: &mut Workspace| workspace.gpu.get_or_insert_default().give_back();
        if let Some((why, started)) = in_halves(all, workspace, &run, &give_back)?
            && !workspace.gpu.get_or_insert_default().goes_in_parts(&why)
        {
            self.any().matmul.went_in_parts(self.format, &why, started);
        }
        Ok(())
    }

    fn at_once(&self, operands: &mut Operands<'_>, workspace: &mut Workspace) -> Result<(), Error> {
        let Operands { input, routes, weights, ref mut y } = *operands;
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
