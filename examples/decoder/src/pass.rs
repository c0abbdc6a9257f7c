//! The forward pass of one batch of tokens, through buffers that were made before.

use crate::buffers::{Buffers, Routing};
use crate::cache::Cache;
use crate::config::{Config, ExpertCounts};
use crate::error::Error;
use crate::joint::Joint;
use crate::mixture::{Mixture, PairBuffers};
use crate::numerics::{add, add_scaled, gated, norm, norm_in_place, rotate, softmax};
use crate::weights::{Expert, Ffn, Layer, Weights};
use gristmill::gguf::Model;
use gristmill::{ExpertInput, Input, Routes, Rows, Threads, Workspace};

/// One batch on its way through the layers.
pub(crate) struct Pass<'d> {
    pub(crate) config: &'d Config,
    pub(crate) threads: &'d Threads,
    /// Cosines and sines of all positions.
    pub(crate) turns: &'d [Vec<f32>; 2],
    /// Position of the first token.
    pub(crate) first: usize,
    /// Tokens.
    pub(crate) m: usize,
}

impl Pass<'_> {
    /// Takes `tokens` through all layers, to `buffers.x`.
    pub(crate) fn batch(
        &self,
        model: &Model,
        weights: &mut Weights,
        cache: &mut Cache,
        buffers: &mut Buffers,
        tokens: &[u32],
    ) -> Result<(), Error> {
        let embd = self.config.embd;
        weights.embedding.rows(model, tokens, &mut buffers.x[..self.m * embd])?;
        for (index, layer) in weights.layers.iter().enumerate() {
            self.attend(index, layer, cache, buffers)?;
            self.feed_forward(index, layer, buffers)?;
        }
        Ok(())
    }

    fn norm(&self, x: &[f32], weight: &[f32], y: &mut [f32]) -> Result<(), Error> {
        let embd = self.config.embd;
        self.threads.chunks(&mut y[..self.m * embd], embd, |token, y| {
            norm(&x[token * embd..][..embd], weight, self.config.eps, y);
            Ok(())
        })
    }

    fn add(&self, out: &[f32], x: &mut [f32]) -> Result<(), Error> {
        let embd = self.config.embd;
        self.threads.chunks(&mut x[..self.m * embd], embd, |token, x| {
            add(&out[token * embd..][..embd], x);
            Ok(())
        })
    }

    fn attend(
        &self,
        index: usize,
        layer: &Layer,
        cache: &mut Cache,
        buffers: &mut Buffers,
    ) -> Result<(), Error> {
        let Config { embd, heads, kv_heads, head, eps, .. } = *self.config;
        let (m, threads) = (self.m, self.threads);
        let Buffers { x, normed, wide, inner, out, attention, workspace, .. } = buffers;
        if layer.qkv.fuses() {
            let (norm, x) = (&layer.prologues.attn, Rows::dense(&x[..m * embd]));
            layer.qkv.forward_with(norm, x, None, m, wide, workspace, threads)?;
        } else {
            self.norm(x, &layer.norms.attn, normed)?;
            layer.qkv.forward(&normed[..m * embd], m, wide, workspace, threads)?;
        }
        let pairs = self.config.rope.dims / 2;
        for (which, count) in [(0, heads), (1, kv_heads)] {
            let weight = layer.norms.heads.as_ref().map(|norms| &norms[which]);
            layer.qkv.each_row(wide, m, which, count * head, threads, |token, row| {
                let place = (self.first + token) * pairs;
                let [cos, sin] = [0, 1].map(|which: usize| &self.turns[which][place..][..pairs]);
                for head in row.chunks_mut(head) {
                    if let Some(weight) = weight {
                        norm_in_place(head, weight, eps);
                    }
                    rotate(self.config.architecture.pairs, cos, sin, head);
                }
            })?;
        }
        let wide = &wide[..];
        let row = |which, count: usize| move |token| layer.qkv.row(wide, m, which, token, count * head);
        cache.store(index, self.first, m, row(1, kv_heads), row(2, kv_heads), threads)?;
        let inner = &mut inner[..m * heads * head];
        attention.run(cache, index, self.first, m, row(0, heads), inner, threads)?;
        match &layer.norms.attn_sub {
            Some(_) if layer.output.fuses() => {
                let (norm, inner) = (&layer.prologues.output, Rows::dense(inner));
                layer.output.forward_with(norm, inner, None, m, out, workspace, threads)?;
            }
            sub_norm => {
                if let Some(weight) = sub_norm {
                    self.norm_rows(inner, heads * head, weight)?;
                }
                layer.output.forward(inner, m, out, workspace, threads)?;
            }
        }
        self.add(out, x)
    }

    fn norm_rows(&self, rows: &mut [f32], width: usize, weight: &[f32]) -> Result<(), Error> {
        self.threads.chunks(rows, width, |_, row| {
            norm_in_place(row, weight, self.config.eps);
            Ok(())
        })
    }

    fn feed_forward(&self, index: usize, layer: &Layer, buffers: &mut Buffers) -> Result<(), Error> {
        let embd = self.config.embd;
        let Buffers { x, normed, wide, inner, out, routing, workspace, .. } = buffers;
        match &layer.ffn {
            Ffn::Dense(_) => {}
            Ffn::Mixture { .. } | Ffn::Experts { .. } => self.norm(x, &layer.norms.ffn, normed)?,
        }
        match &layer.ffn {
            Ffn::Dense(expert) => {
                let (m, threads) = (self.m, self.threads);
                if expert.gate_up.fuses() {
                    let (norm, x) = (&layer.prologues.ffn, Rows::dense(&x[..m * embd]));
                    expert.gate_up.forward_with(norm, x, None, m, wide, workspace, threads)?;
                } else {
                    self.norm(x, &layer.norms.ffn, normed)?;
                    expert.gate_up.forward(&normed[..m * embd], m, wide, workspace, threads)?;
                }
                self.down(expert, layer, m, [wide, inner, out], workspace)?;
                self.add(out, x)
            }
            Ffn::Mixture { router, mixture } => {
                let normed = &normed[..self.m * embd];
                self.route(index, router, normed, routing, workspace)?;
                self.mixture(mixture, layer, normed, x, routing, workspace)
            }
            Ffn::Experts { router, experts } => {
                let Some(sizes) = self.config.experts else { return Ok(()) };
                self.route(index, router, &normed[..self.m * embd], routing, workspace)?;
                let chosen = &routing.chosen[..self.m * sizes.used];
                // By rising number of the expert, so that a token's sum has one order whatever tokens are beside it.
                for (number, expert) in experts.iter().enumerate() {
                    routing.tokens.clear();
                    for (place, (of, weight)) in chosen.iter().enumerate() {
                        if *of as usize == number {
                            routing.tokens.push(((place / sizes.used) as u32, *weight));
                        }
                    }
                    if routing.tokens.is_empty() {
                        continue;
                    }
                    let inputs = &mut routing.inputs[..routing.tokens.len() * embd];
                    for ((token, _), input) in routing.tokens.iter().zip(inputs.chunks_mut(embd)) {
                        input.copy_from_slice(&normed[*token as usize * embd..][..embd]);
                    }
                    let m = routing.tokens.len();
                    self.expert(expert, layer, inputs, m, [wide, inner, out], workspace)?;
                    for ((token, weight), out) in routing.tokens.iter().zip(out.chunks(embd)) {
                        add_scaled(*weight, out, &mut x[*token as usize * embd..][..embd]);
                    }
                }
                Ok(())
            }
        }
    }

    /// Which experts each token goes through in layer `index`.
    fn route(
        &self,
        index: usize,
        router: &Joint,
        normed: &[f32],
        routing: &mut Routing,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let Some(sizes) = self.config.experts else { return Ok(()) };
        let scores = &mut routing.scores[..self.m * sizes.count];
        router.forward(normed, self.m, scores, workspace, self.threads)?;
        // No order of them is one where a score is NaN, and none has a weight where it is infinite.
        if let Some(at) = scores.iter().position(|score| !score.is_finite()) {
            let (token, expert) = (self.first + at / sizes.count, at % sizes.count);
            return Err(Error::Router { layer: index, token, expert, value: scores[at] });
        }
        choose(scores, sizes, &mut routing.chosen);
        Ok(())
    }

    /// All experts together, into `x`.
    fn mixture(
        &self,
        mixture: &Mixture,
        layer: &Layer,
        normed: &[f32],
        x: &mut [f32],
        routing: &mut Routing,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let Config { ffn, embd, experts: Some(sizes), .. } = *self.config else { return Ok(()) };
        let (m, threads) = (self.m, self.threads);
        let pairs = m * sizes.used;
        let Routing { chosen, pairs: PairBuffers { list, wide, inner, out }, .. } = routing;
        let chosen = &mut chosen[..pairs];
        // By rising number of the expert, so that a token's sum has one order whatever tokens are beside it.
        chosen.chunks_mut(sizes.used).for_each(|chosen| chosen.sort_unstable_by_key(|(expert, _)| *expert));
        let list = &mut list[..pairs];
        list.iter_mut().zip(&*chosen).for_each(|(to, (expert, _))| *to = *expert);
        let routes = Routes::each(m, sizes.used, list)?;
        let wide = &mut wide[..pairs * 2 * ffn];
        let mut rest = &mut *wide;
        for stack in &mixture.gate_up {
            let (y, behind) = rest.split_at_mut(pairs * stack.n());
            stack.forward(ExpertInput::Tokens(Input::F32(normed)), &routes, None, y, workspace, threads)?;
            rest = behind;
        }
        // Gate and up of a pair lie side by side where they are one stack.
        let (step, up) = if mixture.gate_up.len() == 1 { (2 * ffn, ffn) } else { (ffn, pairs * ffn) };
        let inner = &mut inner[..pairs * ffn];
        threads.chunks(inner, ffn, |pair, row| {
            let [gate, up] = [0, up].map(|first| &wide[pair * step + first..][..ffn]);
            gated(self.config.architecture.gate, gate, up, row);
            Ok::<(), Error>(())
        })?;
        if let Some(weight) = &layer.norms.ffn_sub {
            self.norm_rows(inner, ffn, weight)?;
        }
        let out = &mut out[..pairs * embd];
        mixture.down.forward(
            ExpertInput::Pairs(Input::F32(inner)),
            &routes,
            None,
            out,
            workspace,
            threads,
        )?;
        threads.chunks(&mut x[..m * embd], embd, |token, x| {
            for pair in token * sizes.used..(token + 1) * sizes.used {
                add_scaled(chosen[pair].1, &out[pair * embd..][..embd], x);
            }
            Ok(())
        })
    }

    fn expert(
        &self,
        expert: &Expert,
        layer: &Layer,
        x: &[f32],
        m: usize,
        [wide, inner, out]: [&mut [f32]; 3],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        expert.gate_up.forward(x, m, wide, workspace, self.threads)?;
        self.down(expert, layer, m, [wide, inner, out], workspace)
    }

    /// What an expert makes of the outputs of gate and up.
    fn down(
        &self,
        expert: &Expert,
        layer: &Layer,
        m: usize,
        [wide, inner, out]: [&mut [f32]; 3],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let Config { ffn, embd, .. } = *self.config;
        let out = &mut out[..m * embd];
        if expert.down.fuses() {
            let [gate, up] = [0, 1].map(|which| expert.gate_up.rows(wide, m, which));
            let prologue = &layer.prologues.down;
            return expert.down.forward_with(prologue, gate, Some(up), m, out, workspace, self.threads);
        }
        let inner = &mut inner[..m * ffn];
        self.threads.chunks(inner, ffn, |token, row| {
            let [gate, up] = [0, 1].map(|which| expert.gate_up.row(wide, m, which, token, ffn));
            gated(self.config.architecture.gate, gate, up, row);
            Ok::<(), Error>(())
        })?;
        if let Some(weight) = &layer.norms.ffn_sub {
            self.norm_rows(inner, ffn, weight)?;
        }
        expert.down.forward(inner, m, out, workspace, self.threads)
    }

    /// Logits of the last `rows` of `m` tokens.
    pub(crate) fn head(&self, weights: &Weights, buffers: &mut Buffers, rows: usize) -> Result<(), Error> {
        let Config { embd, vocab, .. } = *self.config;
        let Buffers { x, normed, logits, workspace, .. } = buffers;
        let x = &x[(self.m - rows) * embd..self.m * embd];
        let pass = Pass { m: rows, ..*self };
        pass.norm(x, &weights.output_norm, normed)?;
        let logits = &mut logits[..rows * vocab];
        weights.head.joint.forward(&normed[..rows * embd], rows, logits, workspace, self.threads)
    }
}

/// For each token the experts with the greatest probabilities, which are then made to add up to 1. Of equals the first. Scores are finite.
fn choose(scores: &mut [f32], sizes: ExpertCounts, chosen: &mut [(u32, f32)]) {
    for (scores, chosen) in scores.chunks_mut(sizes.count).zip(chosen.chunks_mut(sizes.used)) {
        softmax(scores);
        let mut sum = 0.0;
        for place in chosen.iter_mut() {
            let mut best = 0;
            for (number, score) in scores.iter().enumerate() {
                if *score > scores[best] {
                    best = number;
                }
            }
            *place = (best as u32, scores[best]);
            sum += scores[best];
            scores[best] = -1.0;
        }
        for (_, weight) in chosen {
            *weight /= sum;
        }
    }
}
