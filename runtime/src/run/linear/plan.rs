//! By which kernels a layer runs and what it holds, known before it has weights.

use super::options::{LinearOptions, Policy};
use crate::decide::{Candidate, Covering, Prepared};
use crate::device::{CpuProfile, Device};
use crate::error::Error;
use crate::kernel::Matmul;
use crate::operands::packed_size::{layout_of, packed_bytes};
use crate::receipt::FallbackNote;
use crate::registry::Registry;
use crate::request::{PrecisionMode, Request, Restrict, Shape};
use crate::run::choice::refused;
use crate::run::plain::PlainWeights;
use crate::threads::Threads;
use crate::tuning::{ShapeClass, Tuning};
use crate::workspace::WorkspaceSize;
use gristmill_spec::vocab::{DType, DeviceKind, Op};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What a layer takes of memory, from [`Linear::memory`](crate::Linear::memory).
#[derive(Clone, Debug, PartialEq)]
pub struct LayerMemory {
    /// The packings that hold the weights, each with its bytes, scales included; `None` for a format's own rows. Several where no
    /// packing has kernels for every `m`.
    pub packings: Vec<(Option<&'static str>, usize)>,
    /// Bytes of weights as f32, which [`Policy::Dequantize`] holds besides where some `m` has no kernel.
    pub plain_bytes: usize,
    /// All of these: what [`Linear::weight_bytes`](crate::Linear::weight_bytes) will say.
    pub weight_bytes: usize,
    /// The same for each weight, in bits; 0 for no weights.
    pub bits_per_weight: f64,
    /// What a workspace must hold: as [`Linear::workspace_size`](crate::Linear::workspace_size) will say of a layer without a
    /// transform.
    pub workspace: WorkspaceSize,
}

/// Kernels for every `m`, and what the policy does where there is none.
pub(super) struct LayerPlan {
    pub(super) prepared: Prepared,
    /// Decisions for activations that are int8 already, where kernels for floats don't take them.
    pub(super) int8: Option<Prepared>,
    /// The products, each with the number of the packing that it reads: from 0 on, in order.
    pub(super) products: Vec<(Matmul, usize)>,
    /// Set if the layer runs on the processor though another device was asked for.
    pub(super) moved: Option<Arc<FallbackNote>>,
    /// Set if weights are held as f32 too, for an `m` without a kernel.
    pub(super) plain: Option<Arc<FallbackNote>>,
    /// Decisions for products of f32 on a GPU, for an `m` without a kernel as it was asked for.
    pub(super) floats: Option<(Prepared, Arc<FallbackNote>)>,
}

/// What a layer is asked to be, and what its decisions follow.
struct Asked<'a> {
    registry: &'static Registry,
    options: &'a LinearOptions,
    restrict: Restrict,
    tuning: Cow<'a, Tuning>,
    /// For one token.
    request: Request<'a>,
}

/// The products of a layer of such a shape so far, each kernel once.
struct Needed {
    shape: [usize; 2],
    products: Vec<Matmul>,
}

impl Asked<'_> {
    fn prepare(&self, request: &Request<'_>) -> Result<Prepared, Error> {
        let Asked { registry, options, restrict, tuning, .. } = self;
        options.placed(registry.prepare_tuned(request, CpuProfile::detect(), restrict, tuning)?)
    }

    fn note(&self, refused: &Prepared, instead: &'static str) -> Arc<FallbackNote> {
        Arc::new(FallbackNote {
            policy: self.options.policy.name(),
            op: Op::Matmul,
            format: self.request.format.to_owned(),
            device: self.options.device,
            reason: refused.decide(self.request.shape).refusal().to_string(),
            instead,
            runs: AtomicU64::new(0),
        })
    }

    /// The decisions where it is asked for, or where the policy moves it, and the kernels that are needed there.
    fn covered_or_moved(&self) -> Result<(Prepared, Covering, Option<Arc<FallbackNote>>), Error> {
        let Shape { n, k, .. } = self.request.shape;
        let prepared = self.prepare(&self.request)?;
        let covering = prepared.covering(n, k);
        if !covering.needed.is_empty() || self.options.policy == Policy::Dequantize {
            return Ok((prepared, covering, None));
        }
        if self.options.policy == Policy::Strict || self.options.device.kind == DeviceKind::Cpu {
            return Err(refused(&prepared, self.request.shape));
        }
        let moved = self.note(&prepared, "a kernel on the processor");
        let prepared = self.prepare(&self.request.on(Device::CPU))?;
        let covering = prepared.covering(n, k);
        if covering.needed.is_empty() {
            return Err(refused(&prepared, self.request.shape));
        }
        Ok((prepared, covering, Some(moved)))
    }

    /// Adds what takes activations that are int8 already, beside kernels that take floats alone.
    fn add_int8(&self, needed: &mut Needed) -> Result<Prepared, Error> {
        let prepared = self.prepare(&self.request.with_input(DType::I8))?;
        needed.add_covering(&prepared)?;
        Ok(prepared)
    }

    /// Adds products of f32 on a GPU, where `without` has kernels for some `m` alone.
    fn add_floats(
        &self,
        needed: &mut Needed,
        without: &Prepared,
    ) -> Result<(Prepared, Arc<FallbackNote>), Error> {
        let prepared = self.prepare(&self.request.with_precision(PrecisionMode::F32))?;
        if !needed.add_covering(&prepared)? {
            return Err(refused(without, self.request.shape));
        }
        let note = self.note(without, "a product of f32 over weights dequantized on the device");
        Ok((prepared, note))
    }
}

