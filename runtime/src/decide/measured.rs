//! Orders of kernels that a tuning measured.

use super::candidate::Candidate;
use super::prepared::Prepared;
use crate::registry::KernelId;
use crate::request::Shape;
use crate::tuning::{self, ShapeClass, Tuning};
use gristmill_spec::vocab::DeviceKind;

impl Prepared {
    /// Usable entries for each class, those that were measured first; before them, those of the packing that weights of
    /// the class are held in.
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
            let order = order(class);
            if order.is_empty() && packing.is_none() {
                return Box::default();
            }
            let place = |candidate: &Candidate| {
                let measured = order.iter().position(|(id, _)| *id == candidate.entry.id);
                // What reads the format's own rows competes where it was measured.
                let reads = match candidate.packing() {
                    None => measured.is_some(),
                    own => own == packing,
                };
                let other = packing.is_some() && !reads;
                (other, measured.unwrap_or(usize::MAX))
            };
            let mut sorted = self.usable.to_vec();
            // Stable: what was not measured keeps its order.
            sorted.sort_by_key(place);
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
