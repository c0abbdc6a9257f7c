//! Why not: the reasons a kernel, or a whole request, is refused, and what would help.

use crate::decisions::why_packed::FromMemory;
use crate::decisions::why_packed::HeldOnce;
use crate::decisions::wording::{
    ADD_A_TABLE, ASK_FOR_CPU, BUILD_WITH, BUILD_WITH_CUDA, BUT_FEATURE, CANT_BE_QUANTIZED, CONVERT_TO,
    CUDA_IS_OFF, DESCRIBED_ARE, FOR_THIS_FORMAT, FORMAT, GIVE_INT8, INSTALL_CUDA, IS_DESCRIBED, IS_OFF,
    NAME_THE_FORMAT, NO_CUDA_COMPILER, NO_FORMAT, NOT_FOR_DEVICE, NOT_FOR_TYPE, NOTHING_DOES, PLACES,
};
use crate::descriptions::names::{Kernels, List, Meant};
use crate::device::Device;
use crate::gpu::{CudaVersion, NoGpu};
use crate::request::{PrecisionMode, Shape};
use gristmill_spec::vocab::{CudaArch, DType, DeviceKind, Feature, FeatureSet, Isa, Op, Precision};

/// A dimension of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// Tokens.
    M,
    /// Outputs.
    N,
    /// Inner dimension.
    K,
}

impl std::fmt::Display for Dim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Dim::M => "m",
            Dim::N => "n",
            Dim::K => "k",
        })
    }
}

/// A bound on a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// No smaller than.
    AtLeast(u64),
    /// No larger than.
    AtMost(u64),
    /// A multiple of.
    MultipleOf(u64),
}

/// A rule together with the number that breaks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenRule {
    /// The dimension.
    pub dim: Dim,
    /// What it must be.
    pub rule: Rule,
    /// What it is.
    pub found: u64,
}

impl std::fmt::Display for BrokenRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} = {}, but must be ", self.dim, self.found)?;
        match self.rule {
            Rule::AtLeast(bound) => write!(f, "at least {bound}"),
            Rule::AtMost(bound) => write!(f, "at most {bound}"),
            Rule::MultipleOf(bound) => write!(f, "a multiple of {bound}"),
        }
    }
}

/// Which restriction disabled a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disabled {
    /// Nothing above this ISA is allowed.
    Isa(Isa),
    /// Only this kernel is allowed.
    Only(&'static str),
    /// The kernel is on the list of disabled ones.
    Listed,
}

