//! Running the command, and files for it.

use crate::copies::copy_tensors;
use gristmill::gguf::{GgufWriter, Model, Value};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub fn decoder(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_decoder")).args(arguments).output().unwrap()
}

/// What it prints on standard output, where nothing is wrong.
pub fn printed(arguments: &[&str]) -> String {
    let output = decoder(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Its error, which is one, and no panic.
pub fn refused(arguments: &[&str], expected: &str) {
    let output = decoder(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
    assert!(error.contains(expected), "{arguments:?}: {error}, expected: {expected}");
    assert!(!error.contains("panicked"), "{error}");
}

/// A model, made with these arguments.
pub fn model(folder: &Path, name: &str, arguments: &[&str]) -> String {
    let path = folder.join(name).to_str().unwrap().to_owned();
    printed(
        &[&["make-model", "-o", &path, "--layers", "1", "--vocab", "300", "--context", "64"], arguments]
            .concat(),
    );
    path
}

/// A model of two layers.
pub fn two_layers(folder: &Path) -> String {
    let path = folder.join("two.gguf").to_str().unwrap().to_owned();
    printed(&["make-model", "-o", &path, "--layers", "2", "--no-vocab"]);
    path
}

/// A copy of a file without an entry of the metadata.
pub fn without(path: &str, key: &str) -> String {
    let to = PathBuf::from(path).with_file_name("without.gguf");
    let model = Model::open(path).unwrap();
    let mut writer = GgufWriter::new();
    writer.copy_metadata(model.file(), |known| known != key).unwrap();
    copy_tensors(&model, writer, &to, |_, dims| dims.to_vec());
    to.to_str().unwrap().to_owned()
}

/// A copy of a file without the tensors and with the metadata that `edit` says: the same bytes of all others.
pub fn edited(path: &str, name: &str, drop: &str, edit: impl Fn(&str) -> Option<Value<'static>>) -> String {
    let to = PathBuf::from(path).with_file_name(name);
    let model = Model::open(path).unwrap();
    let file = model.file();
    let mut writer = GgufWriter::new();
    writer.copy_metadata(file, |key| edit(key).is_none()).unwrap();
    for (key, _) in
        file.metadata().chain([("prism.hadamard.version", Value::U32(2)), ("prism.other", Value::U32(1))])
    {
        if let Some(value) = edit(key) {
            writer.metadata(key, value).unwrap();
        }
    }
    let kept: Vec<_> = file.tensors().filter(|tensor| tensor.name() != drop).collect();
    for tensor in &kept {
        writer.tensor(tensor.name(), tensor.dims(), tensor.type_id(), tensor.size().unwrap()).unwrap();
    }
    writer
        .create(&to, |stream| {
            kept.iter().try_for_each(|tensor| stream.data(tensor.name(), &tensor.data().unwrap()))
        })
        .map_err(|error: gristmill::gguf::WriteError| error)
        .unwrap();
    to.to_str().unwrap().to_owned()
}

/// A copy of a file in which `change` makes other dimensions of those of a tensor, with as many elements.
pub fn reshaped(path: &str, change: impl Fn(&str, &[u64]) -> Vec<u64>) -> String {
    let to = PathBuf::from(path).with_file_name("reshaped.gguf");
    let model = Model::open(path).unwrap();
    let mut writer = GgufWriter::new();
    writer.copy_metadata(model.file(), |_| true).unwrap();
    copy_tensors(&model, writer, &to, change);
    to.to_str().unwrap().to_owned()
}

/// What `chat` prints on both outputs for these lines, and its exit code.
pub fn chat(path: &str, arguments: &[&str], lines: &[u8]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_decoder"));
    command.args(["chat", path]).args(arguments);
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines = lines.to_vec();
    // It may end before it has read all.
    let writer = std::thread::spawn(move || drop(std::io::Write::write_all(&mut input, &lines)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let [out, error] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.code(), out, error)
}

/// A copy of a file in which `change` was done to the bytes of a tensor.
pub fn with_bytes(path: &str, tensor: &str, change: impl Fn(&mut [u8])) -> String {
    let to = PathBuf::from(path).with_file_name("with_bytes.gguf");
    let model = Model::open(path).unwrap();
    let mut writer = GgufWriter::new();
    writer.copy_metadata(model.file(), |_| true).unwrap();
    let tensors: Vec<_> = model.file().tensors().collect();
    for tensor in &tensors {
        writer.tensor(tensor.name(), tensor.dims(), tensor.type_id(), tensor.size().unwrap()).unwrap();
    }
    writer
        .create(&to, |stream| {
            tensors.iter().try_for_each(|found| {
                let mut bytes = found.data().unwrap().into_owned();
                if found.name() == tensor {
                    change(&mut bytes);
                }
                stream.data(found.name(), &bytes)
            })
        })
        .map_err(|error: gristmill::gguf::WriteError| error)
        .unwrap();
    to.to_str().unwrap().to_owned()
}
