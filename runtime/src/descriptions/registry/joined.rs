//! Several registries as one, to decide over the kernels of all.

use super::lists::{Joined, Key, key};
use super::vouched::{Entry, EntryFacts, FormatFacts, FormatInfo, Registry, RegistryFacts};
use super::{ActivationInfo, CudaBuild, ImportInfo, LeftOut, Source, WithoutImage};
use crate::descriptions::disagreement::Disagreement;
use crate::error::Error;
use gristmill_spec::vocab::{DType, DeviceKind, Op, Serves};
use std::collections::BTreeMap;

impl Registry {
    /// One registry of several: a crate's own kernels and the shipped ones, say. Decisions over it choose among the kernels of
    /// all, those of the first registry in front of those of the next; each registry's own order stays.
    ///
    /// What two of them have is one thing where it is the same, and an error where it only has the same name:
    ///
    /// * A kernel of one name is that of the first registry that has it, also where the other one's
    ///   [identity](super::KernelId) differs, a hash of its text, its compiler and its flags. So a shipped format that a crate
    ///   compiles itself is there once, and a crate that comes first may replace a shipped kernel by one of the same name. One name
    ///   for another op, format or device is an error.
    /// * A format of one name must have one layout and one activation format; its quantizers come together. Activation formats
    ///   and import layouts of one name must agree too.
    ///
    /// Receipts name the package of each kernel ([`KernelUse::package`](crate::receipt::KernelUse::package)); tunings know
    /// kernels by identity. The registry's own package is the names of all with ` + ` between them.
    ///
    /// The tables take some memory that is never given back, as those of any registry: join once, and keep the reference.
    ///
    /// # Errors
    /// [`Error::Joined`] for what has one name and is not the same. [`Error::TooLarge`] for more kernels than lists can name.
    pub fn joined(registries: &[&'static Registry]) -> Result<&'static Registry, Error> {
        let mut tables = Tables::default();
        for registry in registries {
            tables.formats_of(registry)?;
        }
        for registry in registries {
            tables.imports_of(registry)?;
            tables.kernels_of(registry)?;
        }
        tables.finish(registries)
    }

    /// The entries for an op, a format, an input type and a kind of device, in order of preference.
    pub(crate) fn listed(
        &'static self,
        op: Op,
        format: usize,
        dtype: DType,
        device: DeviceKind,
    ) -> &'static [u16] {
        match self.joined_tables() {
            Some(joined) => joined.lists.get(&key(op, format, dtype, device)).map_or(&[], |list| list),
            None => (self.candidates)(op, format, dtype, device),
        }
    }

    /// The package that brought an entry: the registry's own, or one of those that it was joined from.
    pub fn package_of(&'static self, entry: usize) -> &'static str {
        let joined = self.joined_tables().and_then(|joined| joined.packages.get(entry));
        joined.copied().unwrap_or(self.package)
    }
}

#[derive(Default)]
struct Tables {
    /// By name, each with the package that brought it.
    activations: BTreeMap<&'static str, (ActivationInfo, &'static str)>,
    formats: BTreeMap<&'static str, Format>,
    imports: BTreeMap<&'static str, (ImportInfo, &'static str)>,
    entries: Vec<EntryFacts>,
    packages: Vec<&'static str>,
    lists: BTreeMap<Key, Vec<u16>>,
    without_image: Vec<WithoutImage>,
}

/// A weight format of one or several registries.
struct Format {
    info: &'static FormatInfo,
    package: &'static str,
    activations: &'static str,
    quantizers: Vec<&'static str>,
}

/// The place of a name among all of them.
fn place<T>(all: &BTreeMap<&'static str, T>, name: &str) -> usize {
    all.keys().take_while(|known| **known < name).count()
}