/// Why a kernel, or a whole request, is refused. In the order in which the reasons are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// No format of this name is described.
    NoSpec {
        /// The name.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
        /// The formats that are there.
        known: Vec<&'static str>,
    },
    /// Described, but left out of this build.
    NotCompiled {
        /// The format.
        format: &'static str,
        /// The cargo feature that compiles it.
        feature: &'static str,
    },
    /// The format states no quantizer of this name.
    NoQuantizer {
        /// The name.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
        /// The quantizers that the format states, the default first.
        known: &'static [&'static str],
    },
    /// No kernel file describes this op for the format.
    OpNotDescribed {
        /// The op.
        op: Op,
        /// The ops that are described for it.
        described: Vec<Op>,
    },
    /// The op is described for the format, but not for this type.
    DTypeNotDescribed {
        /// The type.
        dtype: DType,
        /// The types it is described for.
        described: Vec<DType>,
    },
    /// Nothing of this build describes a kernel for this kind of device, so no way of building it would help.
    DeviceNotDescribed {
        /// The kind.
        kind: DeviceKind,
    },
    /// Kernels for CUDA are described or could be, but this build has none: its feature is off.
    CudaFeatureOff,
    /// Kernels for CUDA were asked of the build, but it found no compiler.
    NoToolchain {
        /// The places it looked at, each with what was wrong there.
        looked: &'static [&'static str],
    },
    /// The kernel is described, but no image of it was built.
    NoImageBuilt {
        /// What the compiler said, by architecture.
        failures: &'static [(CudaArch, &'static str)],
    },
    /// There is no GPU to run it on.
    NoGpu(NoGpu),
    /// The product multiplies something else than was asked for.
    Precision {
        /// What may be multiplied.
        asked: PrecisionMode,
        /// What the kernel multiplies.
        found: Precision,
    },
    /// The GPU lacks instructions that the kernel uses.
    CapabilityTooLow {
        /// The compute capability that it needs.
        needed: (u8, u8),
        /// That of the device.
        found: (u8, u8),
    },
    /// Images of the kernel were built, but none for this GPU.
    ArchitectureNotBuilt {
        /// The device's compute capability.
        cc: (u8, u8),
        /// The architectures that were built.
        built: Vec<CudaArch>,
    },
    /// The image for this GPU is newer than its driver.
    DriverTooOld {
        /// The GPU's compute capability.
        cc: (u8, u8),
        /// The CUDA that the driver supports.
        found: CudaVersion,
        /// The CUDA that the image needs.
        needed: CudaVersion,
    },
    /// A kernel is there, its device is not.
    DeviceAbsent {
        /// The device.
        device: Device,
    },
    /// The processor lacks features that the kernel uses.
    FeaturesMissing {
        /// Those it lacks.
        missing: FeatureSet,
    },
    /// Rows are whole blocks of the format.
    PartialBlock {
        /// Elements of a block.
        elements: u64,
        /// The row length.
        k: u64,
    },
    /// A rule on the shape is broken.
    ShapeRule(BrokenRule),
    /// Nothing can quantize the activations of this product.
    NoActivations(Box<Refusal>),
    /// A restriction forbids it.
    Disabled(Disabled),
    /// It is in quarantine.
    Quarantined {
        /// What was seen of it.
        why: String,
    },
    /// It would work, but another comes first.
    Preferred {
        /// The one that was chosen.
        over: &'static str,
    },
    /// It would work, but another comes first by a measurement on this machine.
    Slower {
        /// The one that was chosen.
        than: &'static str,
    },
    /// It would work and was measured to be faster, but weights are held in a packing for all numbers of tokens that loses least.
    OtherPacking {
        /// The one that was chosen.
        over: &'static str,
        /// Which packing that is.
        packing: &'static str,
        /// What was measured of this kernel.
        nanoseconds: u64,
        /// What was measured of the chosen one.
        instead_of: u64,
    },
    /// It would work, but weights come from memory and the packing of another has fewer bytes.
    MoreBytes {
        /// The one that was chosen.
        over: &'static str,
        /// Which packing that is, and why it counts.
        why: FromMemory,
    },
    /// It would work, but on a GPU weights are held in one packing, which is another one.
    OtherCopy {
        /// The one that was chosen.
        over: &'static str,
        /// Which packing that is.
        why: HeldOnce,
    },
}

impl Reason {
    /// Whether something that was named is not there, the format or its quantizer: a mistake in the question, and no answer to it.
    pub fn is_of_a_name(&self) -> bool {
        matches!(self, Reason::NoSpec { .. } | Reason::NoQuantizer { .. })
    }

