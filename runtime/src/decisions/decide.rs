//! The one place that answers: is there a kernel, which one, and why not the others?
//!
//! [`Registry::prepare`] resolves names, features and restrictions once; [`Prepared::decide`] then only
//! compares the numbers of a shape, without allocating or locking. Reasons are worked out when read.
#![deny(clippy::wildcard_enum_match_arm, clippy::match_wildcard_for_single_variants)]

mod allowed;
mod alternatives;
mod candidate;
mod decision;
mod held_once;
mod measured;
mod prepared;
mod rules;
mod tuned_class;
mod working_set;

pub(crate) use candidate::Candidate;
pub use decision::Decision;

pub use prepared::Prepared;
pub(crate) use rules::broken_rule;
pub use tuned_class::TunedBy;

use crate::registry::{Code, CudaBuild, DimRule, Entry, NoImage, Registry, WithoutImage, image_for};
use allowed::Allowed;
use rules::{fits, keeps, without};

use crate::cuda::Place;
use crate::decisions::thread_limits::ThreadLimits;
use crate::decisions::why_packed::FromMemory;
use crate::decisions::why_packed::HeldOnce;
use crate::descriptions::names;
use crate::device::{CpuProfile, Device};
use crate::error::Error;
use crate::gpu::{GpuProfile, NoGpu};
use crate::reason::Reason;
use crate::request::{PrecisionMode, Request, Restrict, Shape};
use crate::require::{Missing, NOTHING_HELD, lacks_cuda, missing};
use crate::tuning::{ShapeClass, Tuning};
use gristmill_spec::vocab::{CudaArch, DType, DeviceKind, FeatureSet, Op, Precision, Serves};
use std::sync::Arc;

/// Entries that decisions choose among, for weights of one shape.
#[derive(Debug)]
pub(crate) struct Covering {
    pub(crate) needed: Vec<Candidate>,
    /// Some entry takes each `m` from 1 up: `open` is empty.
    pub(crate) every_m: bool,
    /// Inclusive ranges of other `m`.
    open: Vec<(u64, u64)>,
}

impl Registry {
    /// Resolves a request for the processor this program runs on, without restrictions and without a tuning. The environment is
    /// not read.
    ///
    /// A request that no kernel can serve is not an error here: its decisions say why.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`], [`Error::NotCompiled`].
    pub fn prepare(&'static self, request: &Request<'_>) -> Result<Prepared, Error> {
        self.prepare_for(request, CpuProfile::detect(), &Restrict::default())
    }

    /// As [`prepare`](Registry::prepare), under the restrictions that the environment states ([`Restrict::from_env`]), in the order
    /// of the tuning file that `GRISTMILL_TUNING` names, if it names one. This is what the command does.
    ///
    /// # Errors
    /// [`Error::Environment`] for a variable that can't be understood; what names a kernel or packing that is not there.
    pub fn prepare_from_env(&'static self, request: &Request<'_>) -> Result<Prepared, Error> {
        self.prepare_tuned(request, CpuProfile::detect(), &Restrict::from_env()?, &Tuning::from_env(self)?)
    }

    /// Resolves a request for any processor and restriction, so that a choice can be asked for
    /// without owning the machine. The environment is not read, and no tuning used.
    ///
    /// # Errors
    /// A restriction that names a kernel that is not there.
    pub fn prepare_for(
        &'static self,
        request: &Request<'_>,
        cpu: &CpuProfile,
        restrict: &Restrict,
    ) -> Result<Prepared, Error> {
        self.prepare_tuned(request, cpu, restrict, &Tuning::none())
    }

    /// As [`prepare_for`](Registry::prepare_for), with kernels in measured order where `tuning` has one of `cpu`, by the name that
    /// [`tuning::cpu_of`](crate::tuning::cpu_of) gives it, or of the request's GPU.
    ///
    /// # Errors
    /// A restriction that names a kernel that is not there.
    pub fn prepare_tuned(
        &'static self,
        request: &Request<'_>,
        cpu: &CpuProfile,
        restrict: &Restrict,
        tuning: &Tuning,
    ) -> Result<Prepared, Error> {
        let gpu = match request.device.kind {
            DeviceKind::Cuda => Some(crate::cuda::detect(request.device.index)),
            DeviceKind::Cpu | DeviceKind::Rocm | DeviceKind::Metal => None,
        };
        self.prepare_all(request, cpu, gpu, restrict, tuning)
    }

