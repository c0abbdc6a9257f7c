//! Keys and values of all positions.
//!
//! Positions lie in blocks of [`BLOCK`], a head's blocks one behind the other. In a block, keys lie element by element (those of
//! all positions side by side, so that the products of a query with [`BLOCK`] keys fill vector registers), values position by
//! position. Attention gets a block as f32, whatever the [`CacheFormat`].

mod f16;
mod format;
mod q8_0;

pub use format::{BLOCK, CacheFormat, GROUP};

use crate::config::Config;
use crate::error::{Error, zeros_by};
use gristmill::{Quantizer, Recording, Restrict, Threads, half};
use q8_0::Square;

/// The cache of a model.
#[derive(Debug)]
pub struct Cache {
    held: Held,
    context: usize,
}

#[derive(Debug)]
enum Held {
    F16 { keys: Side<half::f16>, values: Side<half::f16> },
    Q8_0 { keys: Side<Square>, values: Side<Square>, quantizer: Quantizer },
}

/// Keys or values of all layers: of each layer its heads, of each head its blocks, of each block as many `T`.
#[derive(Debug)]
struct Side<T> {
    items: Vec<T>,
    /// Elements of a head.
    width: usize,
    /// Items of a block.
    block: usize,
    /// Items of a head of a layer.
    head: usize,
    /// Items of a layer.
    layer: usize,
}

/// Which tokens of which layer.
#[derive(Clone, Copy)]
struct Place {
    layer: usize,
    first: usize,
    m: usize,
}

/// What attention reads of one head of a layer: its blocks.
#[derive(Clone, Copy, Debug)]
pub enum Head<'c> {
    /// A block is `head * BLOCK` elements.
    F16 {
        /// Element by element.
        keys: &'c [half::f16],
        /// Position by position.
        values: &'c [half::f16],
    },
    /// A block is `head / GROUP` squares.
    Q8_0 {
        /// Element by element.
        keys: &'c [Square],
        /// Position by position.
        values: &'c [Square],
    },
}

impl Cache {
    /// Room for `context` positions, held in `format`; `restrict` is for the quantizer, `threads` touch the memory first.
    ///
    /// # Errors
    /// [`Error::CacheFormat`], [`Error::Memory`], no kernel.
    pub fn new(
        config: &Config,
        context: usize,
        format: CacheFormat,
        restrict: &Restrict,
        threads: &Threads,
    ) -> Result<Cache, Error> {
        format.check(config)?;
        let (keys, values) = ("the cache of keys", "the cache of values");
        let held = match format {
            CacheFormat::F16 => {
                let side = |what| Side::new(what, config, context, config.head * BLOCK, threads);
                Held::F16 { keys: side(keys)?, values: side(values)? }
            }
            CacheFormat::Q8_0 => {
                let side = |what| Side::new(what, config, context, config.head / GROUP, threads);
                let quantizer = q8_0::quantizer(format.name(), config.head, restrict)?;
                Held::Q8_0 { keys: side(keys)?, values: side(values)?, quantizer }
            }
        };
        Ok(Cache { held, context })
    }

    /// Positions that there is room for.
    pub fn context(&self) -> usize {
        self.context
    }

    /// How keys and values are held.
    pub fn format(&self) -> CacheFormat {
        match self.held {
            Held::F16 { .. } => CacheFormat::F16,
            Held::Q8_0 { .. } => CacheFormat::Q8_0,
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match &self.held {
            Held::F16 { keys, values } => keys.bytes() + values.bytes(),
            Held::Q8_0 { keys, values, .. } => keys.bytes() + values.bytes(),
        }
    }

    /// Bytes that a cache of `context` positions in `format` takes.
    ///
    /// # Errors
    /// [`Error::CacheFormat`].
    pub fn bytes_for(config: &Config, context: usize, format: CacheFormat) -> Result<usize, Error> {
        format.check(config)?;
        let block = match format {
            CacheFormat::F16 => config.head * BLOCK * size_of::<half::f16>(),
            CacheFormat::Q8_0 => config.head / GROUP * size_of::<Square>(),
        };
        let blocks = context.div_ceil(BLOCK).saturating_mul(config.kv_heads).saturating_mul(config.layers);
        Ok(blocks.saturating_mul(2 * block))
    }

    /// Lets launches of the quantizer count, where there is one.
    ///
    /// # Errors
    /// [`gristmill::Error::ForeignRecording`].
    pub fn record(&mut self, recording: &Recording) -> Result<(), Error> {
        match &mut self.held {
            Held::F16 { .. } => Ok(()),
            Held::Q8_0 { quantizer, .. } => Ok(quantizer.record(Some(recording))?),
        }
    }

    /// One head of one layer.
    pub fn head(&self, layer: usize, head: usize) -> Head<'_> {
        match &self.held {
            Held::F16 { keys, values } => {
                Head::F16 { keys: keys.head(layer, head), values: values.head(layer, head) }
            }
            Held::Q8_0 { keys, values, .. } => {
                Head::Q8_0 { keys: keys.head(layer, head), values: values.head(layer, head) }
            }
        }
    }

