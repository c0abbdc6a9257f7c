//! No part of a registry is put together from the parts of a real one.
#![forbid(unsafe_code)]

use gristmill::REGISTRY;
use gristmill::registry::{
    Entry, EntryFacts, FormatFacts, FormatInfo, PackFacts, PackInfo, Registry, RegistryFacts,
};

fn entry(real: &'static Entry) -> Entry {
    Entry(EntryFacts { format: 1, ..*real.facts() })
}

fn updated(real: &'static Entry) -> Entry {
    Entry { format: 1, ..*real }
}

fn format(real: &'static FormatInfo) -> FormatInfo {
    FormatInfo(FormatFacts { elements: 1, ..*real.facts() })
}

fn packing(real: &'static PackInfo) -> PackInfo {
    PackInfo(PackFacts { tile_bytes: 1, ..*real.facts() })
}

fn registry() -> Registry {
    Registry(RegistryFacts { entries: &[], ..*REGISTRY.facts() })
}

fn main() {}