    /// As [`prepare_for`](Registry::prepare_for), also for any GPU, there or not. It is asked about where the request
    /// is for one; no driver is looked for.
    ///
    /// # Errors
    /// A restriction that names a kernel that is not there.
    pub fn prepare_on(
        &'static self,
        request: &Request<'_>,
        cpu: &CpuProfile,
        gpu: Option<Result<GpuProfile, NoGpu>>,
        restrict: &Restrict,
    ) -> Result<Prepared, Error> {
        self.prepare_all(request, cpu, gpu, restrict, &Tuning::none())
    }

    fn prepare_all(
        &'static self,
        request: &Request<'_>,
        cpu: &CpuProfile,
        gpu: Option<Result<GpuProfile, NoGpu>>,
        restrict: &Restrict,
        tuning: &Tuning,
    ) -> Result<Prepared, Error> {
        let allowed = Allowed::resolve(self, restrict, request.op)?;
        let mut prepared = Prepared {
            registry: self,
            op: request.op,
            format_name: request.format.to_owned(),
            format: None,
            quantizer: 0,
            input: request.input,
            precision: request.precision,
            device: request.device,
            place: Place::at(request.device.index),
            shape: request.shape,
            elements: 1,
            obstacle: None,
            candidates: Box::default(),
            usable: Box::default(),
            threads: request.threads.max(1),
            tuned: Box::default(),
            limits: ThreadLimits::default(),
            from_memory: None,
            held_once: None,
            activations: None,
            prologue: None,
            features: cpu.features,
            gpu: gpu.clone(),
            without: Box::default(),
            allowed,
        };
        prepared.obstacle = prepared.resolve(request).err();
        prepared.usable = prepared
            .candidates
            .iter()
            .filter(|c| prepared.refused_always(c.entry).is_none() && prepared.allows(c))
            .copied()
            .collect();
        prepared.from_memory = prepared.fewest_bytes(request, &cpu.caches);
        if let Some(FromMemory { packing, .. }) = prepared.from_memory {
            // Stable: otherwise they keep their order.
            prepared.usable.sort_by_key(|candidate| candidate.packing() != Some(packing));
        }
        let quantized_by = request.op.info().quantized_by;
        if let (Some(op), None, Some(format)) = (quantized_by, &prepared.obstacle, prepared.format) {
            match request.input {
                DType::I8 => {}
                DType::F32 | DType::F16 | DType::Bf16 => {
                    let inner = self.activation_request(op, format, request);
                    prepared.activations =
                        Some(Arc::new(self.prepare_on(&inner, cpu, gpu.clone(), restrict)?));
                    if let Some(op) = request.op.info().prologue {
                        let inner = self.activation_request(op, format, request);
                        prepared.prologue = Some(Arc::new(self.prepare_on(&inner, cpu, gpu, restrict)?));
                    }
                }
            }
        }
        prepared.held_once = prepared.in_one_packing();
        if let Some(HeldOnce { packing, .. }) = prepared.held_once {
            prepared.usable.sort_by_key(|candidate| candidate.packing() != Some(packing));
        }
        prepared.follow(tuning, cpu);
        Ok(prepared)
    }

    /// The request for making the activations of a product int8 by `op`.
    fn activation_request<'a>(&self, op: Op, format: usize, request: &Request<'a>) -> Request<'a> {
        Request {
            op,
            format: self.activations[self.formats[format].activations].name,
            quantizer: None,
            input: DType::F32,
            device: request.device,
            shape: request.shape,
            precision: PrecisionMode::Int8,
            working_set: None,
            threads: request.threads,
        }
    }

    fn candidates_of(&'static self, op: Op, format: usize, dtype: DType, kind: DeviceKind) -> Vec<Candidate> {
        self.listed(op, format, dtype, kind)
            .iter()
            .filter_map(|index| {
                let index = usize::from(*index);
                self.entries.get(index).map(|entry| Candidate { index, entry })
            })
            .collect()
    }
}

