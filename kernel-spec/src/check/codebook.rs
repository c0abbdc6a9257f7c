//! Codebooks: the table is there, has the stated size, and every digit stands for a value.

use super::scope::Named;
use crate::diagnostic::{Diagnostic, Sink};
use crate::parse::Raw;
use crate::parse::codebook::{Data, RawCodebook, data_name};
use crate::parse::name::stem;
use crate::toml_walk::Span;

/// Every codebook, expanded.
pub(super) fn check(raw: &Raw<'_>, sink: &Sink) -> Named<Vec<Vec<i32>>> {
    for data in &raw.data {
        let name = data_name(data.path);
        if !name.is_some_and(|name| {
            raw.codebooks.iter().any(|book| book.name == name) || raw.broken.contains(&name)
        }) {
            let message = format!("no codebook describes the data file `{}`", stem(data.path));
            let help =
                "a codebook is `codebooks/NAME.toml` with its table beside it as `codebooks/NAME.u16.bin`";
            sink.push(Diagnostic::error("codebook-corrupt", data.path, Span::default(), message).help(help));
        }
    }
    raw.codebooks.iter().map(|book| (book.name.to_owned(), expand(book, &raw.data))).collect()
}

fn expand(book: &RawCodebook<'_>, data: &[Data<'_>]) -> Option<Vec<Vec<i32>>> {
    let (entries, width, bits, values) = (book.entries?, book.width?, book.bits?, book.values.as_ref()?);
    let file = book.file;
    if bits.value * width.value > 16 {
        let message =
            format!("{} digits of {} bits do not fit the table's 16 bits an entry", width.value, bits.value);
        file.report(file.error("codebook-corrupt", bits.span, message));
        return None;
    }
    if values.value.is_empty() || values.value.len() > 1 << bits.value {
        let message = format!(
            "`bits = {}` goes with 1 to {} values, not {}",
            bits.value,
            1u32 << bits.value,
            values.value.len()
        );
        file.report(file.error("too-many-levels", values.span, message));
        return None;
    }
    let Some(data) = data.iter().find(|data| data_name(data.path) == Some(book.name)) else {
        let message = format!("the codebook's table `{}.u16.bin` is missing", book.name);
        let help = "it lies beside this file: one little-endian u16 an entry, digit e at bits `bits * e`";
        file.report(file.error("codebook-missing", Span::default(), message).help(help));
        return None;
    };
    let corrupt = |message: String| {
        file.report(file.error("codebook-corrupt", entries.span, format!("`{}` {message}", stem(data.path))));
    };
    if data.bytes.len() as u64 != u64::from(entries.value) * 2 {
        corrupt(format!(
            "has {} bytes, but {} entries take {}",
            data.bytes.len(),
            entries.value,
            entries.value * 2
        ));
        return None;
    }
    let codes: Vec<u16> =
        data.bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    if let Some(at) = codes.windows(2).position(|pair| pair[0] >= pair[1]) {
        corrupt(format!(
            "is not strictly increasing at entry {}: {} after {}",
            at + 1,
            codes[at + 1],
            codes[at]
        ));
        return None;
    }
    let mask = (1u32 << bits.value) - 1;
    let mut table = Vec::with_capacity(codes.len());
    for (at, code) in codes.iter().enumerate() {
        let code = u32::from(*code);
        let digit = |e: u32| values.value.get((code >> (bits.value * e) & mask) as usize).copied();
        let entry: Option<Vec<i32>> = (0..width.value).map(digit).collect();
        let stray = code >> (bits.value * width.value) != 0;
        let Some(entry) = entry.filter(|_| !stray) else {
            corrupt(format!("has a digit without a value in entry {at} ({code:#06x})"));
            return None;
        };
        table.push(entry);
    }
    Some(table)
}