/// Refuses what has one name in two packages, each with where it is described there, and is not the same: facts, and whether they agree.
fn agree(
    what: &'static str,
    name: &'static str,
    [(first, one), (other, two)]: [(&'static str, &'static str); 2],
    facts: &[(&'static str, bool)],
) -> Result<(), Error> {
    match facts.iter().find(|(_, agree)| !agree) {
        Some((differ, _)) => {
            let (packages, sources) = ([first, other], [one, two]);
            Err(Error::Joined(Box::new(Disagreement { what, name, packages, sources, differ })))
        }
        None => Ok(()),
    }
}

fn leaked<T>(values: Vec<T>) -> &'static [T] {
    Box::leak(values.into_boxed_slice())
}

impl Tables {
    fn formats_of(&mut self, registry: &'static Registry) -> Result<(), Error> {
        let package = registry.package;
        for own in registry.activations {
            let (known, first) = &*self.activations.entry(own.name).or_insert((*own, package));
            agree(
                "activation format",
                own.name,
                [(*first, known.source), (package, own.source)],
                &[
                    ("the elements of a block", known.block == own.block),
                    (
                        "whether values are divided by the scale",
                        known.keeps_multiplier == own.keeps_multiplier,
                    ),
                    ("the steps of the prologue", known.prologue == own.prologue),
                ],
            )?;
        }
        for own in registry.formats {
            let activations = registry.activations[own.activations].name;
            let known = self.formats.entry(own.name).or_insert_with(|| Format {
                info: own,
                package,
                activations,
                quantizers: Vec::new(),
            });
            agree(
                "format",
                own.name,
                [(known.package, known.info.source), (package, own.source)],
                &[
                    ("the layout of blocks", known.info.same_as(own)),
                    ("the activation format", known.activations == activations),
                ],
            )?;
            for quantizer in own.quantizers {
                if !known.quantizers.contains(quantizer) {
                    known.quantizers.push(quantizer);
                }
            }
        }
        Ok(())
    }

    /// Once the formats of all registries are in the tables, as places of formats are those among all.
    fn imports_of(&mut self, registry: &'static Registry) -> Result<(), Error> {
        let package = registry.package;
        for own in registry.imports {
            let format = place(&self.formats, registry.formats[own.format].name);
            let (known, first) =
                &*self.imports.entry(own.name).or_insert((ImportInfo { format, ..*own }, package));
            agree(
                "import layout",
                own.name,
                [(*first, known.source), (package, own.source)],
                &[
                    ("the format", known.format == format),
                    ("the rows that are interleaved", known.rows == own.rows),
                    ("where the bits of a weight lie", known.moves == own.moves),
                ],
            )?;
        }
        Ok(())
    }

    /// As [`Tables::imports_of`].
    fn kernels_of(&mut self, registry: &'static Registry) -> Result<(), Error> {
        let mut places = Vec::with_capacity(registry.entries.len());
        for (index, own) in registry.entries.iter().enumerate() {
            let package = registry.package_of(index);
            let format = self.format_of(registry, own.op, own.format);
            let same = |known: &EntryFacts| known.name == own.name || known.id == own.id;
            let known = self.entries.iter().position(same);
            places.push(match known {
                Some(known) => {
                    let first = &self.entries[known];
                    let places = [(self.packages[known], first.source), (package, own.source)];
                    agree(
                        "kernel",
                        own.name,
                        places,
                        &[
                            ("the name, with one identity", first.name == own.name),
                            ("the op", first.op == own.op),
                            ("the format", first.format == format),
                            ("the device", first.device == own.device),
                        ],
                    )?;
                    known
                }
                None => {
                    let quantizer = match registry.formats.get(own.format) {
                        Some(format) if own.op.info().by_quantizer => {
                            let name = format.quantizers.get(own.quantizer);
                            let all =
                                self.formats.get(format.name).map_or(&[][..], |known| &known.quantizers);
                            all.iter().position(|known| Some(known) == name).unwrap_or(0)
                        }
                        Some(_) | None => own.quantizer,
                    };
                    self.entries.push(EntryFacts { format, quantizer, ..*own.facts() });
                    self.packages.push(package);
                    self.entries.len() - 1
                }
            });
        }
        for (op, device) in
            Op::ALL.iter().flat_map(|op| DeviceKind::ALL.iter().map(move |device| (*op, *device)))
        {
            for (format, dtype) in (0..registry.served(op).count())
                .flat_map(|format| DType::ALL.iter().map(move |dtype| (format, *dtype)))
            {
                let own = registry.listed(op, format, dtype, device);
                if own.is_empty() {
                    continue;
                }
                let list = self.lists.entry(key(op, self.format_of(registry, op, format), dtype, device));
                let list = list.or_default();
                for index in own {
                    let Some(place) = places.get(usize::from(*index)) else { continue };
                    let place =
                        u16::try_from(*place).map_err(|_| Error::TooLarge { what: "a joined registry" })?;
                    if !list.contains(&place) {
                        list.push(place);
                    }
                }
            }
        }
        for own in registry.without_image {
            if self.without_image.iter().all(|known| known.name != own.name) {
                let format = self.format_of(registry, own.op, own.format);
                self.without_image.push(WithoutImage { format, ..*own });
            }
        }
        Ok(())
    }

    /// The place here of a format that kernels of an op are numbered by in a registry.
    fn format_of(&self, registry: &'static Registry, op: Op, format: usize) -> usize {
        let name = registry.served(op).nth(format).unwrap_or_default();
        match op.info().serves {
            Serves::Formats => place(&self.formats, name),
            Serves::Activations => place(&self.activations, name),
        }
    }

    fn finish(self, registries: &[&'static Registry]) -> Result<&'static Registry, Error> {
        let Tables { activations, formats, imports, entries, packages, lists, mut without_image } = self;
        if entries.len() > 1 << u16::BITS {
            return Err(Error::TooLarge { what: "a joined registry" });
        }
        without_image.retain(|kernel| entries.iter().all(|entry| entry.name != kernel.name));
        let held = |name: &str| formats.contains_key(name) || imports.contains_key(name);
        let mut left_out: Vec<LeftOut> = Vec::new();
        let mut sources: Vec<Source> = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        for registry in registries {
            for own in registry.left_out.iter().filter(|own| !held(own.format)) {
                if left_out.iter().all(|known| known.format != own.format) {
                    left_out.push(*own);
                }
            }
            for own in registry.sources {
                if sources.iter().all(|known| (known.path, known.bytes) != (own.path, own.bytes)) {
                    sources.push(*own);
                }
            }
            if !names.contains(&registry.package) {
                names.push(registry.package);
            }
        }
        let built = registries.iter().find(|registry| matches!(registry.cuda, CudaBuild::Built { .. }));
        let cuda = built.or(registries.first()).map_or(CudaBuild::FeatureOff, |registry| registry.cuda);
        // SAFETY: each fact is that of a format of the same layout, which its own registry answers for; its activation format
        // has the same name here, and quantizers are looked up by name.
        let format = |format: &Format| unsafe {
            FormatInfo::new(FormatFacts {
                activations: place(&activations, format.activations),
                quantizers: leaked(format.quantizers.clone()),
                ..*format.info.facts()
            })
        };
        let formats = leaked(formats.values().map(format).collect());
        // SAFETY: each entry is one that its own registry answers for. The format at its index here is of the same layout, and has an
        // activation format with equal scales, as `formats_of` compared.
        let entries = leaked(entries.into_iter().map(|facts| unsafe { Entry::new(facts) }).collect());
        let tables = RegistryFacts {
            package: Box::leak(names.join(" + ").into_boxed_str()),
            formats,
            activations: leaked(activations.values().map(|(known, _)| *known).collect()),
            entries,
            // Its lists are beside these tables; nothing of this package asks here.
            candidates: |_, _, _, _| &[],
            imports: leaked(imports.values().map(|(known, _)| *known).collect()),
            left_out: leaked(left_out),
            cuda,
            without_image: leaked(without_image),
            convert: registries.iter().find_map(|registry| registry.convert),
            experts: registries.iter().find_map(|registry| registry.experts),
            sources: leaked(sources),
        };
        let lists = lists.into_iter().map(|(key, list)| (key, list.into_boxed_slice())).collect();
        let joined = Joined { lists, packages: packages.into_boxed_slice() };
        // SAFETY: entries, formats and activation formats agree, as said above; `convert` and `experts` are as their own registries answer for.
        let registry = unsafe { Registry::with_lists(tables, Box::leak(Box::new(joined))) };
        Ok(Box::leak(Box::new(registry)))
    }
}
