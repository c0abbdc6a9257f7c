//! Blocks of keys and values in f16.

use super::format::BLOCK;
use gristmill::half::f16;
use gristmill::half::slice::HalfFloatSliceExt;
use gristmill::{prefetch, widen_f16};

/// Stores the key of the position `lane` of a block.
pub fn put_key(block: &mut [f16], lane: usize, key: &[f32]) {
    for (lanes, key) in block.as_chunks_mut::<BLOCK>().0.iter_mut().zip(key) {
        lanes[lane] = f16::from_f32(*key);
    }
}

/// Stores the value of the position `lane` of a block.
pub fn put_value(block: &mut [f16], lane: usize, value: &[f32]) {
    block[lane * value.len()..][..value.len()].convert_from_f32_slice(value);
}

/// A block of either as f32, in the same order. `next` is as long, or empty: what is read after it.
pub fn widened(block: &[f16], next: &[f16], out: &mut [f32]) {
    /// Some lines of the next block are asked for, then as many of this one are worked on.
    const PIECE: usize = 256;
    let mut next = next.chunks(PIECE);
    for (out, block) in out.chunks_mut(PIECE).zip(block.chunks(PIECE)) {
        next.next().into_iter().for_each(prefetch);
        widen_f16(block, out);
    }
}
