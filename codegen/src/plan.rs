//! Plans: everything the emitter needs to know about a format or a variant, decided and proven.
//!
//! A plan is where the compiler's own work is done: which integer values a format has, in how many
//! bits a packing can hold them, over which runs of k sums are integers, which multiply sums them
//! exactly, and up to which k. Emitting is then writing down.

mod divisors;
mod exact;
mod format;
mod lookup;
pub(crate) mod pack;
pub(crate) mod packed;
mod prefetch;
mod primitives;
mod quantizer;
mod rounding;
mod search;
mod staged;
mod superblock;
mod term;
mod terms;
mod tiles;
pub(crate) mod trits;

use crate::Error;
pub(crate) use divisors::{lcm, of_whole_blocks};
use exact::steps_in_i16;
pub(crate) use exact::{exact_over, longest_row, up_to};
pub use format::{Decode, FormatPlan};
use gristmill_spec::model::{CpuVariant, Packing};
use gristmill_spec::vocab::{Feature, Strategy};
pub use lookup::LookupPlan;
pub use pack::{PackPlan, Shifted, UpperPlane};
use prefetch::DecodedTo;
pub use prefetch::Prefetch;
pub use primitives::{Primitives, enabled, features, primitives};
pub(crate) use quantizer::{CudaQuantizerPlan, QuantizerPlan};
pub(crate) use rounding::{Rounded, RoundingPlan};
pub(crate) use search::{KMinPlan, Runs, SearchPlan};
use staged::WORDS_K;
pub use staged::{Scaled, Staged};
pub use superblock::{RunTerm, SuperBlock};
pub(crate) use term::Term;
pub use terms::{Integers, TermTypes};
pub use tiles::{TileOperands, TileSums, Tiles};

/// `sum_pairs` makes a multiple of this many pairs.
const SUM_PAIRS: u32 = 4;

/// The largest half of an activation: 127 is 16 * 8 - 1, and -128 is 16 * -8.
const SPLIT_ACTIVATION: i64 = 8;

/// Runs whose activations are split together where an f32 stands for each. A load that follows the store of its
/// bytes at once waits for it, and eight loops take longer than the store: 38 % more weights a second on Zen 3 with `q8_0` in its second cache.
pub(crate) const SPLIT_RUNS: u32 = 8;

/// How products are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dot {
    /// u8 x i8 products of four k added to an i32 lane in one instruction.
    Direct {
        /// Fields are masked but not shifted; each has its own sum, which is shifted at the end.
        shift_free: bool,
    },
    /// Pairs of products added in i16, widened to i32 after this many tiles.
    Pairs {
        /// Tiles between widenings, at least 1.
        tiles: u32,
    },
    /// Pairs of products, widened to i32 after this many fields of a tile.
    PairsWithin {
        /// Fields between widenings, at least 1 and fewer than a tile has.
        fields: u32,
    },
    /// Operands widened to i16 before the multiplication.
    Wide,
    /// The same operands as bytes, and activations as two numbers of four bits each, whose products with a run fit in i16.
    Split,
}

impl Dot {
    /// How the operands that `read` holds are multiplied with `tokens` at once; an i16 takes `pairs_in_i16` products.
    fn new(
        plan: &FormatPlan<'_>,
        primitives: &Primitives,
        read: &PackPlan<'_>,
        tokens: u32,
        pairs_in_i16: i64,
    ) -> Dot {
        let k_group_tiles = |row: u32| if plan.k_group == 0 { row } else { plan.k_group_tiles(read.tile.k) };
        let fields = i64::from(read.tile_fields());
        if primitives.direct {
            // A shift of each field is saved for a shift and an addition of its sum: lost again where a K group has only a few tiles
            // before its sums are shifted. With a shift of bytes the lowest field and the topmost cost one instruction in place or
            // not.
            let few = if primitives.byte_shift { 2 } else { 1 };
            let saves = read.fields > few && k_group_tiles(u32::MAX) > 2;
            Dot::Direct { shift_free: tokens == 1 && saves && read.are_operands() }
        } else if pairs_in_i16 == 0 {
            let whole = plan.k_group == WORDS_K && plan.k_group.is_multiple_of(read.tile.k);
            let products = i64::from(plan.k_group / 4 * primitives.paired) * SPLIT_ACTIVATION;
            let exact = products * i64::from(read.operand_max) <= i16::MAX.into();
            if primitives.splits && tokens == 1 && whole && exact { Dot::Split } else { Dot::Wide }
        } else if pairs_in_i16 < fields {
            Dot::PairsWithin { fields: pairs_in_i16 as u32 }
        } else {
            // Beyond the tiles of a K group there is nothing to postpone.
            Dot::Pairs { tiles: (pairs_in_i16 / fields).min(k_group_tiles(64).into()) as u32 }
        }
    }

