//! Attention over the cache, block by block, with a running maximum and sum (Milakov and Gimelshein 2018; Dao et al. 2022).
//!
//! A head of keys and values is converted to f32 once for a tile of tokens and all queries that share it. What is computed for one query
//! depends on its position and on the cache alone: not on the tokens beside it, nor on the threads.

use crate::cache::{BLOCK, Cache, Head};
use crate::config::{Config, MAX_HEAD};
use crate::error::{Error, zeros};
use crate::numerics::exp;
use gristmill::Threads;
use multiversion::multiversion;

/// Tokens of a tile.
const TILE: usize = 8;

/// Queries that are multiplied with a block at a time: as many accumulators as registers hold.
const AT_ONCE: usize = 4;

/// Scratch memory of attention: a place for each query, ordered by head of keys, then by tile.
#[derive(Debug)]
pub struct Attention {
    heads: usize,
    kv_heads: usize,
    head: usize,
    /// For each query its output, the products with a block, the maximum and the sum so far.
    places: Vec<f32>,
}

/// What a query has besides its output: products with a block, maximum, sum.
const BESIDE: usize = BLOCK + 2;

impl Attention {
    /// For up to `m` tokens.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(config: &Config, m: usize) -> Result<Attention, Error> {
        let tiled = if m < TILE { m } else { m.next_multiple_of(TILE) };
        let len = tiled.saturating_mul(config.heads).saturating_mul(config.head + BESIDE);
        Ok(Attention {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head: config.head,
            places: zeros("attention", len)?,
        })
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.places[..])
    }

    /// Attends for `m` tokens from position `first` on, whose keys and values are in the cache: `query(token)` has all heads of a
    /// token. Writes all heads of each token to `out` (`m * heads * head`).
    ///
    /// # Errors
    /// None.
    #[expect(clippy::too_many_arguments, reason = "operands, sizes and resources of an operation")]
    pub fn run<'q>(
        &mut self,
        cache: &Cache,
        layer: usize,
        first: usize,
        m: usize,
        query: impl Fn(usize) -> &'q [f32] + Sync,
        out: &mut [f32],
        threads: &Threads,
    ) -> Result<(), Error> {
        let Attention { heads, kv_heads, head, .. } = *self;
        let (group, tile) = (heads / kv_heads, m.min(TILE));
        let place = head + BESIDE;
        let (chunk, tiles) = (tile * group * place, m.div_ceil(tile));
        let places = &mut self.places[..chunk * tiles * kv_heads];
        threads.chunks(places, chunk, |index, places| {
            let (kv_head, start) = (index / tiles, index % tiles * tile);
            let tokens = tile.min(m - start);
            let work = Work { head, group, kv_head, first: first + start, tokens };
            attend(&work, cache.head(layer, kv_head), &|token| query(start + token), places);
            Ok::<(), Error>(())
        })?;
        let places = &self.places;
        threads.chunks(out, heads * head, |token, out| {
            for (index, out) in out.chunks_mut(head).enumerate() {
                let chunk_start = (index / group * tiles + token / tile) * chunk;
                let within = (token % tile * group + index % group) * place;
                out.copy_from_slice(&places[chunk_start + within..][..head]);
            }
            Ok(())
        })
    }
}

/// One tile of tokens with one head of keys and values.
#[derive(Clone, Copy)]
struct Work {
    head: usize,
    group: usize,
    kv_head: usize,
    /// Position of the first token.
    first: usize,
    tokens: usize,
}