impl Prepared {
    /// Looks up the names of `request`; an error is the reason that holds for every kernel.
    fn resolve(&mut self, request: &Request<'_>) -> Result<(), Reason> {
        let registry = self.registry;
        let op = request.op.info();
        let format = registry.served(request.op).position(|name| name == request.format);
        let Some(format) = format else { return Err(registry.no_format(request.op, request.format)) };
        self.format = Some(format);
        match op.serves {
            Serves::Activations => {}
            Serves::Formats => self.elements = registry.formats[format].elements,
        }
        if op.by_quantizer
            && let Some(name) = request.quantizer
        {
            let known = registry.formats[format].quantizers;
            self.quantizer =
                known.iter().position(|known| *known == name).ok_or_else(|| Reason::NoQuantizer {
                    name: name.to_owned(),
                    nearest: names::nearest(name, known.iter().copied()),
                    known,
                })?;
        }
        let mut candidates = registry.candidates_of(request.op, format, request.input, request.device.kind);
        candidates.retain(|c| !op.by_quantizer || c.entry.quantizer == self.quantizer);
        if request.device.kind == DeviceKind::Cuda {
            // Quantizers stand in the names of kernels, behind the format.
            let asked = |kernel: &&WithoutImage| kernel.op == request.op && kernel.format == format;
            self.without = registry.without_image.iter().filter(asked).collect();
        }
        if candidates.is_empty() {
            return Err(registry.nothing_described(request.op, format, request.input, request.device.kind));
        }
        if let Some(preferred) = self.allowed.packing {
            // Stable: otherwise they keep their order.
            candidates.sort_by_key(|candidate| candidate.packing() != Some(preferred));
        }
        self.candidates = candidates.into();
        Ok(())
    }

    /// What the machine lacks for a candidate, whatever the shape: the device, or features of it.
    fn lacks(&self, entry: &Entry) -> Option<Reason> {
        match self.device.kind {
            DeviceKind::Cpu if self.device.index == 0 => {}
            DeviceKind::Cuda => return self.gpu_lacks(entry),
            // Nothing in this package drives another device yet, so none is ever there.
            DeviceKind::Cpu | DeviceKind::Rocm | DeviceKind::Metal => {
                return Some(Reason::DeviceAbsent { device: self.device });
            }
        }
        let missing = self.features.missing(entry.features);
        (missing != FeatureSet::EMPTY).then_some(Reason::FeaturesMissing { missing })
    }

    /// Why a candidate serves no shape: what the machine lacks, or that it multiplies something else.
    fn refused_always(&self, entry: &Entry) -> Option<Reason> {
        let other = |found: &Precision| !self.precision.allows(*found);
        let precision = || entry.precision().filter(other);
        self.lacks(entry).or_else(|| Some(Reason::Precision { asked: self.precision, found: precision()? }))
    }

    /// Usable entries in the order that holds for a shape.
    #[inline]
    fn order_for(&self, shape: Shape) -> &[Candidate] {
        self.tuned_for(shape).map_or(&self.usable, |tuned| &tuned.candidates)
    }

    /// What a GPU lacks: itself, instructions, an image, a driver for it.
    fn gpu_lacks(&self, entry: &Entry) -> Option<Reason> {
        let absent = Reason::DeviceAbsent { device: self.device };
        let gpu = match &self.gpu {
            Some(Ok(gpu)) => gpu,
            Some(Err(why)) => return Some(Reason::NoGpu(why.clone())),
            None => return Some(absent),
        };
        let Code::Cuda(code) = &entry.code else { return Some(absent) };
        if gpu.cc < code.min_cc {
            return Some(Reason::CapabilityTooLow { needed: code.min_cc, found: gpu.cc });
        }
        match image_for(code.images, gpu.cc, gpu.driver) {
            Ok(_) => None,
            Err(NoImage::Architecture { built }) => Some(Reason::ArchitectureNotBuilt { cc: gpu.cc, built }),
            Err(NoImage::Driver { needed }) => {
                Some(Reason::DriverTooOld { cc: gpu.cc, found: gpu.driver, needed })
            }
        }
    }

    fn allows(&self, candidate: &Candidate) -> bool {
        self.allowed.refuses(self.registry, candidate).is_none()
    }

    /// Whether rows of `k` would end within a block.
    #[inline]
    fn splits_a_block(&self, k: usize) -> bool {
        self.elements > 1 && !k.is_multiple_of(self.elements)
    }

