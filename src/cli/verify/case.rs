//! One case of a product: its shape, what fills it, and what it must give.

use super::inputs::{Tokens, Weights};
use super::session::Subject;
use gristmill::Input;
use gristmill::half::{bf16, f16};
use gristmill::oracle::{Int8Row, Random, Refused};

/// A shape and what fills it.
#[derive(Clone, Copy)]
pub struct Case {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub(super) weights: Weights,
    pub tokens: Tokens,
    pub(super) bias: bool,
    /// Threads of the run through the handle.
    pub threads: usize,
}

/// Activations in every form that a case needs.
pub struct Activations {
    f32: Vec<f32>,
    f16: Vec<f16>,
    bf16: Vec<bf16>,
    /// Row after row.
    pub q: Vec<i8>,
    /// Row after row.
    pub scales: Vec<f32>,
}

impl Activations {
    pub(super) fn new(
        subject: Subject<'_>,
        random: &mut Random,
        case: &Case,
    ) -> Result<Activations, Refused> {
        let mut made = Activations {
            f32: Vec::new(),
            f16: Vec::new(),
            bf16: Vec::new(),
            q: Vec::new(),
            scales: Vec::new(),
        };
        let block = subject.oracle.activations().block.map_or(case.k.max(1), |block| block as usize);
        for token in 0..case.m {
            if let Some(q) = case.tokens.row(random, case.k) {
                made.q.extend(q);
                made.scales
                    .extend((0..case.k.div_ceil(block)).map(|i| 0.37 + 0.11 * ((token + i) % 7) as f32));
                continue;
            }
            let mut row = random.gauss_vec(case.k, 1.0);
            match case.tokens {
                Tokens::F16 => {
                    let rounded: Vec<f16> = row.iter().map(|x| f16::from_f32(*x)).collect();
                    row = rounded.iter().map(|x| x.to_f32()).collect();
                    made.f16.extend(rounded);
                }
                Tokens::Bf16 => {
                    let rounded: Vec<bf16> = row.iter().map(|x| bf16::from_f32(*x)).collect();
                    row = rounded.iter().map(|x| x.to_f32()).collect();
                    made.bf16.extend(rounded);
                }
                Tokens::F32 | Tokens::I8 | Tokens::All(_) | Tokens::Alternating => made.f32.extend(&row),
            }
            let int8 = Int8Row::quantize(subject.oracle.activations(), &row)?;
            made.q.extend(int8.q);
            made.scales.extend(int8.scales);
        }
        Ok(made)
    }

    /// As a handle takes them.
    pub fn input(&self, tokens: Tokens) -> Input<'_> {
        match tokens {
            Tokens::F32 => Input::F32(&self.f32),
            Tokens::F16 => Input::F16(&self.f16),
            Tokens::Bf16 => Input::Bf16(&self.bf16),
            Tokens::I8 | Tokens::All(_) | Tokens::Alternating => {
                Input::I8 { q: &self.q, scales: &self.scales }
            }
        }
    }
}

/// What a case must give.
pub struct Expected {
    /// The bits, by single operations in the order that the format fixes.
    pub bits: Vec<f32>,
    /// In f64; empty where a row is one integer sum.
    pub f64s: Vec<f64>,
    /// Some rows by single f32 operations; the others are empty.
    pub rows: Vec<Vec<f32>>,
}
