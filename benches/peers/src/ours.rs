//! Ours: the kernels that decide gives here.

use crate::error::Error;
use gristmill::registry::FormatInfo;
use gristmill::{Input, Matmul, PackedMatrix, QuantizedMatrix, REGISTRY, Request, Shape, Threads, Workspace};

/// Weights in our packing.
pub struct Weights {
    format: &'static FormatInfo,
    bytes: Vec<u8>,
    pub n: usize,
    pub k: usize,
    packed: Vec<(Matmul, Vec<PackedMatrix>)>,
}

impl Weights {
    /// From bytes of the format.
    pub fn new(format: &str, bytes: &[u8], n: usize, k: usize) -> Result<Weights, Error> {
        let (_, format) = REGISTRY.format(format)?;
        Ok(Weights { format, bytes: bytes.to_vec(), n, k, packed: Vec::new() })
    }

    /// Quantizes `n` rows of `k`; weights that are -1, 0 and 1 times a scale keep their values.
    pub fn quantize(format: &str, values: &[f32], n: usize, k: usize) -> Result<Weights, Error> {
        let (_, info) = REGISTRY.format(format)?;
        let sign = info.quantizers.contains(&"sign").then_some("sign");
        let mut bytes = vec![0; info.tensor_bytes(n, k)?];
        let request = Request::quantize(format, sign, n, k);
        let quantizer = gristmill::Quantizer::new(&REGISTRY.prepare_from_env(&request)?.decide_as_asked())?;
        quantizer.run(values, n, k, &mut bytes)?;
        Weights::new(format, &bytes, n, k)
    }
}

/// Products for `m` tokens.
pub struct Products<'w> {
    weights: &'w Weights,
    at: usize,
    copies: usize,
    count: usize,
    x: &'w [f32],
    m: usize,
    pub y: Vec<f32>,
    workspace: Workspace,
    threads: &'w Threads,
}

impl Weights {
    /// Packs weights for `m` tokens, in `copies` copies at least. The place of the kernel.
    pub fn pack(&mut self, m: usize, copies: usize) -> Result<usize, Error> {
        let shape = Shape::new(m, self.n, self.k);
        let prepared = REGISTRY.prepare_from_env(&Request::matmul(self.format.name, shape))?;
        let matmul = Matmul::new(&prepared.decide(shape))?;
        let same = |(other, _): &(Matmul, Vec<PackedMatrix>)| std::ptr::eq(other.entry(), matmul.entry());
        let at = match self.packed.iter().position(same) {
            Some(at) => at,
            None => {
                let matrix = QuantizedMatrix::new(self.format, self.n, self.k, &self.bytes)?;
                let packed = matmul.pack(&matrix)?;
                self.packed.push((matmul, vec![packed]));
                self.packed.len() - 1
            }
        };
        let held = &mut self.packed[at].1;
        while held.len() < copies {
            let copy = held[0].try_clone()?;
            held.push(copy);
        }
        Ok(at)
    }

    /// Bytes that the weights take in a file.
    pub fn file_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of one packed copy.
    pub fn packed_bytes(&self, at: usize) -> usize {
        self.packed[at].1[0].bytes()
    }

    /// `count` products with what [`Weights::pack`] packed; the first `copies` copies take turns.
    pub fn products<'w>(
        &'w self,
        at: usize,
        (copies, count): (usize, usize),
        x: &'w [f32],
        m: usize,
        threads: &'w Threads,
    ) -> Result<Products<'w>, Error> {
        let workspace = Workspace::for_(&self.packed[at].0, m, self.k, threads)?;
        Ok(Products { weights: self, at, copies, count, x, m, y: vec![0.0; m * self.n], workspace, threads })
    }
}

impl Products<'_> {
    /// The kernel.
    pub fn entry(&self) -> &'static gristmill::registry::Entry {
        self.weights.packed[self.at].0.entry()
    }

    /// Computes all of them, with threads that stay awake from one to the next.
    pub fn run(&mut self) -> Result<(), Error> {
        let Products { weights, at, copies, count, x, m, y, workspace, threads } = self;
        let (matmul, packed) = &weights.packed[*at];
        threads.awake(|| {
            (0..*count).try_for_each(|copy| {
                matmul
                    .run(&packed[copy % *copies], Input::F32(x), *m, None, y, workspace, threads)
                    .map(|_| ())
            })
        })?;
        Ok(())
    }
}
