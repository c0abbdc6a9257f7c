//! The answer for one shape, and why each other kernel is not it.

use super::candidate::Candidate;
use super::prepared::Prepared;
use super::rules::broken_rule;
use super::tuned_class::TunedBy;
use crate::decisions::why_packed::FromMemory;
use crate::decisions::why_packed::HeldOnce;
use crate::error::Error;
use crate::occupancy::{BlockNeeds, Multiprocessor, Occupancy};
use crate::quarantine::Quarantined;
use crate::reason::{Reason, Refusal, Rejection, write_rejections};
use crate::registry::{Code, CudaImage, Entry, image_for};
use crate::request::Shape;

/// The answer for one shape: a kernel, or none, and the reasons.
#[derive(Clone, Copy, Debug)]
pub struct Decision<'p> {
    pub(super) prepared: &'p Prepared,
    pub(super) shape: Shape,
    pub(super) chosen: Option<Candidate>,
}

impl<'p> Decision<'p> {
    /// The kernel, if there is one.
    #[inline]
    pub fn chosen(&self) -> Option<&'static Entry> {
        self.chosen.map(|candidate| candidate.entry)
    }

    /// The image of the chosen kernel that the GPU loads, unless its driver refuses that and takes another; `None` on the processor, and where there is no kernel.
    pub fn image(&self) -> Option<&'static CudaImage> {
        match (&self.chosen?.entry.code, self.prepared.gpu()) {
            (Code::Cuda(code), Some(gpu)) => image_for(code.images, gpu.cc, gpu.driver).ok(),
            _ => None,
        }
    }

    /// How many CUDA blocks of the function that does the work a multiprocessor of the GPU holds at once, where blocks have as many
    /// threads as they may have. `None` on the processor, where there is no kernel, for PTX, of which the driver decides, and for devices
    /// that [`Multiprocessor`] does not know.
    pub fn occupancy(&self) -> Option<Occupancy> {
        let (image, gpu) = (self.image()?, self.prepared.gpu()?);
        let Code::Cuda(code) = &self.chosen?.entry.code else { return None };
        let (function, given) = code.launch.functions().pop()?;
        let usage = image.usage_of(function)?;
        let block = BlockNeeds {
            threads: code.launch.threads(),
            registers: usage.registers,
            shared: usage.shared.saturating_add(given),
        };
        Some(Multiprocessor::of(gpu.cc)?.occupancy(&block))
    }

    pub(crate) fn candidate(&self) -> Result<Candidate, Error> {
        self.chosen.ok_or_else(|| self.refuse())
    }

    /// What was asked, without the shape.
    pub fn prepared(&self) -> &'p Prepared {
        self.prepared
    }

    /// The shape that was asked about.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The kernel, or an error that says why there is none.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`], [`Error::NotCompiled`], [`Error::KNotMultiple`] where that is the whole
    /// reason, else [`Error::NoKernel`] with the reason for each kernel.
    pub fn kernel(&self) -> Result<&'static Entry, Error> {
        self.candidate().map(|candidate| candidate.entry)
    }

    /// Why the chosen kernel's packing is the one with the fewest bytes and not the one that is fastest from caches; `None`
    /// where that is not why it was chosen.
    pub fn packing_reason(&self) -> Option<&'p FromMemory> {
        let why = self.prepared.packing_reason(self.shape.n, self.shape.k)?;
        (self.chosen?.packing() == Some(why.packing)).then_some(why)
    }

    /// Why weights on a GPU are held in the chosen kernel's packing and not in the one of the kernel that is preferred for one
    /// token; `None` where that is not why it was chosen.
    pub fn once_reason(&self) -> Option<&'p HeldOnce> {
        let why = self.prepared.once_reason()?;
        (self.chosen?.packing() == Some(why.packing)).then_some(why)
    }

    /// What the tuning says by which it was chosen; `None` where none says something of this format and class of shapes.
    pub fn tuned_by(&self) -> Option<TunedBy> {
        self.prepared.tuned_by(self.shape, self.chosen.as_ref()?)
    }

    /// Why each kernel that was not chosen was not, in order of preference. Worked out as it is read.
    pub fn rejected(&self) -> impl Iterator<Item = Rejection> + use<'p> {
        let Decision { prepared, shape, chosen } = *self;
        // What holds for all kernels of a kind of device is said of each by name, where the names are known.
        let by_name = |reason: &Reason| {
            !prepared.without.is_empty()
                && matches!(
                    reason,
                    Reason::CudaFeatureOff | Reason::NoToolchain { .. } | Reason::NoImageBuilt { .. }
                )
        };
        let obstacle = prepared.obstacle.clone().filter(|reason| !by_name(reason));
        let whole = obstacle.map(|reason| Rejection { kernel: None, reason });
        let each = prepared
            .candidates
            .iter()
            .filter(move |candidate| chosen.is_none_or(|chosen| chosen.index != candidate.index))
            .filter_map(move |candidate| {
                let reason = prepared.reason(candidate, shape, chosen)?;
                Some(Rejection { kernel: Some(candidate.entry.name), reason })
            });
        let without = prepared.without.iter().map(|kernel| Rejection {
            kernel: Some(kernel.name),
            reason: prepared.registry.not_built(kernel.failures),
        });
        whole.into_iter().chain(each).chain(without)
    }

    pub(crate) fn refusal(&self) -> Refusal {
        Refusal {
            op: self.prepared.op,
            format: self.prepared.format_name.clone(),
            input: self.prepared.input,
            device: self.prepared.device,
            shape: self.shape,
            rejected: self.rejected().collect(),
        }
    }

    fn refuse(&self) -> Error {
        match &self.prepared.obstacle {
            Some(Reason::NoSpec { name, nearest, known }) => {
                return Error::UnknownFormat { name: name.clone(), nearest: *nearest, known: known.clone() };
            }
            Some(Reason::NotCompiled { format, feature }) => return Error::NotCompiled { format, feature },
            Some(_) | None => {}
        }
        if let Some(format) = self.prepared.partial_block(self.shape)
            && !self.prepared.usable.is_empty()
        {
            return Error::KNotMultiple { format, elements: self.prepared.elements, k: self.shape.k };
        }
        Error::NoKernel(Box::new(self.refusal()))
    }
}

