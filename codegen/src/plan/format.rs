//! What is decided once for a format.

use super::divisors::lcm;
use super::superblock::{SuperBlock, sum_fits_i16};
use super::term::Term;
use gristmill_spec::model::{Activations, Factor, FieldType, Format, ValueMap};

/// What is decided once for a format.
#[derive(Clone, Debug)]
pub struct FormatPlan<'a> {
    /// The format.
    pub format: &'a Format,
    /// Its activation format.
    pub activations: &'a Activations,
    /// Width of a code.
    pub code_bits: u32,
    /// Largest code that means something, where some codes mean nothing.
    pub last_code: Option<u32>,
    /// Every integer value a weight can have, ascending.
    pub values: Vec<i32>,
    /// Eight bits hold these values, and what they are made of: the map's before signs and shift, and the shift's.
    pub(crate) narrow: bool,
    /// Runs of a block whose elements share every factor (1 where the block has none): each count divides it.
    pub groups: u32,
    /// Factors of the scale that stand in the block.
    pub block_scale: Vec<usize>,
    /// The weight has an added or subtracted term.
    pub offset: bool,
    /// Elements of a K group, whose products are summed in integers; 0: the whole row.
    pub k_group: u32,
    /// Runs whose integer sums are added up before they are scaled, where scales are integers times a shared number.
    pub superblock: Option<SuperBlock>,
}

/// How codes become integer values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decode {
    /// `times * code - zero`.
    Affine {
        /// Factor.
        times: i32,
        /// Subtracted.
        zero: i32,
        /// The code is two's complement.
        signed: bool,
    },
    /// A table by code.
    Table(Vec<i32>),
    /// A table of groups by code.
    Codebook,
}

