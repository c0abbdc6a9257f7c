//! A model file as layers, matrices and values by name.

use super::model_error::{Instead, ModelError};
use super::read::{GgufFile, Tensor};
use super::size::Unquantized;
use super::transforms::Transforms;
use super::types::{Resolved, TensorType, TiledType, TypeNumbers};
use gristmill_runtime::import::{ImportError, Tiled};
use gristmill_runtime::registry::FormatInfo;
use gristmill_runtime::room;
use gristmill_runtime::vocab::DType;
use gristmill_runtime::{
    Error, Experts, GuardOptions, GuardedLinear, Hadamard, Linear, LinearOptions, QuantizedBuf,
    QuantizedMatrix, Registry, StoredFloat, Threads, Tuning,
};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// How layers of a model are made. Nothing here is read from the environment unless [`LayerOptions::from_env`] made it.
#[derive(Clone, Debug)]
pub struct LayerOptions<'t> {
    /// Threads that pack the weights.
    pub threads: &'t Threads,
    /// Input type, device, precision, policy, restrictions and tuning. A working set that is not said is the model's
    /// ([`Gguf::working_set`](super::Gguf::working_set)).
    pub linear: LinearOptions,
}

impl<'t> LayerOptions<'t> {
    /// f32 on the processor, strict, without restrictions and without a tuning.
    pub fn new(threads: &'t Threads) -> LayerOptions<'t> {
        LayerOptions { threads, linear: LinearOptions::default() }
    }

    /// f32 on the processor, strict, with the restrictions and the tuning of the environment (`GRISTMILL_ISA` and so on).
    pub fn from_env(threads: &'t Threads) -> LayerOptions<'t> {
        LayerOptions { threads, linear: LinearOptions::from_env() }
    }

    /// The same with decisions that follow `tuning`.
    pub fn tuned(mut self, tuning: Arc<Tuning>) -> LayerOptions<'t> {
        self.linear.tuning = Some(tuning);
        self
    }
}

/// Why there is no layer of these tensors.
fn not_made(names: &[&str], error: Error) -> ModelError {
    ModelError::Layer { tensors: names.iter().map(|name| (*name).to_owned()).collect(), error }
}

/// A vector with room for one `T` for each of so many matrices of these tensors; `None`: more than fit.
fn room<T>(count: Option<usize>, names: &[&str]) -> Result<Vec<T>, ModelError> {
    room::room(count.unwrap_or(usize::MAX)).map_err(|error| not_made(names, error))
}

/// A GGUF file of a model and the kernels for it.
///
/// ```no_run
/// use gristmill::gguf::{LayerOptions, Model};
/// use gristmill::{Input, Threads};
///
/// let threads = Threads::new(4)?;
/// let options = LayerOptions::new(&threads);
/// let up = Model::open("model.gguf")?.linear("blk.0.ffn_up.weight", &options)?;
/// let mut workspace = up.workspace(1, &threads)?;
/// let (x, mut y) = (vec![0.0; up.k()], vec![0.0; up.n()]);
/// up.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, &threads)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Model {
    file: GgufFile,
    types: TypeNumbers,
    transforms: Option<Transforms>,
    /// Whether the caller applies them.
    by_caller: bool,
}

