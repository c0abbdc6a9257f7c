//! Codebooks: the table is there, has the stated size, and every digit stands for a value.

use super::scope::Named;
use crate::diagnostic::{Diagnostic, Sink};
use crate::parse::Raw;
use crate::parse::codebook::{Data, RawCodebook, data_of};
use crate::parse::name::stem;
use crate::toml_walk::{At, Span};

/// Every codebook, expanded.
pub(super) fn check(raw: &Raw<'_>, sink: &Sink) -> Named<Vec<Vec<i32>>> {
    for data in &raw.data {
        let name = data_of(data.path).map(|(name, _)| name);
        if !name.is_some_and(|name| {
            raw.codebooks.iter().any(|book| book.name == name) || raw.broken.contains(&name)
        }) {
            let message = format!("no codebook describes the data file `{}`", stem(data.path));
            let help = "a codebook is `codebooks/NAME.toml`, with `table` in it or its table beside it as \
                        `codebooks/NAME.u16.bin` or `codebooks/NAME.u32.bin`";
            sink.push(Diagnostic::error("codebook-corrupt", data.path, Span::default(), message).help(help));
        }
    }
    raw.codebooks.iter().map(|book| (book.name.to_owned(), expand(book, &raw.data))).collect()
}

/// Bits of the longest entry.
const LONGEST: u32 = 32;

fn expand(book: &RawCodebook<'_>, data: &[Data<'_>]) -> Option<Vec<Vec<i32>>> {
    let (entries, width, bits, values) = (book.entries?, book.width?, book.bits?, book.values.as_ref()?);
    let file = book.file;
    let length = bits.value * width.value;
    if length > LONGEST {
        let message = format!(
            "{} digits of {} bits do not fit the table's {LONGEST} bits an entry",
            width.value, bits.value
        );
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
    let codes = table(book, data, entries, length)?;
    let mask = (1u32 << bits.value) - 1;
    let mut table = Vec::with_capacity(codes.value.len());
    for (at, code) in codes.value.iter().enumerate() {
        let digit = |e: u32| values.value.get((code >> (bits.value * e) & mask) as usize).copied();
        let entry: Option<Vec<i32>> = (0..width.value).map(digit).collect();
        let stray = code.checked_shr(length).is_some_and(|rest| rest != 0);
        let Some(entry) = entry.filter(|_| !stray) else {
            let digits = (length as usize).div_ceil(4).max(4) + 2;
            let what = format!("has a digit without a value in entry {at} ({code:#0digits$x})");
            file.report(file.error(
                "codebook-corrupt",
                codes.span,
                format!("{} {what}", named(book, length)),
            ));
            return None;
        };
        table.push(entry);
    }
    Some(table)
}

/// The table beside a codebook whose entries have so many bits: its file's suffix, and the bytes of an entry in it.
fn beside(length: u32) -> (&'static str, usize) {
    if length <= 16 { ("u16", 2) } else { ("u32", 4) }
}

/// The table in messages.
fn named(book: &RawCodebook<'_>, length: u32) -> String {
    match book.table {
        Some(_) => "`table`".to_owned(),
        None => format!("`{}.{}.bin`", book.name, beside(length).0),
    }
}

/// The entries as they are stored, in the codebook's file or beside it.
fn table(book: &RawCodebook<'_>, data: &[Data<'_>], entries: At<u32>, length: u32) -> Option<At<Vec<u32>>> {
    let file = book.file;
    let (word, bytes) = beside(length);
    let mut beside = data.iter().filter(|data| data_of(data.path).is_some_and(|(name, _)| name == book.name));
    if let Some(table) = &book.table {
        // Its mistakes have been told.
        let table = table.as_ref()?;
        if let Some(data) = beside.next() {
            let message = format!("`table` is here, and another one beside it in `{}`", stem(data.path));
            file.report(file.error("conflicting-keys", table.span, message).help("keep one of them"));
            return None;
        }
        let found = table.value.len();
        if found as u64 != u64::from(entries.value) {
            let message = format!("`table` has {found} entries, not {}", entries.value);
            let error = file.error("codebook-corrupt", table.span, message);
            file.report(error.also(file.path, entries.span, "stated here"));
            return None;
        }
        return Some(At { value: table.value.clone(), span: table.span });
    }
    let found: Vec<&Data<'_>> = beside.collect();
    if let [first, second, ..] = found[..] {
        let message =
            format!("two tables of one codebook: `{}` and `{}`", stem(first.path), stem(second.path));
        let help = format!("its entries have {length} bits, so they are stored as {word}");
        file.report(file.error("codebook-corrupt", Span::default(), message).help(help));
        return None;
    }
    let Some(data) = found.iter().find(|data| data_of(data.path).is_some_and(|(_, size)| size == bytes))
    else {
        let message = format!("the codebook's table `{}.{word}.bin` is missing", book.name);
        let mut help = format!(
            "it lies beside this file: one little-endian {word} an entry, digit e at bits `bits * e`; a short one can \
             stand here as `table`"
        );
        if let Some(other) = found.first() {
            let why = if bytes == 2 { "16 bits or fewer" } else { "more than 16 bits" };
            help = format!("`{}` is there, but entries of {why} are stored as {word}", stem(other.path));
        }
        file.report(file.error("codebook-missing", Span::default(), message).help(help));
        return None;
    };
    if data.bytes.len() as u64 != u64::from(entries.value) * bytes as u64 {
        let message = format!(
            "`{}` has {} bytes, but {} entries take {}",
            stem(data.path),
            data.bytes.len(),
            entries.value,
            entries.value as usize * bytes
        );
        file.report(file.error("codebook-corrupt", entries.span, message));
        return None;
    }
    let number = |entry: &[u8]| entry.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
    Some(At { value: data.bytes.chunks_exact(bytes).map(number).collect(), span: entries.span })
}