    /// Chooses for a shape: the first usable entry whose rules the shape keeps.
    #[inline]
    pub fn decide(&self, shape: Shape) -> Decision<'_> {
        Decision { prepared: self, shape, chosen: self.first_fit(shape) }
    }

    /// Chooses for the shape of the request.
    pub fn decide_as_asked(&self) -> Decision<'_> {
        self.decide(self.shape)
    }

    #[inline]
    fn first_fit(&self, shape: Shape) -> Option<Candidate> {
        if self.splits_a_block(shape.k) {
            return None;
        }
        let order = if self.tuned.is_empty() { &*self.usable } else { self.order_for(shape) };
        let mut fitting = order.iter().filter(|candidate| fits(&candidate.entry.shape, shape));
        let found = match &self.activations {
            Some(activations) => {
                fitting.find(|candidate| !candidate.takes_int8() || activations.first_fit(shape).is_some())
            }
            None => fitting.next(),
        };
        found.copied()
    }

    /// The registry that was asked.
    pub fn registry(&self) -> &'static Registry {
        self.registry
    }

    /// The format, as it was asked for.
    pub fn format_name(&self) -> &str {
        &self.format_name
    }

    /// The op that was asked for.
    pub fn op(&self) -> Op {
        self.op
    }

    /// The device that was asked for.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The GPU that it is for, if it is for one that is there.
    pub fn gpu(&self) -> Option<&GpuProfile> {
        self.gpu.as_ref()?.as_ref().ok()
    }

    /// The type of the unpacked operand.
    pub fn input(&self) -> DType {
        self.input
    }

    /// Entries that this processor and the restrictions allow, in order of preference.
    pub(crate) fn usable(&self) -> &[Candidate] {
        &self.usable
    }

    /// How the activations of a product get to int8.
    pub(crate) fn activations(&self) -> Option<&Prepared> {
        self.activations.as_deref()
    }

    pub(crate) fn activations_shared(&self) -> Option<Arc<Prepared>> {
        self.activations.clone()
    }

    /// How they do so behind a prologue.
    pub(crate) fn prologue_shared(&self) -> Option<Arc<Prepared>> {
        self.prologue.clone()
    }

    /// The entries that decisions may choose for weights of `n` rows of `k`, over every `m` from 1 up.
    pub(crate) fn covering(&self, n: usize, k: usize) -> Covering {
        if self.splits_a_block(k) {
            return Covering { needed: Vec::new(), every_m: false, open: vec![(1, u64::MAX)] };
        }
        let mut covering = Covering { needed: Vec::new(), every_m: true, open: Vec::new() };
        // What takes int8 closes no `m` for which nothing makes activations int8.
        let activations = self.activations.as_ref().map(|activations| activations.covering(n, k));
        // Without a tuning all m have one order; with one, each class has its own.
        let classes: Vec<(u64, u64)> = match self.tuned.is_empty() {
            true => vec![(1, u64::MAX)],
            false => (0..)
                .scan(1usize, |from, _: u32| {
                    let first = (*from > 0).then_some(*from)?;
                    let (_, to) = ShapeClass::of(Shape { m: first, n, k }).tokens();
                    *from = to.checked_add(1).unwrap_or(0);
                    Some((first as u64, to as u64))
                })
                .collect(),
        };
        for class in classes {
            let m = usize::try_from(class.0).unwrap_or(usize::MAX);
            let mut open = vec![class];
            for candidate in self.order_for(Shape { m, n, k }) {
                let DimRule { min, max, multiple_of } = candidate.entry.shape.m;
                let rules = &candidate.entry.shape;
                let takes_some = open.iter().any(|(from, to)| min <= *to && max >= *from);
                let quantized = activations.as_ref().filter(|_| candidate.takes_int8());
                let no_activations = quantized.is_some_and(|activations| activations.needed.is_empty());
                if !takes_some || no_activations || !keeps(&rules.n, n) || !keeps(&rules.k, k) {
                    continue;
                }
                if covering.needed.iter().all(|needed| needed.index != candidate.index) {
                    covering.needed.push(*candidate);
                }
                if multiple_of <= 1 {
                    let not_quantized = quantized.map_or(&[][..], |activations| &activations.open);
                    let closed = not_quantized.iter().fold(vec![(min, max)], |closed, (from, to)| {
                        closed.into_iter().flat_map(|range| without(range, *from, *to)).collect()
                    });
                    for (min, max) in closed {
                        open = open.into_iter().flat_map(|range| without(range, min, max)).collect();
                    }
                }
            }
            covering.open.extend(open);
        }
        covering.every_m = covering.open.is_empty();
        covering
    }

    /// A request like this one for the same processor and restrictions, but for another op and type.
    pub(crate) fn sibling(&self, op: Op, input: DType, shape: Shape) -> Result<Prepared, Error> {
        let (format, device, precision) = (self.format_name.as_str(), self.device, self.precision);
        let request = Request {
            op,
            format,
            quantizer: None,
            input,
            device,
            shape,
            precision,
            working_set: None,
            threads: self.threads,
        };
        let name = |index: usize| self.registry.entries.get(index).map(|entry| entry.name.to_owned());
        let restrict = Restrict {
            isa: self.allowed.isa,
            kernel: self.allowed.kernel.clone(),
            disabled: self.allowed.disabled.iter().copied().filter_map(name).collect(),
            quarantined: self.allowed.quarantined.iter().map(|(_, kernel)| kernel.clone()).collect(),
            packing: self.allowed.packing.map(str::to_owned),
            packings: self.allowed.packings,
        };
        let cpu = CpuProfile::pretend(CpuProfile::detect().arch, self.features);
        let prepared = self.registry.prepare_on(&request, &cpu, self.gpu.clone(), &restrict)?;
        Ok(Prepared { place: self.place.clone(), ..prepared })
    }
}