    /// Stores `m` keys and values from position `first` on: `key(token)` and `value(token)` have all heads of a token. Allocates
    /// nothing.
    ///
    /// # Errors
    /// Of `q8_0` values that are not finite, or too large for a scale in f16.
    pub fn store<'k>(
        &mut self,
        layer: usize,
        first: usize,
        m: usize,
        key: impl Fn(usize) -> &'k [f32] + Sync,
        value: impl Fn(usize) -> &'k [f32] + Sync,
        threads: &Threads,
    ) -> Result<(), Error> {
        let place = Place { layer, first, m };
        match &mut self.held {
            Held::F16 { keys, values } => {
                keys.store(place, key, threads, |block, lane, key| {
                    f16::put_key(block, lane, key);
                    Ok(())
                })?;
                values.store(place, value, threads, |block, lane, value| {
                    f16::put_value(block, lane, value);
                    Ok(())
                })
            }
            Held::Q8_0 { keys, values, quantizer } => {
                let quantizer = &*quantizer;
                keys.store(place, key, threads, |block, lane, key| {
                    q8_0::put_key(quantizer, block, lane, key)
                })?;
                values.store(place, value, threads, |block, lane, value| {
                    q8_0::put_value(quantizer, block, lane, value)
                })
            }
        }
    }
}

impl<T: Clone + Default + Send> Side<T> {
    fn new(
        what: &'static str,
        config: &Config,
        context: usize,
        block: usize,
        threads: &Threads,
    ) -> Result<Side<T>, Error> {
        let head = context.div_ceil(BLOCK).saturating_mul(block);
        let layer = head.saturating_mul(config.kv_heads);
        Ok(Side {
            items: zeros_by(what, layer.saturating_mul(config.layers), threads)?,
            width: config.head,
            block,
            head,
            layer,
        })
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.items[..])
    }

    fn head(&self, layer: usize, head: usize) -> &[T] {
        &self.items[layer * self.layer + head * self.head..][..self.head]
    }

    /// Gives each head of each token to `put`, with the block and the place in it.
    fn store<'k>(
        &mut self,
        Place { layer, first, m }: Place,
        row: impl Fn(usize) -> &'k [f32] + Sync,
        threads: &Threads,
        put: impl Fn(&mut [T], usize, &[f32]) -> Result<(), Error> + Sync,
    ) -> Result<(), Error> {
        let Side { width, block, head: stride, layer: size, .. } = *self;
        threads.chunks(&mut self.items[layer * size..][..size], stride, |head, items| {
            for token in 0..m {
                let (row, position) = (row(token), first + token);
                let block = &mut items[position / BLOCK * block..][..block];
                put(block, position % BLOCK, &row[head * width..][..width])?;
            }
            Ok(())
        })
    }
}

impl Head<'_> {
    /// Writes the keys of a block to `out`: element by element, [`BLOCK`] positions of each. Its values are asked for meanwhile.
    pub fn keys(self, block: usize, out: &mut [f32]) {
        match self {
            Head::F16 { keys, values } => {
                let [keys, values] = [keys, values].map(|side| of_block(side, block, out.len()));
                f16::widened(keys, values, out);
            }
            Head::Q8_0 { keys, values } => {
                let [keys, values] = [keys, values].map(|side| of_block(side, block, squares(out)));
                q8_0::keys(keys, values, out);
            }
        }
    }

    /// Writes the values of a block to `out`: position by position, the elements of a head of each. The keys of the next block are
    /// asked for meanwhile.
    pub fn values(self, block: usize, out: &mut [f32]) {
        match self {
            Head::F16 { keys, values } => {
                let len = out.len();
                f16::widened(of_block(values, block, len), of_block(keys, block + 1, len), out);
            }
            Head::Q8_0 { keys, values } => {
                let len = squares(out);
                q8_0::values(of_block(values, block, len), of_block(keys, block + 1, len), out);
            }
        }
    }
}

/// How many squares are the elements of a block.
fn squares(elements: &[f32]) -> usize {
    elements.len() / (BLOCK * GROUP)
}

/// A block of `len` items; empty behind the last.
fn of_block<T>(all: &[T], block: usize, len: usize) -> &[T] {
    all.get(block * len..).and_then(|rest| rest.get(..len)).unwrap_or_default()
}