    /// Whether sums in i16 take all of a K group of the codes that `read` holds, and are widened at its end.
    pub(crate) fn widens_once(self, plan: &FormatPlan<'_>, read: &PackPlan<'_>) -> bool {
        matches!(self, Dot::Pairs { tiles } if plan.k_group != 0 && tiles >= plan.k_group_tiles(read.tile.k))
    }
}

/// A matmul variant, resolved.
#[derive(Clone, Debug)]
pub struct MatmulPlan<'a> {
    /// The format.
    pub format: &'a FormatPlan<'a>,
    /// Its codes in the packing.
    pub pack: PackPlan<'a>,
    /// What codes are decoded to for many tokens at once, where they are.
    pub staged: Option<Staged<'a>>,
    /// How a matrix unit multiplies, where one does.
    pub tiles: Option<Tiles>,
    /// What the ISA's code is written in.
    pub primitives: Primitives,
    /// Features the code uses.
    pub features: Vec<Feature>,
    /// The multiply is signed and operands are not: each is taken as itself less 128, and every sum gets 128
    /// times the sum of its activations back.
    pub biased: bool,
    /// Operands are values that may be negative, and activations are multiplied without their signs, which operands take.
    pub signs: bool,
    /// Vectors of rows computed at once.
    pub vectors: u32,
    /// Tokens computed at once.
    pub tokens: u32,
    /// How products are summed; with `pairs`, those of a token without a partner.
    pub dot: Dot,
    /// Tokens go in pairs: products of two rows by two tokens, eight k to each of four sums, in one instruction.
    pub pairs: bool,
    /// Tiles that are decoded together, so that sixteen k of a row, or eight, come side by side where one load of
    /// activations serves several k.
    pub step: u32,
    /// How the loops prefetch weights, where they do.
    pub prefetch: Option<Prefetch>,
    /// Largest k for which every sum is exact.
    pub k_max: u64,
}