impl Registry {
    fn no_format(&'static self, op: Op, name: &str) -> Reason {
        if let Some(left_out) = self.left_out.iter().find(|left_out| left_out.format == name) {
            return Reason::NotCompiled { format: left_out.format, feature: left_out.feature };
        }
        let known: Vec<&'static str> = self.served(op).collect();
        let nearest = names::nearest(name, known.iter().copied());
        Reason::NoSpec { name: name.to_owned(), nearest, known }
    }

    /// Why a kernel that is described has no image.
    fn not_built(&self, failures: &'static [(CudaArch, &'static str)]) -> Reason {
        match self.cuda {
            CudaBuild::FeatureOff => Reason::CudaFeatureOff,
            CudaBuild::NoToolchain { looked } => Reason::NoToolchain { looked },
            CudaBuild::Built { .. } => Reason::NoImageBuilt { failures },
        }
    }

    /// Which of op, type and device it is that nothing is described for.
    fn nothing_described(&'static self, op: Op, format: usize, dtype: DType, kind: DeviceKind) -> Reason {
        if kind == DeviceKind::Cuda {
            let described =
                self.without_image.iter().any(|kernel| kernel.op == op && kernel.format == format);
            if lacks_cuda(self.cuda, described, !self.without_image.is_empty()) {
                return self.not_built(&[]);
            }
        }
        // Formats and activation formats are numbered apart, so the ops of one say nothing of the other.
        let mut held = NOTHING_HELD;
        for other in Op::ALL.iter().copied().filter(|other| other.serves_like(op)) {
            for (dtype, device) in
                DType::ALL.iter().flat_map(|d| DeviceKind::ALL.iter().map(move |k| (*d, *k)))
            {
                held[other as usize][dtype as usize][device as usize] =
                    !self.listed(other, format, dtype, device).is_empty();
            }
        }
        let on_any_device = |op: &Op| held[*op as usize].as_flattened().contains(&true);
        match missing(&held, op, dtype, kind) {
            Some(Missing::Input) => {
                let here = |other: &DType| held[op as usize][*other as usize][kind as usize];
                Reason::DTypeNotDescribed {
                    dtype,
                    described: DType::ALL.iter().copied().filter(here).collect(),
                }
            }
            Some(Missing::Device) => Reason::DeviceNotDescribed { kind },
            Some(Missing::Op) | None => Reason::OpNotDescribed {
                op,
                described: Op::ALL.iter().copied().filter(on_any_device).collect(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn ranges_without_a_range() {
        let left = |range, min, max| without(range, min, max).collect::<Vec<_>>();
        assert_eq!(left((1, u64::MAX), 0, 3), [(4, u64::MAX)]);
        assert_eq!(left((1, u64::MAX), 4, u64::MAX), [(1, 3)]);
        assert_eq!(left((1, 10), 3, 5), [(1, 2), (6, 10)]);
        assert_eq!(left((1, 10), 0, u64::MAX), []);
        assert_eq!(left((5, 10), 20, 30), [(5, 10)]);
        assert_eq!(left((5, 10), 1, 2), [(5, 10)]);
        assert_eq!(left((5, 10), 1, 5), [(6, 10)]);
    }
}
