//! The vocabulary: the only lists of ops, data types, devices, ISAs and CPU features.
//!
//! Everything else in gristmill (parser, compiler, runtime, command) takes its names from here, so
//! that a word has one spelling and one meaning. This module is `no_std` and has no dependencies.

/// Declares an enum together with its spellings: `ALL`, `name` and `from_name`.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vmeta])* $variant,)* }

        impl $name {
            /// Every word of this list, in the order of the declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The spelling used in specs, on the command line and in receipts.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }

            /// The word spelled `name`, if there is one.
            pub fn from_name(name: &str) -> Option<$name> {
                match name { $($word => Some($name::$variant),)* _ => None }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

mod abi;
mod op;

pub use abi::{Abi, AbiStruct, CFault, CudaAbi, CudaFault};
pub use op::{Op, OpInfo, Serves, Unpacked};

words! {
    /// Element type of an unpacked operand.
    DType {
        /// IEEE binary32.
        F32 = "f32",
        /// IEEE binary16.
        F16 = "f16",
        /// bfloat16.
        Bf16 = "bf16",
        /// int8 activations that are already quantized, with their scales.
        I8 = "i8",
    }
}

words! {
    /// Kind of device. A kind without a described kernel gets "no" with that reason, never a guess.
    DeviceKind {
        /// The processor this program runs on.
        Cpu = "cpu",
        /// An NVIDIA GPU.
        Cuda = "cuda",
        /// Reserved: an AMD GPU. No kernel is described for it.
        Rocm = "rocm",
        /// Reserved: an Apple GPU. No kernel is described for it.
        Metal = "metal",
    }
}

words! {
    /// Processor architecture that an ISA belongs to.
    Arch {
        /// Runs on every architecture.
        Any = "any",
        /// 64-bit x86.
        X86 = "x86_64",
        /// 64-bit Arm.
        Aarch64 = "aarch64",
    }
}

words! {
    /// Instruction set that a CPU variant is written for.
    Isa {
        /// Portable Rust: the reference, built everywhere.
        Scalar = "scalar",
        /// 128-bit x86.
        Sse41 = "sse4.1",
        /// 256-bit x86 without dot-product instructions.
        Avx2 = "avx2",
        /// 256-bit x86 with `vpdpbusd` in its VEX encoding.
        AvxVnni = "avxvnni",
        /// 512-bit x86 (F and BW); `requires` names what else a variant uses.
        Avx512 = "avx512",
        /// 128-bit Arm; `requires` names dot-product instructions where a variant uses them.
        Neon = "neon",
    }
}

words! {
    /// What may be done to a row of activations before it is quantized: a step of a prologue.
    PrologueStep {
        /// The row times a function of another one, element by element.
        Gate = "gate",
        /// Another row added, and the sum kept.
        Add = "add",
        /// Division by the root mean square, and multiplication with a weight.
        RmsNorm = "rms-norm",
        /// The blockwise signed Walsh-Hadamard transform.
        Hadamard = "hadamard",
    }
}

words! {
    /// The function of a gate, of which the other row is multiplied with the value.
    GateFunction {
        /// x / (1 + e^-x): SwiGLU.
        Silu = "silu",
        /// x / (1 + e^(-2 sqrt(2/pi) (x + 0.044715 x^3))), the `tanh` form of GELU: GeGLU.
        GeluTanh = "gelu-tanh",
        /// max(x, 0)^2.
        SquaredRelu = "squared-relu",
    }
}

words! {
    /// How a packed product gets at its sums on a CPU.
    Strategy {
        /// Codes become operands, which are multiplied with activations.
        Multiply = "multiply",
        /// Four bits of codes are an index into a table of the sums that they can stand for.
        Lookup = "lookup",
        /// As `multiply`, but codes become operands once for many tokens, and wait in a buffer that stays in the caches.
        Staged = "staged",
        /// As `staged`, and what waits in the buffer is multiplied tile by tile by a matrix unit (AMX).
        Tiles = "tiles",
    }
}

words! {
    /// How a CUDA kernel works: which skeleton its code is written by.
    CudaAlgorithm {
        /// Blocks one by one, no matrix: quantize, dequantize, activations.
        Blocks = "blocks",
        /// `dp4a`: products of four bytes added to an i32 (compute capability 6.1 and later).
        Dp4a = "dp4a",
        /// int8 tensor cores by `mma.sync` (compute capability 7.5 and later).
        Mma = "mma",
        /// int8 tensor cores by `wgmma`, four warps together (compute capability 9.0 alone).
        Wgmma = "wgmma",
        /// Weights as they are, products and sums in f32 (any device).
        Fma = "fma",
        /// Weights rounded to f16, tensor cores that sum in f32 (compute capability 7.5 and later).
        MmaF16 = "mma_f16",
        /// Weights rounded to bf16, tensor cores that sum in f32 (compute capability 8.0 and later).
        MmaBf16 = "mma_bf16",
        /// The same as `mma_f16` by `wgmma`, four warps together (compute capability 9.0 alone).
        WgmmaF16 = "wgmma_f16",
        /// The same as `mma_bf16` by `wgmma`, four warps together (compute capability 9.0 alone).
        WgmmaBf16 = "wgmma_bf16",
        /// Weights and activations as FP4 with a scale for each run, multiplied by block-scaled `mma.sync` that sums in f32
        /// (compute capabilities 12.0 and 12.1 alone).
        MmaFp4 = "mma_fp4",
    }
}

words! {
    /// How activations get to int8 for a CUDA product.
    CudaActivations {
        /// By a kernel in front of it.
        Separate = "separate",
        /// In the product: each CUDA block quantizes its tokens for itself.
        Fused = "fused",
    }
}

words! {
    /// What is one integer sum in the rows that a CUDA product by warpgroups is for.
    CudaSums {
        /// The whole row: no scale stands in a block, and activations are quantized by row.
        Rows = "rows",
        /// A run, whose scale is a number.
        Runs = "runs",
        /// A run, whose scale is an integer times a number that a super-block shares.
        SuperBlocks = "super-blocks",
    }
}

words! {
    /// What the factors of a product are while they are multiplied.
    Precision {
        /// Integers of weights and int8 activations, summed exactly.
        Int8 = "int8",
        /// f32.
        F32 = "f32",
        /// f16, summed in f32.
        F16 = "f16",
        /// bf16, summed in f32.
        Bf16 = "bf16",
        /// FP4 (E2M1) in runs with a scale each, summed in f32.
        Fp4 = "fp4",
    }
}

words! {
    /// A CPU feature, spelled as rustc spells it in `target_feature`.
    Feature {
        /// `pshufb`, `pmaddubsw`.
        Ssse3 = "ssse3",
        /// `pmuldq`, `roundps`, `pminud` and friends.
        Sse41 = "sse4.1",
        /// 256-bit integer instructions.
        Avx2 = "avx2",
        /// `vcvtph2ps`.
        F16c = "f16c",
        /// VEX-encoded `vpdpbusd`.
        AvxVnni = "avxvnni",
        /// AVX-512 foundation.
        Avx512f = "avx512f",
        /// AVX-512 byte and word instructions.
        Avx512bw = "avx512bw",
        /// AVX-512 double- and quadword instructions.
        Avx512dq = "avx512dq",
        /// AVX-512 instructions on 128- and 256-bit vectors.
        Avx512vl = "avx512vl",
        /// EVEX-encoded `vpdpbusd`.
        Avx512vnni = "avx512vnni",
        /// `vpermi2b` and friends.
        Avx512vbmi = "avx512vbmi",
        /// Tiles of int8 and their products (AMX-TILE and AMX-INT8), where the system lets a process use them.
        AmxInt8 = "amx-int8",
        /// Advanced SIMD.
        Neon = "neon",
        /// `sdot`, `udot`.
        Dotprod = "dotprod",
        /// `usdot`, `smmla`, `usmmla`.
        I8mm = "i8mm",
    }
}

impl Isa {
    /// The architecture this ISA belongs to.
    pub const fn arch(self) -> Arch {
        match self {
            Isa::Scalar => Arch::Any,
            Isa::Sse41 | Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 => Arch::X86,
            Isa::Neon => Arch::Aarch64,
        }
    }

    /// The features every variant of this ISA may use without naming them in `requires`.
    pub const fn features(self) -> &'static [Feature] {
        match self {
            Isa::Scalar => &[],
            Isa::Sse41 => &[Feature::Ssse3, Feature::Sse41],
            Isa::Avx2 => &[Feature::Avx2, Feature::F16c],
            Isa::AvxVnni => &[Feature::Avx2, Feature::F16c, Feature::AvxVnni],
            Isa::Avx512 => &[Feature::Avx512f, Feature::Avx512bw],
            Isa::Neon => &[Feature::Neon],
        }
    }
}

impl Feature {
    /// The architecture that has this feature.
    pub const fn arch(self) -> Arch {
        match self {
            Feature::Ssse3
            | Feature::Sse41
            | Feature::Avx2
            | Feature::F16c
            | Feature::AvxVnni
            | Feature::Avx512f
            | Feature::Avx512bw
            | Feature::Avx512dq
            | Feature::Avx512vl
            | Feature::Avx512vnni
            | Feature::Avx512vbmi
            | Feature::AmxInt8 => Arch::X86,
            Feature::Neon | Feature::Dotprod | Feature::I8mm => Arch::Aarch64,
        }
    }

    /// Whether `target_feature` of stable Rust takes it. What it does not is written in inline assembly, which the other features of
    /// a variant do not change.
    pub const fn in_target_feature(self) -> bool {
        !matches!(self, Feature::AmxInt8)
    }

    /// How GCC and Clang are told that code may use it: on x86 by an option of its own, on aarch64 by a word of
    /// `-march=armv8-a+...`.
    pub const fn c_option(self) -> &'static str {
        match self {
            Feature::Ssse3 => "-mssse3",
            Feature::Sse41 => "-msse4.1",
            Feature::Avx2 => "-mavx2",
            Feature::F16c => "-mf16c",
            Feature::AvxVnni => "-mavxvnni",
            Feature::Avx512f => "-mavx512f",
            Feature::Avx512bw => "-mavx512bw",
            Feature::Avx512dq => "-mavx512dq",
            Feature::Avx512vl => "-mavx512vl",
            Feature::Avx512vnni => "-mavx512vnni",
            Feature::Avx512vbmi => "-mavx512vbmi",
            Feature::AmxInt8 => "-mamx-int8",
            Feature::Neon => "simd",
            Feature::Dotprod => "dotprod",
            Feature::I8mm => "i8mm",
        }
    }
}

