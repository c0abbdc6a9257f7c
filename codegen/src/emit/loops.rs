//! Loops that several formats share.

use gristmill_spec::model::Format;
use gristmill_spec::vocab::Isa;
use std::collections::BTreeMap;

/// Loops of packed products by name, each with the formats it serves.
pub(super) type Loops = BTreeMap<String, Shared>;

pub(super) struct Shared {
    pub(super) text: String,
    pub(super) formats: Vec<String>,
    pub(super) isa: Isa,
    pub(super) words: String,
    pub(super) source: String,
}

/// The module of a loop: `name`, or with a number where another family's tile already has it, or one of the `formats`.
pub(super) fn free_name(loops: &Loops, formats: &[Format], name: &str, text: &str) -> String {
    let mut free = name.to_string();
    let mut number = 1;
    while loops.get(&free).is_some_and(|other| other.text != text)
        || formats.iter().any(|format| format.name == free)
    {
        number += 1;
        free = format!("{name}_{number}");
    }
    free
}
