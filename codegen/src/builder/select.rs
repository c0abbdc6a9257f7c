//! Which shipped formats a build has.

use crate::options::LeftOut;
use gristmill_spec::is_shipped;
use gristmill_spec::model::{Import, Required, SpecSet};
use std::collections::BTreeSet;

/// Why what was selected can't be compiled.
#[derive(Debug, thiserror::Error)]
pub enum SelectionError {
    /// Names given to `Builder::with_shipped` or `Builder::with_families` are of nothing that is shipped.
    #[error("no shipped {what} is named {names}{}; there are: {known}", match .meant { Some(meant) => format!(" (did you mean `{meant}`?)"), None => String::new() })]
    Unknown {
        /// What they would name: a format, a family.
        what: &'static str,
        /// The names, quoted.
        names: String,
        /// What may have been meant by the first.
        meant: Option<String>,
        /// All names that there are.
        known: String,
    },
    /// A coverage file of one's own requires kernels of a format that is left out.
    #[error(
        "{file} requires kernels of `{format}`, which this build leaves out: select it with `with_shipped`, or take it out of the requirement"
    )]
    Required {
        /// The coverage file.
        file: String,
        /// The format.
        format: String,
    },
}

/// Which shipped formats and import layouts are compiled.
#[derive(Clone, Debug, Default)]
pub(super) struct Shipped {
    pub(super) names: BTreeSet<String>,
    /// Families, where formats are chosen by these too: those of no family then come with any.
    pub(super) families: Option<BTreeSet<String>>,
}

impl Shipped {
    /// Which formats are compiled, and what is left out of families that are not chosen. Import layouts that are not are taken out of
    /// the set.
    pub(super) fn selected(&self, set: &mut SpecSet) -> Result<(Vec<bool>, Vec<LeftOut>), SelectionError> {
        self.check_names(set)?;
        let Shipped { names, families } = self;
        let mut left_out = Vec::new();
        let mut keep = Vec::with_capacity(set.formats.len());
        for (index, format) in set.formats.iter().enumerate() {
            // An import layout brings its format with it.
            let imported = |import: &Import| {
                import.format == index && (!is_shipped(&import.origin.file) || names.contains(&import.name))
            };
            let kept = !is_shipped(&format.origin.file)
                || names.contains(&format.name)
                || set.imports.iter().any(imported)
                || self.has_family(&format.family);
            if !kept && families.is_some() {
                left_out.push(LeftOut {
                    format: format.name.clone(),
                    feature: format.family.clone(),
                    gguf: format.gguf,
                });
            }
            keep.push(kept);
        }
        let formats = &set.formats;
        set.imports.retain(|import| {
            if !is_shipped(&import.origin.file) || names.contains(&import.name) {
                return true;
            }
            let chosen = self.has_family(&import.family);
            let kept = chosen && keep.get(import.format).copied().unwrap_or(false);
            if !kept && families.is_some() {
                let format = formats.get(import.format).map_or("", |format| format.family.as_str());
                let feature = if chosen { format } else { &import.family };
                left_out.push(LeftOut {
                    format: import.name.clone(),
                    feature: feature.to_owned(),
                    gguf: None,
                });
            }
            kept
        });
        let is_left_out = |name: &str| {
            let formats = || set.formats.iter().zip(&keep);
            formats().any(|(format, kept)| format.name == name && !kept)
        };
        let of_own = |required: &&Required| !is_shipped(&required.file) && is_left_out(&required.name);
        match set.required.iter().find(of_own) {
            Some(Required { file, name }) => {
                Err(SelectionError::Required { file: file.clone(), format: name.clone() })
            }
            None => Ok((keep, left_out)),
        }
    }

    /// Whether there is what was named.
    fn check_names(&self, set: &SpecSet) -> Result<(), SelectionError> {
        let shipped = set.formats.iter().filter(|format| is_shipped(&format.origin.file));
        let layouts = set.imports.iter().filter(|import| is_shipped(&import.origin.file));
        let families = shipped.clone().map(|format| &format.family[..]);
        let families = families.chain(layouts.clone().map(|import| &import.family[..]));
        let names = shipped.map(|format| &format.name[..]).chain(layouts.map(|import| &import.name[..]));
        let all = |given: &BTreeSet<String>, what, known: BTreeSet<&str>| {
            let unknown: Vec<&str> =
                given.iter().map(String::as_str).filter(|name| !known.contains(name)).collect();
            let Some(first) = unknown.first() else { return Ok(()) };
            Err(SelectionError::Unknown {
                what,
                names: unknown.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
                meant: gristmill_spec::nearest(first, known.iter().copied()).map(str::to_owned),
                known: known.into_iter().collect::<Vec<_>>().join(", "),
            })
        };
        all(&self.names, "format", names.collect())?;
        let families = families.filter(|family| !family.is_empty()).collect();
        self.families.as_ref().map_or(Ok(()), |given| all(given, "family", families))
    }

    fn has_family(&self, family: &str) -> bool {
        self.families.as_ref().is_some_and(|families| family.is_empty() || families.contains(family))
    }
}
