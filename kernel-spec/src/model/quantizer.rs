//! Quantizers: how f32 becomes a format.

use super::{Factor, Format, Origin};

/// What a scale is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// max |x|.
    AbsMax,
    /// The first element of greatest magnitude, with its sign.
    SignedAbsMax,
    /// mean |x|, summed in f64 by 4096 values in sixteen interleaved partial sums (the same on every device).
    AbsMean,
}

/// How the step and its inverse come from the statistic s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// `step = s / levels`, codes from `x * (1 / step)` (0 if step is 0 or its inverse not finite).
    Step,
    /// `multiplier = levels / s`, codes from `x * multiplier`, step = 1 / multiplier.
    Multiplier,
    /// `step = s / levels`, codes from `x / step`.
    Divide,
}

/// Rounding of a scaled value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To nearest, ties to even.
    HalfEven,
    /// To nearest, ties away from zero.
    HalfAway,
    /// To nearest, ties toward zero.
    HalfTowardZero,
    /// `trunc(x + zero + 0.5) - zero` in f32: ties up in code space, whose codes are not negative (the ggml rule for Q4_0).
    HalfUp,
    /// No rounding: the sign of x, 0 where |x| is below `threshold`.
    Sign,
}

/// The scale of a quantizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleRule {
    /// What it is computed from, over the extent of the scale (block, row or tensor).
    pub of: Statistic,
    /// See [`Via`].
    pub levels: f32,
    /// See [`Via`].
    pub via: Via,
    /// Lower bound on the statistic, 0 for none.
    pub floor: f64,
    /// The division is done in f64 and then rounded to f32.
    pub f64_division: bool,
}

/// How f32 becomes a format.
#[derive(Clone, Debug)]
pub struct Quantizer {
    /// Name, unique in the format.
    pub name: String,
    /// Where it is described.
    pub origin: Origin,
    /// What it does.
    pub rule: QuantizeRule,
}

/// What a quantizer does.
#[derive(Clone, Debug)]
pub enum QuantizeRule {
    /// Computes one scale and rounds.
    Round(RoundRule),
    /// Searches for scales (and minima, and entries of a codebook) by a named algorithm.
    Search(Search),
}

/// One scale, and rounding.
#[derive(Clone, Copy, Debug)]
pub struct RoundRule {
    /// Step size.
    pub scale: ScaleRule,
    /// Rounding.
    pub round: Rounding,
    /// For [`Rounding::Sign`]: |x| below it (compared in f64) is 0.
    pub threshold: f64,
    /// Inclusive bounds of the rounded integer.
    pub clamp: (i32, i32),
}

/// A named algorithm with its parameters. The format has the structure that it fills in; `gristmill-runtime`'s
/// `search` module has the bodies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Search {
    /// Scale and minimum from the smallest and the largest value of the block.
    MinMax,
    /// Sign bits, and the mean magnitude as scale.
    Mean,
    /// Scale and minimum of each run by weighted least squares over several trials.
    KMin {
        /// Errors weigh |x| plus the root mean square of the run, and not |x| alone.
        rms: bool,
        /// Errors are squared.
        square: bool,
        /// What the first trial adds to the number of steps.
        start: f32,
        /// Trials after the first, each 0.1 further.
        steps: u32,
    },
    /// Scale of each run: single codes are moved as long as that helps, in at most so many passes.
    KRefine {
        /// Passes.
        steps: u32,
    },
    /// Scale of each run: so many larger and smaller ones are tried.
    KScan {
        /// Trials on either side.
        steps: u32,
    },
    /// Scale of a table of levels: so many larger and smaller ones are tried.
    LevelScan {
        /// Trials on either side.
        steps: u32,
    },
    /// Scale of each run from its largest magnitude, then the nearest level.
    NearestLevel,
    /// Entries of a codebook with signs, factors of runs and the scale of the block together.
    GridSearch {
        /// Trials on either side for the first guess of the scale.
        steps: u32,
    },
    /// Entries of a codebook and the scale of the block in turns: each time the best for what the other is.
    Alternating {
        /// How many times each.
        steps: u32,
    },
}

impl Search {
    /// The algorithm's name in specs.
    pub const fn name(&self) -> &'static str {
        match self {
            Search::MinMax => "min-max",
            Search::Mean => "mean",
            Search::KMin { .. } => "k-min",
            Search::KRefine { .. } => "k-refine",
            Search::KScan { .. } => "k-scan",
            Search::LevelScan { .. } => "level-scan",
            Search::NearestLevel => "nearest-level",
            Search::GridSearch { .. } => "grid-search",
            Search::Alternating { .. } => "alternating",
        }
    }
}

/// Most runs that the CUDA version of `k-min` takes: a warp has a lane for each.
const CUDA_RUNS: u32 = 32;

impl Quantizer {
    /// Whether it weighs errors by the importance of the weights, where that is given: every one that searches does, and one
    /// that rounds by `signed-absmax` over a block, which searches for a scale then. Most of the other rules are those of models
    /// that were trained with them.
    pub fn weighs(&self, format: &Format) -> bool {
        match &self.rule {
            QuantizeRule::Search(_) => true,
            QuantizeRule::Round(rule) => {
                rule.scale.of == Statistic::SignedAbsMax
                    && rule.round != Rounding::Sign
                    && matches!(format.value.scale[..], [Factor::Field(_)])
            }
        }
    }

    /// Why there is no CUDA version of what it does for `format`, where there is none.
    pub fn not_on_cuda(&self, format: &Format) -> Option<String> {
        let search = match &self.rule {
            QuantizeRule::Round(_) => return None,
            QuantizeRule::Search(search) => search,
        };
        if !matches!(search, Search::KMin { .. }) {
            return Some(format!("`{}` has no CUDA version", search.name()));
        }
        let runs = format.value.scale.iter().filter_map(|factor| match factor {
            Factor::Field(field) => format.fields.get(*field).map(|field| field.count),
            Factor::Row | Factor::Tensor => None,
        });
        let runs = runs.max().unwrap_or(1);
        (runs > CUDA_RUNS).then(|| {
            format!("the CUDA version of `{}` takes at most {CUDA_RUNS} runs, not {runs}", search.name())
        })
    }
}
