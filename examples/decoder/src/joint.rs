//! Matrices that share their input, as one layer each where formats allow it: query, key and value; gate and up.

use crate::error::{Error, zeros};
use crate::numerics::dot;
use gristmill::gguf::{LayerOptions, Model, ModelError, TensorType};
use gristmill::{
    Batch, Hadamard, Input, Linear, Output, Prologue, PrologueInput, QuantizedActivations, QuantizedBuf,
    QuantizedMatrix, Recording, Rows, Threads, Workspace,
};
use std::ops::Range;
use std::sync::Arc;

/// A matrix of a file: a tensor, or some of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Name of the tensor.
    pub tensor: String,
    /// Where several matrices are stacked in it: which of them this is, and how many there are.
    pub stacked: Option<(usize, usize)>,
    /// Rows of the matrix.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
    /// Name of its bias, if the file has one.
    pub bias: Option<String>,
}

impl Source {
    /// Whether the file's tensor has the dimensions that the metadata asks for.
    ///
    /// # Errors
    /// [`ModelError::NoTensor`], [`Error::Shape`].
    pub fn check(&self, model: &Model) -> Result<(), Error> {
        match self.stacked {
            Some((_, count)) => check_dims(model, &self.tensor, &[self.k, self.n, count])?,
            None => check_dims(model, &self.tensor, &[self.k, self.n])?,
        }
        match &self.bias {
            Some(bias) => check_dims(model, bias, &[self.n]),
            None => Ok(()),
        }
    }

    /// Its rows of the tensor.
    fn rows(&self) -> Range<usize> {
        let index = self.stacked.map_or(0, |(index, _)| index);
        index * self.n..(index + 1) * self.n
    }

    /// Another one of those that are stacked in its tensor.
    pub fn at(&self, index: usize) -> Source {
        Source { stacked: self.stacked.map(|(_, count)| (index, count)), ..self.clone() }
    }

    /// What the file declares to be done to what a product with the matrix takes.
    fn transform<'m>(&self, model: &'m Model) -> Option<&'m Arc<Hadamard>> {
        model.transforms()?.of_inputs(&self.tensor)
    }

    /// Name of the format that it is multiplied in; `None`: it is floats.
    fn format(&self, model: &Model) -> Result<Option<&'static str>, Error> {
        Ok(match model.tensor_type(&self.tensor)? {
            TensorType::Format(resolved) => Some(resolved.format.name),
            // Reading one that is imported as nothing is an error.
            TensorType::Tiled(tiled) => {
                Some(model.types().imported_as(self.k).map_or(tiled.layout.name(), |format| format.name))
            }
            TensorType::Plain(_) => None,
        })
    }

    /// Its values, where it is floats. Only these are read of a tensor of several matrices.
    fn floats(&self, model: &Model) -> Result<Vec<f32>, Error> {
        let Source { tensor, n, k, .. } = self;
        // What is no tensor of floats is refused before there is memory for it.
        model.floats_at(tensor, 0, &mut [])?;
        let mut values = zeros("a matrix of floats", n.saturating_mul(*k))?;
        model.floats_at(tensor, (self.rows().start * k) as u64, &mut values)?;
        // Once here instead of the activations each time: rows that were folded are taken back.
        if let Some(transform) = self.transform(model) {
            transform.inverse(&mut values)?;
        }
        Ok(values)
    }
}

/// Matrices that become one part of a [`Joint`].
#[derive(Debug)]
pub struct Group<'s> {
    /// Neighbours of one format and one transform of the input, or one matrix of floats.
    pub sources: &'s [Source],
    /// Name of the format; `None`: floats.
    pub format: Option<&'static str>,
}

impl Group<'_> {
    /// Outputs of all of them.
    pub fn n(&self) -> usize {
        self.sources.iter().map(|source| source.n).sum()
    }
}

