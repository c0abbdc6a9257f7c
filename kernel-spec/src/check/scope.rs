//! What formats and kernels may refer to, and how their references are resolved.

use crate::model::{Activations, Format, Packing};
use crate::parse::body::Body;
use crate::toml_walk::{At, File, unknown};
use crate::vocab::{Op, Serves};
use std::collections::BTreeMap;

/// Specs by name: those that failed their checks have a name but no value.
pub(super) type Named<T> = BTreeMap<String, Option<T>>;

/// What formats and kernels may refer to.
pub(super) struct Scope<'a> {
    pub broken: &'a [&'a str],
    pub activations: Named<Activations>,
    pub packings: Named<Packing>,
    pub codebooks: Named<Vec<Vec<i32>>>,
    pub bodies: &'a [Body<'a>],
}

/// Index of a name among all of its kind. Reports an unknown name, unless it is that of a broken file.
pub(super) fn resolve<T>(
    file: &File<'_>,
    name: &At<String>,
    what: &str,
    among: &Named<T>,
    scope: &Scope<'_>,
) -> Option<usize> {
    let index = among.keys().position(|known| *known == name.value);
    if index.is_none() && !scope.broken.contains(&name.value.as_str()) {
        file.report(unknown(file, name, what, among.keys().map(String::as_str)));
    }
    index
}

/// Whether the name at a position stands in front of it already, which is reported.
pub(super) fn repeated(file: &File<'_>, names: &[At<String>], position: usize) -> bool {
    let name = &names[position];
    let first = names[..position].iter().find(|first| first.value == name.value);
    if let Some(first) = first {
        let error = file.error("duplicate-name", name.span, format!("`{}` is listed twice", name.value));
        file.report(error.also(file.path, first.span, "first here"));
    }
    first.is_some()
}

/// The value behind an index from [`resolve`].
pub(super) fn at<T>(among: &Named<T>, index: usize) -> Option<&T> {
    among.values().nth(index).and_then(Option::as_ref)
}

/// Index of a format (or activation format) that an op serves; an unknown name is reported.
pub(super) fn served_index(
    file: &File<'_>,
    op: Op,
    name: &At<String>,
    formats: &Named<Format>,
    scope: &Scope<'_>,
) -> Option<usize> {
    match op.info().serves {
        Serves::Activations => resolve(file, name, "activation format", &scope.activations, scope),
        Serves::Formats => resolve(file, name, "format", formats, scope),
    }
}
