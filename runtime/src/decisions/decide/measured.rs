//! Orders of kernels that a tuning measured.

use super::candidate::Candidate;
use super::prepared::Prepared;
use super::tuned_class::{TunedBy, TunedClass};
use crate::decisions::thread_limits::ThreadLimits;
use crate::device::CpuProfile;
use crate::observe::{Cache, looked_up};
use crate::registry::KernelId;
use crate::request::Shape;
use crate::tuning::{self, Asked, ForThreads, ShapeClass, Tuning};
use gristmill_spec::vocab::{DeviceKind, Serves};

/// What was measured of each class.
type Orders<'t> = Vec<Option<ForThreads<'t>>>;

impl Prepared {
    /// Usable entries for each class: first those of the packing that weights of the class are held in. Of these and of the
    /// others, those that were measured take each other's places, and those that were not keep theirs.
    pub(super) fn follow(&mut self, tuning: &Tuning, cpu: &CpuProfile) {
        if tuning.measured().is_empty() {
            return;
        }
        let on = match &self.gpu {
            Some(Ok(gpu)) => tuning::gpu(gpu),
            Some(Err(_)) => return,
            None => tuning::cpu_of(cpu),
        };
        let (op, format, threads) = (self.op, self.format_name.clone(), self.threads);
        let quantizer = self.quantizer_name();
        let asked = Asked { on: &on, op, format: &format, quantizer, threads };
        let own: Orders<'_> = ShapeClass::all().map(|class| tuning.of_class(asked, class)).collect();
        let known = own.iter().any(Option::is_some);
        looked_up(Cache::Tuning, self.device, known);
        if !known {
            return;
        }
        let on_cpu = self.device.kind == DeviceKind::Cpu;
        let product = op.info().product;
        let order = |class: ShapeClass| {
            let mut near = class.fewer_but_many().filter(|_| on_cpu && product);
            // Rows are converted one by one: larger matrices are the same work more often, but for more threads.
            let mut smaller = class.of_fewer_weights().filter(|_| !product);
            let of = |class: ShapeClass| own[class.index()];
            let alike = || Some(ForThreads { fewer: None, ..smaller.find_map(of)? });
            of(class).or_else(|| near.find_map(of)).or_else(alike)
        };
        let tuned = ShapeClass::all().map(|class| self.tuned_class(&own, order(class), class)).collect();
        let fewer = ShapeClass::all().filter_map(|class| Some((class, order(class)?.fewer?)));
        self.limits = if on_cpu { ThreadLimits::new(fewer) } else { ThreadLimits::default() };
        self.tuned = tuned;
    }

    /// The quantizer by which lines of a tuning are found; `None` of ops without one.
    fn quantizer_name(&self) -> Option<&'static str> {
        let op = self.op.info();
        let of_formats = matches!(op.serves, Serves::Formats) && op.by_quantizer;
        let format = self.registry.formats.get(self.format?).filter(|_| of_formats)?;
        format.quantizers.get(self.quantizer).copied()
    }

    fn tuned_class(
        &self,
        own: &Orders<'_>,
        found: Option<ForThreads<'_>>,
        class: ShapeClass,
    ) -> Option<TunedClass> {
        let packing = self.measured_packing(own, class);
        if found.is_none() && packing.is_none() {
            return None;
        }
        let times = found.map_or(&[][..], |found| &found.measured.order);
        let measured = |candidate: &Candidate| times.iter().position(|(id, _)| *id == candidate.entry.id);
        // What reads the format's own rows competes where it was measured.
        let reads = |candidate: &Candidate| match candidate.packing() {
            None => measured(candidate).is_some(),
            own => own == packing,
        };
        let mut sorted = self.usable.to_vec();
        // Stable, as is what follows: what was not measured keeps its place.
        sorted.sort_by_key(|candidate| packing.is_some() && !reads(candidate));
        let held = sorted.partition_point(|candidate| packing.is_none() || reads(candidate));
        let (first, others) = sorted.split_at_mut(held);
        for group in [first, others] {
            in_order(group, measured);
        }
        let chosen_for_all =
            packing.filter(|_| self.device.kind == DeviceKind::Cpu && self.allowed.packing.is_none());
        Some(TunedClass {
            candidates: sorted.into(),
            times: times.into(),
            threads: found.map_or(1, |found| found.measured.threads),
            packing: chosen_for_all,
        })
    }

    /// The packing that weights of a class are held in for all numbers of tokens, so that they are held once: the one
    /// that was asked for, or else the one whose kernels lose least to the fastest of each class. `own` is what was
    /// measured of each class. On GPUs the one that is held once, which no tuning changes; none where the fastest were asked for.
    fn measured_packing(&self, own: &Orders<'_>, class: ShapeClass) -> Option<&'static str> {
        if self.allowed.packing.is_some() {
            return self.allowed.packing;
        }
        if class.siblings().all(|class| own[class.index()].is_none()) {
            return None;
        }
        if self.device.kind != DeviceKind::Cpu {
            // What was measured of some numbers of tokens says nothing of others: prefill by a kernel for one token.
            return self.held_once.map(|once| once.packing);
        }
        let loss = |packing: &str| -> f64 {
            let of_class = |class: ShapeClass| {
                let order = own[class.index()].map_or(&[][..], |found| &found.measured.order);
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

    /// What was measured for a shape.
    #[inline]
    pub(super) fn tuned_for(&self, shape: Shape) -> Option<&TunedClass> {
        self.tuned.get(ShapeClass::of(shape).index())?.as_ref()
    }

    /// What a tuning says of `chosen` for a shape.
    pub(super) fn tuned_by(&self, shape: Shape, chosen: &Candidate) -> Option<TunedBy> {
        let class = self.tuned_for(shape)?;
        let name = |id: KernelId| self.usable.iter().find(|c| c.entry.id == id).map(|c| c.entry.name);
        Some(TunedBy {
            threads: class.threads,
            fewer_threads: self.limits.of(shape),
            us: class.time(chosen),
            fastest: class.times.iter().find_map(|(id, us)| Some((name(*id)?, *us))),
            packing: class.packing,
        })
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