impl CudaAlgorithm {
    /// The lowest compute capability that has its instructions.
    pub const fn min_cc(self) -> (u8, u8) {
        match self {
            CudaAlgorithm::Blocks => (5, 0),
            CudaAlgorithm::Dp4a => (6, 1),
            CudaAlgorithm::Mma | CudaAlgorithm::MmaF16 => (7, 5),
            CudaAlgorithm::MmaBf16 => (8, 0),
            CudaAlgorithm::Wgmma | CudaAlgorithm::WgmmaF16 | CudaAlgorithm::WgmmaBf16 => (9, 0),
            CudaAlgorithm::MmaFp4 => (12, 0),
            CudaAlgorithm::Fma => (5, 0),
        }
    }

    /// The architectures that have its instructions, where no others do, not even later ones; else none.
    pub const fn only_on(self) -> &'static [CudaArch] {
        const HOPPER: &[CudaArch] = &[CudaArch { major: 9, minor: 0, specific: true }];
        const BLACKWELL: &[CudaArch] = &[
            CudaArch { major: 12, minor: 0, specific: true },
            CudaArch { major: 12, minor: 1, specific: true },
        ];
        match self {
            CudaAlgorithm::Wgmma | CudaAlgorithm::WgmmaF16 | CudaAlgorithm::WgmmaBf16 => HOPPER,
            CudaAlgorithm::MmaFp4 => BLACKWELL,
            CudaAlgorithm::Blocks
            | CudaAlgorithm::Dp4a
            | CudaAlgorithm::Mma
            | CudaAlgorithm::Fma
            | CudaAlgorithm::MmaF16
            | CudaAlgorithm::MmaBf16 => &[],
        }
    }

    /// Whether tensor cores multiply.
    pub const fn tensor_cores(self) -> bool {
        !matches!(self, CudaAlgorithm::Blocks | CudaAlgorithm::Dp4a | CudaAlgorithm::Fma)
    }

    /// What its products are taken in; `None` for what computes none.
    pub const fn precision(self) -> Option<Precision> {
        match self {
            CudaAlgorithm::Blocks => None,
            CudaAlgorithm::Dp4a | CudaAlgorithm::Mma | CudaAlgorithm::Wgmma => Some(Precision::Int8),
            CudaAlgorithm::Fma => Some(Precision::F32),
            CudaAlgorithm::MmaF16 | CudaAlgorithm::WgmmaF16 => Some(Precision::F16),
            CudaAlgorithm::MmaBf16 | CudaAlgorithm::WgmmaBf16 => Some(Precision::Bf16),
            CudaAlgorithm::MmaFp4 => Some(Precision::Fp4),
        }
    }
}

