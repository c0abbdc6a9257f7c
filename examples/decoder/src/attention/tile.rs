//! Attention of a tile: some tokens with one head of keys and values, and all queries that share it.
//!
//! Queries lie side by side, as many as there are lanes: element by element, so that the products of all of them with a key, their
//! maxima and their powers are operations on whole registers, and none goes across one. What is computed for a query is the same for
//! every number of lanes.

use crate::cache::{BLOCK, Head};
use crate::config::MAX_HEAD;
use crate::numerics::exp;
use multiversion::multiversion;
use multiversion::target::target_cfg_f;
use std::ops::Range;

/// Lanes of many queries.
const MANY: usize = 32;

/// Lanes of few queries, those of a single token: no more products than are needed.
const FEW: usize = 4;

/// Queries that are few.
const FEW_QUERIES: usize = 2 * FEW;

/// Floats of a lane beside its query and its output.
const BESIDE: usize = BLOCK + 3;

/// Tokens from a position on, with one head of keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    /// Elements of a head.
    pub head: usize,
    /// Queries of a token.
    pub group: usize,
    /// Position of the first token.
    pub first: usize,
    /// At most [`Tile::tokens`].
    pub tokens: usize,
}

impl Tile {
    /// Tokens of a tile where `m` are to be divided into tiles: so many that no lanes are left over.
    pub fn tokens(m: usize, group: usize) -> usize {
        let whole = if group.is_multiple_of(2) { MANY / 2 } else { MANY };
        m.min(whole).max(1)
    }

    /// Scratch memory for a tile. It begins with the outputs, those of a token one behind the other.
    pub fn floats(tokens: usize, group: usize, head: usize) -> usize {
        let queries = tokens.saturating_mul(group);
        let lanes = lanes(queries);
        queries.next_multiple_of(lanes).saturating_mul(2 * head + BESIDE)
    }

    /// Attends: `query(i)` is query `i % group` of token `i / group`. The outputs come to the front of `scratch`, which has
    /// [`Tile::floats`] of as many tokens or more.
    pub fn attend<'q>(&self, cache: Head<'_>, query: &dyn Fn(usize) -> &'q [f32], scratch: &mut [f32]) {
        attend(*self, cache, query, scratch);
    }
}

/// Lanes for some queries.
fn lanes(queries: usize) -> usize {
    if queries <= FEW_QUERIES { FEW } else { MANY }
}

/// Sums stay in 16 registers of 512 bits, or in 8 of 256.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn attend<'q, 'c>(tile: Tile, cache: Head<'c>, query: &dyn Fn(usize) -> &'q [f32], scratch: &mut [f32]) {
    let few = lanes(tile.tokens * tile.group) == FEW;
    if target_cfg_f!(target_feature = "avx512f") {
        if few {
            attend_in::<FEW, FEW, 32>(tile, cache, query, scratch);
        } else {
            attend_in::<MANY, 8, 32>(tile, cache, query, scratch);
        }
    } else if few {
        attend_in::<FEW, FEW, 16>(tile, cache, query, scratch);
    } else {
        attend_in::<MANY, 4, 16>(tile, cache, query, scratch);
    }
}

/// What `L` queries have besides their outputs: [`BESIDE`] and their elements in each lane.
struct Lanes<'s, const L: usize> {
    /// Element by element.
    queries: &'s mut [[f32; L]],
    /// Products with the keys of a block, then weights of its values, position by position.
    weights: &'s mut [[f32; L]; BLOCK],
    /// The greatest product so far.
    most: &'s mut [f32; L],
    /// The sum of the weights so far.
    sums: &'s mut [f32; L],
    /// What the outputs of earlier blocks are multiplied with, since weights are powers of the products less the greatest.
    faded: &'s mut [f32; L],
}

