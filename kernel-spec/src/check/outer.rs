//! Numbers outside the blocks: a format has one at most, of the row or of the tensor, and it is a factor of every term.
//!
//! Products multiply a row's sum by it once, at the end, scale and minimum together. Two of them, one that is a factor
//! twice, or one that only some of the terms have would have to be multiplied in somewhere else.

use crate::model::Factor;
use crate::parse::format::RawFormat;
use crate::parse::value::RawValue;
use crate::toml_walk::{At, Span};

/// A term of the weight: its key, its factors as they were written and what they are.
pub(super) type Term<'a> = (&'static str, &'a [At<String>], &'a [Factor]);

/// Reports the first number outside the blocks that does not go with another.
pub(super) fn check(raw: &RawFormat<'_>, value: &RawValue, terms: [Term<'_>; 3]) {
    let file = raw.file;
    let numbers = terms.iter().flat_map(|(key, names, factors)| {
        let outer = names.iter().zip(*factors).filter(|(_, factor)| !matches!(factor, Factor::Field(_)));
        outer.map(move |(name, factor)| (*key, name, *factor))
    });
    let numbers: Vec<(&str, &At<String>, Factor)> = numbers.collect();
    let Some(&(_, first, kind)) = numbers.first() else { return };
    for (position, &(key, name, factor)) in numbers.iter().enumerate().skip(1) {
        let (message, help) = if factor != kind {
            (
                format!(
                    "`{}` and `{}` both stand outside the blocks; a format has one such number",
                    first.value, name.value
                ),
                "keep one of them; a number for each block is a field",
            )
        } else if numbers[..position].iter().any(|(earlier, ..)| *earlier == key) {
            (format!("`{}` is twice a factor of `{key}`", name.value), "name it once")
        } else {
            continue;
        };
        let error = file.error("outer-factors", name.span, message);
        file.report(error.also(file.path, first.span, "the other one").help(help));
        return;
    }
    let lacks = |(key, names, _): &&Term<'_>| {
        let there = *key == "scale" || !names.is_empty();
        there && !numbers.iter().any(|(of, ..)| of == key)
    };
    if let Some((key, names, _)) = terms.iter().find(lacks) {
        let span = names
            .first()
            .map_or(value.span, |name| Span { end: names[names.len() - 1].span.end, ..name.span });
        let message = format!("`{}` is no factor of `{key}`, though it is one of another term", first.value);
        let help = format!(
            "products multiply it into the sum of a row, the whole of it: name it in `scale` and in each of `add` and \
             `subtract` that is there, or replace it by a field of the block (`{key}` has {})",
            if names.is_empty() {
                "no factor".to_owned()
            } else {
                crate::diagnostic::quoted(names.iter().map(|n| n.value.as_str()))
            }
        );
        let error = file.error("outer-factors", span, message);
        file.report(error.also(file.path, first.span, "the number outside the blocks").help(help));
    }
}