/// A CUDA architecture that code is compiled for: `75`, `90a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaArch {
    /// Major number of the compute capability.
    pub major: u8,
    /// Minor number.
    pub minor: u8,
    /// The `a` of `90a`: uses what only this one has, and runs nowhere else.
    pub specific: bool,
}

impl CudaArch {
    /// The architecture spelled `name`: two or three digits, the last one minor, and perhaps `a`.
    pub fn from_name(name: &str) -> Option<CudaArch> {
        let (digits, specific) = match name.strip_suffix('a') {
            Some(digits) => (digits, true),
            None => (name, false),
        };
        if !(2..=3).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let number: u16 = digits.parse().ok()?;
        let major = u8::try_from(number / 10).ok().filter(|major| *major > 0)?;
        Some(CudaArch { major, minor: (number % 10) as u8, specific })
    }

    /// The architecture with all instructions of devices of a compute capability that kernels of this language use.
    /// Compute capabilities 9.0, 12.0 and 12.1 have some in `90a`, `120a` and `121a` alone.
    pub const fn of_device((major, minor): (u8, u8)) -> CudaArch {
        CudaArch { major, minor, specific: matches!((major, minor), (9, _) | (12, 0 | 1)) }
    }

    /// Its compute capability.
    pub const fn cc(self) -> (u8, u8) {
        (self.major, self.minor)
    }