/// The parts that matrices with one input become, in their order.
///
/// # Errors
/// As for [`Source::check`].
pub fn groups<'s>(model: &Model, sources: &'s [Source]) -> Result<Vec<Group<'s>>, Error> {
    let mut formats = Vec::new();
    for source in sources {
        source.check(model)?;
        formats.push(source.format(model)?);
    }
    let mut groups = Vec::new();
    let mut first = 0;
    for at in 0..sources.len() {
        let goes_on = formats[at].is_some()
            && formats.get(at + 1) == Some(&formats[at])
            && sources[at + 1].transform(model) == sources[at].transform(model);
        if !goes_on {
            groups.push(Group { sources: &sources[first..=at], format: formats[at] });
            first = at + 1;
        }
    }
    Ok(groups)
}

/// Whether the tensor `name` has these dimensions, elements of a row first. Dimensions of 1 behind the others say nothing, and writers
/// leave them out.
///
/// # Errors
/// [`ModelError::NoTensor`], [`Error::Shape`].
pub fn check_dims(model: &Model, name: &str, expected: &[usize]) -> Result<(), Error> {
    // For the error that names what may have been meant.
    model.tensor_type(name)?;
    let Some(tensor) = model.file().tensor(name) else { return Ok(()) };
    let expected: Vec<u64> = expected.iter().map(|dim| *dim as u64).collect();
    if without_ones(tensor.dims()) == without_ones(&expected) {
        return Ok(());
    }
    Err(Error::Shape { tensor: name.to_owned(), found: tensor.dims().to_vec(), expected })
}

fn without_ones(dims: &[u64]) -> &[u64] {
    let end = dims.iter().rposition(|dim| *dim != 1).map_or(0, |last| last + 1);
    &dims[..end]
}

/// One product.
#[derive(Debug)]
enum Product {
    Linear(Box<Linear>),
    /// What a file has as f32, f16 or bf16: a router, as a rule. `n` rows of `k`.
    Floats(Vec<f32>),
}

/// A product and the outputs that are its.
#[derive(Debug)]
struct Part {
    product: Product,
    /// First output of it, counted over all parts.
    start: usize,
    n: usize,
    bias: Option<Vec<f32>>,
}

/// Several matrices with one input. Neighbours of one format and one transform of the input are one layer, which quantizes its activations once.
#[derive(Debug)]
pub struct Joint {
    parts: Vec<Part>,
    /// For each matrix: its part, and its first output in it.
    places: Vec<(usize, usize)>,
    n: usize,
    k: usize,
}

/// Outputs of a part that a thread computes at a time, where a product of floats has one token.
const ROWS: usize = 64;

impl Joint {
    /// Reads the matrices and packs them.
    ///
    /// # Errors
    /// As for [`groups`], [`Model::matrix_rows`], [`Model::floats_at`] and [`Linear::stacked`].
    pub fn load(model: &Model, sources: &[Source], options: &LayerOptions<'_>) -> Result<Joint, Error> {
        let k = sources.first().map_or(0, |source| source.k);
        let mut joint = Joint { parts: Vec::new(), places: Vec::new(), n: 0, k };
        for Group { sources, format } in groups(model, sources)? {
            match (format, sources) {
                (None, [source]) => joint.push(model, Product::Floats(source.floats(model)?), sources)?,
                (_, sources) => joint.stack(model, sources, options)?,
            }
        }
        Ok(joint)
    }

    /// A matrix that was made from one of a file.
    pub fn of(layer: Linear) -> Joint {
        let (n, k) = (layer.n(), layer.k());
        let part = Part { product: Product::Linear(Box::new(layer)), start: 0, n, bias: None };
        Joint { parts: vec![part], places: vec![(0, 0)], n, k }
    }