impl<'a> FormatPlan<'a> {
    /// Plans `format`, which was checked.
    pub fn new(format: &'a Format, activations: &'a Activations) -> FormatPlan<'a> {
        let field = &format.fields[format.value.code];
        let code_bits = field.ty.bits();
        // The checks refuse codes that are floating-point numbers.
        let codes = field.ty.range().map_or(u32::MAX, |(low, high)| (high - low + 1) as u32);
        let meant = match &format.value.map {
            ValueMap::Affine { .. } => codes,
            ValueMap::Levels(levels) => levels.len() as u32,
            ValueMap::Codebook { entries, .. } => entries.len() as u32,
        };
        let last_code = (meant < codes).then(|| meant - 1);
        let block_fields = |factors: &[Factor]| -> Vec<usize> {
            factors.iter().filter_map(|f| if let Factor::Field(i) = f { Some(*i) } else { None }).collect()
        };
        let block_scale = block_fields(&format.value.scale);
        let offsets: Vec<usize> =
            [block_fields(&format.value.add), block_fields(&format.value.subtract)].concat();
        // Runs in which no factor changes: counts that do not divide each other cut a block at the borders of both. Every
        // count divides the block's elements, so their least common multiple does.
        let counts = block_scale.iter().chain(&offsets).map(|&i| format.fields[i].count);
        let groups = counts.fold(1, |all, count| lcm(all.into(), count.into()) as u32);
        let offset = !format.value.add.is_empty() || !format.value.subtract.is_empty();
        let run = format.elements / groups;
        let k_group = match (format.scales_stand_outside(), activations.block) {
            (true, None) => 0,
            (false, None) => run,
            (true, Some(block)) => block.min(format.elements),
            (false, Some(block)) => block.min(run),
        };
        let values: Vec<i32> = format.integers().into_iter().collect();
        let ends = (values.first().copied().unwrap_or(0), values.last().copied().unwrap_or(0));
        FormatPlan {
            superblock: SuperBlock::of(format, activations, groups, ends),
            format,
            activations,
            code_bits,
            last_code,
            narrow: narrow(format, ends),
            values,
            groups,
            block_scale,
            offset,
            k_group,
        }
    }

    /// Smallest value.
    pub fn min(&self) -> i32 {
        self.values[0]
    }

    /// Largest value.
    pub fn max(&self) -> i32 {
        self.values[self.values.len() - 1]
    }

    /// Largest magnitude of a value.
    pub(crate) fn largest(&self) -> u64 {
        self.min().unsigned_abs().max(self.max().unsigned_abs()).into()
    }

    /// Tiles of so many `k` that a K group takes; 0 where the whole row is one.
    pub(crate) fn k_group_tiles(&self, k: u32) -> u32 {
        self.k_group.div_ceil(k)
    }

    /// Elements that share a scale.
    pub fn run(&self) -> u32 {
        self.format.elements / self.groups
    }

    /// Elements that are appended to a packed row at once: a K group, behind which its tile is padded, or a block.
    pub(crate) fn appended(&self) -> u32 {
        if self.k_group == 0 { self.format.elements } else { self.k_group }
    }

    /// K groups that share an f32 scale in a packing.
    pub fn runs(&self) -> u32 {
        self.superblock.as_ref().map_or(1, |superblock| superblock.runs)
    }

    /// Whether the zero points of two runs can be corrected by their sums of activations as i16, or, where operands have `signs`,
    /// nothing is to be corrected.
    pub(super) fn corrects_in_pairs(&self, signs: bool) -> bool {
        signs || self.min() == 0 || sum_fits_i16(self.k_group)
    }

    /// How far integer sums go, in words.
    pub fn extent(&self) -> String {
        match (self.k_group, &self.superblock) {
            (0, _) => "one integer sum a row".to_string(),
            (k_group, None) => format!("integer sums over {k_group} elements"),
            (k_group, Some(superblock)) => {
                let runs = superblock.runs;
                format!(
                    "integer sums over {} elements, {runs} runs of {k_group} with an integer each",
                    runs * k_group
                )
            }
        }
    }

    /// Whether weights have a factor outside their blocks.
    pub(crate) fn uses_outer(&self) -> bool {
        let value = &self.format.value;
        let mut factors = value.scale.iter().chain(&value.add).chain(&value.subtract);
        factors.any(|factor| matches!(factor, Factor::Row | Factor::Tensor))
    }

    /// Whether packed weights carry scales beside their codes.
    pub fn has_scales(&self) -> bool {
        !self.block_scale.is_empty() || self.offset
    }

    /// The terms that packed weights carry beside their codes.
    pub(crate) fn terms(&self) -> impl Iterator<Item = Term> + use<> {
        [(self.has_scales(), Term::Scale), (self.offset, Term::Min)]
            .into_iter()
            .filter_map(|(there, term)| there.then_some(term))
    }

    /// The field that holds a term of a K group, or of a super-block without the integers of its runs, and nothing but the format's
    /// constant factor is multiplied with it inside a block.
    pub(crate) fn field_of(&self, term: Term) -> Option<usize> {
        let value = &self.format.value;
        let fields = match (term, &self.superblock) {
            (Term::Scale, Some(superblock)) => &superblock.scale.shared,
            (Term::Scale, None) => &self.block_scale,
            (Term::Min, Some(superblock)) => &superblock.min.as_ref()?.shared,
            (Term::Min, None) => match (&value.add[..], &value.subtract[..]) {
                ([Factor::Field(field)], []) | ([], [Factor::Field(field)]) => return Some(*field),
                _ => return None,
            },
        };
        match fields[..] {
            [field] => Some(field),
            _ => None,
        }
    }

    /// How codes become values; evenly spaced levels are an affine map.
    pub fn decode(&self) -> Decode {
        let signed = matches!(self.format.fields[self.format.value.code].ty, FieldType::Signed(_));
        match &self.format.value.map {
            ValueMap::Affine { times, zero } => Decode::Affine { times: *times, zero: *zero, signed },
            ValueMap::Levels(levels) => {
                let step = if levels.len() > 1 { levels[1] - levels[0] } else { 1 };
                if levels.windows(2).all(|pair| pair[1] - pair[0] == step) {
                    Decode::Affine { times: step, zero: -levels[0], signed: false }
                } else {
                    let mut table = levels.clone();
                    table.resize(1 << self.code_bits, 0);
                    Decode::Table(table)
                }
            }
            ValueMap::Codebook { .. } => Decode::Codebook,
        }
    }
}

/// Whether eight bits hold a format's integers at every step of decoding; those of weights go from `ends.0` to `ends.1`.
pub(super) fn narrow(format: &Format, ends: (i32, i32)) -> bool {
    let fits = |v: &i32| (-128..=127).contains(v);
    let shifts = format.value.shift.as_ref();
    // What a shift is added to; signs have made it symmetric.
    let before = || format.unshifted().iter().all(fits);
    fits(&ends.0) && fits(&ends.1) && shifts.is_none_or(|shift| shift.values.iter().all(fits) && before())
}