    /// What would turn this no into a yes, where something would.
    pub fn help(&self) -> Option<String> {
        match self {
            Reason::NoSpec { known, .. } => Some(format!(
                "describe it in a TOML file and name its folder in GRISTMILL_EXTRA_SPECS, or use one of: {}",
                List(known)
            )),
            Reason::NotCompiled { feature, .. } => Some(format!("{BUILD_WITH}{feature}")),
            Reason::NoQuantizer { known: [], .. } => {
                Some(String::from("state one in the format's file, in a [[quantize]] table"))
            }
            Reason::NoQuantizer { known, .. } => Some(format!("it states: {}", List(known))),
            Reason::OpNotDescribed { op, described } => {
                Some(format!("{NAME_THE_FORMAT}{op}{DESCRIBED_ARE}{}", List(described)))
            }
            Reason::DTypeNotDescribed { described, .. } => Some(format!("{CONVERT_TO}{}", List(described))),
            Reason::DeviceNotDescribed { kind: DeviceKind::Cpu } => Some(String::from(ADD_A_TABLE)),
            Reason::DeviceNotDescribed { kind: DeviceKind::Cuda | DeviceKind::Rocm | DeviceKind::Metal } => {
                Some(String::from(ASK_FOR_CPU))
            }
            Reason::CudaFeatureOff => Some(String::from(BUILD_WITH_CUDA)),
            Reason::NoToolchain { .. } => Some(format!("{INSTALL_CUDA}, without root and without a GPU")),
            Reason::NoImageBuilt { .. } => Some(String::from(
                "name an architecture that has its instructions in GRISTMILL_CUDA_ARCHS when building",
            )),
            Reason::NoGpu(why) => Some(why.help().to_owned()),
            Reason::Precision { .. } | Reason::CapabilityTooLow { .. } => None,
            Reason::ArchitectureNotBuilt { cc, built } => {
                let archs: Vec<String> =
                    built.iter().chain([&CudaArch::of_device(*cc)]).map(ToString::to_string).collect();
                Some(format!("GRISTMILL_CUDA_ARCHS={} cargo build --features cuda", archs.join(",")))
            }
            // The last NVRTC whose machine code is of the older kind. Its PTX is for newer drivers, so that the architecture is to be named.
            Reason::DriverTooOld { cc, needed, .. } => Some(format!(
                "update the NVIDIA driver to one that supports CUDA {needed}, or build with \
                 `pip install --no-deps nvidia-cuda-nvrtc-cu12==12.9.86`, GRISTMILL_NVRTC naming its libnvrtc.so.12, \
                 and GRISTMILL_CUDA_ARCHS={}",
                CudaArch::of_device(*cc)
            )),
            Reason::DeviceAbsent { .. } => Some(String::from("ask for device `cpu`")),
            Reason::FeaturesMissing { .. } => None,
            Reason::PartialBlock { elements, k } => {
                k.checked_next_multiple_of(*elements).map(|padded| format!("pad rows to {padded}"))
            }
            // Where sums of a whole row are one integer, which has to fit 32 bits.
            Reason::ShapeRule(BrokenRule { dim: Dim::K, rule: Rule::AtMost(_), .. }) => Some(String::from(
                "divide the matrix along k into parts that fit and add up their results, or use a format that has several scales in a row: \
                 its integer sums end where a scale does",
            )),
            Reason::ShapeRule(_) => None,
            Reason::NoActivations(_) => Some(String::from(GIVE_INT8)),
            Reason::Disabled(Disabled::Isa(_)) => Some(String::from("lift the restriction (GRISTMILL_ISA)")),
            Reason::Disabled(Disabled::Only(_)) => {
                Some(String::from("lift the restriction (GRISTMILL_KERNEL)"))
            }
            Reason::Disabled(Disabled::Listed) => {
                Some(String::from("lift the restriction (GRISTMILL_DISABLE)"))
            }
            Reason::Quarantined { .. } => Some(String::from(
                "`gristmill verify` with its name shows whether it is right now; it leaves the folder that GRISTMILL_QUARANTINE names when its file is removed",
            )),
            Reason::Preferred { .. }
            | Reason::Slower { .. }
            | Reason::OtherPacking { .. }
            | Reason::MoreBytes { .. } => None,
            Reason::OtherCopy { .. } => {
                Some(String::from("GRISTMILL_PACKINGS=fastest, or `Restrict::packings`"))
            }
        }
    }
}

/// Features, separated by commas.
struct Features(FeatureSet);

impl std::fmt::Display for Features {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let features: Vec<Feature> = self.0.iter().collect();
        List(&features).fmt(f)
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::NoSpec { name, nearest, .. } => {
                write!(f, "{NO_FORMAT}{name}{IS_DESCRIBED}{}", Meant(nearest))
            }
            Reason::NotCompiled { format, feature } => {
                write!(f, "{FORMAT}{format}{BUT_FEATURE}{feature}{IS_OFF}")
            }
            Reason::NoQuantizer { name, nearest, .. } => {
                write!(f, "the format states no quantizer `{name}`{}", Meant(nearest))
            }
            Reason::OpNotDescribed { op, .. } => {
                write!(f, "{NOTHING_DOES}{op}{FOR_THIS_FORMAT}")
            }
            Reason::DTypeNotDescribed { dtype, .. } => write!(f, "{NOT_FOR_TYPE}{dtype}"),
            Reason::DeviceNotDescribed { kind } => {
                write!(f, "{NOT_FOR_DEVICE}{kind}")
            }
            Reason::CudaFeatureOff => f.write_str(CUDA_IS_OFF),
            Reason::NoToolchain { looked } => {
                write!(f, "{NO_CUDA_COMPILER}{}{PLACES}", looked.len())
            }
            Reason::NoImageBuilt { failures: [] } => {
                f.write_str("not compiled: none of the architectures that were built has its instructions")
            }
            Reason::NoImageBuilt { failures } => {
                f.write_str("not compiled:")?;
                for (i, (arch, words)) in failures.iter().enumerate() {
                    let first = words.lines().next().unwrap_or_default();
                    write!(f, "{} for {arch}: {first}", if i > 0 { ";" } else { "" })?;
                }
                Ok(())
            }
            Reason::NoGpu(why) => why.fmt(f),
            Reason::Precision { asked, found } => write!(f, "multiplies {found}, and {asked} was asked for"),
            Reason::CapabilityTooLow { needed, found } => write!(
                f,
                "needs compute capability {}.{}, the device has {}.{}",
                needed.0, needed.1, found.0, found.1
            ),
            Reason::ArchitectureNotBuilt { cc, built } => {
                write!(f, "no image for compute capability {}.{}: built for {}", cc.0, cc.1, List(built))
            }
            Reason::DriverTooOld { found, needed, .. } => {
                write!(f, "its image needs CUDA {needed}, the driver supports {found}")
            }
            Reason::DeviceAbsent { device } => write!(f, "device {device} is not there"),
            Reason::FeaturesMissing { missing } => write!(f, "the processor lacks {}", Features(*missing)),
            Reason::PartialBlock { elements, k } => {
                write!(f, "k = {k}, but rows are whole blocks of {elements}")
            }
            Reason::ShapeRule(rule) => rule.fmt(f),
            Reason::NoActivations(refusal) => {
                write!(f, "{CANT_BE_QUANTIZED}{}`", refusal.format)
            }
            Reason::Disabled(Disabled::Isa(isa)) => write!(f, "disabled: nothing above {isa} is allowed"),
            Reason::Disabled(Disabled::Only(name)) => write!(f, "disabled: only `{name}` is allowed"),
            Reason::Disabled(Disabled::Listed) => f.write_str("disabled by name"),
            Reason::Quarantined { why } => write!(f, "in quarantine: {why}"),
            Reason::Preferred { over } => write!(f, "would work, but `{over}` comes first"),
            Reason::Slower { than } => {
                write!(f, "would work, but `{than}` comes first by the tuning")
            }
            Reason::OtherPacking { over, packing, nanoseconds, instead_of } => {
                let us = |nanoseconds: &u64| *nanoseconds as f64 / 1e3;
                write!(
                    f,
                    "would work, and was measured to be faster than `{over}` ({:.3} us, {:.3} us), but weights are held in `{packing}` for \
                     all numbers of tokens, which loses least over them by the tuning",
                    us(nanoseconds),
                    us(instead_of)
                )
            }
            Reason::MoreBytes { over, why } => {
                write!(f, "would work, but `{over}` comes first: its weights are held in {why}")
            }
            Reason::OtherCopy { over, why } => {
                write!(f, "would work, but `{over}` comes first: weights are held in {why}")
            }
        }
    }
}

