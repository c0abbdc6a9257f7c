//! Tensors whose order depends on tile sizes (TL1, TL2): which format they become, and reading them as that.

use super::model_error::ModelError;
use super::read::Tensor;
use super::types::TypeNumbers;
use gristmill_runtime::import::{ImportError, Ternary, Tiled, Tiles};
use gristmill_runtime::registry::{FormatInfo, OuterType};
use gristmill_runtime::{CpuProfile, Error, QuantizedBuf, Quantizer, Registry, Request, Restrict, Threads};

/// Ternary formats of two bits with an f32 scale, which hold every such tensor exactly, and the quantizer that keeps each weight. The
/// first whose blocks divide the rows is taken.
const INTO: [(&str, &str); 2] = [("i2_s", "sign"), ("iq2_bn", "absmax")];

impl TypeNumbers {
    /// The formats that tensors in a layout that depends on tile sizes may become, the first before the second.
    pub const IMPORTED_AS: [&str; 2] = [INTO[0].0, INTO[1].0];

    /// The format that a tensor with rows of `k` in a layout that depends on tile sizes becomes when it is read; `None` where
    /// this build has none for such rows.
    pub fn imported_as(&self, k: usize) -> Option<&'static FormatInfo> {
        into(self.registry(), k).map(|(format, _)| format)
    }

    /// What a tensor of `n` rows of `k` in `layout` is read with and as, before it is: its tile sizes and its format.
    ///
    /// # Errors
    /// [`ImportError::NoFormat`], [`ImportError::NoTiles`] and [`ImportError::NoTileSizes`], and [`ImportError::Tiles`] where those
    /// that were given do not fit the shape.
    pub fn import_of(
        &self,
        layout: Tiled,
        n: usize,
        k: usize,
    ) -> Result<(Tiles, &'static FormatInfo), ImportError> {
        let format = self.imported_as(k).ok_or(ImportError::NoFormat { format: layout.name(), k })?;
        let tiles = self.tiles().of(n, k)?;
        layout.check(n, k, tiles)?;
        Ok((tiles, format))
    }

    /// Reads the tensor as a matrix of [`TypeNumbers::imported_as`]: the same weights, bit for bit.
    ///
    /// # Errors
    /// [`ModelError::Import`] where tile sizes are not known ([`TypeNumbers::with_tiles`]) or do not fit, where the data are no such
    /// tensor, and where no format takes its rows; [`ModelError::NoData`], [`ModelError::Layer`].
    pub fn import(&self, tensor: &Tensor<'_>, layout: Tiled) -> Result<QuantizedBuf<'static>, ModelError> {
        self.import_on(tensor, layout, &Threads::single())
    }

    /// The same, quantized by `threads`: the same bytes for any number of them.
    ///
    /// # Errors
    /// As for [`TypeNumbers::import`].
    pub fn import_on(
        &self,
        tensor: &Tensor<'_>,
        layout: Tiled,
        threads: &Threads,
    ) -> Result<QuantizedBuf<'static>, ModelError> {
        let refuse = |why| ModelError::Import { tensor: tensor.name().to_owned(), why };
        let failed = |error| ModelError::Layer { tensors: vec![tensor.name().to_owned()], error };
        let Some((n, k)) = matrix(tensor) else {
            let why = "more than this machine can address";
            let (tensor, dims) = (tensor.name().to_owned(), tensor.dims().to_vec());
            return Err(ModelError::Dimensions { tensor, dims, why });
        };
        let (tiles, _) = self.import_of(layout, n, k).map_err(refuse)?;
        let none = || refuse(ImportError::NoFormat { format: layout.name(), k });
        let (format, quantizer) = into(self.registry(), k).ok_or_else(none)?;
        let ternary = layout.read(&tensor.data()?, n, k, tiles).map_err(refuse)?;
        pack(self.registry(), format, quantizer, &ternary, threads).map_err(failed)
    }
}

/// Rows and elements of a row.
fn matrix(tensor: &Tensor<'_>) -> Option<(usize, usize)> {
    let (k, rows) = tensor.dims().split_first()?;
    let n = rows.iter().try_fold(1u64, |n, dim| n.checked_mul(*dim))?;
    Some((usize::try_from(n).ok()?, usize::try_from(*k).ok()?))
}

fn into(registry: &'static Registry, k: usize) -> Option<(&'static FormatInfo, &'static str)> {
    INTO.iter().find_map(|(name, quantizer)| {
        let format = registry.formats.iter().find(|format| format.name == *name)?;
        (k.is_multiple_of(format.elements) && format.quantizers.contains(quantizer))
            .then_some((format, *quantizer))
    })
}

/// Ternary weights in a format that has an f32 scale beside each row or behind the tensor.
///
/// They are quantized with the scale 1 and get theirs afterwards, so that a quantizer's thresholds have no say in it.
fn pack(
    registry: &'static Registry,
    format: &'static FormatInfo,
    quantizer: &str,
    ternary: &Ternary,
    threads: &Threads,
) -> Result<QuantizedBuf<'static>, Error> {
    let &Ternary { n, k, scale, .. } = ternary;
    let size = format.tensor_bytes(n, k)?;
    let (mut values, mut bytes) = (Vec::new(), Vec::new());
    let count = ternary.values.len();
    let no_memory = |_| Error::OutOfMemory { required: count.saturating_mul(4).saturating_add(size) };
    values.try_reserve_exact(count).map_err(no_memory)?;
    bytes.try_reserve_exact(size).map_err(no_memory)?;
    values.extend(ternary.values.iter().map(|value| f32::from(*value)));
    bytes.resize(size, 0);
    let request = Request::quantize(format.name, Some(quantizer), n, k).with_threads(threads.count());
    let prepared = registry.prepare_for(&request, CpuProfile::detect(), &Restrict::default())?;
    Quantizer::new(&prepared.decide_as_asked())?.run_on(&values, n, k, &mut bytes, threads)?;
    let row = format.row_bytes(k)?;
    let broken = Error::BrokenRegistry {
        package: registry.package,
        at: format.name,
        what: "it has no f32 scale, so it can't hold imported ternary weights",
    };
    // Where the first scale is, and how many there are, each a row behind the one before.
    let (first, scales) = match (format.row_header, format.tensor_tail) {
        (Some(OuterType::F32), None) => (0, n),
        (None, Some((OuterType::F32, _))) => (n * row, 1),
        _ => return Err(broken),
    };
    for index in 0..scales {
        match bytes.get_mut(first + index * row..).and_then(<[u8]>::first_chunk_mut) {
            Some(place) => *place = scale.to_le_bytes(),
            None => return Err(broken),
        }
    }
    QuantizedBuf::new(format, n, k, bytes)
}