impl<'s, const L: usize> Lanes<'s, L> {
    #[inline(always)]
    fn of(floats: &'s mut [f32], head: usize) -> Lanes<'s, L> {
        let (queries, rest) = floats.as_chunks_mut::<L>().0.split_at_mut(head);
        let (weights, rest) = rest.split_first_chunk_mut::<BLOCK>().expect("lanes of a block");
        let [most, sums, faded] = rest else { unreachable!("three more") };
        Lanes { queries, weights, most, sums, faded }
    }
}

/// `L` lanes; outputs of `N` queries at a time, of these `W` elements.
#[inline(always)]
fn attend_in<'q, const L: usize, const N: usize, const W: usize>(
    tile: Tile,
    cache: Head<'_>,
    query: &dyn Fn(usize) -> &'q [f32],
    scratch: &mut [f32],
) {
    let Tile { head, group, first, tokens } = tile;
    let scale = 1.0 / (head as f32).sqrt();
    let queries = tokens * group;
    let (outs, scratch) = scratch.split_at_mut(queries.next_multiple_of(L) * head);
    outs.fill(0.0);
    let floats = L * (head + BESIDE);
    let scratch = &mut scratch[..queries.div_ceil(L) * floats];
    for (index, lanes) in scratch.chunks_exact_mut(floats).enumerate() {
        let lanes = Lanes::<L>::of(lanes, head);
        for lane in (0..L).step_by(FEW) {
            // Lanes that are left over have the last query.
            let few = std::array::from_fn(|i| query((index * L + lane + i).min(queries - 1)));
            put_lanes(lanes.queries, lane, few);
        }
        lanes.most.fill(f32::NEG_INFINITY);
        lanes.sums.fill(0.0);
    }
    let mut converted = [0.0f32; MAX_HEAD * BLOCK];
    let converted = &mut converted[..head * BLOCK];
    for block in 0..(first + tokens).div_ceil(BLOCK) {
        let start = block * BLOCK;
        // Tokens before this one see nothing of the block, and queries before this one are not looked at.
        let skipped = start.saturating_sub(first).min(tokens) * group / L;
        // A query sees as many positions of the block, or all.
        let seen =
            |index: usize| (first + index.min(queries - 1) / group + 1).saturating_sub(start).min(BLOCK);
        cache.keys(block, converted);
        for (index, lanes) in scratch.chunks_exact_mut(floats).enumerate().skip(skipped) {
            let mut lanes = Lanes::<L>::of(lanes, head);
            products(lanes.queries, converted, lanes.weights);
            weigh(&mut lanes, scale, &std::array::from_fn(|lane| seen(index * L + lane) as u32));
        }
        cache.values(block, converted);
        let outs = outs[..queries * head].chunks_mut(L * head);
        for (index, (outs, lanes)) in outs.zip(scratch.chunks_exact_mut(floats)).enumerate().skip(skipped) {
            let lanes = Lanes::<L>::of(lanes, head);
            let mut lane = 0;
            while lane < outs.len() / head {
                let seen = |i: usize| seen(index * L + lane + i);
                lane += if outs.len() / head - lane >= N {
                    blend_seen::<L, N, W>(&mut outs[lane * head..], lane, &lanes, seen, converted)
                } else {
                    blend_seen::<L, 1, W>(&mut outs[lane * head..], lane, &lanes, seen, converted)
                };
            }
        }
    }
    for (outs, lanes) in outs.chunks_mut(L * head).zip(scratch.chunks_exact_mut(floats)) {
        let lanes = Lanes::<L>::of(lanes, head);
        for (out, sum) in outs.chunks_exact_mut(head).zip(*lanes.sums) {
            for out in out {
                *out /= sum;
            }
        }
    }
}

/// Puts some queries in lanes from `lane` on. (Not for the instruction sets of what calls it: LLVM takes stores to scattered places where
/// there are any, which take longer than many stores.)
#[inline(never)]
fn put_lanes<const L: usize>(queries: &mut [[f32; L]], lane: usize, few: [&[f32]; FEW]) {
    let few = few.map(|query| &query[..queries.len()]);
    for (element, lanes) in queries.iter_mut().enumerate() {
        lanes[lane..][..FEW].copy_from_slice(&few.map(|query| query[element]));
    }
}

/// The products of queries with the keys of a block, each summed element by element. Functions of their own, since only so LLVM keeps the
/// sums in registers.
fn products<const L: usize>(queries: &[[f32; L]], keys: &[f32], out: &mut [[f32; L]; BLOCK]) {
    let (queries, out) = (queries.as_flattened(), out.as_flattened_mut());
    let keys = keys.as_chunks().0;
    if L == FEW {
        products_of_few(queries.as_chunks().0, keys, out.as_chunks_mut().0);
    } else {
        products_of_many(queries.as_chunks().0, keys, out.as_chunks_mut().0);
    }
}

/// Lanes of queries, for a key after the other.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn products_of_many(queries: &[[f32; MANY]], keys: &[[f32; BLOCK]], out: &mut [[f32; MANY]]) {
    if target_cfg_f!(target_feature = "avx512f") {
        products_by::<8>(queries, keys, out);
    } else {
        products_by::<2>(queries, keys, out);
    }
}

/// [`products_of_many`] for `P` positions at a time.
#[inline(always)]
fn products_by<const P: usize>(queries: &[[f32; MANY]], keys: &[[f32; BLOCK]], out: &mut [[f32; MANY]]) {
    for (first, out) in out.as_chunks_mut::<P>().0.iter_mut().enumerate() {
        let mut all = [[0.0f32; MANY]; P];
        for (queries, keys) in queries.iter().zip(keys) {
            let keys: [f32; P] = *keys[first * P..].first_chunk().expect("blocks are of whole P");
            for (sums, key) in all.iter_mut().zip(keys) {
                for (sum, query) in sums.iter_mut().zip(queries) {
                    *sum = key.mul_add(*query, *sum);
                }
            }
        }
        *out = all;
    }
}

/// Lanes of positions, for a query after the other: few queries fill no register.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn products_of_few(queries: &[[f32; FEW]], keys: &[[f32; BLOCK]], out: &mut [[f32; FEW]]) {
    if target_cfg_f!(target_feature = "avx512f") {
        products_across::<BLOCK>(queries, keys, out);
    } else {
        products_across::<{ BLOCK / 2 }>(queries, keys, out);
    }
}

