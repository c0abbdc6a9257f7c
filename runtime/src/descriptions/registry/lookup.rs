//! What a registry holds, by name.

use super::{ActivationInfo, FormatInfo, ImportInfo, Registry};
use crate::decide::Candidate;
use crate::descriptions::names;
use crate::error::Error;
use gristmill_spec::vocab::{Op, Serves};

impl Registry {
    /// Names of the formats that an op's kernels are numbered by, in that order: weight formats or activation formats.
    pub fn served(&self, op: Op) -> impl Iterator<Item = &'static str> + use<> {
        let (formats, activations): (&'static [FormatInfo], &'static [ActivationInfo]) =
            match op.info().serves {
                Serves::Formats => (self.formats, &[]),
                Serves::Activations => (&[], self.activations),
            };
        formats.iter().map(|format| format.name).chain(activations.iter().map(|format| format.name))
    }

    /// The weight format of this name, with its index.
    ///
    /// # Errors
    /// [`Error::NotCompiled`] if it was left out of this build, else [`Error::UnknownFormat`].
    pub fn format(&'static self, name: &str) -> Result<(usize, &'static FormatInfo), Error> {
        if let Some(found) = self.formats.iter().enumerate().find(|(_, format)| format.name == name) {
            return Ok(found);
        }
        if let Some(left_out) = self.left_out.iter().find(|left_out| left_out.format == name) {
            return Err(Error::NotCompiled { format: left_out.format, feature: left_out.feature });
        }
        let known: Vec<&'static str> = self.formats.iter().map(|format| format.name).collect();
        let nearest = names::nearest(name, known.iter().copied());
        Err(Error::UnknownFormat { name: name.to_owned(), nearest, known })
    }

    /// The name of the packing `name`, if kernels of this build have it.
    pub(crate) fn packing(&'static self, name: &str) -> Result<&'static str, Error> {
        let known =
            || self.entries.iter().filter_map(|entry| entry.code.packing()).map(|packing| packing.name);
        known().find(|known| *known == name).ok_or_else(|| {
            let mut known: Vec<&'static str> = known().collect();
            known.sort_unstable();
            known.dedup();
            Error::UnknownPacking {
                name: name.to_owned(),
                nearest: names::nearest(name, known.iter().copied()),
                known,
            }
        })
    }

    /// The import layout of this name.
    ///
    /// # Errors
    /// [`Error::NotCompiled`] if it was left out of this build, else [`Error::UnknownImport`].
    pub fn import(&'static self, name: &str) -> Result<&'static ImportInfo, Error> {
        if let Some(found) = self.imports.iter().find(|import| import.name == name) {
            return Ok(found);
        }
        if let Some(left_out) = self.left_out.iter().find(|left_out| left_out.format == name) {
            return Err(Error::NotCompiled { format: left_out.format, feature: left_out.feature });
        }
        let known: Vec<&'static str> = self.imports.iter().map(|import| import.name).collect();
        let nearest = names::nearest(name, known.iter().copied());
        Err(Error::UnknownImport { name: name.to_owned(), nearest, known })
    }

    /// The entry of this name.
    pub(crate) fn entry(&'static self, name: &str) -> Result<Candidate, Error> {
        self.entries
            .iter()
            .enumerate()
            .find(|(_, entry)| entry.name == name)
            .map(|(index, entry)| Candidate { index, entry })
            .ok_or_else(|| Error::UnknownKernel {
                name: name.to_owned(),
                nearest: names::nearest(name, self.entries.iter().map(|entry| entry.name)),
            })
    }

    /// Places of the entries of this name, in which `*` stands for any characters; at least one.
    pub(crate) fn entries_like(&'static self, pattern: &str) -> Result<Vec<usize>, Error> {
        if !pattern.contains('*') {
            return Ok(vec![self.entry(pattern)?.index]);
        }
        let alike: Vec<usize> = (0..)
            .zip(self.entries)
            .filter(|(_, entry)| is_like(entry.name, pattern))
            .map(|(i, _)| i)
            .collect();
        if alike.is_empty() {
            return Err(Error::UnknownKernel { name: pattern.to_owned(), nearest: None });
        }
        Ok(alike)
    }
}

/// Whether a name is `pattern`, in which `*` stands for any characters, also none.
fn is_like(name: &str, pattern: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return name == pattern };
    let (between, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let inner = name.strip_prefix(first).and_then(|name| name.strip_suffix(last));
    // What comes between, each part as early as it can.
    inner.is_some_and(|inner| {
        let left = between.split('*').try_fold(inner, |left, part| Some(left.split_once(part)?.1));
        left.is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::is_like;

    #[test]
    fn stars_stand_for_any_characters() {
        const NAME: &str = "matmul.q4_k.amx-int8.tiles";
        for pattern in [
            NAME,
            "*",
            "**",
            "*.amx-int8.*",
            "matmul.*",
            "*tiles",
            "matmul.*.tiles",
            "m*.q4*8*s",
            "*matmul*tiles*",
        ] {
            assert!(is_like(NAME, pattern), "{pattern}");
        }
        for pattern in [
            "",
            "matmul",
            "*.amx",
            "amx*",
            "matmul.q4_k*k.amx-int8.tiles",
            "*tiles*amx*",
            "*.tiles.*",
            "matmul.*s.tiles",
        ] {
            assert!(!is_like(NAME, pattern), "{pattern}");
        }
        assert!(is_like("", "*") && is_like("", "") && !is_like("", "a*"));
    }
}