impl<'a> MatmulPlan<'a> {
    /// Plans a packed variant and proves its sums.
    pub fn new(
        plan: &'a FormatPlan<'a>,
        packing: &'a Packing,
        variant: &CpuVariant,
    ) -> Result<MatmulPlan<'a>, Error> {
        let Some(primitives) = primitives(variant) else {
            return Err(Error::passed(plan.format, "a scalar variant reads a packing"));
        };
        let pack = PackPlan::new(plan, packing, Strategy::Multiply, &variant.origin)?;
        let lanes = primitives.lanes;
        let rows = pack.rows_at_once(variant, lanes, "lanes")?;
        if pack.trits() && !primitives.trits {
            return Err(Error::refused(
                "packing-order",
                &variant.origin,
                format!("packing `{}` holds trits, which this variant can't take apart", packing.name),
                "only `avx512` with `requires = [\"avx512vnni\", \"avx512vbmi\"]` has the byte permutes for it",
            ));
        }
        let tokens = variant.tokens.max(1);
        let biased = primitives.signed && pack.operand_max > 127;
        let (smallest, largest) = if biased { (-128, 127) } else { (0, i64::from(pack.operand_max)) };
        let in_i16 = |largest| steps_in_i16(smallest, largest, i64::from(primitives.paired));
        let unsigned_pairs_in_i16 = in_i16(largest);
        let wide = !primitives.direct && unsigned_pairs_in_i16 == 0;
        // A table may hold values as well as their distances from the smallest. -128 has no opposite.
        let opposites = plan.min() >= -127 && plan.max() <= 127;
        let signs = wide && primitives.signs && tokens > 1 && pack.table.is_some() && opposites;
        let staged = match variant.strategy {
            Strategy::Staged if !biased => Staged::new(plan, &pack, &primitives, tokens, wide, signs),
            _ => None,
        };
        // As i16 operands have no need of them.
        let signs = signs && !staged.as_ref().is_some_and(Staged::of_words);
        let tiles = (variant.strategy == Strategy::Tiles).then(|| Tiles::new(plan, &pack)).flatten();
        let pairs_in_i16 = match &staged {
            _ if signs => 1,
            Some(staged) if staged.halved => in_i16(staged.operands.operand_max.into()),
            _ => unsigned_pairs_in_i16,
        };
        // What the loops over tokens read.
        let read = staged.as_ref().map_or(&pack, |staged| &staged.operands);
        let step = if primitives.grouped { tiles_of_a_step(plan, read) } else { 1 };
        let dot = Dot::new(plan, &primitives, read, tokens, pairs_in_i16);
        let (vectors, mut tokens) = match tiles {
            Some(_) => ((rows / lanes).min(Tiles::ROWS / lanes), Tiles::TOKENS),
            None if staged.as_ref().is_some_and(|staged| staged.scaled.is_some()) => {
                // One sum each: those in f32 are read and written once a super-block.
                let vectors = rows / lanes;
                (vectors, primitives.sums.map_or(tokens, |most| tokens.min((most / vectors).max(1))))
            }
            None => in_registers(plan, &primitives, read, dot, (rows / lanes, tokens)),
        };
        let pairs = primitives.matrix
            && (pack.spacing == 0 || pack.shifted.is_some())
            && staged.is_none()
            && tokens > 1
            && pairs_save(plan, &pack, step, vectors, tokens & !1);
        if pairs {
            tokens &= !1;
        }
        let to = match (&staged, &tiles) {
            (_, Some(_)) => DecodedTo::BufferOfUnit,
            (Some(_), None) => DecodedTo::Buffer,
            (None, None) => DecodedTo::Registers,
        };
        let k_max = longest_row(plan, exact_k(plan, &pack, dot), &variant.origin)?;
        Ok(MatmulPlan {
            format: plan,
            primitives,
            features: features(variant),
            biased,
            signs,
            vectors,
            tokens,
            dot,
            pairs,
            step,
            prefetch: Prefetch::new(plan, &pack, &primitives, tokens, to),
            k_max,
            pack,
            staged,
            tiles,
        })
    }

    /// The same without a buffer, and the plan of the loops that read it. What decodes codes prefetches them, so those do not.
    pub fn apart(&self, staged: &Staged<'a>) -> (MatmulPlan<'a>, MatmulPlan<'a>) {
        let decode = MatmulPlan { staged: None, step: 1, ..self.clone() };
        (decode, MatmulPlan { staged: None, pack: staged.operands.clone(), prefetch: None, ..self.clone() })
    }

    /// Fewest tokens for which it pays, whatever its variant says.
    pub fn least_tokens(&self) -> u64 {
        let staged = self.staged.as_ref().map(|staged| staged.least_tokens(&self.primitives));
        staged.or(self.tiles.map(|tiles| tiles.least_tokens(&self.pack))).unwrap_or(0)
    }

    /// Whether operands are multiplied as i16 with activations that are widened once for each run instead of for each vector of rows.
    pub fn widens_runs(&self) -> bool {
        let k_group = self.format.k_group;
        let whole = k_group.is_multiple_of(WORDS_K) && k_group.is_multiple_of(self.pack.tile.k);
        self.dot == Dot::Wide && k_group != 0 && whole
    }

    /// Whether activations that staged operands are multiplied with as i16 are widened for a whole part of a row at once, instead of for each
    /// run. AVX2's tiles have few tokens, so that they stay near: on Zen 4 `iq4_nl` is 6 % faster, and `iq4_xs` with AVX-512, 5 % slower.
    pub fn widens_parts(&self) -> bool {
        self.primitives.stages
    }

    /// Whether the sums of activations of the runs of a super-block are put side by side two by two, once for all rows of a tile.
    pub fn sums_in_pairs(&self) -> bool {
        let eights = |of: &SuperBlock| of.runs.is_multiple_of(2 * SUM_PAIRS);
        self.primitives.sum_pairs && self.format.superblock.as_ref().is_some_and(eights)
    }

    /// Whether the multiplication that widens sums in i16 takes the integers of their runs with it, instead of another one for each sum in
    /// i32. What brings the integers to sixteen bits is shared by tokens. The zero point is then corrected by sums of activations as i16.
    pub fn widens_by_integers(&self) -> bool {
        let in_pairs = matches!(self.dot, Dot::Pairs { .. } | Dot::PairsWithin { .. });
        let scaled = self.staged.as_ref().is_some_and(|staged| staged.scaled.is_some());
        let sums_fit = self.format.corrects_in_pairs(self.signs);
        let superblock = self.format.superblock.is_some();
        in_pairs && self.tokens > 1 && self.primitives.words && superblock && sums_fit && !scaled
    }

    /// The plan in words, for `gristmill emit --plan` and receipts.
    pub fn describe(&self) -> String {
        let operands = match (self.primitives.signed, self.biased) {
            _ if self.signs => "|i8| x signed i8",
            (false, _) => "u8 x i8",
            (true, false) => "i8 x i8",
            (true, true) => "(u8 - 128) x i8",
        };
        let pairs = if self.primitives.paired == 2 { "pairs" } else { "products" };
        let dot = match (self.tiles, self.dot) {
            (Some(tiles), _) => tiles.describe(),
            _ if self.pairs => {
                format!("{operands} products of 2 rows x 2 tokens x 8 k into i32; a single token by dot")
            }
            (_, Dot::Direct { shift_free: true }) => {
                format!(
                    "{operands} dot into i32, {} masked fields with a sum each, shifted once at the end",
                    self.pack.fields
                )
            }
            (_, Dot::Direct { shift_free: false }) => format!("{operands} dot into i32"),
            (_, Dot::Pairs { tiles }) => format!("{operands} {pairs} in i16, widened every {tiles} tiles"),
            (_, Dot::PairsWithin { fields: 1 }) => format!("{operands} {pairs} in i16, widened at once"),
            (_, Dot::PairsWithin { fields }) => {
                format!("{operands} {pairs} in i16, widened every {fields} fields")
            }
            (_, Dot::Wide) if self.staged.as_ref().is_some_and(Staged::of_words) => {
                let widened = if self.widens_parts() { "those k" } else { "a run" };
                format!("i16 x i16 pairs into i32, activations widened once {widened}")
            }
            (_, Dot::Wide) if self.widens_runs() => {
                "operands widened to i16, activations once a run, pairs into i32".to_string()
            }
            (_, Dot::Wide) => "operands widened to i16, pairs into i32".to_string(),
            (_, Dot::Split) => {
                format!("{operands} {pairs} in i16, activations in two halves of 4 bits, widened once a run")
            }
        };
        let dot = if self.widens_by_integers() { format!("{dot}, times integers of runs") } else { dot };
        let extent = self.format.extent();
        let decode = match (&self.pack.table, self.pack.fields) {
            (None, _) if self.pack.trits() && matches!(self.dot, Dot::Direct { shift_free: true }) => {
                "byte permutes and mask"
            }
            (None, _) if self.pack.trits() => "byte permutes, shift and mask",
            (Some(_), _) if self.pack.upper.is_some() => {
                "shift and mask in two planes, table lookup (byte shuffle)"
            }
            (Some(_), _) => "mask and table lookup (byte shuffle)",
            (None, _) if self.pack.upper.is_some() => "shift and mask in two planes",
            (None, 1) => "none (bytes)",
            (None, _) if matches!(self.dot, Dot::Direct { shift_free: true }) => "mask",
            (None, _) => "shift and mask",
        };
        let times = match self.staged.as_ref().map(|staged| (staged.scaled, staged.halved)) {
            None | Some((None, false)) => String::new(),
            Some((None, true)) => "halved, ".to_string(),
            Some((Some(Scaled::Bytes { zero: 0, .. }), _)) => "times integers of runs, ".to_string(),
            Some((Some(Scaled::Bytes { zero, halved }), _)) => {
                format!("times integers of runs less {zero}, {}", if halved { "halved, " } else { "" })
            }
            Some((Some(Scaled::Words), _)) if self.format.superblock.is_none() => "as i16, ".to_string(),
            Some((Some(Scaled::Words), _)) => "times integers of runs as i16, ".to_string(),
        };
        let waiting = self.staged.as_ref().map(|staged| staged.step * staged.steps);
        let decode = match waiting.or(self.tiles.map(|tiles| tiles.step * tiles.steps)) {
            Some(k) => format!("{decode}, {times}once for all tokens by {k} k"),
            None => decode.to_string(),
        };
        let k = up_to(self.k_max);
        format!(
            "{} rows x {} tokens; {} of {}; decode: {decode}; {dot}; {extent}{k}",
            self.vectors * self.primitives.lanes,
            self.tokens,
            self.pack.packing.name,
            match self.pack.trits() {
                true => "trits, five to a byte".to_string(),
                false => match self.pack.upper {
                    Some(upper) => format!("{} + {} bits", self.pack.field_bits(), upper.bits),
                    None => format!("{} bits", self.pack.bits()),
                },
            }
        )
    }
}

