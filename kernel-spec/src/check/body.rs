//! Bodies by hand: that a file and its function are there, and what text a kernel's code is then made of.

use super::scope::Scope;
use crate::comments::without_comments;
use crate::diagnostic::{Diagnostic, Sink};
use crate::model::{C_HEADER, CBody, CpuBody, CudaBody};
use crate::parse::Raw;
use crate::parse::body::{Body, RawBody, RawCpuBody};
use crate::parse::kernel::RawKernel;
use crate::toml_walk::Span;

/// Where a file beside that of a kernel would be.
fn beside(kernel: &str, name: &str) -> String {
    let folder = kernel.rfind(['/', '\\']).map_or("", |at| &kernel[..=at]);
    format!("{folder}{name}")
}

/// The file that a body names; reported where it is missing.
fn found<'a>(raw: &RawKernel<'_>, body: &RawBody, scope: &Scope<'a>) -> Option<&'a Body<'a>> {
    let path = beside(raw.file.path, &body.file.value);
    let found = scope.bodies.iter().find(|body| body.path == path);
    if found.is_none() {
        let message = format!("there is no `{}` beside this file", body.file.value);
        let error = raw.file.error("body-missing", body.file.span, message);
        raw.file.report(
            error.help(
                "it is read with its folder: put it there, and give the folder and not this file alone",
            ),
        );
    }
    found
}

/// Reports that a file has no such function.
fn no_function(raw: &RawKernel<'_>, body: &RawBody, help: String) {
    let message = format!("`{}` has no kernel `{}`", body.file.value, body.function.value);
    raw.file.report(raw.file.error("body-missing", body.function.span, message).help(help));
}

/// The body of a CUDA variant.
pub(super) fn cuda(raw: &RawKernel<'_>, body: &RawBody, scope: &Scope<'_>) -> Option<CudaBody> {
    let found = found(raw, body, scope)?;
    let function = &body.function.value;
    if !without_comments(found.text).contains(&format!("GM_EXPORT({function})")) {
        let help =
            format!("write `GM_KERNEL(threads) {function}(...) {{ ... }}`, then `GM_EXPORT({function})`");
        no_function(raw, body, help);
        return None;
    }
    Some(CudaBody { file: found.path.to_owned(), text: found.text.to_owned(), function: function.clone() })
}

/// The body of a processor's variant.
pub(super) fn cpu(raw: &RawKernel<'_>, body: &RawCpuBody, scope: &Scope<'_>) -> Option<CpuBody> {
    let body = match body {
        RawCpuBody::Rust(path) => return Some(CpuBody::Rust(path.value.clone())),
        RawCpuBody::C(body) => body,
    };
    let found = found(raw, body, scope)?;
    let function = &body.function.value;
    if !has_word(&without_comments(found.text), function) {
        no_function(
            raw,
            body,
            format!("define `static gm_fault {function}(...)`, or `static void` for matmul"),
        );
        return None;
    }
    let mut files: Vec<&Body<'_>> = vec![found];
    let mut next = 0;
    while let Some(&file) = files.get(next) {
        next += 1;
        for name in included(file.text).into_iter().filter(|name| name != C_HEADER) {
            let path = beside(file.path, &name);
            if files.iter().any(|known| known.path == path) {
                continue;
            }
            let Some(file) = scope.bodies.iter().find(|body| body.path == path) else {
                let message = format!(
                    "there is no `{}` beside `{}`, which includes it",
                    name.escape_debug(),
                    file.path
                );
                raw.file.report(raw.file.error("body-missing", body.file.span, message).help(
                    "a file in quotes is part of the kernel, so it lies beside the body and ends in `.h`, `.hpp`, `.c`, `.cc` \
                     or `.cpp`; headers of the system are included as `<...>`",
                ));
                return None;
            };
            files.push(file);
        }
    }
    let mut text = String::new();
    for file in &files {
        text.extend([file.path.rsplit(['/', '\\']).next().unwrap_or_default(), "\n", file.text, "\n"]);
    }
    Some(CpuBody::C(CBody {
        file: found.path.to_owned(),
        text,
        function: function.clone(),
        named: body.file.span.into(),
    }))
}

/// Whether a word stands in a text, not as a part of another one.
fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|part| part == word)
}

/// The names in `#include "..."`.
fn included(text: &str) -> Vec<String> {
    let name = |line: &str| {
        let line = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
        line.trim_start().strip_prefix('"')?.split('"').next().map(str::to_owned)
    };
    without_comments(text).lines().filter_map(name).collect()
}

/// Files that no kernel names. What a file of C includes is part of it.
pub(super) fn unused(raw: &Raw<'_>, sink: &Sink) {
    for body in raw.bodies.iter().filter(|body| ![".h", ".hpp"].iter().any(|end| body.path.ends_with(end))) {
        let named = raw.kernels.iter().any(|kernel| {
            let cuda = kernel.cuda.iter().filter_map(|variant| variant.body.as_ref());
            let cpu = kernel.variants.iter().filter_map(|variant| match &variant.body {
                Some(RawCpuBody::C(body)) => Some(body),
                Some(RawCpuBody::Rust(_)) | None => None,
            });
            cuda.chain(cpu).any(|named| beside(kernel.file.path, &named.file.value) == body.path)
        });
        let within = || {
            let name = body.path.rsplit(['/', '\\']).next().unwrap_or_default();
            raw.bodies.iter().any(|other| included(other.text).iter().any(|included| included == name))
        };
        if !named && !within() {
            let warning =
                Diagnostic::error("unused-body", body.path, Span::default(), "no kernel names this file");
            let (variant, file) = match body.path.ends_with(".cu") {
                true => ("[[cuda]]", "FILE.cu"),
                false => ("[[cpu]]", "FILE.c"),
            };
            sink.push(warning.warning().help(format!(
                "name it in a `{variant}` variant beside it: `body = \"{file}\"`, `function = \"...\"`",
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_comments_is_not_included() {
        let text = "/*\n#include \"old.h\"\n*/\n#include \"a.h\" // now\n# include \"b.h\"\n// #include \"c.h\"\n#include <d.h>\n";
        assert_eq!(included(text), ["a.h", "b.h"]);
    }
}
