//! One output of a run, compared with the portable kernel's. Every kernel that multiplies int8 gives the same bits.

use super::failure::Seen;
use super::{GuardedLinear, Run};
use crate::activations::Input;
use crate::device::Device;
use crate::error::Error;
use crate::linear::{Linear, LinearOptions, Policy};
use crate::quantized_buf::QuantizedBuf;
use crate::request::{PrecisionMode, Restrict};
use crate::threads::Threads;
use gristmill_spec::vocab::{Isa, Op, Precision};

impl GuardedLinear<'_> {
    /// What is wrong with one output of a run, if it is. Which output it is follows from `sample`.
    pub(super) fn compare(
        &self,
        linear: &Linear,
        run: &Run<'_>,
        sample: u64,
        y: &[f32],
    ) -> Result<Option<Seen>, Error> {
        let (n, k) = (self.n(), self.k());
        // A plain product of f32, where the policy has one, has bits of its own.
        let Some((product, quantizer)) = self.kernels_of(linear, run) else { return Ok(None) };
        if run.m == 0 || n == 0 || k == 0 || product.precision() != Some(Precision::Int8) {
            return Ok(None);
        }
        // Rows and tokens in turn, neighbours far apart.
        let spread = sample.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = |bits: u64, count: usize| (bits % count as u64) as usize;
        let (row, token) = (at(spread >> 20, n), at(spread >> 7, run.m));
        let found = y[token * n + row];
        let input = one_token(run.input, token, run.m, k);
        let bias = run.bias.map(|bias| &bias[row..][..1]);
        let portable = self.portable(row)?;
        let expected = one_output(&portable, input, bias)?;
        if expected.to_bits() == found.to_bits() {
            return Ok(None);
        }
        let why = format!("output {row} of token {token} was {found:e}, by the portable kernel {expected:e}");
        let wrong = |kernel| Ok(Some(Seen { kernel, panicked: false, why }));
        // A GPU quantizes what only it reads, so the product stands for both. With what quantized the activations, the portable product gives the same if that is what is wrong.
        let Some(quantizer) = quantizer else { return wrong(product) };
        let mut restrict = self.options.restrict.clone().unwrap_or_default();
        restrict.quarantined.extend(self.guard.quarantine.kernels());
        restrict.kernel =
            portable.kernels().find(|kernel| kernel.op == Op::Matmul).map(|kernel| kernel.name.to_owned());
        let mixed = one_output(&self.one_row(row, restrict)?, input, bias)?;
        wrong(if mixed.to_bits() == found.to_bits() { quantizer } else { product })
    }

    /// A row as a layer of portable kernels.
    pub(super) fn portable(&self, row: usize) -> Result<Linear, Error> {
        self.one_row(row, Restrict { isa: Some(Isa::Scalar), ..Restrict::default() })
    }

    fn one_row(&self, row: usize, restrict: Restrict) -> Result<Linear, Error> {
        let rows = QuantizedBuf::rows_of(&self.weights.matrix(), row..row + 1)?;
        let options = LinearOptions {
            restrict: Some(restrict),
            tuning: None,
            working_set: None,
            device: Device::CPU,
            precision: PrecisionMode::Int8,
            policy: Policy::Strict,
            #[cfg(feature = "cuda")]
            gpu: None,
            ..self.options.clone()
        };
        Linear::new(self.registry, &rows.matrix(), &options, &Threads::single())
    }
}

fn one_output(layer: &Linear, input: Input<'_>, bias: Option<&[f32]>) -> Result<f32, Error> {
    let alone = Threads::single();
    let (mut y, mut workspace) = ([0.0], layer.workspace(1, &alone)?);
    layer.forward(input, 1, bias, &mut y, &mut workspace, &alone)?;
    Ok(y[0])
}

/// A token of `m`, of a run whose sizes were found right.
fn one_token(input: Input<'_>, token: usize, m: usize, k: usize) -> Input<'_> {
    let values = token * k..(token + 1) * k;
    match input {
        Input::F32(x) => Input::F32(&x[values]),
        Input::F16(x) => Input::F16(&x[values]),
        Input::Bf16(x) => Input::Bf16(&x[values]),
        Input::I8 { q, scales } => {
            let blocks = scales.len() / m;
            Input::I8 { q: &q[values], scales: &scales[token * blocks..][..blocks] }
        }
    }
}
