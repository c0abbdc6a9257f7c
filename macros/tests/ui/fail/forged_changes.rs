//! What is vouched for is not changed, not even in a copy.
#![forbid(unsafe_code)]

use gristmill::registry::{Entry, FormatInfo, PackInfo, Registry};

fn format(real: &'static FormatInfo) -> FormatInfo {
    let mut copy = *real;
    copy.elements = 1;
    copy
}

fn packing(real: &'static PackInfo) -> PackInfo {
    let mut copy = *real;
    copy.tile_bytes = 1;
    copy
}

fn inside(copy: &mut FormatInfo) {
    copy.0.elements = 1;
}

fn entry(real: &mut Entry) {
    real.format = 1;
}

fn registry(real: &mut Registry) {
    real.entries = &[];
    std::mem::swap(&mut real.formats, &mut &[][..]);
}

fn copied(real: &'static Entry) -> Entry {
    *real
}

fn main() {}