impl Prepared {
    /// The format's name, if the shape's rows are not whole blocks of it.
    fn partial_block(&self, shape: Shape) -> Option<&'static str> {
        let format = self.registry.formats.get(self.format?)?;
        (self.splits_a_block(shape.k)).then_some(format.name)
    }

    /// Kernels in quarantine that would come into question otherwise, the activations' too, each with what was seen of it and the decisions
    /// that are made without it.
    pub(crate) fn quarantined(&self) -> impl Iterator<Item = (&'static Entry, &Quarantined, &Prepared)> {
        let inner = self.activations.as_deref().into_iter().chain(self.prologue.as_deref());
        std::iter::once(self).chain(inner).flat_map(|prepared| {
            let runs = |candidate: &&Candidate| prepared.refused_always(candidate.entry).is_none();
            prepared.candidates.iter().filter(runs).filter_map(move |candidate| {
                Some((candidate.entry, prepared.allowed.quarantined(candidate)?, prepared))
            })
        })
    }

    /// Why `candidate` was not chosen, in the order in which the design lists reasons. `None` if it is
    /// as good as the chosen one, which only an entry that stands twice in the list can be.
    fn reason(&self, candidate: &Candidate, shape: Shape, chosen: Option<Candidate>) -> Option<Reason> {
        if let Some(refused) = self.refused_always(candidate.entry) {
            return Some(refused);
        }
        if self.splits_a_block(shape.k) {
            return Some(Reason::PartialBlock { elements: self.elements as u64, k: shape.k as u64 });
        }
        if let Some(rule) = broken_rule(&candidate.entry.shape, shape) {
            return Some(Reason::ShapeRule(rule));
        }
        if let Some(refused) = self.allowed.refuses(self.registry, candidate) {
            return Some(refused);
        }
        // Whatever was chosen instead: it takes its activations otherwise.
        if let Some(activations) = self.activations.as_ref().filter(|_| candidate.takes_int8())
            && activations.first_fit(shape).is_none()
        {
            return Some(Reason::NoActivations(Box::new(activations.decide(shape).refusal())));
        }
        let chosen = chosen?;
        if let Some(why) = self.packing_reason(shape.n, shape.k)
            && chosen.packing() == Some(why.packing)
            && candidate.packing() == Some(why.instead_of)
        {
            return Some(Reason::MoreBytes { over: chosen.entry.name, why: *why });
        }
        if let Some(why) = self.once_reason()
            && chosen.packing() == Some(why.packing)
            && candidate.packing() == Some(why.instead_of)
        {
            return Some(Reason::OtherCopy { over: chosen.entry.name, why: *why });
        }
        if let Some((packing, [theirs, ours])) =
            self.tuned_for(shape).and_then(|class| class.held_instead_of(candidate, &chosen))
        {
            let over = chosen.entry.name;
            return Some(Reason::OtherPacking { over, packing, nanoseconds: theirs, instead_of: ours });
        }
        let place = |of: &Candidate| self.usable.iter().position(|usable| usable.index == of.index);
        match place(candidate) < place(&chosen) {
            true => Some(Reason::Slower { than: chosen.entry.name }),
            false => Some(Reason::Preferred { over: chosen.entry.name }),
        }
    }
}

impl std::fmt::Display for Decision<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(chosen) = self.chosen() else { return self.refusal().fmt(f) };
        let Prepared { op, format_name, input, device, .. } = self.prepared;
        write!(f, "{op} of `{format_name}` ({input}) on {device}, {}", self.shape)?;
        write!(f, "\nchosen: {} ({})", chosen.name, chosen.source)?;
        if let Some(why) = self.packing_reason() {
            write!(f, "\nweights are held in {why}")?;
        }
        if let Some(why) = self.once_reason() {
            write!(f, "\nweights are held in {why}")?;
        }
        if let Some(tuned) = self.tuned_by() {
            write!(f, "\nby the tuning: {tuned}")?;
        }
        let rejected: Vec<Rejection> = self.rejected().collect();
        if !rejected.is_empty() {
            f.write_str("\nnot chosen:")?;
            write_rejections(f, rejected.iter(), true)?;
        }
        Ok(())
    }
}