    /// Whether machine code for it runs on a device of this compute capability: the same major number and
    /// no smaller a minor one, or exactly this one.
    pub const fn runs_on(self, (major, minor): (u8, u8)) -> bool {
        self.major == major && if self.specific { self.minor == minor } else { self.minor <= minor }
    }

    /// Whether NVIDIA promises that besides: of machine code for Tegra (8.7, Jetson Orin; 10.1 and 11.0, Jetson Thor) on exactly that
    /// device alone, and of no other code there.
    pub const fn is_promised_on(self, (major, minor): (u8, u8)) -> bool {
        const fn is_tegra(major: u8, minor: u8) -> bool {
            matches!((major, minor), (8, 7) | (10, 1) | (11, 0))
        }
        let exactly = self.major == major && self.minor == minor;
        let tegra = is_tegra(self.major, self.minor) || is_tegra(major, minor);
        self.runs_on((major, minor)) && (exactly || !tegra)
    }
}

impl core::fmt::Display for CudaArch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}{}{}", self.major, self.minor, if self.specific { "a" } else { "" })
    }
}

/// A set of CPU features as one word, so that "does this machine have them?" is one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FeatureSet(pub u64);

impl FeatureSet {
    /// The set without members.
    pub const EMPTY: FeatureSet = FeatureSet(0);

    /// This set with `feature` added.
    pub const fn with(self, feature: Feature) -> FeatureSet {
        FeatureSet(self.0 | 1 << feature as u8)
    }

    /// This set with `feature` taken out.
    pub const fn without(self, feature: Feature) -> FeatureSet {
        FeatureSet(self.0 & !(1 << feature as u8))
    }

    /// Whether `feature` is a member.
    pub const fn has(self, feature: Feature) -> bool {
        self.0 & 1 << feature as u8 != 0
    }

    /// Whether every member of `other` is in this set.
    pub const fn contains(self, other: FeatureSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// The members of `other` that this set lacks.
    pub const fn missing(self, other: FeatureSet) -> FeatureSet {
        FeatureSet(other.0 & !self.0)
    }

    /// The members, in the order of the vocabulary.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.iter().copied().filter(move |f| self.has(*f))
    }
}

impl FromIterator<Feature> for FeatureSet {
    fn from_iter<I: IntoIterator<Item = Feature>>(features: I) -> FeatureSet {
        features.into_iter().fold(FeatureSet::EMPTY, FeatureSet::with)
    }
}
