//! Attention over the cache, block by block, with a running maximum and sum (Milakov and Gimelshein 2018; Dao et al. 2022).
//!
//! A head of keys and values is converted to f32 once for a tile of tokens and all queries that share it. What is computed for one query
//! depends on its position and on the cache alone: not on the tokens beside it, nor on the threads.

mod tile;

use crate::cache::Cache;
use crate::config::Config;
use crate::error::{Error, zeros};
use gristmill::Threads;
use tile::Tile;

/// Scratch memory of attention: that of all tiles, ordered by head of keys, then by token.
#[derive(Debug)]
pub struct Attention {
    kv_heads: usize,
    /// Queries that share a head of keys.
    group: usize,
    head: usize,
    tiles: Vec<f32>,
}

impl Attention {
    /// For up to `m` tokens.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(config: &Config, m: usize) -> Result<Attention, Error> {
        let group = config.heads / config.kv_heads;
        let floats = |m: usize| {
            let tokens = Tile::tokens(m, group);
            Tile::floats(tokens, group, config.head).saturating_mul(m.div_ceil(tokens))
        };
        let most = (1..=m).map(floats).max().unwrap_or(0);
        Ok(Attention {
            kv_heads: config.kv_heads,
            group,
            head: config.head,
            tiles: zeros("attention", most.saturating_mul(config.kv_heads))?,
        })
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.tiles[..])
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
        let Attention { kv_heads, group, head, .. } = *self;
        let tokens = Tile::tokens(m, group);
        let (floats, tiles) = (Tile::floats(tokens, group, head), m.div_ceil(tokens));
        let all = &mut self.tiles[..floats * tiles * kv_heads];
        threads.chunks(all, floats, |index, scratch| {
            let (kv_head, start) = (index / tiles, index % tiles * tokens);
            let tile = Tile { head, group, first: first + start, tokens: tokens.min(m - start) };
            let query = |index: usize| {
                &query(start + index / group)[(kv_head * group + index % group) * head..][..head]
            };
            tile.attend(cache.head(layer, kv_head), &query, scratch);
            Ok::<(), Error>(())
        })?;
        let all = &self.tiles;
        threads.chunks(out, kv_heads * group * head, |token, out| {
            for (kv_head, out) in out.chunks_mut(group * head).enumerate() {
                let tile = &all[(kv_head * tiles + token / tokens) * floats..];
                out.copy_from_slice(&tile[token % tokens * group * head..][..group * head]);
            }
            Ok(())
        })
    }
}