/// Vectors of rows and tokens, at most as many as given, whose sums stay in registers.
fn in_registers(
    plan: &FormatPlan<'_>,
    primitives: &Primitives,
    read: &PackPlan<'_>,
    dot: Dot,
    (mut vectors, mut tokens): (u32, u32),
) -> (u32, u32) {
    let Some(most) = primitives.sums else { return (vectors, tokens) };
    let each = sums_of_a_vector(plan, read, dot);
    // The longer side: that costs the fewest loads for a multiply.
    while vectors * tokens * each > most && vectors >= tokens && vectors > 1 {
        vectors = vectors.div_ceil(2);
    }
    let fit = most / (vectors * each);
    if tokens > fit {
        tokens = if fit > 1 { fit & !1 } else { 1 };
    }
    // Codes that are looked up after they were put together are decoded for more tokens rather.
    let dear = read.upper.is_some() && read.table.is_some();
    if let (Some(_), Some(all), false) = (&plan.superblock, primitives.all_sums, dear) {
        tokens = tokens.min((all / (vectors * (each + 1))).max(1));
    }
    (vectors, tokens)
}

/// Tiles that put sixteen k of a row side by side, or else eight: as far as runs are whole steps.
fn tiles_of_a_step(plan: &FormatPlan<'_>, pack: &PackPlan<'_>) -> u32 {
    // How many tiles a whole row has is known only when it is packed.
    let run = if plan.k_group == 0 { 1 } else { plan.k_group_tiles(pack.tile.k) };
    let whole = |k: u32| (k / pack.tile.k).max(1);
    [whole(16), whole(8)].into_iter().find(|&tiles| run.is_multiple_of(tiles)).unwrap_or(1)
}