    fn stack(&mut self, model: &Model, sources: &[Source], options: &LayerOptions<'_>) -> Result<(), Error> {
        let read = |source: &Source| model.matrix_rows(&source.tensor, source.rows());
        let read: Vec<QuantizedBuf<'_>> = sources.iter().map(read).collect::<Result<_, _>>()?;
        let matrices: Vec<QuantizedMatrix<'_>> = read.iter().map(QuantizedBuf::matrix).collect();
        let layer = Linear::stacked(model.registry(), &matrices, &options.linear, options.threads);
        let layer = match sources.first().and_then(|source| source.transform(model)) {
            Some(transform) => layer.and_then(|layer| layer.transformed(transform.clone())),
            None => layer,
        };
        let layer = layer.map_err(|error| ModelError::Layer {
            tensors: sources.iter().map(|source| source.tensor.clone()).collect(),
            error,
        })?;
        self.push(model, Product::Linear(Box::new(layer)), sources)
    }

    fn push(&mut self, model: &Model, product: Product, sources: &[Source]) -> Result<(), Error> {
        let (part, start) = (self.parts.len(), self.n);
        let mut n = 0;
        let mut bias = Vec::new();
        for source in sources {
            self.places.push((part, n));
            if let Some(name) = &source.bias {
                bias.resize(n, 0.0);
                bias.extend(model.vector(name, source.n)?);
            }
            n += source.n;
        }
        if !bias.is_empty() {
            bias.resize(n, 0.0);
        }
        self.n += n;
        self.parts.push(Part { product, start, n, bias: Some(bias).filter(|bias| !bias.is_empty()) });
        Ok(())
    }

    /// Outputs of all matrices.
    pub fn n(&self) -> usize {
        self.n
    }

    /// The layers in it.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.parts.iter().filter_map(|part| match &part.product {
            Product::Linear(linear) => Some(&**linear),
            Product::Floats(_) => None,
        })
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let bytes = |part: &Part| match &part.product {
            Product::Linear(linear) => linear.weight_bytes(),
            Product::Floats(values) => size_of_val(&values[..]),
        };
        let bias = |part: &Part| part.bias.as_ref().map_or(0, |bias| size_of_val(&bias[..]));
        self.parts.iter().map(|part| bytes(part) + bias(part)).sum()
    }

    /// Lets its launches count.
    ///
    /// # Errors
    /// [`gristmill::Error::ForeignRecording`].
    pub fn record(&mut self, recording: &Recording) -> Result<(), Error> {
        for part in &mut self.parts {
            if let Product::Linear(linear) = &mut part.product {
                linear.record(Some(recording))?;
            }
        }
        Ok(())
    }

    /// Computes all outputs for `m` tokens into `y` (`m * n`), part after part; [`Joint::row`] finds them.
    ///
    /// # Errors
    /// As for [`Linear::forward`].
    pub fn forward(
        &self,
        x: &[f32],
        m: usize,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        for parts in self.inputs(m) {
            // The first of several quantizes for all of them, and their products are one job.
            if let [Part { product: Product::Linear(first), start, .. }, _, ..] = parts {
                let shared = first.quantize(Input::F32(x), m, workspace, threads)?;
                products(parts, &shared, &mut y[m * start..], threads)?;
                continue;
            }
            for part in parts {
                let y = &mut y[m * part.start..][..m * part.n];
                let bias = part.bias.as_deref();
                match &part.product {
                    Product::Linear(linear) => {
                        linear.forward(Input::F32(x), m, bias, y, workspace, threads)?
                    }
                    Product::Floats(w) => floats(w, x, self.k, part.n, m, bias, y, threads)?,
                }
            }
        }
        Ok(())
    }

    /// Whether all of it can read what a prologue made of its input: there are no floats, and nothing is transformed.
    pub fn fuses(&self) -> bool {
        self.parts.iter().all(|part| match &part.product {
            Product::Linear(linear) => linear.transform().is_none(),
            Product::Floats(_) => false,
        })
    }

    /// [`Joint::forward`] with what `prologue` makes of the rows `x`, and of those that its gate takes. Only where it
    /// [fuses](Joint::fuses).
    ///
    /// # Errors
    /// As for [`Linear::quantize_with`]; parts that are floats, which read nothing that is quantized.
    #[expect(clippy::too_many_arguments, reason = "operands and resources of a product")]
    pub fn forward_with(
        &self,
        prologue: &Prologue,
        x: Rows<'_>,
        up: Option<Rows<'_>>,
        m: usize,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        for parts in self.inputs(m) {
            let [Part { product: Product::Linear(first), start, .. }, ..] = parts else {
                let why =
                    "a prologue stands in front of a matrix of floats, which reads no quantized activations";
                return Err(Error::Asked(why.to_owned()));
            };
            let input = PrologueInput::new(x);
            let input = match up {
                Some(up) => input.gate(up),
                None => input,
            };
            let shared = first.quantize_with(prologue, input, m, workspace, threads)?;
            products(parts, &shared, &mut y[m * start..], threads)?;
        }
        Ok(())
    }

    /// The parts, in runs of neighbours that read the same quantized activations of `m` tokens.
    fn inputs(&self, m: usize) -> impl Iterator<Item = &[Part]> {
        self.parts.chunk_by(move |one, two| match (&one.product, &two.product) {
            (Product::Linear(one), Product::Linear(two)) => one.shares_activations_with(two, m),
            (_, _) => false,
        })
    }

    /// The outputs of matrix `index`, a row for each of `m` tokens, of what [`Joint::forward`] wrote.
    pub fn rows<'y>(&self, y: &'y [f32], m: usize, index: usize) -> Rows<'y> {
        let (part, offset) = self.places[index];
        let part = &self.parts[part];
        Rows::strided(&y[m * part.start..][..m * part.n][offset..], part.n)
    }

    /// The outputs of matrix `index` for token `token` of `m`, of what [`Joint::forward`] wrote.
    pub fn row<'y>(&self, y: &'y [f32], m: usize, index: usize, token: usize, n: usize) -> &'y [f32] {
        let (part, offset) = self.places[index];
        let part = &self.parts[part];
        &y[m * part.start + token * part.n + offset..][..n]
    }

    /// Runs `run` for each token on the outputs of matrix `index`.
    ///
    /// # Errors
    /// Those of `run`.
    pub fn each_row(
        &self,
        y: &mut [f32],
        m: usize,
        index: usize,
        n: usize,
        threads: &Threads,
        run: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<(), Error> {
        let (part, offset) = self.places[index];
        let part = &self.parts[part];
        let rows = &mut y[m * part.start..][..m * part.n];
        threads.chunks(rows, part.n, |token, row| {
            run(token, &mut row[offset..][..n]);
            Ok(())
        })
    }
}

