//! What a product may multiply.

use gristmill_spec::vocab::Precision;

/// What a product may multiply: how its factors are rounded before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PrecisionMode {
    /// Integers of the weights and int8 activations, whose sums are exact: the same bits on every device.
    #[default]
    Int8,
    /// Weights and activations as they are, in f32.
    F32,
    /// Both rounded to f16, or nothing rounded, whichever the number of tokens suggests.
    F16,
    /// Both rounded to bf16, or nothing rounded.
    Bf16,
    /// FP4 as it is stored, for formats that are that (MXFP4, NVFP4): activations are quantized to the same. Where there is no such
    /// kernel, and for few tokens, both rounded to f16, or nothing rounded.
    Fp4,
    /// Any of these but FP4, which costs more precision than a measured time can weigh: what was measured to be fastest on this device, else what comes first in the registry, where int8
    /// does.
    Auto,
}

impl PrecisionMode {
    /// Every mode.
    pub const ALL: &'static [PrecisionMode] = &[
        PrecisionMode::Int8,
        PrecisionMode::F32,
        PrecisionMode::F16,
        PrecisionMode::Bf16,
        PrecisionMode::Fp4,
        PrecisionMode::Auto,
    ];

    /// The spelling used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            PrecisionMode::Int8 => "int8",
            PrecisionMode::F32 => "f32",
            PrecisionMode::F16 => "f16",
            PrecisionMode::Bf16 => "bf16",
            PrecisionMode::Fp4 => "fp4",
            PrecisionMode::Auto => "auto",
        }
    }

    /// The mode spelled `name`.
    pub fn from_name(name: &str) -> Option<PrecisionMode> {
        PrecisionMode::ALL.iter().copied().find(|mode| mode.name() == name)
    }

    /// Whether a product that multiplies this will do.
    pub const fn allows(self, precision: Precision) -> bool {
        match self {
            PrecisionMode::Int8 => matches!(precision, Precision::Int8),
            PrecisionMode::F32 => matches!(precision, Precision::F32),
            PrecisionMode::F16 => matches!(precision, Precision::F32 | Precision::F16),
            PrecisionMode::Bf16 => matches!(precision, Precision::F32 | Precision::Bf16),
            PrecisionMode::Fp4 => matches!(precision, Precision::F32 | Precision::F16 | Precision::Fp4),
            PrecisionMode::Auto => !matches!(precision, Precision::Fp4),
        }
    }
}

/// The mode that asks for this.
impl From<Precision> for PrecisionMode {
    fn from(precision: Precision) -> PrecisionMode {
        match precision {
            Precision::Int8 => PrecisionMode::Int8,
            Precision::F32 => PrecisionMode::F32,
            Precision::F16 => PrecisionMode::F16,
            Precision::Bf16 => PrecisionMode::Bf16,
            Precision::Fp4 => PrecisionMode::Fp4,
        }
    }
}

impl std::fmt::Display for PrecisionMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
