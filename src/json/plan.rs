//! A decision for each tensor of a model.

use crate::gguf::{Model, Tensor, TensorType};
use crate::languages;
use gristmill_records::decision::TensorPlan;
use gristmill_runtime::{Device, Error, Request, Shape};

/// A decision for each tensor of a model and `m` tokens, before anything is loaded. The environment counts for nothing, but for kernels in
/// quarantine.
///
/// # Errors
/// As for [`languages::prepared`].
pub fn plan(model: &Model, device: Device, m: usize) -> Result<Vec<TensorPlan>, Error> {
    let working_set = Some(model.file().working_set());
    model.file().tensors().map(|tensor| planned(model, &tensor, (device, m, working_set))).collect()
}

fn planned(
    model: &Model,
    tensor: &Tensor<'_>,
    (device, m, working_set): (Device, usize, Option<u64>),
) -> Result<TensorPlan, Error> {
    let resolved = model.types().of(tensor);
    let quantized = !matches!(resolved, Ok(TensorType::Plain(_)));
    let weights = match (resolved, matrix(tensor.dims())) {
        (Ok(TensorType::Plain(_)), _) => Ok(None),
        (Ok(_), None) => Err(String::from("its dimensions do not fit the address space")),
        (Ok(TensorType::Format(resolved)), Some((n, k))) => Ok(Some((resolved.format, n, k))),
        (Ok(TensorType::Tiled(tiled)), Some((n, k))) => {
            let read = model.types().import_of(tiled.layout, n, k);
            read.map(|(_, format)| Some((format, n, k))).map_err(|why| why.to_string())
        }
        (Err(error), _) => Err(error.to_string()),
    };
    let (kernel, reason) = match weights {
        Ok(Some((format, n, k))) => {
            let request = Request::matmul(format.name, Shape::new(m, n, k)).on(device);
            let request = request.with_working_set(working_set);
            match languages::prepared(model.registry(), &request)?.decide_as_asked().kernel() {
                Ok(entry) => (Some(entry.name.to_owned()), None),
                Err(error) => (None, Some(error.to_string())),
            }
        }
        Ok(None) => (None, None),
        Err(why) => (None, Some(why)),
    };
    Ok(TensorPlan {
        tensor: tensor.name().to_owned(),
        type_name: model.types().name_of(tensor),
        dims: tensor.dims().to_vec(),
        quantized,
        kernel,
        reason,
    })
}

/// Rows and elements of a row: the first dimension is contiguous, the others are rows. `None` where they do not fit the
/// address space.
pub(crate) fn matrix(dims: &[u64]) -> Option<(usize, usize)> {
    let k = usize::try_from(dims.first().copied().unwrap_or(1)).ok()?;
    let n = dims.iter().skip(1).try_fold(1u64, |n, dim| n.checked_mul(*dim))?;
    Some((usize::try_from(n).ok()?, k))
}
