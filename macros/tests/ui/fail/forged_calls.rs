//! Facts become part of a registry through `unsafe` functions alone.
#![forbid(unsafe_code)]

use gristmill::REGISTRY;
use gristmill::registry::{
    Entry, EntryFacts, FormatFacts, FormatInfo, PackFacts, PackInfo, Registry, RegistryFacts,
};

fn entry(real: &'static Entry) -> Entry {
    Entry::new(EntryFacts { format: 1, ..*real.facts() })
}

fn format(real: &'static FormatInfo) -> FormatInfo {
    FormatInfo::new(FormatFacts { elements: 1, ..*real.facts() })
}

fn packing(real: &'static PackInfo) -> PackInfo {
    PackInfo::new(PackFacts { tile_bytes: 1, ..*real.facts() })
}

fn registry() -> Registry {
    Registry::new(RegistryFacts { entries: &[], ..*REGISTRY.facts() })
}

fn main() {}
