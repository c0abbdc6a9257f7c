//! A tensor of three dimensions as what it is: a stack of experts, of which each token goes through some (the op `matmul_grouped`).

use super::super::error::CliError;
use super::super::memory::Need;
use super::measure::{Bench, Run, Stack, check, median_time, rows_to_check};
use gristmill::oracle::Random;
use gristmill::text::Printable;
use gristmill::vocab::Op;
use gristmill::{
    Error, ExpertInput, Experts, Hadamard, Input, LinearOptions, QuantizedBuf, QuantizedMatrix, REGISTRY,
    Recording, Routes,
};

/// Experts of a token, where there are as many.
const EACH: usize = 8;

impl Bench<'_> {
    /// Runs a stack of `count` matrices, one below the other in `matrix`, for every number of tokens. Each token goes through some
    /// of them, which take turns; outputs of every pair of a token and an expert are compared with the oracle.
    ///
    /// # Errors
    /// As [`Bench::tensor`].
    pub fn experts(
        &mut self,
        name: &str,
        matrix: &QuantizedMatrix<'_>,
        count: usize,
        transform: Option<&Hadamard>,
    ) -> Result<Vec<Run>, CliError> {
        let (n, k) = (matrix.n() / count, matrix.k());
        let of = Stack { count, n, per_token: EACH.min(count) };
        let oracle = self.oracle.format(matrix.format().name)?;
        self.room_for(name, of, k)?;
        let parts = (0..count).map(|expert| QuantizedBuf::rows_of(matrix, expert * n..(expert + 1) * n));
        let parts = parts.collect::<Result<Vec<_>, Error>>()?;
        let matrices: Vec<QuantizedMatrix<'_>> = parts.iter().map(QuantizedBuf::matrix).collect();
        let options = LinearOptions {
            device: self.device,
            working_set: self.held.working_set(),
            ..self.environment.options()
        };
        let mut experts = Experts::new(&REGISTRY, &matrices, &options, &self.threads)?;
        let mut runs = Vec::new();
        for &m in self.tokens {
            let mut x = Random::new(self.seed, &format!("{name} m={m}")).gauss_vec(m * k, 1.0);
            if let Some(transform) = transform {
                transform.forward(&mut x)?;
            }
            // Neighbours, and the next token goes on where this one ends, so that all get as many tokens.
            let list: Vec<u32> = (0..m * of.per_token).map(|pair| (pair % count) as u32).collect();
            let routes = Routes::each(m, of.per_token, &list)?;
            let mut y = vec![f32::NAN; list.len() * n];
            self.workspace.grow(experts.workspace_size(m, list.len(), &self.threads)?)?;
            // Which kernels they are, a run tells.
            let own = Recording::new(&REGISTRY);
            experts.record(Some(&own))?;
            let (workspace, threads) = (&mut self.workspace, &self.threads);
            let mut run = |experts: &Experts| {
                let input = ExpertInput::Tokens(Input::F32(&x));
                experts.forward(input, &routes, None, &mut y, workspace, threads)
            };
            run(&experts)?;
            experts.record(Some(self.recording))?;
            let seconds = median_time(|| run(&experts))?;
            let receipt = own.receipt();
            // Those of the product, as for a matrix: quantizing activations is a kernel of its own.
            let kernels = receipt.kernels().iter().map(|kernel| kernel.name());
            let kernels: Vec<&str> = kernels.filter(|name| name.starts_with(Op::Matmul.name())).collect();
            let mut rows = rows_to_check(m, matrix.n(), k);
            let reached = list.len().min(count);
            rows.retain(|row| row / n < reached);
            let accuracy = check(name, matrix, &oracle, &x, &rows, |row| {
                let pairs = list.iter().enumerate().filter(|(_, expert)| **expert as usize == row / n);
                pairs.map(|(pair, _)| (pair / of.per_token, y[pair * n + row % n])).collect()
            })?;
            let file_bytes = parts[..reached].iter().map(|part| part.data().len()).sum();
            let (kernel, rows_checked) = (kernels.join(", "), rows.len());
            runs.push(Run { m, experts: Some(of), kernel, accuracy, rows_checked, seconds, file_bytes });
        }
        Ok(runs)
    }

    /// Whether memory has room for the products of a stack.
    fn room_for(&self, name: &str, of: Stack, k: usize) -> Result<(), CliError> {
        let m = self.tokens.iter().copied().max().unwrap_or(0);
        // Of a token: f32, int8 in the workspace and for the oracle, f64 for the oracle, scales; of a pair: its copied row, and outputs
        // twice; of a weight: the packing, and a copy where a scale stands behind all experts.
        let need =
            Need::new().and(&[m, k], 16).and(&[m, of.per_token, k], 2).and(&[m, of.per_token, of.n], 8);
        let need = need.and(&[of.count, of.n, k], 2);
        let what = || format!("--m {m} with the experts of `{}`", Printable(name));
        need.check(what, "give fewer tokens with --m")
    }
}
