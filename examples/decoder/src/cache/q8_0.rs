//! Blocks of keys and values in `q8_0`: what gristmill's quantizer makes of a head, in an order that attention widens a register
//! at a time.
//!
//! A block of the cache is one [`Square`] for each group of elements of the head.

use super::format::{BLOCK, GROUP};
use crate::config::MAX_HEAD;
use crate::error::Error;
use gristmill::half::f16;
use gristmill::{CpuProfile, Quantizer, REGISTRY, Request, Restrict, prefetch, widen_f16};
use multiversion::multiversion;

/// Bytes of a group as the format has it: the scale, then the codes.
const GROUP_BYTES: usize = 2 + GROUP;

/// A group of elements of all positions of a block.
#[derive(Clone, Copy, Debug, Default)]
pub struct Square {
    /// By position.
    scales: [f16; BLOCK],
    /// Of keys by element, then by position; of values by position, then by element.
    codes: [[i8; 32]; 32],
}

// One type is both ways round, and has no bytes but those of the format.
const _: () = assert!(BLOCK == 32 && GROUP == 32 && size_of::<Square>() == BLOCK * GROUP_BYTES);

/// The quantizer of one head.
///
/// # Errors
/// No kernel.
pub fn quantizer(format: &str, head: usize, restrict: &Restrict) -> Result<Quantizer, Error> {
    let request = Request::quantize(format, None, 1, head);
    let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), restrict)?;
    Ok(Quantizer::new(&prepared.decide_as_asked())?)
}

/// The groups of a head; those behind it are 0.
fn quantize(quantizer: &Quantizer, head: &[f32]) -> Result<[[u8; GROUP_BYTES]; MAX_HEAD / GROUP], Error> {
    let mut groups = [[0; GROUP_BYTES]; MAX_HEAD / GROUP];
    let bytes = groups[..head.len() / GROUP].as_flattened_mut();
    quantizer.run(head, 1, head.len(), bytes)?;
    Ok(groups)
}

/// Stores the key of the position `lane` of a block.
///
/// # Errors
/// Those of the quantizer: values that are not finite, or too large for a scale in f16.
pub fn put_key(quantizer: &Quantizer, block: &mut [Square], lane: usize, key: &[f32]) -> Result<(), Error> {
    for (square, [low, high, codes @ ..]) in block.iter_mut().zip(quantize(quantizer, key)?) {
        square.scales[lane] = f16::from_le_bytes([low, high]);
        for (lanes, code) in square.codes.iter_mut().zip(codes) {
            lanes[lane] = code as i8;
        }
    }
    Ok(())
}

/// Stores the value of the position `lane` of a block.
///
/// # Errors
/// As for [`put_key`].
pub fn put_value(
    quantizer: &Quantizer,
    block: &mut [Square],
    lane: usize,
    value: &[f32],
) -> Result<(), Error> {
    for (square, [low, high, codes @ ..]) in block.iter_mut().zip(quantize(quantizer, value)?) {
        square.scales[lane] = f16::from_le_bytes([low, high]);
        square.codes[lane] = codes.map(|code| code as i8);
    }
    Ok(())
}

/// The keys of a block as f32: element by element. A product of a code and a scale in f16 is exact. `next` is as long, or empty:
/// what is read after it.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn keys(block: &[Square], next: &[Square], out: &mut [f32]) {
    let mut next = next.chunks(1);
    for (square, out) in block.iter().zip(out.as_chunks_mut::<{ BLOCK * GROUP }>().0) {
        next.next().into_iter().for_each(prefetch);
        let mut scales = [0.0; BLOCK];
        widen_f16(&square.scales, &mut scales);
        for (codes, out) in square.codes.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
            for ((out, code), scale) in out.iter_mut().zip(codes).zip(&scales) {
                *out = f32::from(*code) * scale;
            }
        }
    }
}

/// The values of a block as f32: position by position; `next` as for [`keys`].
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn values(block: &[Square], next: &[Square], out: &mut [f32]) {
    let head = block.len() * GROUP;
    let mut next = next.chunks(1);
    for (index, square) in block.iter().enumerate() {
        next.next().into_iter().for_each(prefetch);
        let mut scales = [0.0; BLOCK];
        widen_f16(&square.scales, &mut scales);
        for ((codes, scale), out) in square.codes.iter().zip(&scales).zip(out.chunks_exact_mut(head)) {
            let (out, _) = out[index * GROUP..].as_chunks_mut::<GROUP>();
            for (out, code) in out[0].iter_mut().zip(codes) {
                *out = f32::from(*code) * scale;
            }
        }
    }
}
