//! What an ISA offers to the loops: its primitives and features.

use gristmill_spec::model::CpuVariant;
use gristmill_spec::vocab::{Feature, Isa};
use std::collections::BTreeSet;

/// A module of primitives in the runtime, and what decides how its loops are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Primitives {
    /// Name of the module.
    pub module: &'static str,
    /// i32 lanes of a vector.
    pub lanes: u32,
    /// It has `dot`.
    pub direct: bool,
    /// Its multiply takes operands as signed bytes.
    pub signed: bool,
    /// Products that an i16 lane of `pairs` gains in a step.
    pub paired: u32,
    /// `shift` moves each byte by itself, so the topmost field needs no mask.
    pub byte_shift: bool,
    /// It has `dot_group`: one load of activations serves every field of a byte.
    pub grouped: bool,
    /// Tiles of several tokens prefetch weights, as those of one do everywhere. Measured to pay on x86.
    pub prefetches: bool,
    /// It has `trits`: byte permutes that take bytes of five trits apart.
    pub trits: bool,
    /// It has `matrix`, which takes two tokens at once.
    pub matrix: bool,
    /// It has `factor`, `times` and `half_of_times`: operands times integers of their rows, in bytes.
    pub times: bool,
    /// It has `factor`, `both`, `times_words` and `words`: the same, integers of two runs, and activations, as i16.
    pub words: bool,
    /// It has `sum_pairs`: sums of activations of two runs side by side, from where loads broadcast them. What is made of the integers of runs
    /// waits with staged operands then.
    pub sum_pairs: bool,
    /// For many tokens a shift and a mask do not hide behind multiplications, which take two instructions each.
    pub stages: bool,
    /// It has `split`: activations as two numbers of four bits each.
    pub splits: bool,
    /// It has `signed_pairs` and `values`: products of signed bytes of which two fit in i16.
    pub signs: bool,
    /// Vector registers that sums may fill, so that operands fit beside them; tiles with more sums than that get fewer
    /// tokens, or fewer rows. None: tiles are computed as listed.
    pub sums: Option<u32>,
    /// The same with the f32 sums that those of super-blocks are added to once each. None: they may wait in memory. With `q4_k`, `q6_k`
    /// and `iq2_s` on Zen 4, tiles of five tokens are 2 to 8 % faster than of six, whose f32 sums do.
    pub all_sums: Option<u32>,
}

/// Vectors of 16 bytes without anything besides what every ISA's module has.
const NONE: Primitives = Primitives {
    module: "",
    lanes: 4,
    direct: false,
    signed: false,
    paired: 1,
    byte_shift: false,
    grouped: false,
    prefetches: false,
    trits: false,
    matrix: false,
    times: false,
    words: false,
    sum_pairs: false,
    stages: false,
    splits: false,
    signs: false,
    sums: None,
    all_sums: None,
};

/// The primitives that a variant is written in; none for the scalar ones.
pub fn primitives(variant: &CpuVariant) -> Option<Primitives> {
    let x86 =
        |module, lanes, direct| Primitives { module, lanes, direct, paired: 2, prefetches: true, ..NONE };
    let arm = |module, direct, signed| Primitives {
        module,
        direct,
        signed,
        byte_shift: true,
        grouped: direct,
        // Activations are in registers too.
        sums: Some(20),
        ..NONE
    };
    let requires = |feature| variant.requires.contains(&feature);
    let avx512 = |module, direct: bool| Primitives {
        times: direct,
        words: !direct,
        sums: Some(24),
        all_sums: direct.then_some(30),
        ..x86(module, 16, direct)
    };
    match variant.isa {
        Isa::Scalar => None,
        Isa::Sse41 => Some(x86("sse41", 4, false)),
        Isa::Avx2 => {
            let x86 = x86("avx2", 8, false);
            Some(Primitives { words: true, sum_pairs: true, stages: true, splits: true, signs: true, ..x86 })
        }
        // Sixteen registers: f32 sums wait in memory, which is read once a run.
        Isa::AvxVnni => Some(Primitives { times: true, sums: Some(16), ..x86("avxvnni", 8, true) }),
        Isa::Avx512 if requires(Feature::Avx512vnni) && requires(Feature::Avx512vbmi) => {
            Some(Primitives { trits: true, ..avx512("avx512vbmi", true) })
        }
        Isa::Avx512 if requires(Feature::Avx512vnni) => Some(avx512("avx512vnni", true)),
        Isa::Avx512 => Some(avx512("avx512", false)),
        Isa::Neon if requires(Feature::I8mm) => {
            Some(Primitives { matrix: true, ..arm("neoni8mm", true, false) })
        }
        Isa::Neon if requires(Feature::Dotprod) => Some(arm("neondot", true, true)),
        Isa::Neon => Some(arm("neon", false, true)),
    }
}

/// ISA features and required ones, without repeats.
pub fn features(variant: &CpuVariant) -> Vec<Feature> {
    let all: BTreeSet<Feature> = variant.isa.features().iter().chain(&variant.requires).copied().collect();
    all.into_iter().collect()
}

/// What `#[target_feature]` is to enable for them: what Rust has no word for is written in inline assembly.
pub fn enabled(features: &[Feature]) -> String {
    let names: Vec<&str> = features.iter().filter(|f| f.in_target_feature()).map(|f| f.name()).collect();
    names.join(",")
}
