//! Attention over the cache, block by block, with a running maximum and sum (Milakov and Gimelshein 2018; Dao et al. 2022).
//!
//! A head of keys and values is converted to f32 once for a tile of tokens and all queries that share it. What is computed for one query
//! depends on its position and on the cache alone: not on the tokens beside it, nor on the threads.

use crate::cache::{BLOCK, Cache, Head};
use crate::config::{Config, MAX_HEAD};
use crate::error::{Error, zeros};
use crate::numerics::{exp, folded};
use gristmill::Threads;
use multiversion::multiversion;
use multiversion::target::target_cfg_f;
use std::ops::Range;

/// Tokens of a tile.
const TILE: usize = 16;

/// Queries that are multiplied with a block, and blend its values, at a time.
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
    let queries = tokens * group;
    let places = &mut places[..queries * place];
    for place in places.chunks_mut(place) {
        place.fill(0.0);
        place[head + BLOCK] = f32::NEG_INFINITY;
    }
    let query = |index: usize| &query(index / group)[(kv_head * group + index % group) * head..][..head];
    let mut converted = [0.0f32; MAX_HEAD * BLOCK];
    let converted = &mut converted[..head * BLOCK];
    for block in 0..(first + tokens).div_ceil(BLOCK) {
        let start = block * BLOCK;
        // Tokens before this one see nothing of the block.
        let skipped = start.saturating_sub(first).min(tokens) * group;
        let seen = |index: usize| (first + index / group + 1 - start).min(BLOCK);
        cache.keys(block, converted);
        for index in (skipped..queries).step_by(AT_ONCE) {
            // Of fewer the last one is multiplied again.
            let at_once = std::array::from_fn(|i| query((index + i).min(queries - 1)));
            let mut sums = [[0.0f32; BLOCK]; AT_ONCE];
            products(at_once, converted, &mut sums);
            for (i, sums) in sums.iter().enumerate().take(queries - index) {
                let (out, beside) = places[(index + i) * place..][..place].split_at_mut(head);
                weigh(sums, scale, seen(index + i), out, beside);
            }
        }
        cache.values(block, converted);
        for index in (skipped..queries).step_by(AT_ONCE) {
            let count = AT_ONCE.min(queries - index);
            let places = &mut places[index * place..][..count * place];
            // What the first one sees, and so all of them, then what later ones see behind it. Fewer go one by one.
            let all = if count == AT_ONCE { seen(index) } else { 0 };
            if all > 0 {
                blend::<AT_ONCE>(places, head, 0..all, converted);
            }
            for (i, place) in places.chunks_mut(place).enumerate() {
                let behind = all..seen(index + i);
                if !behind.is_empty() {
                    blend::<1>(place, head, behind, converted);
                }
            }
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
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn products(queries: [&[f32]; AT_ONCE], keys: &[f32], sums: &mut [[f32; BLOCK]; AT_ONCE]) {
    if target_cfg_f!(target_feature = "avx512f") {
        products_of::<BLOCK>(queries, keys, sums);
    } else {
        products_of::<{ BLOCK / 2 }>(queries, keys, sums);
    }
}

/// [`products`] for `W` positions at a time, whose sums stay in registers.
#[inline(always)]
fn products_of<const W: usize>(queries: [&[f32]; AT_ONCE], keys: &[f32], sums: &mut [[f32; BLOCK]; AT_ONCE]) {
    let keys = keys.as_chunks::<BLOCK>().0;
    let queries = queries.map(|query| &query[..keys.len()]);
    for first in (0..BLOCK).step_by(W) {
        let mut all = [[0.0f32; W]; AT_ONCE];
        for (element, keys) in keys.iter().enumerate() {
            for (sums, query) in all.iter_mut().zip(queries) {
                let query = query[element];
                for (sum, key) in sums.iter_mut().zip(&keys[first..]) {
                    *sum = query.mul_add(*key, *sum);
                }
            }
        }
        for (sums, all) in sums.iter_mut().zip(&all) {
            sums[first..][..W].copy_from_slice(all);
        }
    }
}

/// Turns the products with the first `seen` positions of a block into weights, and takes what came before down to the new
/// maximum. `beside` is weights, maximum, sum.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn weigh(products: &[f32; BLOCK], scale: f32, seen: usize, out: &mut [f32], beside: &mut [f32]) {
    let (weights, state) = beside.split_at_mut(BLOCK);
    let before = state[0];
    let seen = seen as u32;
    let mut scaled = [0.0f32; BLOCK];
    for (lane, (scaled, product)) in (0u32..).zip(scaled.iter_mut().zip(products)) {
        let product = product * scale;
        *scaled = if lane < seen { product } else { f32::NEG_INFINITY };
    }
    let most = before.max(folded(scaled, |a, b| if a > b { a } else { b }));
    let mut all = [0.0f32; BLOCK];
    for (lane, (weight, scaled)) in (0u32..).zip(all.iter_mut().zip(&scaled)) {
        let power = exp(scaled - most);
        *weight = if lane < seen { power } else { 0.0 };
    }
    weights.copy_from_slice(&all);
    let faded = exp(before - most);
    state[0] = most;
    state[1] = state[1] * faded + folded(all, |a, b| a + b);
    if before != most {
        for out in out {
            *out *= faded;
        }
    }
}

/// Adds the values of some positions of a block, as weighed by each of `N` queries.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn blend<const N: usize>(places: &mut [f32], head: usize, seen: Range<usize>, values: &[f32]) {
    if target_cfg_f!(target_feature = "avx512f") {
        blend_slabs::<N, 32>(places, head, seen, values);
    } else {
        blend_slabs::<N, 16>(places, head, seen, values);
    }
}

/// [`blend`] for `W` elements at a time: those of [`AT_ONCE`] queries stay in registers through all positions.
#[inline(always)]
fn blend_slabs<const N: usize, const W: usize>(
    places: &mut [f32],
    head: usize,
    seen: Range<usize>,
    values: &[f32],
) {
    let whole = head - head % W;
    for first in (0..whole).step_by(W) {
        blend_slab::<N, W>(places, head, first, seen.clone(), values);
    }
    for first in whole..head {
        blend_slab::<N, 1>(places, head, first, seen.clone(), values);
    }
}

/// [`blend`] for `W` elements from `first` on.
#[inline(always)]
fn blend_slab<const N: usize, const W: usize>(
    places: &mut [f32],
    head: usize,
    first: usize,
    seen: Range<usize>,
    values: &[f32],
) {
    let place = head + BESIDE;
    let mut sums = [[0.0f32; W]; N];
    for (query, sums) in sums.iter_mut().enumerate() {
        sums.copy_from_slice(&places[query * place + first..][..W]);
    }
    let weights: [&[f32]; N] = std::array::from_fn(|query| &places[query * place + head..][..BLOCK]);
    for position in seen {
        let values: &[f32; W] =
            values[position * head + first..].first_chunk().expect("a block holds all positions");
        for (sums, weights) in sums.iter_mut().zip(weights) {
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = weights[position].mul_add(*value, *sum);
            }
        }
    }
    for (query, sums) in sums.iter().enumerate() {
        places[query * place + first..][..W].copy_from_slice(sums);
    }
}
