//! Outputs of a run compared with the portable kernel's. Every kernel that multiplies int8 gives the same bits.

use crate::activations::{Input, QuantizedActivations};
use crate::device::Device;
use crate::error::Error;
use crate::linear::{Linear, LinearOptions, Policy};
use crate::operands::quantized_buf::QuantizedBuf;
use crate::quarantine::Quarantine;
use crate::registry::Registry;
use crate::request::{PrecisionMode, Restrict};
use crate::threads::Threads;
use crate::weights::QuantizedMatrix;
use gristmill_spec::vocab::{Isa, Op};

/// How layers are made: the guarded one, and those that it is compared with.
#[derive(Clone, Copy)]
pub(super) struct Portable<'g> {
    pub(super) registry: &'static Registry,
    pub(super) options: &'g LinearOptions,
    pub(super) quarantine: &'g Quarantine,
}

impl Portable<'_> {
    /// Of portable kernels alone.
    pub(super) fn options(&self) -> LinearOptions {
        self.restricted(Restrict { isa: Some(Isa::Scalar), ..Restrict::default() })
    }

    /// Of the product of `portable`, behind what quantizes activations in the guarded layer.
    pub(super) fn behind_its_quantizer(&self, product: Option<&'static str>) -> LinearOptions {
        let kernel = product.map(str::to_owned);
        self.restricted(Restrict { kernel, ..self.without_quarantined() })
    }

    /// Those of the guarded layer, as it is now.
    pub(super) fn guarded_options(&self) -> LinearOptions {
        LinearOptions { restrict: Some(self.without_quarantined()), ..self.options.clone() }
    }

    fn without_quarantined(&self) -> Restrict {
        let mut restrict = self.options.restrict.clone().unwrap_or_default();
        restrict.quarantined.extend(self.quarantine.kernels());
        restrict
    }

    fn restricted(&self, restrict: Restrict) -> LinearOptions {
        LinearOptions {
            restrict: Some(restrict),
            tuning: None,
            working_set: None,
            device: Device::CPU,
            precision: PrecisionMode::Int8,
            policy: Policy::Strict,
            #[cfg(feature = "cuda")]
            gpu: None,
            ..self.options.clone()
        }
    }

    /// A row as a layer.
    pub(super) fn one_row(
        &self,
        matrix: &QuantizedMatrix<'_>,
        row: usize,
        options: &LinearOptions,
    ) -> Result<Linear, Error> {
        let rows = QuantizedBuf::rows_of(matrix, row..row + 1)?;
        Linear::new(self.registry, &rows.matrix(), options, &Threads::single())
    }
}

/// The product of a layer of one row.
pub(super) fn one_output(layer: &Linear, input: Input<'_>, bias: Option<&[f32]>) -> Result<f32, Error> {
    let alone = Threads::single();
    let (mut y, mut workspace) = ([0.0], layer.workspace(1, &alone)?);
    layer.forward(input, 1, bias, &mut y, &mut workspace, &alone)?;
    Ok(y[0])
}

/// The name of a layer's product.
pub(super) fn product_of(layer: &Linear) -> Option<&'static str> {
    layer.kernels().find(|kernel| kernel.op == Op::Matmul).map(|kernel| kernel.name)
}

/// What was seen of an output.
pub(super) fn differs(what: &str, found: f32, expected: f32) -> String {
    format!("{what} was {found:e}, by the portable kernel {expected:e}")
}

/// Numbers below `row` and `token` that follow from a sample: rows and tokens in turn, neighbours far apart.
pub(super) fn place(sample: u64, rows: usize, tokens: usize) -> (usize, usize) {
    let spread = sample.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let at = |bits: u64, count: usize| (bits % count as u64) as usize;
    (at(spread >> 20, rows), at(spread >> 7, tokens))
}

/// Some tokens of `m`, of a run whose sizes were found right.
pub(super) fn tokens_of(input: Input<'_>, tokens: std::ops::Range<usize>, m: usize, k: usize) -> Input<'_> {
    let values = tokens.start * k..tokens.end * k;
    match input {
        Input::F32(x) => Input::F32(&x[values]),
        Input::F16(x) => Input::F16(&x[values]),
        Input::Bf16(x) => Input::Bf16(&x[values]),
        Input::I8 { q, scales } => {
            let blocks = scales.len() / m;
            Input::I8 { q: &q[values], scales: &scales[tokens.start * blocks..tokens.end * blocks] }
        }
    }
}

/// Quantized tokens without what a kernel's layout puts between them.
#[derive(Debug, PartialEq)]
pub(super) struct Dense {
    pub(super) q: Vec<i8>,
    pub(super) scales: Vec<f32>,
    /// Whether the sums that lie beside them are theirs.
    sums: bool,
}

impl Dense {
    /// Tokens of `x`.
    pub(super) fn of(x: &QuantizedActivations<'_>, tokens: std::ops::Range<usize>) -> Dense {
        let rows = x.rows.rows(tokens.start, tokens.len());
        let layout = rows.layout;
        let mut dense = Dense {
            q: Vec::with_capacity(tokens.len() * layout.k),
            scales: rows.scales.to_vec(),
            sums: true,
        };
        for token in 0..tokens.len() {
            let row = &rows.q[token * layout.stride..][..layout.bytes()];
            let sums = &rows.sums[token * layout.units..][..layout.units];
            let mut left = layout.k;
            for (unit, sum) in row.chunks(layout.unit_padded).zip(sums) {
                let unit = &unit[..left.min(layout.unit)];
                left -= unit.len();
                dense.q.extend_from_slice(unit);
                dense.sums &= unit.iter().map(|q| i32::from(*q)).sum::<i32>() == *sum;
            }
        }
        dense
    }

    pub(super) fn input(&self) -> Input<'_> {
        Input::I8 { q: &self.q, scales: &self.scales }
    }

    /// What is wrong with a token, held against what the portable kernel makes of it.
    pub(super) fn wrong(&self, expected: &Dense, token: usize) -> Option<String> {
        let found = self.q.iter().zip(&expected.q).position(|(found, expected)| found != expected);
        if let Some(at) = found {
            let (found, expected) = (self.q[at], expected.q[at]);
            return Some(format!(
                "quantized value {at} of token {token} was {found}, by the portable kernel {expected}"
            ));
        }
        let other = |(found, expected): (&f32, &f32)| found.to_bits() != expected.to_bits();
        if let Some(at) = self.scales.iter().zip(&expected.scales).position(other) {
            return Some(differs(
                &format!("scale {at} of token {token}"),
                self.scales[at],
                expected.scales[at],
            ));
        }
        (self.sums != expected.sums).then(|| format!("a sum of token {token} is not that of its values"))
    }
}
