//! Keys and values of all positions, in f16.
//!
//! Positions lie in blocks of [`BLOCK`], a head's blocks one behind the other. In a block, keys lie element by element (those of
//! all positions side by side, so that the products of a query with [`BLOCK`] keys fill vector registers), values position by
//! position.

use crate::config::Config;
use crate::error::{Error, zeros};
use gristmill::Threads;
use gristmill::half::f16;
use gristmill::half::slice::HalfFloatSliceExt;

/// Positions of a block.
pub const BLOCK: usize = 32;

/// The cache of a model.
#[derive(Debug)]
pub struct Cache {
    keys: Vec<f16>,
    values: Vec<f16>,
    /// Elements of a head's keys, in one layer.
    head_stride: usize,
    kv_heads: usize,
    head: usize,
    context: usize,
}

/// What attention reads of one head of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Head<'c> {
    /// Blocks of `head * BLOCK` elements.
    pub keys: &'c [f16],
    /// Blocks of `BLOCK * head` elements.
    pub values: &'c [f16],
}

impl Cache {
    /// Room for `context` positions.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(config: &Config, context: usize) -> Result<Cache, Error> {
        let head_stride = context.next_multiple_of(BLOCK) * config.head;
        let len = head_stride.saturating_mul(config.kv_heads).saturating_mul(config.layers);
        Ok(Cache {
            keys: zeros("the cache of keys", len)?,
            values: zeros("the cache of values", len)?,
            head_stride,
            kv_heads: config.kv_heads,
            head: config.head,
            context,
        })
    }

    /// Positions that there is room for.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.keys[..]) + size_of_val(&self.values[..])
    }

    /// Bytes that a cache of `context` positions takes.
    pub fn bytes_for(config: &Config, context: usize) -> usize {
        let elements = context.next_multiple_of(BLOCK) * config.head * config.kv_heads * config.layers;
        elements * 2 * size_of::<f16>()
    }

    fn layer(&self, layer: usize) -> std::ops::Range<usize> {
        let size = self.head_stride * self.kv_heads;
        layer * size..(layer + 1) * size
    }

    /// One head of one layer.
    pub fn head(&self, layer: usize, head: usize) -> Head<'_> {
        let start = self.layer(layer).start + head * self.head_stride;
        let range = start..start + self.head_stride;
        Head { keys: &self.keys[range.clone()], values: &self.values[range] }
    }

    /// Stores `m` keys and values from position `first` on: `key(token)` and `value(token)` have all heads of a token.
    ///
    /// # Errors
    /// None.
    pub fn store<'k>(
        &mut self,
        layer: usize,
        first: usize,
        m: usize,
        key: impl Fn(usize) -> &'k [f32] + Sync,
        value: impl Fn(usize) -> &'k [f32] + Sync,
        threads: &Threads,
    ) -> Result<(), Error> {
        let (range, size) = (self.layer(layer), self.head);
        threads.chunks(&mut self.keys[range.clone()], self.head_stride, |head, keys| {
            for token in 0..m {
                let position = first + token;
                let block = &mut keys[position / BLOCK * BLOCK * size..][..BLOCK * size];
                let from = &key(token)[head * size..][..size];
                for (element, key) in from.iter().enumerate() {
                    block[element * BLOCK + position % BLOCK] = f16::from_f32(*key);
                }
            }
            Ok::<(), Error>(())
        })?;
        threads.chunks(&mut self.values[range], self.head_stride, |head, values| {
            for token in 0..m {
                let place = &mut values[(first + token) * size..][..size];
                place.convert_from_f32_slice(&value(token)[head * size..][..size]);
            }
            Ok(())
        })
    }
}