/// The products of neighbours with what one of them quantized, as one job; outputs lie one behind the other in `y`.
fn products(
    parts: &[Part],
    x: &QuantizedActivations<'_>,
    mut y: &mut [f32],
    threads: &Threads,
) -> Result<(), Error> {
    let mut batch = Batch::new();
    for part in parts {
        let Product::Linear(linear) = &part.product else { continue };
        let (own, behind) = y.split_at_mut(x.m() * part.n);
        y = behind;
        let product = linear.product_of(x);
        let product = match &part.bias {
            Some(bias) => product.bias(bias),
            None => product,
        };
        batch.push(product, Output::F32(own))?;
    }
    batch.run(threads);
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "operands and sizes of a product")]
fn floats(
    w: &[f32],
    x: &[f32],
    k: usize,
    n: usize,
    m: usize,
    bias: Option<&[f32]>,
    y: &mut [f32],
    threads: &Threads,
) -> Result<(), Error> {
    let size = if m == 1 { ROWS } else { n };
    threads.chunks(y, size, |chunk, y| {
        let (token, first) = if m == 1 { (0, chunk * ROWS) } else { (chunk, 0) };
        let x = &x[token * k..][..k];
        for (row, y) in (first..).zip(y) {
            *y = dot(&w[row * k..][..k], x) + bias.map_or(0.0, |bias| bias[row]);
        }
        Ok(())
    })
}

/// Room for the outputs of `joints` for `m` tokens.
pub(crate) fn outputs<'j>(joints: impl IntoIterator<Item = &'j Joint>, m: usize) -> Result<Vec<f32>, Error> {
    let most = joints.into_iter().map(Joint::n).max().unwrap_or(0);
    zeros("outputs of layers", most.saturating_mul(m))
}

