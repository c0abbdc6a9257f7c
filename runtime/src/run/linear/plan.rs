//! By which kernels a layer runs and what it holds, known before it has weights.

use super::options::{LinearOptions, Policy};
use crate::decide::Prepared;
use crate::device::{CpuProfile, Device};
use crate::error::Error;
use crate::kernel::Matmul;
use crate::operands::packed_size::{layout_of, packed_bytes};
use crate::receipt::FallbackNote;
use crate::registry::Registry;
use crate::request::{PrecisionMode, Request, Shape};
use crate::run::choice::refused;
use crate::run::plain::PlainWeights;
use crate::threads::Threads;
use crate::tuning::ShapeClass;
use crate::workspace::WorkspaceSize;
use gristmill_spec::vocab::{DType, DeviceKind, Op};
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

impl LayerPlan {
    pub(super) fn new(
        registry: &'static Registry,
        format: &str,
        [n, k]: [usize; 2],
        options: &LinearOptions,
        threads: &Threads,
    ) -> Result<LayerPlan, Error> {
        let (restrict, tuning) = options.resolved(registry)?;
        let decode = Shape { m: 1, n, k };
        let request = options.request(format, decode, threads);
        let prepare = |request: &Request<'_>| {
            options.placed(registry.prepare_tuned(request, CpuProfile::detect(), &restrict, &tuning)?)
        };
        let note = |refused: &Prepared, instead| {
            Arc::new(FallbackNote {
                policy: options.policy.name(),
                op: Op::Matmul,
                format: format.to_owned(),
                device: options.device,
                reason: refused.decide(decode).refusal().to_string(),
                instead,
                runs: AtomicU64::new(0),
            })
        };
        let mut prepared = prepare(&request)?;
        let mut moved = None;
        let mut covering = prepared.covering(n, k);
        if covering.needed.is_empty() {
            match options.policy {
                Policy::Strict => return Err(refused(&prepared, decode)),
                Policy::Dequantize => {}
                Policy::Cpu if options.device.kind == DeviceKind::Cpu => {
                    return Err(refused(&prepared, decode));
                }
                Policy::Cpu => {
                    moved = Some(note(&prepared, "a kernel on the processor"));
                    prepared = prepare(&request.on(Device::CPU))?;
                    covering = prepared.covering(n, k);
                    if covering.needed.is_empty() {
                        return Err(refused(&prepared, decode));
                    }
                }
            }
        }
        let floats_alone = covering.needed.iter().any(|candidate| candidate.entry.quantizes_activations());
        let mut needed: Vec<Matmul> = Vec::new();
        for candidate in covering.needed {
            needed.push(Matmul::of(&prepared, candidate, n, k)?);
        }
        if options.adaptive.is_some() {
            for class in ShapeClass::of(decode).siblings() {
                for candidate in prepared.alternatives(class, [n, k]) {
                    if !needed.iter().any(|matmul| std::ptr::eq(matmul.entry(), candidate.entry)) {
                        needed.push(Matmul::of(&prepared, candidate, n, k)?);
                    }
                }
            }
        }
        let mut int8 = None;
        if floats_alone {
            let of_int8 = prepare(&request.with_input(DType::I8))?;
            for candidate in of_int8.covering(n, k).needed {
                if !needed.iter().any(|matmul| std::ptr::eq(matmul.entry(), candidate.entry)) {
                    needed.push(Matmul::of(&of_int8, candidate, n, k)?);
                }
            }
            int8 = Some(of_int8);
        }
        let dequantizes = options.policy == Policy::Dequantize && !covering.every_m;
        let mut floats = None;
        if dequantizes && options.device != Device::CPU {
            let of_floats = prepare(&request.with_precision(PrecisionMode::F32))?;
            let covering = of_floats.covering(n, k);
            if !covering.every_m {
                return Err(refused(&prepared, decode));
            }
            for candidate in covering.needed {
                needed.push(Matmul::of(&of_floats, candidate, n, k)?);
            }
            floats =
                Some((of_floats, note(&prepared, "a product of f32 over weights dequantized on the device")));
        }
        let mut products: Vec<(Matmul, usize)> = Vec::new();
        let mut packings = 0;
        for matmul in needed {
            let same = products.iter().find(|(other, _)| other.shares_packing_with(&matmul));
            let at = same.map_or(packings, |(_, at)| *at);
            packings = packings.max(at + 1);
            products.push((matmul, at));
        }
        let plain = (dequantizes && options.device == Device::CPU)
            .then(|| note(&prepared, "weights dequantized to f32 and a plain f32 product"));
        Ok(LayerPlan { prepared, int8, products, moved, plain, floats })
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