/// [`products_of_few`] for `P` positions at a time.
#[inline(always)]
fn products_across<const P: usize>(queries: &[[f32; FEW]], keys: &[[f32; BLOCK]], out: &mut [[f32; FEW]]) {
    for (first, out) in out.as_chunks_mut::<P>().0.iter_mut().enumerate() {
        let mut all = [[0.0f32; P]; FEW];
        for (queries, keys) in queries.iter().zip(keys) {
            for (sums, query) in all.iter_mut().zip(*queries) {
                for (sum, key) in sums.iter_mut().zip(&keys[first * P..]) {
                    *sum = query.mul_add(*key, *sum);
                }
            }
        }
        for (position, out) in out.iter_mut().enumerate() {
            *out = all.map(|sums| sums[position]);
        }
    }
}

/// Turns products with the positions of a block into weights: of the first ones, as many as each lane sees.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn weigh<'s, const L: usize>(lanes: &mut Lanes<'s, L>, scale: f32, seen: &[u32; L]) {
    let before = *lanes.most;
    let mut most = before;
    for (position, products) in (0u32..).zip(lanes.weights.iter_mut()) {
        for lane in 0..L {
            let scaled = products[lane] * scale;
            let scaled = if position < seen[lane] { scaled } else { f32::NEG_INFINITY };
            products[lane] = scaled;
            most[lane] = if scaled > most[lane] { scaled } else { most[lane] };
        }
    }
    let mut all = [0.0f32; L];
    for (position, weights) in (0u32..).zip(lanes.weights.iter_mut()) {
        for lane in 0..L {
            let power = exp(weights[lane] - most[lane]);
            let power = if position < seen[lane] { power } else { 0.0 };
            weights[lane] = power;
            all[lane] += power;
        }
    }
    for lane in 0..L {
        let faded = exp(before[lane] - most[lane]);
        lanes.faded[lane] = faded;
        lanes.sums[lane] = lanes.sums[lane] * faded + all[lane];
    }
    *lanes.most = most;
}

/// Positions of a block that some queries see, those of lanes from `lane` on.
#[derive(Clone, Copy)]
struct Seen<'a, const L: usize> {
    lane: usize,
    weights: &'a [[f32; L]],
    /// Elements of a head, position by position.
    values: &'a [f32],
    head: usize,
}

/// Fades the outputs of `N` queries, those of lanes from `lane` on, and adds the values of the positions that each sees: first those that
/// the first one sees, and so all of them, then those behind them, one query after the other. `N`.
#[inline(always)]
fn blend_seen<const L: usize, const N: usize, const W: usize>(
    outs: &mut [f32],
    lane: usize,
    lanes: &Lanes<'_, L>,
    seen: impl Fn(usize) -> usize,
    values: &[f32],
) -> usize {
    let head = lanes.queries.len();
    let by = |lane: usize, positions: Range<usize>| Seen {
        lane,
        weights: &lanes.weights[positions.clone()],
        values: &values[positions.start * head..positions.end * head],
        head,
    };
    let all = seen(0);
    blend::<L, N, W>(outs, std::array::from_fn(|i| lanes.faded[lane + i]), by(lane, 0..all));
    for (i, out) in outs.chunks_mut(head).enumerate().take(N).skip(1) {
        let behind = all..seen(i);
        if !behind.is_empty() {
            blend::<L, 1, W>(out, [1.0], by(lane + i, behind));
        }
    }
    N
}

/// Fades outputs and adds the values of some positions of a block; `W` elements at a time: those of all queries stay in registers through
/// all positions.
#[inline(always)]
fn blend<const L: usize, const N: usize, const W: usize>(
    outs: &mut [f32],
    faded: [f32; N],
    seen: Seen<'_, L>,
) {
    let whole = seen.head - seen.head % W;
    for first in (0..whole).step_by(W) {
        blend_slab::<L, N, W>(outs, faded, seen, first);
    }
    for first in whole..seen.head {
        blend_slab::<L, N, 1>(outs, faded, seen, first);
    }
}

/// [`blend`] for `W` elements from `first` on.
#[inline(always)]
fn blend_slab<const L: usize, const N: usize, const W: usize>(
    outs: &mut [f32],
    faded: [f32; N],
    seen: Seen<'_, L>,
    first: usize,
) {
    let Seen { lane, weights, values, head } = seen;
    let mut sums = [[0.0f32; W]; N];
    for ((query, sums), faded) in sums.iter_mut().enumerate().zip(faded) {
        sums.copy_from_slice(&outs[query * head + first..][..W]);
        for sum in sums {
            *sum *= faded;
        }
    }
    for (weights, values) in weights.iter().zip(values.chunks_exact(head)) {
        let weights: &[f32; N] = weights[lane..].first_chunk().expect("lanes of all queries");
        let values: &[f32; W] = values[first..].first_chunk().expect("a whole slab");
        for (sums, &weight) in sums.iter_mut().zip(weights) {
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = weight.mul_add(*value, *sum);
            }
        }
    }
    for (query, sums) in sums.iter().enumerate() {
        outs[query * head + first..][..W].copy_from_slice(sums);
    }
}
