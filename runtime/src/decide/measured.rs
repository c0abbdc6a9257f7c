//! Orders of kernels that a tuning measured.

use super::candidate::Candidate;
use super::prepared::Prepared;
use crate::registry::KernelId;
use crate::request::Shape;
use crate::tuning::{self, ShapeClass, Tuning};
use gristmill_spec::vocab::DeviceKind;

impl Prepared {
    /// Usable entries for each class: first those of the packing that weights of the class are held in. Of these and of the
    /// others, those that were measured take each other's places, and those that were not keep theirs.
    pub(super) fn in_measured_order(&self, tuning: &Tuning) -> Box<[Box<[Candidate]>]> {
        if tuning.measured().is_empty() {
            return Box::default();
        }
        let on = match &self.gpu {
            Some(Ok(gpu)) => tuning::gpu(gpu),
            Some(Err(_)) => return Box::default(),
            None => tuning::cpu().to_owned(),
        };
        let order = |class| tuning.order(&on, self.op, &self.format_name, class);
        if ShapeClass::all().all(|class| order(class).is_empty()) {
            return Box::default();
        }
        let sorted = |class: ShapeClass| -> Box<[Candidate]> {
            let packing = self.measured_packing(&order, class);
            let mut near = class.fewer_but_many().filter(|_| self.device.kind == DeviceKind::Cpu);
            let order = match order(class) {
                [] => near.find_map(|class| Some(order(class)).filter(|order| !order.is_empty())),
                own => Some(own),
            };
            let order = order.unwrap_or_default();
            if order.is_empty() && packing.is_none() {
                return Box::default();
            }
            let measured = |candidate: &Candidate| order.iter().position(|(id, _)| *id == candidate.entry.id);
            // What reads the format's own rows competes where it was measured.
            let reads = |candidate: &Candidate| match candidate.packing() {
                None => measured(candidate).is_some(),
                own => own == packing,
            };
            let mut sorted = self.usable.to_vec();
            // Stable, as is what follows: what was not measured keeps its place.
            sorted.sort_by_key(|candidate| packing.is_some() && !reads(candidate));
            let held = sorted.partition_point(|candidate| packing.is_none() || reads(candidate));
            let (own, others) = sorted.split_at_mut(held);
            for group in [own, others] {
                in_order(group, measured);
            }
            sorted.into()
        };
        ShapeClass::all().map(sorted).collect()
    }

    /// The packing that weights of a class are held in for all numbers of tokens, so that they are held once: the one
    /// that was asked for, or else the one whose kernels lose least to the fastest of each class. `order` is what was
    /// measured of a class. On GPUs the one that is held once, which no tuning changes; none where the fastest were asked for.
    fn measured_packing<'t>(
        &self,
        order: &impl Fn(ShapeClass) -> &'t [(KernelId, f64)],
        class: ShapeClass,
    ) -> Option<&'static str> {
        if self.allowed.packing.is_some() {
            return self.allowed.packing;
        }
        let measured = || class.siblings().any(|class| !order(class).is_empty());
        if !measured() {
            return None;
        }
        if self.device.kind != DeviceKind::Cpu {
            // What was measured of some numbers of tokens says nothing of others: prefill by a kernel for one token.
            return self.held_once.map(|once| once.packing);
        }
        let loss = |packing: &str| -> f64 {
            let of_class = |class: ShapeClass| {
                let order = order(class);
                let reads = |(id, _): &&(KernelId, f64)| {
                    self.usable.iter().any(|c| c.entry.id == *id && c.packing() == Some(packing))
                };
                match (order.first(), order.iter().find(reads)) {
                    (None, _) => 1.0,
                    (Some(_), None) => f64::INFINITY,
                    (Some((_, best)), Some((_, us))) => us / best,
                }
            };
            class.siblings().map(of_class).product()
        };
        let packings = self.usable.iter().filter_map(Candidate::packing);
        let best = packings.map(|packing| (packing, loss(packing))).min_by(|a, b| a.1.total_cmp(&b.1));
        best.filter(|(_, loss)| loss.is_finite()).map(|(packing, _)| packing)
    }

    /// Whether the order for a shape was measured.
    pub(super) fn is_tuned(&self, shape: Shape) -> bool {
        self.tuned.get(ShapeClass::of(shape).index()).is_some_and(|tuned| !tuned.is_empty())
    }
}

/// Puts the candidates that were measured in their order, on the places that they have among the others.
fn in_order(candidates: &mut [Candidate], measured: impl Fn(&Candidate) -> Option<usize>) {
    let places: Vec<usize> =
        (0..candidates.len()).filter(|place| measured(&candidates[*place]).is_some()).collect();
    let mut sorted: Vec<Candidate> = places.iter().map(|place| candidates[*place]).collect();
    sorted.sort_by_key(&measured);
    for (place, candidate) in places.into_iter().zip(sorted) {
        candidates[place] = candidate;
    }
}
