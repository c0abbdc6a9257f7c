//! `coverage.toml`: which kernels must exist.

use super::kernel::{dtypes, isas, op};
use crate::toml_walk::{At, File, Span, Table};
use crate::vocab::{DType, Isa, Op};
use toml::de::DeTable;

/// A coverage file as it was written.
#[derive(Debug)]
pub(crate) struct RawCoverage<'a> {
    pub file: &'a File<'a>,
    pub require: Vec<Require>,
}

/// One `[[require]]`.
#[derive(Debug)]
pub(crate) struct Require {
    pub op: At<Op>,
    pub formats: Vec<At<String>>,
    pub input: Vec<At<DType>>,
    pub isa: Vec<At<Isa>>,
}

pub(crate) fn parse<'a>(file: &'a File<'a>, table: &DeTable<'_>) -> RawCoverage<'a> {
    let table = Table::open(file, "coverage", table, Span::default(), &["require"]);
    table.need("require");
    let tables = table.tables("require", "a requirement", &["op", "formats", "input", "isa"]);
    RawCoverage { file, require: tables.unwrap_or_default().iter().filter_map(require).collect() }
}

fn require(table: &Table<'_>) -> Option<Require> {
    let op = table.need("op").and_then(|n| op(&n));
    let formats = table.need("formats").and_then(|n| n.list(|n| n.string()));
    let isa = table.need("isa").and_then(|n| isas(&n));
    let input = match table.get("input") {
        None => Some(Vec::new()),
        Some(node) => dtypes(&node),
    };
    // What could be read is still checked, so that its mistakes are reported in the same run.
    Some(Require {
        op: op?,
        formats: formats.unwrap_or_default(),
        input: input.unwrap_or_default(),
        isa: isa.unwrap_or_default(),
    })
}