impl Model {
    /// Opens the file at `path` for the shipped kernels. Its header is read now, a tensor when it is asked for.
    ///
    /// # Errors
    /// [`ModelError::File`]; [`ModelError::Transform`] where the file declares a transform that is not understood.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, ModelError> {
        Model::open_with(path, TypeNumbers::new(&gristmill_kernels::REGISTRY))
    }

    /// As [`Model::open`], with the formats and kernels of the registry that `types` has, and what it says of type numbers.
    ///
    /// # Errors
    /// [`ModelError::File`]; [`ModelError::Transform`] where the file declares a transform that is not understood.
    pub fn open_with(path: impl AsRef<Path>, types: TypeNumbers) -> Result<Model, ModelError> {
        let file = GgufFile::open(path.as_ref(), &|query| types.size(query))?;
        Model::of(file, types)
    }

    /// As [`Model::open_with`], but maps the file into memory, so that matrices are lent as they lie there.
    ///
    /// # Errors
    /// [`ModelError::File`]; [`ModelError::Transform`] where the file declares a transform that is not understood.
    ///
    /// # Safety
    /// As for [`Gguf::map`](super::Gguf::map): nobody changes the file or makes it shorter for as long as the returned value
    /// lives.
    pub unsafe fn map_with(path: impl AsRef<Path>, types: TypeNumbers) -> Result<Model, ModelError> {
        // SAFETY: passed on to the caller.
        let file = unsafe { GgufFile::map(path.as_ref(), &|query| types.size(query)) }?;
        Model::of(file, types)
    }

    fn of(file: GgufFile, types: TypeNumbers) -> Result<Model, ModelError> {
        let transforms = Transforms::of(&file)?;
        Ok(Model { file, types, transforms, by_caller: false })
    }

    /// The transforms of activations that the file declares (`prism.hadamard.*`), if it does. [`Model::linear`],
    /// [`Model::linear_rows`] and [`Model::stacked`] make layers that apply them; what would lend tensors as they are stored refuses
    /// those that a declaration names.
    pub fn transforms(&self) -> Option<&Transforms> {
        self.transforms.as_ref()
    }

    /// The same model for a caller who applies [`Model::transforms`]: [`Model::matrix`], [`Model::matrix_rows`] and [`Model::floats`]
    /// then lend what is stored. Layers that the model makes apply them as before.
    pub fn transformed_by_caller(mut self) -> Model {
        self.by_caller = true;
        self
    }

    /// The file: its metadata and its tensors.
    pub fn file(&self) -> &GgufFile {
        &self.file
    }

    /// What type numbers mean here.
    pub fn types(&self) -> &TypeNumbers {
        &self.types
    }

    /// The formats and kernels that layers are made with.
    pub fn registry(&self) -> &'static Registry {
        self.types.registry()
    }

    /// What the tensor `name` is.
    ///
    /// # Errors
    /// [`ModelError::NoTensor`], [`ModelError::Type`].
    pub fn tensor_type(&self, name: &str) -> Result<TensorType, ModelError> {
        self.type_of(&self.tensor(name)?)
    }

    /// The quantized matrix `name`, read into memory (or lent, where the file is mapped): `n` rows of `k` elements.
    ///
    /// # Errors
    /// [`ModelError::NoTensor`], [`ModelError::Type`], [`ModelError::NotQuantized`], [`ModelError::NoData`];
    /// [`ModelError::Dimensions`] for vectors and for stacks of matrices, of which [`Model::matrix_rows`] reads one;
    /// [`ModelError::Transformed`].
    pub fn matrix(&self, name: &str) -> Result<QuantizedBuf<'_>, ModelError> {
        self.as_stored(name)?;
        self.whole(name, &Threads::single())
    }

    fn whole(&self, name: &str, threads: &Threads) -> Result<QuantizedBuf<'_>, ModelError> {
        let tensor = self.tensor(name)?;
        let rows = self.rows(&tensor)?;
        let why = match tensor.dims() {
            [] | [_] => "a vector, which may be a row or a column of a matrix",
            [_, _] | [_, _, 1] | [_, _, 1, 1] => {
                return self.read(&tensor, &rows, 0..rows.n, threads);
            }
            _ => "a stack of matrices, of which `Model::matrix_rows` reads one",
        };
        Err(ModelError::Dimensions { tensor: name.to_owned(), dims: tensor.dims().to_vec(), why })
    }

    /// Some rows of the quantized tensor `name`, counted over all dimensions but the contiguous one: of a tensor in which
    /// several matrices are stacked, one of them. Only they are read, and the scale behind the tensor where there is one; a tensor
    /// whose order depends on tile sizes is read and converted as a whole, each time.
    ///
    /// # Errors
    /// As for [`Model::matrix`], whatever the number of dimensions; [`ModelError::Rows`].
    pub fn matrix_rows(&self, name: &str, rows: Range<usize>) -> Result<QuantizedBuf<'_>, ModelError> {
        self.as_stored(name)?;
        self.some(name, rows, &Threads::single())
    }

    fn some(
        &self,
        name: &str,
        rows: Range<usize>,
        threads: &Threads,
    ) -> Result<QuantizedBuf<'_>, ModelError> {
        let tensor = self.tensor(name)?;
        let all = self.rows(&tensor)?;
        if rows.start > rows.end || rows.end > all.n {
            return Err(ModelError::Rows { tensor: name.to_owned(), rows, n: all.n });
        }
        self.read(&tensor, &all, rows, threads)
    }

    /// Every value of a tensor of f32, f16 or bf16 as f32, in the order of memory, whatever its dimensions.
    ///
    /// # Errors
    /// [`ModelError::NoTensor`], [`ModelError::Type`], [`ModelError::NotFloats`], [`ModelError::Memory`],
    /// [`ModelError::NoData`]; [`ModelError::Transformed`].
    pub fn floats(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        // What is no tensor of floats is refused before there is memory for it.
        self.floats_at(name, 0, &mut [])?;
        let tensor = self.tensor(name)?;
        let no_memory = || ModelError::Memory { tensor: name.to_owned(), elements: tensor.elements() };
        let count = usize::try_from(tensor.elements()).map_err(|_| no_memory())?;
        let mut values = Vec::new();
        values.try_reserve_exact(count).map_err(|_| no_memory())?;
        values.resize(count, 0.0);
        self.floats_at(name, 0, &mut values)?;
        Ok(values)
    }

    /// As [`Model::floats`], but the values from `first` on and as many as `out` has: rows of an embedding, or pieces of a matrix that is
    /// quantized. Allocates nothing. After an error `out` holds nothing of use.
    ///
    /// # Errors
    /// As for [`Model::floats`]; [`ModelError::NoData`] where the tensor has fewer.
    pub fn floats_at(&self, name: &str, first: u64, out: &mut [f32]) -> Result<(), ModelError> {
        self.as_stored(name)?;
        let tensor = self.tensor(name)?;
        let float = match self.type_of(&tensor)? {
            TensorType::Plain(plain) => {
                DType::from_name(plain.name).and_then(StoredFloat::of).ok_or(plain.name)
            }
            TensorType::Format(Resolved { format, .. }) => Err(format.name),
            TensorType::Tiled(tiled) => Err(tiled.layout.name()),
        };
        let float = float.map_err(|found| ModelError::NotFloats { tensor: name.to_owned(), found })?;
        // On the stack, whatever there is to read.
        let mut piece = [0; 16 << 10];
        let width = float.width();
        let mut start = first.saturating_mul(width as u64);
        for out in out.chunks_mut(piece.len() / width) {
            let bytes = &mut piece[..out.len() * width];
            tensor.read(start, bytes)?;
            float.convert(bytes, out);
            start = start.saturating_add(bytes.len() as u64);
        }
        Ok(())
    }

    /// A vector of `length` values (a bias, the weights of a norm) as f32, whichever way a converter wrote it: with one
    /// dimension, as a row or as a column.
    ///
    /// # Errors
    /// As for [`Model::floats`]; [`ModelError::Dimensions`] for what is no vector, [`ModelError::Length`].
    pub fn vector(&self, name: &str, length: usize) -> Result<Vec<f32>, ModelError> {
        let tensor = self.tensor(name)?;
        if tensor.dims().iter().filter(|dim| **dim != 1).count() > 1 {
            let (tensor, dims) = (name.to_owned(), tensor.dims().to_vec());
            return Err(ModelError::Dimensions { tensor, dims, why: "a matrix, expected a vector" });
        }
        if tensor.elements() != length as u64 {
            let (tensor, found) = (name.to_owned(), tensor.elements());
            return Err(ModelError::Length { tensor, expected: length, found });
        }
        self.floats(name)
    }

    /// The layer of the quantized matrix `name`: reads it, chooses kernels and packs the weights for them.
    ///
    /// # Errors
    /// As for [`Model::matrix`]; [`ModelError::Layer`] as for [`Linear::new`], and for [`Linear::transformed`] where the file
    /// declares a transform.
    pub fn linear(&self, name: &str, options: &LayerOptions<'_>) -> Result<Linear, ModelError> {
        self.layer(&[name], &[self.whole(name, options.threads)?], options)
    }

    /// The same as a layer that goes on where a kernel or its GPU fails. It keeps what it is made of: bytes of its own, or lent by the model
    /// where the file is mapped.
    ///
    /// # Errors
    /// As for [`Model::matrix`]; [`ModelError::Layer`] as for [`GuardedLinear::new`] and [`GuardedLinear::transformed`].
    pub fn guarded(
        &self,
        name: &str,
        guard: GuardOptions,
        options: &LayerOptions<'_>,
    ) -> Result<GuardedLinear<'_>, ModelError> {
        self.guard(name, self.whole(name, options.threads)?, guard, options)
    }

    /// The same with bytes of its own, for a layer that outlives the model.
    pub(crate) fn guarded_owned(
        &self,
        name: &str,
        guard: GuardOptions,
        options: &LayerOptions<'_>,
    ) -> Result<GuardedLinear<'static>, ModelError> {
        let own = self.whole(name, options.threads)?.into_owned();
        self.guard(name, own.map_err(|error| not_made(&[name], error))?, guard, options)
    }

    fn guard<'w>(
        &self,
        name: &str,
        weights: QuantizedBuf<'w>,
        guard: GuardOptions,
        options: &LayerOptions<'_>,
    ) -> Result<GuardedLinear<'w>, ModelError> {
        let layer =
            GuardedLinear::new(self.registry(), weights, &self.asked(options), guard, options.threads);
        let layer = match self.of_inputs(name) {
            Some(transform) => layer.and_then(|layer| layer.transformed(Arc::clone(transform))),
            None => layer,
        };
        layer.map_err(|error| not_made(&[name], error))
    }

    /// The layer of some rows of the quantized tensor `name`: one of several that are stacked in it.
    ///
    /// # Errors
    /// As for [`Model::matrix_rows`]; [`ModelError::Layer`] as for [`Linear::new`].
    pub fn linear_rows(
        &self,
        name: &str,
        rows: Range<usize>,
        options: &LayerOptions<'_>,
    ) -> Result<Linear, ModelError> {
        self.layer(&[name], &[self.some(name, rows, options.threads)?], options)
    }

    /// Several quantized matrices that share their input as one layer (query, key and value; gate and up): its outputs are
    /// those of the first, then those of the second, and so on.
    ///
    /// # Errors
    /// As for [`Model::matrix`]; [`ModelError::NotAlike`] where formats or row lengths differ, [`ModelError::Nothing`];
    /// [`ModelError::Layer`] as for [`Linear::stacked`].
    pub fn stacked(&self, names: &[&str], options: &LayerOptions<'_>) -> Result<Linear, ModelError> {
        let [first_name, ..] = names else { return Err(ModelError::Nothing) };
        let mut matrices: Vec<QuantizedBuf<'_>> = Vec::new();
        for name in names {
            let matrix = self.whole(name, options.threads)?;
            let first = matrices.first().unwrap_or(&matrix);
            if (first.format().name, first.k()) != (matrix.format().name, matrix.k()) {
                let what = |of: &QuantizedBuf<'_>| format!("{}, rows of {}", of.format().name, of.k());
                return Err(ModelError::NotAlike {
                    first: (*first_name).to_owned(),
                    first_is: what(first),
                    other: (*name).to_owned(),
                    other_is: what(&matrix),
                });
            }
            if self.of_inputs(first_name) != self.of_inputs(name) {
                let what = |of: &str| match self.of_inputs(of) {
                    Some(_) => "with a transform of its inputs".to_owned(),
                    None => "without a transform of its inputs".to_owned(),
                };
                return Err(ModelError::NotAlike {
                    first: (*first_name).to_owned(),
                    first_is: what(first_name),
                    other: (*name).to_owned(),
                    other_is: what(name),
                });
            }
            matrices.push(matrix);
        }
        self.layer(names, &matrices, options)
    }

    /// The experts of a mixture: tensors of three dimensions (elements of a row, rows of an expert, experts), of which several that
    /// share their input become one (gate and up: an expert's outputs are those of the first tensor, then those of the second).
    ///
    /// # Errors
    /// As for [`Model::matrix_rows`]; [`ModelError::Dimensions`] for another number of dimensions and for stacks without elements, [`ModelError::NotAlike`] where
    /// formats, row lengths or numbers of experts differ, [`ModelError::Nothing`], [`ModelError::TransformedExperts`]; [`ModelError::Layer`] as for
    /// [`Experts::stacked`].
    pub fn experts(&self, names: &[&str], options: &LayerOptions<'_>) -> Result<Experts, ModelError> {
        let mut tensors = Vec::new();
        for name in names {
            if let Some(key) = self.transforms.as_ref().and_then(|transforms| transforms.key(name)) {
                return Err(ModelError::TransformedExperts { tensor: (*name).to_owned(), key });
            }
            let tensor = self.tensor(name)?;
            let all = self.rows(&tensor)?;
            let dims = tensor.dims().to_vec();
            let [_, rows, count] = dims[..] else {
                let why =
                    "not a stack of experts, which has three: elements of a row, rows of an expert, experts";
                return Err(ModelError::Dimensions { tensor: (*name).to_owned(), dims, why });
            };
            if tensor.elements() == 0 {
                // Of such a tensor a few bytes can say any number of experts.
                let why = "a stack that has no elements, so none of its experts computes anything";
                return Err(ModelError::Dimensions { tensor: (*name).to_owned(), dims, why });
            }
            // Their product was seen to fit.
            tensors.push((*name, tensor, rows as usize, count as usize, all));
        }
        let Some((first_name, _, _, count, first)) = tensors.first() else { return Err(ModelError::Nothing) };
        let what =
            |count: usize, of: &Rows| format!("{count} experts of {}, rows of {}", of.format.name, of.k);
        for (name, _, _, other, rows) in &tensors {
            if (rows.format.name, rows.k, other) != (first.format.name, first.k, count) {
                return Err(ModelError::NotAlike {
                    first: (*first_name).to_owned(),
                    first_is: what(*count, first),
                    other: (*name).to_owned(),
                    other_is: what(*other, rows),
                });
            }
        }
        // Each has a byte in the file at least, but what is kept for it here is larger.
        let all = count.checked_mul(tensors.len());
        // What depends on tile sizes is converted as a whole: once for all experts.
        let mut converted: Vec<Option<QuantizedBuf<'_>>> = Vec::new();
        for (_, tensor, _, _, all) in &tensors {
            let whole = all.tiled.map(|_| self.read(tensor, all, 0..all.n, options.threads));
            converted.push(whole.transpose()?);
        }
        let mut parts: Vec<QuantizedBuf<'_>> = room(all, names)?;
        for expert in 0..*count {
            for ((name, tensor, n, _, all), whole) in tensors.iter().zip(&converted) {
                let rows = expert * n..(expert + 1) * n;
                parts.push(match whole {
                    Some(whole) => QuantizedBuf::rows_of(&whole.matrix(), rows)
                        .map_err(|error| not_made(&[*name], error))?,
                    None => self.read(tensor, all, rows, options.threads)?,
                });
            }
        }
        let mut matrices: Vec<QuantizedMatrix<'_>> = room(all, names)?;
        matrices.extend(parts.iter().map(QuantizedBuf::matrix));
        let mut experts: Vec<&[QuantizedMatrix<'_>]> = room(Some(*count), names)?;
        experts.extend(matrices.chunks_exact(tensors.len()));
        let experts = Experts::stacked(self.registry(), &experts, &self.asked(options), options.threads);
        experts.map_err(|error| not_made(names, error))
    }

    fn layer(
        &self,
        names: &[&str],
        matrices: &[QuantizedBuf<'_>],
        options: &LayerOptions<'_>,
    ) -> Result<Linear, ModelError> {
        let matrices: Vec<QuantizedMatrix<'_>> = matrices.iter().map(QuantizedBuf::matrix).collect();
        let layer = Linear::stacked(self.registry(), &matrices, &self.asked(options), options.threads);
        let layer = match names.first().and_then(|name| self.of_inputs(name)) {
            Some(transform) => layer.and_then(|layer| layer.transformed(transform.clone())),
            None => layer,
        };
        layer.map_err(|error| not_made(names, error))
    }

    /// What products with a tensor need done to their inputs.
    pub(super) fn of_inputs(&self, name: &str) -> Option<&Arc<Hadamard>> {
        self.transforms.as_ref()?.of_inputs(name)
    }

    /// Refuses to lend a tensor whose stored rows mean nothing without a transform.
    fn as_stored(&self, name: &str) -> Result<(), ModelError> {
        match self.transforms.as_ref().and_then(|transforms| transforms.key(name)) {
            Some(key) if !self.by_caller => Err(ModelError::Transformed { tensor: name.to_owned(), key }),
            _ => Ok(()),
        }
    }

    /// What is asked of a layer, with the model's bytes where nobody said how many take turns.
    pub(super) fn asked(&self, options: &LayerOptions<'_>) -> LinearOptions {
        let working_set = options.linear.working_set.or_else(|| Some(self.file.working_set()));
        LinearOptions { working_set, ..options.linear.clone() }
    }

    pub(super) fn tensor(&self, name: &str) -> Result<Tensor<'_>, ModelError> {
        let none = || ModelError::NoTensor { tensor: name.to_owned(), instead: self.instead(name) };
        self.file.tensor(name).ok_or_else(none)
    }

    pub(super) fn type_of(&self, tensor: &Tensor<'_>) -> Result<TensorType, ModelError> {
        let failed =
            |why| ModelError::Type { tensor: tensor.name().to_owned(), number: tensor.type_id(), why };
        self.types.of(tensor).map_err(failed)
    }

    /// Format, rows and row length of a quantized tensor.
    pub(super) fn rows(&self, tensor: &Tensor<'_>) -> Result<Rows, ModelError> {
        let name = || tensor.name().to_owned();
        let (format, bytes, tiled) = match self.type_of(tensor)? {
            TensorType::Format(Resolved { format, bytes, .. }) => (format, bytes, None),
            TensorType::Tiled(TiledType { layout, bytes, .. }) => {
                let k = tensor.dims().first().map_or(Some(1), |k| usize::try_from(*k).ok()).unwrap_or(0);
                let why = ImportError::NoFormat { format: layout.name(), k };
                let none = || ModelError::Import { tensor: name(), why };
                (self.types.imported_as(k).ok_or_else(none)?, bytes, Some(layout))
            }
            TensorType::Plain(Unquantized { name: found, .. }) => {
                return Err(ModelError::NotQuantized { tensor: name(), found });
            }
        };
        let k = tensor.dims().first().copied().unwrap_or(1);
        let n = tensor.dims().iter().skip(1).try_fold(1u64, |n, dim| n.checked_mul(*dim));
        match (n.and_then(|n| usize::try_from(n).ok()), usize::try_from(k)) {
            (Some(n), Ok(k)) => Ok(Rows { format, bytes, tiled, n, k }),
            (_, _) => Err(ModelError::Dimensions {
                tensor: name(),
                dims: tensor.dims().to_vec(),
                why: "more than this machine can address",
            }),
        }
    }

    /// Reads rows that the tensor has.
    fn read<'a>(
        &self,
        tensor: &Tensor<'a>,
        all: &Rows,
        rows: Range<usize>,
        threads: &Threads,
    ) -> Result<QuantizedBuf<'a>, ModelError> {
        let Rows { format, bytes, tiled, n, k } = *all;
        let failed = |error| ModelError::Layer { tensors: vec![tensor.name().to_owned()], error };
        if let Some(layout) = tiled {
            let whole = self.types.import_on(tensor, layout, threads)?;
            if rows == (0..n) {
                return Ok(whole);
            }
            let part = QuantizedBuf::rows_of(&whole.matrix(), rows).map_err(failed)?;
            return part.into_owned().map_err(failed);
        }
        let count = rows.len();
        let data = match format.tensor_tail {
            // Rows and the tail behind all of them.
            Some((_, tail)) if count < n => {
                let row = format.row_bytes(k).map_err(failed)?;
                let own = count.saturating_mul(row);
                let mut data = room::zeros(own.saturating_add(tail)).map_err(failed)?;
                let (of_rows, behind) = data.split_at_mut(own);
                tensor.read(rows.start as u64 * row as u64, of_rows)?;
                tensor.read(bytes.saturating_sub(tail as u64), behind)?;
                data.into()
            }
            Some(_) => tensor.data()?,
            None => {
                let row = format.row_bytes(k).map_err(failed)? as u64;
                tensor.part(rows.start as u64 * row, count as u64 * row)?
            }
        };
        QuantizedBuf::new(format, count, k, data).map_err(failed)
    }

    /// Where the values of a tensor that is not there may be.
    fn instead(&self, name: &str) -> Option<Instead> {
        let has = |name: &str| self.file.tensor(name).is_some();
        if name == "output.weight" && has("token_embd.weight") {
            return Some(Instead::Tied("token_embd.weight".to_owned()));
        }
        for (stack, parts) in STACKS {
            if name.contains(stack) {
                let parts: Vec<String> = parts.iter().map(|part| name.replacen(stack, part, 1)).collect();
                if parts.iter().all(|part| has(part)) {
                    return Some(Instead::SplitInto(parts));
                }
            }
            for part in *parts {
                let stacked = name.replacen(part, stack, 1);
                if name.contains(part) && has(&stacked) {
                    return Some(Instead::StackedIn(stacked));
                }
            }
        }
        let known = self.file.tensors().map(|tensor| tensor.name());
        let distance = |known: &str| strsim::damerau_levenshtein(name, known);
        let near = known.map(|known| (distance(known), known)).min_by_key(|(distance, _)| *distance)?;
        (near.0 <= (name.chars().count() / 6).max(1)).then(|| Instead::Meant(near.1.to_owned()))
    }
}

/// Rows of a quantized tensor.
pub(super) struct Rows {
    /// Of what is read.
    pub(super) format: &'static FormatInfo,
    /// In the file.
    bytes: u64,
    /// How it lies there, where it is not in the format.
    tiled: Option<Tiled>,
    pub(super) n: usize,
    pub(super) k: usize,
}

/// Parts of names of tensors that hold several matrices one above the other, and of those that hold one of these each.
const STACKS: &[(&str, &[&str])] =
    &[(".attn_qkv.", &[".attn_q.", ".attn_k.", ".attn_v."]), (".ffn_gate_up.", &[".ffn_gate.", ".ffn_up."])];