/// One refused kernel (or, without a name, the whole request) and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The kernel; `None` where the reason holds for every kernel there could be.
    pub kernel: Option<&'static str>,
    /// Why.
    pub reason: Reason,
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kernel {
            Some(name) => write!(f, "{name}: {}", self.reason),
            None => self.reason.fmt(f),
        }
    }
}

/// A request that got a no, kept with all its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The op.
    pub op: Op,
    /// The format, as it was asked for.
    pub format: String,
    /// The input type.
    pub input: DType,
    /// The device.
    pub device: Device,
    /// The shape.
    pub shape: Shape,
    /// Why each kernel was refused.
    pub rejected: Vec<Rejection>,
}

impl Refusal {
    /// Whether it is because something that was named is not there: the format, or its quantizer.
    pub fn is_of_a_name(&self) -> bool {
        // It is the reason of every kernel then.
        self.rejected.iter().any(|rejection| rejection.reason.is_of_a_name())
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Refusal { op, format, input, device, shape, rejected } = self;
        write!(f, "no kernel for {op} of `{format}` ({input}) on {device}, {shape}")?;
        write_rejections(f, rejected.iter(), false)
    }
}

/// One line a reason, with the kernels that share it, and a help line wherever there is one; equal help is said once. Beside a `chosen`
/// kernel nothing is said of shapes, which that one takes.
pub(crate) fn write_rejections<'a>(
    f: &mut std::fmt::Formatter<'_>,
    rejected: impl Iterator<Item = &'a Rejection>,
    chosen: bool,
) -> std::fmt::Result {
    let mut reasons: Vec<(&Reason, Vec<&'static str>)> = Vec::new();
    for Rejection { kernel, reason } in rejected {
        match reasons.iter_mut().find(|(said, _)| *said == reason) {
            Some((_, kernels)) => kernels.extend(kernel),
            None => reasons.push((reason, kernel.iter().copied().collect())),
        }
    }
    let mut helps: Vec<String> = Vec::new();
    for (reason, kernels) in reasons {
        match &kernels[..] {
            [] => write!(f, "\n  - {reason}")?,
            kernels => write!(f, "\n  - {}: {reason}", Kernels(kernels))?,
        }
        if let Reason::NoActivations(refusal) = reason {
            for inner in &refusal.rejected {
                write!(f, "\n      - {inner}")?;
            }
        }
        let of_shape = matches!(reason, Reason::ShapeRule(_));
        if let Some(help) = reason.help().filter(|_| !(chosen && of_shape))
            && !helps.contains(&help)
        {
            helps.push(help);
        }
    }
    for help in helps {
        write!(f, "\n  help: {help}")?;
    }
    Ok(())
}