fn attend<'q>(work: &Work, cache: Head<'_>, query: &dyn Fn(usize) -> &'q [f32], places: &mut [f32]) {
    let Work { head, group, kv_head, first, tokens } = *work;
    let place = head + BESIDE;
    let scale = 1.0 / (head as f32).sqrt();
    let places = &mut places[..tokens * group * place];
    for place in places.chunks_mut(place) {
        place.fill(0.0);
        place[head + BLOCK] = f32::NEG_INFINITY;
    }
    let mut converted = [0.0f32; MAX_HEAD * BLOCK];
    let converted = &mut converted[..head * BLOCK];
    let mut pending = [[0.0f32; MAX_HEAD]; AT_ONCE];
    for block in 0..(first + tokens).div_ceil(BLOCK) {
        let start = block * BLOCK;
        // Tokens before this one see nothing of the block.
        let skipped = start.saturating_sub(first).min(tokens);
        let seen = |index: usize| (first + index / group + 1 - start).min(BLOCK);
        cache.keys(block, converted);
        let mut index = skipped * group;
        while index < tokens * group {
            let count = AT_ONCE.min(tokens * group - index);
            for (i, pending) in pending.iter_mut().enumerate().take(count) {
                let (token, of_group) = ((index + i) / group, (index + i) % group);
                let q = &query(token)[(kv_head * group + of_group) * head..][..head];
                for (pending, q) in pending.iter_mut().zip(q) {
                    *pending = q * scale;
                }
            }
            let mut sums = [[0.0f32; BLOCK]; AT_ONCE];
            products(&pending, converted, &mut sums);
            for (i, sums) in sums.iter().enumerate().take(count) {
                let place = &mut places[(index + i) * place..][..place];
                let (out, beside) = place.split_at_mut(head);
                weigh(sums, seen(index + i), out, beside);
            }
            index += count;
        }
        cache.values(block, converted);
        for (index, place) in places.chunks_mut(place).enumerate().skip(skipped * group) {
            let (out, beside) = place.split_at_mut(head);
            blend(&beside[..seen(index)], converted, out);
        }
    }
    for place in places.chunks_mut(place) {
        let sum = place[head + BLOCK + 1];
        for out in &mut place[..head] {
            *out /= sum;
        }
    }
}

/// The products of [`AT_ONCE`] queries with the keys of a block, each summed element by element.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn products(queries: &[[f32; MAX_HEAD]; AT_ONCE], keys: &[f32], sums: &mut [[f32; BLOCK]; AT_ONCE]) {
    let mut all = [[0.0f32; BLOCK]; AT_ONCE];
    for (element, keys) in keys.as_chunks::<BLOCK>().0.iter().enumerate().take(MAX_HEAD) {
        for (sums, query) in all.iter_mut().zip(queries) {
            let query = query[element];
            for (sum, key) in sums.iter_mut().zip(keys) {
                *sum += query * key;
            }
        }
    }
    *sums = all;
}

/// Turns the products with the first `seen` positions of a block into weights, and takes what came before down to the new
/// maximum. `beside` is weights, maximum, sum.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn weigh(products: &[f32; BLOCK], seen: usize, out: &mut [f32], beside: &mut [f32]) {
    let (weights, state) = beside.split_at_mut(BLOCK);
    let before = state[0];
    let most = products[..seen].iter().copied().fold(before, f32::max);
    let mut all = [0.0f32; BLOCK];
    for (weight, product) in all.iter_mut().zip(products) {
        *weight = exp(product - most);
    }
    all[seen..].fill(0.0);
    weights.copy_from_slice(&all);
    let mut width = BLOCK / 2;
    while width > 0 {
        for lane in 0..width {
            all[lane] += all[lane + width];
        }
        width /= 2;
    }
    let faded = exp(before - most);
    state[0] = most;
    state[1] = state[1] * faded + all[0];
    if before != most {
        for out in out {
            *out *= faded;
        }
    }
}

/// Adds weighted values.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn blend(weights: &[f32], values: &[f32], out: &mut [f32]) {
    let head = out.len();
    // A slab of elements at a time stays in registers through all positions.
    let (slabs, rest) = out.as_chunks_mut::<64>();
    let done = slabs.len() * 64;
    for (index, slab) in slabs.iter_mut().enumerate() {
        let mut sums = *slab;
        for (weight, values) in weights.iter().zip(values.chunks_exact(head)) {
            let (values, _) = values[index * 64..].as_chunks::<64>();
            for (sum, value) in sums.iter_mut().zip(&values[0]) {
                *sum += weight * value;
            }
        }
        *slab = sums;
    }
    for (weight, values) in weights.iter().zip(values.chunks_exact(head)) {
        for (out, value) in rest.iter_mut().zip(&values[done..]) {
            *out += weight * value;
        }
    }
}
