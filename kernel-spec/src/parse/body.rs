//! What a variant says of a body by hand: a file beside the kernel's, or a Rust function.

use crate::toml_walk::{At, Table};

/// A hand-written body in a file beside the kernel's: its name, and the function in there.
#[derive(Debug)]
pub(crate) struct RawBody {
    pub file: At<String>,
    pub function: At<String>,
}

/// A hand-written body for a processor.
#[derive(Debug)]
pub(crate) enum RawCpuBody {
    /// The path of a Rust function.
    Rust(At<String>),
    /// A function in a file of C or C++.
    C(RawBody),
}

/// A file of CUDA C++, C or C++ that kernels may name, or that such a file includes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body<'a> {
    pub path: &'a str,
    pub text: &'a str,
}

/// Longest name of a function.
const MAX_NAME: usize = 100;

/// A `[[cuda]]` variant's body; the outer `None` after a mistake.
pub(super) fn cuda(table: &Table<'_>) -> Option<Option<RawBody>> {
    let Some((file, function)) = pair(table)? else { return Some(None) };
    let named = is_file(&file.value, &[".cu"]);
    if !named {
        let message =
            format!("`{}` is not the name of a CUDA file beside this one", file.value.escape_debug());
        let error = table.file.error("bad-name", file.span, message);
        table.file.report(error.help("write it like `dequantize_mine.cu`, without folders"));
    }
    let sound = is_function(table, &function, "`GM_KERNEL(256) my_kernel(...)`");
    (named && sound).then_some(Some(RawBody { file, function }))
}

/// A `[[cpu]]` variant's body; the outer `None` after a mistake.
pub(super) fn cpu(table: &Table<'_>) -> Option<Option<RawCpuBody>> {
    let Some((body, function)) = pair(table)? else { return Some(None) };
    if is_file(&body.value, &C_ENDINGS) {
        let sound = is_function(table, &function, "`static gm_fault my_kernel(...)`");
        return sound.then_some(Some(RawCpuBody::C(RawBody { file: body, function })));
    }
    if body.value.contains(['.', '/', '\\']) {
        let message =
            format!("`{}` is not the name of a C or C++ file beside this one", body.value.escape_debug());
        table.file.report(table.file.error("bad-name", body.span, message).help(
            "write it like `dequantize_mine.c`, without folders; a file ends in `.c`, `.cc` or `.cpp`, one of CUDA C++ \
             belongs to a `[[cuda]]` variant, and a Rust function has `body = \"rust\"`",
        ));
        return None;
    }
    if body.value != "rust" {
        table.get("body")?.unknown(&body, "body", ["rust"].into_iter());
        return None;
    }
    let sound = function.value.len() <= 2 * MAX_NAME && function.value.split("::").all(is_identifier);
    if !sound {
        let message = format!("`{}` is not the path of a Rust function", function.value.escape_debug());
        let error = table.file.error("bad-name", function.span, message);
        table.file.report(error.help("write it like `crate::kernels::matmul_i2_s`"));
    }
    sound.then_some(Some(RawCpuBody::Rust(function)))
}

/// How the name of a file of C or C++ ends.
const C_ENDINGS: [&str; 3] = [".c", ".cc", ".cpp"];

/// Whether a file is CUDA C++, C or C++, or is included by such files.
pub(super) fn is_body(path: &str) -> bool {
    C_ENDINGS.iter().chain(&[".cu", ".h", ".hpp"]).any(|ending| path.ends_with(ending))
}

/// `body` and `function`, which go together.
fn pair(table: &Table<'_>) -> Option<Option<(At<String>, At<String>)>> {
    match (table.get("body"), table.get("function")) {
        (None, None) => Some(None),
        (Some(body), Some(function)) => {
            let (body, function) = (body.string(), function.string());
            Some(Some((body?, function?)))
        }
        (Some(_), None) => {
            table.need("function");
            None
        }
        (None, Some(_)) => {
            table.need("body");
            None
        }
    }
}

/// Whether it is the name of a file without folders, with one of these endings.
fn is_file(name: &str, endings: &[&str]) -> bool {
    let stem = endings.iter().find_map(|ending| name.strip_suffix(ending));
    stem.is_some_and(|stem| {
        !stem.is_empty()
            && !stem.starts_with('.')
            && stem.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
    })
}

/// Whether it is the name of a function; reported if not.
fn is_function(table: &Table<'_>, function: &At<String>, example: &str) -> bool {
    let sound = function.value.len() <= MAX_NAME && is_identifier(&function.value);
    if !sound {
        let message = format!("`{}` is not the name of a function", function.value.escape_debug());
        let error = table.file.error("bad-name", function.span, message);
        table.file.report(error.help(format!("letters, digits and `_`, as in {example}")));
    }
    sound
}

fn is_identifier(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