impl Needed {
    fn add(&mut self, prepared: &Prepared, candidates: Vec<Candidate>) -> Result<(), Error> {
        let [n, k] = self.shape;
        for candidate in candidates {
            if !self.products.iter().any(|matmul| std::ptr::eq(matmul.entry(), candidate.entry)) {
                self.products.push(Matmul::of(prepared, candidate, n, k)?);
            }
        }
        Ok(())
    }

    /// Adds what is needed for every `m`; whether that covers each.
    fn add_covering(&mut self, prepared: &Prepared) -> Result<bool, Error> {
        let [n, k] = self.shape;
        let Covering { needed, every_m, .. } = prepared.covering(n, k);
        self.add(prepared, needed)?;
        Ok(every_m)
    }

    /// Each with the number of the packing that it reads.
    fn numbered(self) -> Vec<(Matmul, usize)> {
        let mut products: Vec<(Matmul, usize)> = Vec::new();
        let mut packings = 0;
        for matmul in self.products {
            let same = products.iter().find(|(other, _)| other.shares_packing_with(&matmul));
            let at = same.map_or(packings, |(_, at)| *at);
            packings = packings.max(at + 1);
            products.push((matmul, at));
        }
        products
    }
}

impl LayerPlan {
    pub(super) fn new(
        registry: &'static Registry,
        format: &str,
        [n, k]: [usize; 2],
        options: &LinearOptions,
        threads: &Threads,
    ) -> Result<LayerPlan, Error> {
        let (restrict, tuning) = options.resolved(registry)?;
        let request = options.request(format, Shape { m: 1, n, k }, threads);
        let asked = Asked { registry, options, restrict, tuning, request };
        let (prepared, Covering { needed: covering, every_m, .. }, moved) = asked.covered_or_moved()?;
        let floats_alone = covering.iter().any(|candidate| candidate.entry.quantizes_activations());
        let mut needed = Needed { shape: [n, k], products: Vec::new() };
        needed.add(&prepared, covering)?;
        if options.adaptive.is_some() {
            for class in ShapeClass::of(request.shape).siblings() {
                needed.add(&prepared, prepared.alternatives(class, [n, k]))?;
            }
        }
        let int8 = if floats_alone { Some(asked.add_int8(&mut needed)?) } else { None };
        let dequantizes = options.policy == Policy::Dequantize && !every_m;
        let on_gpu = dequantizes && options.device != Device::CPU;
        let floats = if on_gpu { Some(asked.add_floats(&mut needed, &prepared)?) } else { None };
        let plain = (dequantizes && !on_gpu)
            .then(|| asked.note(&prepared, "weights dequantized to f32 and a plain f32 product"));
        Ok(LayerPlan { prepared, int8, products: needed.numbered(), moved, plain, floats })
    }

    pub(super) fn memory(&self, [m, n, k]: [usize; 3], threads: &Threads) -> Result<LayerMemory, Error> {
        let too_large = Error::TooLarge { what: "the weights of a layer" };
        let registry = self.prepared.registry();
        let mut workspace = match self.plain {
            Some(_) => PlainWeights::workspace_of(m, k)?,
            None => WorkspaceSize::default(),
        };
        let mut packings = Vec::new();
        for (matmul, at) in &self.products {
            workspace = workspace.max(matmul.workspace_size(m, k, threads)?);
            if *at == packings.len() {
                let packing = layout_of(registry, matmul.entry())?.packing.map(|packing| packing.name);
                packings.push((packing, packed_bytes(registry, matmul.entry(), n, k)?));
            }
        }
        let weights = n.checked_mul(k).ok_or(too_large.clone())?;
        let plain_bytes = match self.plain {
            Some(_) => weights.checked_mul(size_of::<f32>()).ok_or(too_large.clone())?,
            None => 0,
        };
        let sum = |sum: usize, (_, bytes): &(Option<&str>, usize)| sum.checked_add(*bytes);
        let weight_bytes = packings.iter().try_fold(plain_bytes, sum).ok_or(too_large)?;
        let bits_per_weight = if weights > 0 { 8.0 * weight_bytes as f64 / weights as f64 } else { 0.0 };
        Ok(LayerMemory { packings, plain_bytes, weight_bytes, bits_per_weight, workspace })
    }
}
