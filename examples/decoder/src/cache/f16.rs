//! Blocks of keys and values in f16.

use super::format::BLOCK;
use gristmill::half::f16;
use gristmill::half::slice::HalfFloatSliceExt;

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

/// A block of either as f32, in the same order.
pub fn widen(block: &[f16], out: &mut [f32]) {
    block.convert_to_f32_slice(out);
}
