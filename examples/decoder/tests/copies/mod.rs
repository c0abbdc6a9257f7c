//! Copies of models that say something else.

use gristmill::gguf::{GgufWriter, Model, Value};
use std::path::{Path, PathBuf};

/// A copy of a file with one entry of the metadata, in place of the old one where there is one.
pub fn declaring(path: &str, key: &str, value: Value<'_>) -> String {
    let to = PathBuf::from(path).with_file_name("declaring.gguf");
    let model = Model::open(path).unwrap();
    let mut writer = GgufWriter::new();
    writer.copy_metadata(model.file(), |known| known != key).unwrap();
    writer.metadata(key, value).unwrap();
    copy_tensors(&model, writer, &to, |_, dims| dims.to_vec());
    to.to_str().unwrap().to_owned()
}

/// The tensors of a model, with what `dims` makes of their dimensions.
pub fn copy_tensors(
    model: &Model,
    mut writer: GgufWriter,
    to: &Path,
    dims: impl Fn(&str, &[u64]) -> Vec<u64>,
) {
    let tensors: Vec<_> = model.file().tensors().collect();
    for tensor in &tensors {
        let dims = dims(tensor.name(), tensor.dims());
        writer.tensor(tensor.name(), &dims, tensor.type_id(), tensor.size().unwrap()).unwrap();
    }
    writer
        .create(to, |stream| {
            tensors.iter().try_for_each(|tensor| stream.data(tensor.name(), &tensor.data().unwrap()))
        })
        .map_err(|error: gristmill::gguf::WriteError| error)
        .unwrap();
}
