//! Bindings to the headers beside a library, by bindgen. Needs libclang.

use crate::discover::{self, Discovery};
use crate::error::Error;
use crate::printable::printable_path;
use std::path::{Path, PathBuf};

/// The headers that are looked for; what they include comes with them.
const HEADERS: [&str; 4] = ["llama.h", "ggml.h", "ggml-cpu.h", "ggml-bitnet.h"];

/// Everything that the headers declare, as Rust.
pub fn make(discovery: &Discovery) -> Result<String, Error> {
    let libraries = discovery.libraries();
    let library = libraries.first().map(|library| library.path.to_owned()).unwrap_or_default();
    let roots: Vec<PathBuf> = discovery.variables.iter().map(|(_, value)| value.clone()).collect();
    let mut looked: Vec<PathBuf> = Vec::new();
    for folder in libraries.iter().filter_map(|library| library.path.parent()) {
        for header in discover::header_folders(folder, &roots) {
            if !looked.contains(&header) {
                looked.push(header);
            }
        }
    }
    let folders: Vec<&PathBuf> = looked.iter().filter(|folder| folder.is_dir()).collect();
    // Each from the first folder that has it.
    let headers: Vec<PathBuf> = HEADERS
        .iter()
        .filter_map(|header| folders.iter().map(|folder| folder.join(header)).find(|path| path.is_file()))
        .collect();
    let Some(first) = headers.first() else {
        let looked: Vec<String> = looked.iter().map(|folder| printable_path(folder)).collect();
        return Err(Error::NoHeaders { library, looked: looked.join(", ") });
    };
    // One text that includes them: a header given by itself would not know that others include it too.
    let mut includes = String::new();
    for header in &headers {
        includes.push_str(&format!("#include \"{}\"\n", utf8(header)?));
    }
    let mut builder = bindgen::Builder::default().header_contents("bitnet_cpp.h", &includes);
    for folder in folders {
        builder = builder.clang_arg(format!("-I{}", utf8(folder)?));
    }
    let bindings = builder
        .allowlist_item("(ggml|gguf|llama|bitnet|GGML|GGUF|LLAMA).*")
        .layout_tests(false)
        .generate_comments(false)
        .generate()
        .map_err(|error| Error::Bindings { header: first.clone(), message: error.to_string() })?;
    Ok(bindings.to_string())
}

/// bindgen takes text, and an `#include` ends at a quotation mark or at the end of the line.
fn utf8(path: &Path) -> Result<&str, Error> {
    path.to_str().filter(|text| !text.contains(['"', '\n', '\r'])).ok_or_else(|| Error::Bindings {
        header: path.to_owned(),
        message: String::from("the path is not UTF-8, or has a quotation mark or an end of line in it"),
    })
}