/// Whether taking tokens in pairs saves vector instructions: each does the work of two, but rows and tokens must be
/// brought together for it, and the sums of every run apart.
fn pairs_save(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, step: u32, vectors: u32, tokens: u32) -> bool {
    let k = step * pack.tile.k;
    // None where a step has too few k for one.
    let operands = k / 8;
    let saved = vectors * tokens * operands;
    // Codes are put together first, or shifts added.
    let together = match pack.upper.is_some() || pack.shifted.is_some() {
        true => vectors * 2 * operands,
        false => vectors * 2 * step.div_ceil(2),
    } + tokens / 2 * operands;
    let (steps, apart) = match plan.k_group {
        0 => (1, 0),
        _ => (plan.k_group_tiles(k), vectors * tokens + tokens),
    };
    steps * saved > steps * together + apart
}

/// Vectors of sums that are held at once for a vector of rows and a token.
fn sums_of_a_vector(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, dot: Dot) -> u32 {
    let integers = match dot {
        Dot::Direct { shift_free: true } => pack.fields,
        Dot::Direct { shift_free: false } | Dot::Wide | Dot::PairsWithin { fields: 1 } => 1,
        // A half in i16, and what it is widened into.
        Dot::PairsWithin { .. } | Dot::Split => 2,
        // Two halves in i16, and the i32 sum that they are widened into: during the loop if there is
        // more than one widening.
        Dot::Pairs { .. } if dot.widens_once(plan, pack) => 2,
        Dot::Pairs { .. } => 3,
    };
    let floats = if plan.k_group == 0 { 0 } else { 1 };
    integers + floats
}

/// The largest k for which no i32 sum over the whole row can overflow.
pub(crate) fn exact_k(plan: &FormatPlan<'_>, pack: &PackPlan<'_>, dot: Dot) -> u64 {
    let operand = u64::from(pack.operand_max);
    // Shift-free sums hold a field at its place in the byte, over a share of k.
    let in_place = match dot {
        Dot::Direct { shift_free: true } => operand << pack.place(pack.fields - 1),
        _ => operand,
    };
    let worst = operand.max(in_place.div_ceil(u64::from(pack.fields))).max(plan.largest());
    // The end of a run of known length is padded with activations of 0.
    let padding = if plan.k_group == 0 { pack.tile.k } else { 0 };
    exact_over(128 * worst.max(1), padding)
}

/// The largest k for which the scalar reference's i32 sums are exact.
pub fn scalar_k_max(plan: &FormatPlan<'_>) -> u64 {
    if plan.k_group != 0 {
        return u64::MAX;
    }
    exact_over(128 * plan.largest().max(1), 0)
}