#[cfg(test)]
mod tests {
    use super::{Joint, Part, Product};
    use crate::error::Error;
    use gristmill::{
        CpuProfile, Linear, LinearOptions, Prologue, QuantizedMatrix, Quantizer, REGISTRY, Request, Restrict,
        Rows, Threads, Workspace,
    };

    const K: usize = 512;

    fn layer(format: &str, n: usize, threads: &Threads) -> Result<Linear, Error> {
        let (_, info) = REGISTRY.format(format)?;
        let request = Request::quantize(format, None, n, K);
        let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &Restrict::default())?;
        let mut random = fastrand::Rng::with_seed(n as u64);
        let values: Vec<f32> = (0..n * K).map(|_| random.f32() - 0.5).collect();
        let mut bytes = vec![0; info.tensor_bytes(n, K)?];
        Quantizer::new(&prepared.decide_as_asked())?.run(&values, n, K, &mut bytes)?;
        let matrix = QuantizedMatrix::new(info, n, K, &bytes)?;
        Ok(Linear::new(&REGISTRY, &matrix, &LinearOptions::default(), threads)?)
    }

    /// As mixed files have them: values in another format than queries and keys.
    #[test]
    fn neighbours_of_several_formats_read_the_same_activations() -> Result<(), Error> {
        let threads = Threads::single();
        let mut joint = Joint { parts: Vec::new(), places: Vec::new(), n: 0, k: K };
        for (format, n) in [("q4_k", 96), ("q5_k", 32), ("q6_k", 32), ("q4_0", 8), ("q8_0", 40)] {
            let part = Joint::of(layer(format, n, &threads)?).parts.pop();
            joint.parts.extend(part.map(|part| Part { start: joint.n, bias: Some(vec![0.25; n]), ..part }));
            joint.n += n;
        }
        for m in [1, 5] {
            // Which of them do is up to the processor's kernels; some do on each.
            let runs: Vec<usize> = joint.inputs(m).map(<[Part]>::len).collect();
            assert!(runs.iter().sum::<usize>() == 5 && runs.len() < 5, "m = {m}: {runs:?}");
            let mut random = fastrand::Rng::with_seed(7);
            let x: Vec<f32> = (0..m * K).map(|_| random.f32() - 0.5).collect();
            let linears: Vec<&Linear> = joint.linears().collect();
            let mut workspace = Workspace::for_all(linears.iter().copied(), m, &threads)?;
            let mut y = vec![f32::NAN; m * joint.n];
            joint.forward(&x, m, &mut y, &mut workspace, &threads)?;
            for (part, linear) in joint.parts.iter().zip(linears) {
                let mut alone = vec![f32::NAN; m * part.n];
                let input = gristmill::Input::F32(&x);
                linear.forward(input, m, part.bias.as_deref(), &mut alone, &mut workspace, &threads)?;
                assert_eq!(y[m * part.start..][..alone.len()], alone);
            }
        }
        Ok(())
    }

    /// Floats read no quantized activations; what lay in the outputs before must not pass for theirs.
    #[test]
    fn a_prologue_in_front_of_floats_is_an_error() -> Result<(), Error> {
        let threads = Threads::single();
        let mut joint = Joint::of(layer("q8_0", 8, &threads)?);
        joint.parts.push(Part { product: Product::Floats(vec![0.5; 2 * K]), start: 8, n: 2, bias: None });
        (joint.n, joint.places) = (10, vec![(0, 0), (1, 0)]);
        assert!(!joint.fuses());
        let mut workspace = Workspace::for_all(joint.linears(), 1, &threads)?;
        let (x, mut y) = ([0.5; K], [0.0; 10]);
        let prologue = Prologue::new(K);
        let rows = Rows::dense(&x);
        let found = joint.forward_with(&prologue, rows, None, 1, &mut y, &mut workspace, &threads);
        assert!(found.is_err_and(|error| error.to_string().contains("a matrix of floats")));
        Ok(())
    }
}
