//! How the codes of a format lie in a packing, and which loops can read them there.

use super::format::FormatPlan;
use super::terms::TermTypes;
use crate::error::Error;
use gristmill_spec::model::{Axis, CpuVariant, Origin, Packing, Tile, TileCode, TileDigit};
use gristmill_spec::vocab::Strategy;
use std::borrow::Cow;

/// The codes of a format inside a packing.
#[derive(Clone, Debug)]
pub struct PackPlan<'a> {
    /// The packing.
    pub packing: &'a Packing,
    /// The tile layout taken.
    pub tile: Cow<'a, Tile>,
    /// Where packed codes index a table: operand of each code (value - min).
    pub table: Option<Vec<u8>>,
    /// Binary logarithm of the distance between values that neighbouring codes stand for: operands are codes moved up by so many
    /// bits. 0 where codes are value - min or index a table.
    pub spacing: u32,
    /// Elements of a K group in packed order are padded to a multiple of this.
    pub multiple: u32,
    /// Fields in a byte: codes that lie over each other, of bits or trits. Where there is an upper plane, their lower bits.
    pub fields: u32,
    /// Vectors of bytes one behind the other in a tile: its k are four for each field of each.
    pub words: u32,
    /// Where the upper bits of codes lie, if they are apart.
    pub upper: Option<UpperPlane>,
    /// What is added to the operands of groups of weights, where codes leave out a shift that such groups have.
    pub shifted: Option<Shifted>,
    /// Largest operand.
    pub operand_max: u32,
    /// How scales and minima lie beside the codes.
    pub terms: TermTypes,
}

/// A shift that groups of weights have or have not. Codes hold the value without it, and a flag for each group stands with the
/// integers of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shifted {
    /// What a flag adds to the operands of its group.
    pub by: u32,
    /// The field that says it.
    pub field: usize,
    /// Its value that is a flag.
    pub flag: u32,
    /// Elements of a group.
    pub group: u32,
    /// Groups of a run.
    pub of_run: u32,
}

impl Shifted {
    /// The shifts of `plan`, if flags of its super-blocks can say them and `tile` holds what they are added to in steps of
    /// two to the power that is given back.
    fn of(plan: &FormatPlan<'_>, tile: &Tile) -> Option<(Shifted, u32)> {
        let shift = plan.format.value.shift.as_ref()?;
        let superblock = plan.superblock.as_ref()?;
        let (&[zero, one], TileCode::Bits(bits)) = (&shift.values[..], tile.code) else { return None };
        let by = zero.abs_diff(one);
        let values: Vec<i32> = plan.format.unshifted().into_iter().collect();
        let (&[first, second, ..], &[.., last]) = (&values[..], &values[..]) else { return None };
        let step = first.abs_diff(second);
        let even = values.windows(2).all(|pair| pair[0].abs_diff(pair[1]) == step);
        let group = plan.format.elements / plan.format.fields[shift.field].count;
        let of_run = plan.k_group.checked_div(group)?;
        // In a run of several tiles, all of it has one flag: in which tile a field stands is not known to its instructions.
        let placed = of_run == 1 || (plan.k_group == tile.k && group.is_multiple_of(4));
        let fits = even
            && step.is_power_of_two()
            && (1..step).contains(&by)
            // Codes that are moved up stay in their byte.
            && bits + step.trailing_zeros() <= 8
            && last.abs_diff(first) + by < 256
            && values.len() <= 1 << bits
            && tile.upper.is_none()
            && plan.k_group == group * of_run
            && plan.k_group.is_multiple_of(tile.k)
            && placed
            && superblock.runs * of_run <= 32;
        let flag = u32::from(one > zero);
        fits.then_some((Shifted { by, field: shift.field, flag, group, of_run }, step.trailing_zeros()))
    }

    /// The group of a run in which field `field` of a tile stands.
    pub fn group_of_field(&self, field: u32) -> u32 {
        if self.of_run == 1 { 0 } else { 4 * field / self.group }
    }
}

/// The upper bits of codes in a tile, of all fields over each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperPlane {
    /// Bits of a code.
    pub bits: u32,
    /// A row has sixteen bits, a nibble for each of four k, instead of a byte for each.
    pub nibbles: bool,
    /// First byte in the tile.
    pub offset: u32,
    /// First byte of the vectors with the lower bits.
    pub lower: u32,
}

/// Share of a weight's bits that integers in nibbles have to save: taking them apart takes an instruction or two for each run and vector of
/// rows, which was measured to cost up to a tenth from caches (`iq3_s`, which would save 3 % of its bits) and 3 % where they save more
/// (`q2_k`, 16 %).
const NIBBLES_SAVE: f64 = 0.05;

/// Which tiles a kernel can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// Those whose codes are in one piece, and value - min or indices.
    WholeCodes,
    /// Those with an upper plane or with values in steps too.
    All,
}

impl<'a> PackPlan<'a> {
    /// Fits the values of `plan` into `packing`, for a variant that reads it by `strategy`.
    ///
    /// # Errors
    /// No tile is wide enough, or its order is not one that the strategy's loops read.
    pub fn new(
        plan: &FormatPlan<'_>,
        packing: &'a Packing,
        strategy: Strategy,
        variant: &Origin,
    ) -> Result<PackPlan<'a>, Error> {
        let reader = match strategy {
            Strategy::Multiply | Strategy::Staged | Strategy::Tiles => Reader::All,
            Strategy::Lookup => Reader::WholeCodes,
        };
        let pack = fitted_for(plan, packing, reader, variant)?;
        pack.check_form(strategy, variant)?;
        let flags = match (&pack.shifted, &plan.superblock) {
            (Some(shifted), Some(superblock)) => shifted.of_run * superblock.runs,
            _ => 0,
        };
        let stored = TermTypes { flags, ..TermTypes::stored(plan, packing.rows, strategy) };
        let nibbles = PackPlan { terms: stored, ..pack };
        let bytes = PackPlan { terms: stored.with_bytes(), ..nibbles.clone() };
        let saved = bytes.bits_per_weight(plan) - nibbles.bits_per_weight(plan);
        Ok(if saved >= NIBBLES_SAVE * bytes.bits_per_weight(plan) { nibbles } else { bytes })
    }

    /// Rows that a variant computes at once, in vectors of so many `lanes`, which are `kind`.
    ///
    /// # Errors
    /// They don't fill vectors.
    pub(super) fn rows_at_once(&self, variant: &CpuVariant, lanes: u32, kind: &str) -> Result<u32, Error> {
        let packed = self.packing.rows;
        let rows = if variant.rows == 0 { packed } else { variant.rows };
        if packed.is_multiple_of(lanes) && rows.is_multiple_of(lanes) {
            return Ok(rows);
        }
        let message = format!(
            "{rows} rows at once in panels of {packed} don't fill vectors of {lanes} {kind} ({})",
            variant.isa
        );
        let help = format!("rows of the tile and of the packing that are multiples of {lanes}");
        Err(Error::refused("tile-rows", &variant.origin, message, help))
    }

    /// Name of what packs this way, among all of a format: of the packing, whether codes lie in planes or count in steps, and how
    /// scales and minima lie in it. A `_` of the packing's name is doubled, so that it does not look like one of those words.
    pub fn ident(&self) -> String {
        let planes = if self.upper.is_some() { "_planes" } else { "" };
        let steps = if self.spacing > 0 { format!("_by{}", 1 << self.spacing) } else { String::new() };
        format!("{}{planes}{steps}{}", self.packing.name.replace('_', "__"), self.terms.suffix())
    }

    /// What codes, scales and integers of this packing stand for, beyond their sizes: equal for packings that mean the same.
    pub fn meaning(&self) -> String {
        let steps = if self.spacing > 0 { format!("by{}", 1 << self.spacing) } else { String::new() };
        let shifted = self.shifted.map_or_else(String::new, |s| format!("_or{}for{}", s.by, s.group));
        format!("{steps}{shifted}{}{}", self.terms.suffix(), self.terms.factor_word())
    }

    /// The tile of `packing`, among those whose codes are in one piece, that holds value - min, or an index into a table of
    /// sixteen, in the fewest bytes; none if none is wide enough.
    pub fn fit(plan: &FormatPlan<'_>, packing: &'a Packing) -> Option<PackPlan<'a>> {
        PackPlan::fit_for(plan, packing, Reader::WholeCodes)
    }

    fn fit_for(plan: &FormatPlan<'_>, packing: &'a Packing, reader: Reader) -> Option<PackPlan<'a>> {
        let span = (plan.max() - plan.min()) as u32;
        // Bytes of a run, which is filled up to whole tiles; where they are as many, the narrower codes.
        let cost = |tile: &Tile| {
            let tiles = if plan.k_group == 0 { 1.0 } else { f64::from(plan.k_group_tiles(tile.k)) };
            let of_a_run = if plan.k_group == 0 { f64::from(tile.k) } else { f64::from(plan.k_group) };
            (tiles * f64::from(tile.bytes) / of_a_run, tile.code.levels())
        };
        let holds_all = |t: &&Tile| match t.code {
            TileCode::Bits(bits) => bits <= 4 && plan.values.len() <= 1 << bits && !plan.values.is_empty(),
            // Trits are looked up already.
            TileCode::Trit => false,
        };
        let readable = || packing.tiles.iter().filter(|tile| reader == Reader::All || tile.upper.is_none());
        let direct =
            readable().filter(|tile| span < tile.code.levels()).map(|tile| (tile, Codes::Differences));
        // Two values take a bit, whatever lies between them: no more instructions to decode than if they were neighbours. More values
        // at one distance have their table.
        let two = reader == Reader::All && plan.values.len() == 2 && span < 256 && span.is_power_of_two();
        let in_steps = |tile: &&Tile| two && tile.code == TileCode::Bits(1) && tile.upper.is_none();
        let spaced = readable().filter(in_steps).map(|tile| (tile, Codes::Steps));
        let shifted = readable()
            .filter(|tile| reader == Reader::All && Shifted::of(plan, tile).is_some())
            .map(|tile| (tile, Codes::Shifted));
        let looked_up = readable().filter(holds_all).map(|tile| (tile, Codes::Indices));
        let smaller = |a: &(&Tile, Codes), b: &(&Tile, Codes)| {
            let ((bytes, levels), (others, other)) = (cost(a.0), cost(b.0));
            bytes.total_cmp(&others).then(levels.cmp(&other))
        };
        // The first of those that are equal: the one that takes the least to decode.
        let (tile, codes) = direct.chain(spaced).chain(shifted).chain(looked_up).min_by(smaller)?;
        let shifted = Shifted::of(plan, tile).filter(|_| codes == Codes::Shifted);
        let spacing = match (codes, shifted) {
            (Codes::Steps, _) => span.trailing_zeros(),
            (_, Some((_, spacing))) => spacing,
            (_, None) => 0,
        };
        let table = (codes == Codes::Indices).then(|| {
            let mut entries: Vec<u8> = plan.values.iter().map(|v| (v - plan.min()) as u8).collect();
            entries.resize(16, 0);
            entries
        });
        let fields = match tile.code {
            TileCode::Bits(_) => 8 / tile.lower_bits(),
            TileCode::Trit => TileCode::TRITS,
        };
        Some(PackPlan {
            packing,
            tile: Cow::Borrowed(tile),
            table,
            spacing,
            multiple: tile.k,
            fields,
            words: (tile.k / (4 * fields).max(1)).max(1),
            upper: upper_plane(tile),
            shifted: shifted.map(|(shifted, _)| shifted),
            operand_max: span,
            terms: TermTypes::F32,
        })
    }

    /// Whether the tile has the order that the loops of a strategy need.
    pub(crate) fn check_form(&self, strategy: Strategy, variant: &Origin) -> Result<(), Error> {
        let (packing, tile) = (self.packing, &self.tile);
        let fits = match strategy {
            Strategy::Multiply | Strategy::Staged | Strategy::Tiles => {
                self.holds_lanes() && self.holds_upper_bits()
            }
            Strategy::Lookup => PackPlan::holds_indices(packing, tile, self.fields),
        };
        if fits { Ok(()) } else { Err(Error::strategy_order(packing, tile, strategy, variant)) }
    }

    /// A row to an i32 lane, four k to its bytes, fields of further k above, and with an upper plane further vectors of
    /// the same behind.
    fn holds_lanes(&self) -> bool {
        let (rows, mut ks) = axes(&self.tile.digits);
        let lanes = matches!(rows[..], [d] if d.stride == 32 && d.extent == self.packing.rows);
        let inner = ks.pop().is_some_and(|d| d.extent == 4 && d.stride == 8 && d.trit == 0);
        let over = |d: &TileDigit| match self.tile.code {
            TileCode::Bits(_) => d.stride == self.field_bits(),
            TileCode::Trit => d.stride == 0 && d.trit == 1,
        };
        let fields = self.fields == 1 || ks.pop().is_some_and(|d| d.extent == self.fields && over(d));
        let words = self.words == 1
            || (self.upper.is_some()
                && ks.pop().is_some_and(|d| d.extent == self.words && d.stride == 32 * self.packing.rows));
        // Where there is an upper plane, `holds_upper_bits` says where they begin.
        let begins = self.upper.is_some() || self.tile.offset == 0;
        lanes && inner && fields && words && begins && ks.is_empty()
    }

    /// No upper bits, or those of all k of a tile over each other: in the four bytes of a row's lane, or in four nibbles,
    /// of which two bytes hold the first and the third, the second and the fourth.
    fn holds_upper_bits(&self) -> bool {
        let (Some(upper), Some(plane)) = (self.upper, &self.tile.upper) else { return true };
        let (rows, mut ks) = axes(&plane.digits);
        let place = if upper.nibbles { 4 } else { 8 };
        let lanes = matches!(rows[..], [d] if d.stride == 4 * place && d.extent == self.packing.rows);
        let mut digit = |extent: u32, stride: u32| {
            extent == 1 || ks.pop().is_some_and(|d| d.extent == extent && d.stride == stride)
        };
        let inner = if upper.nibbles { digit(2, 8) && digit(2, 4) } else { digit(4, 8) };
        let fields = digit(place / upper.bits, upper.bits);
        let whole = matches!(self.field_bits(), 1 | 2 | 4)
            && matches!(upper.bits, 1 | 2 | 4)
            && self.bits() <= 8
            && self.tile.k == 4 * place / upper.bits
            && self.tile.k == 4 * self.fields * self.words;
        // In front of the vectors with the lower bits, or behind them.
        let in_front = plane.offset == 0 && self.tile.offset == 4 * place * self.packing.rows;
        let behind = plane.offset == 32 * self.packing.rows * self.words && self.tile.offset == 0;
        lanes && inner && fields && whole && (in_front || behind) && ks.is_empty()
    }

    /// A row to a byte, with the k of an index in each half of it.
    fn holds_indices(packing: &Packing, tile: &Tile, fields: u32) -> bool {
        let [rows, ks] = [Axis::Row, Axis::K]
            .map(|axis| tile.digits.iter().filter(|d| d.axis == axis && d.extent > 1).collect::<Vec<_>>());
        tile.upper.is_none()
            && tile.offset == 0
            && matches!(rows[..], [d] if d.stride == 8 && d.extent == packing.rows)
            && matches!(tile.code, TileCode::Bits(bits @ (1 | 2 | 4))
                if matches!(ks[..], [d] if d.stride == bits && d.extent == fields))
    }

    /// Bits that a weight of `plan` takes in long rows: its codes, scales and minima. Rows are filled up to whole tiles and panels,
    /// and have an f32 each besides.
    pub fn bits_per_weight(&self, plan: &FormatPlan<'_>) -> f64 {
        let rows = self.packing.rows;
        let codes = 8.0 * f64::from(self.tile.bytes) / f64::from(rows * self.tile.k);
        if plan.k_group == 0 {
            return codes;
        }
        let filled = f64::from(plan.k_group.next_multiple_of(self.multiple)) / f64::from(plan.k_group);
        let of_a_run = |term| match plan.runs() {
            1 => f64::from(self.terms.scalar(term).bits()),
            runs => 32.0 * f64::from(self.terms.words(term, runs, rows)) / f64::from(runs * rows),
        };
        let run: f64 = plan.terms().map(of_a_run).sum();
        codes * filled + run / f64::from(plan.k_group * self.terms.span)
    }

    /// Taking codes apart costs more than a shift, a mask and a byte shuffle for each of two or four fields, which mostly hide behind
    /// multiplications.
    pub(super) fn costly(&self) -> bool {
        self.upper.is_some() || self.trits() || self.fields > 4
    }

    /// Codes are operands as they stand in their fields.
    pub(crate) fn are_operands(&self) -> bool {
        self.table.is_none() && self.upper.is_none() && self.spacing == 0
    }

    /// Codes, several to a byte, become operands by a shift and a mask.
    pub(super) fn plain(&self) -> bool {
        self.fields > 1 && !self.costly() && self.table.is_none() && self.shifted.is_none()
    }

    /// The operands that a staged product decodes these codes to, in the order of k: a byte each, four k of a row side by side. None where
    /// runs end within a tile, or where what becomes of a code is not known from its place in the tile, unless they are decoded run
    /// by run (`by_runs`). `direct`: products are summed in i32 at once.
    pub(super) fn operands(
        &self,
        plan: &FormatPlan<'_>,
        direct: bool,
        by_runs: bool,
    ) -> Option<PackPlan<'a>> {
        let whole = plan.k_group.is_multiple_of(self.tile.k);
        let rows = self.packing.rows;
        // Several at once, so that sums in i16 are seldom widened. Those in i32 need no more than one: with the addresses of many
        // tokens there are no registers for more.
        let words = match self.tile.k {
            _ if direct => 1,
            k if k.is_multiple_of(16) => 4,
            k => k / 4,
        };
        (whole && (by_runs || self.shifted.is_none())).then(|| PackPlan {
            tile: Cow::Owned(Tile {
                code: TileCode::Bits(8),
                k: 4 * words,
                bytes: 4 * rows * words,
                offset: 0,
                digits: Vec::new(),
                upper: None,
            }),
            table: None,
            spacing: 0,
            fields: 1,
            words,
            upper: None,
            shifted: None,
            ..self.clone()
        })
    }

    /// Operands of [`Self::operands`] in tiles of `k`.
    pub(super) fn in_tiles_of(self, k: u32) -> PackPlan<'a> {
        let tile = Tile { k, bytes: k * self.packing.rows, ..self.tile.into_owned() };
        PackPlan { tile: Cow::Owned(tile), words: k / 4, ..self }
    }

    /// No operand is odd.
    pub(super) fn even_operands(&self) -> bool {
        let shifts = self.shifted.is_none_or(|shifted| shifted.by.is_multiple_of(2));
        match &self.table {
            Some(table) => table.iter().all(|operand| operand.is_multiple_of(2)),
            None => self.spacing > 0 && shifts,
        }
    }

    /// Codes are trits.
    pub fn trits(&self) -> bool {
        self.tile.code == TileCode::Trit
    }

    /// Bits of a code as loops handle it.
    pub fn bits(&self) -> u32 {
        self.tile.code.bits()
    }

    /// Bits of a code that stand in a field: all, or those below the upper plane.
    pub fn field_bits(&self) -> u32 {
        self.tile.lower_bits()
    }

    /// Fields of a tile, in all of its vectors.
    pub fn tile_fields(&self) -> u32 {
        self.fields * self.words
    }

    /// Bit at which a field stands in its byte, or in the byte that it is looked up in.
    pub fn place(&self, field: u32) -> u32 {
        // The fifth trit has a byte of its own.
        (field * self.field_bits()).min(8u32.saturating_sub(self.field_bits()))
    }

    /// Bit address of element (row, k) within a tile; that of its byte where codes are trits, and of its lower bits where
    /// the upper ones are apart.
    pub fn bit(&self, row: u32, k: u32) -> u32 {
        self.tile.offset + address(&self.tile.digits, row, k, |digit| digit.stride)
    }

    /// Bit address of the upper bits of element (row, k) within a tile that has a plane of them.
    pub fn upper_bit(&self, row: u32, k: u32) -> Option<u32> {
        let plane = self.tile.upper.as_ref()?;
        Some(plane.offset + address(&plane.digits, row, k, |digit| digit.stride))
    }

    /// Number of the trit of element (row, k) in its byte.
    pub fn trit(&self, row: u32, k: u32) -> u32 {
        address(&self.tile.digits, row, k, |digit| digit.trit)
    }
}

fn address(digits: &[TileDigit], row: u32, k: u32, step: impl Fn(&TileDigit) -> u32) -> u32 {
    let (mut row, mut k) = (row, k);
    let mut bit = 0;
    for digit in digits.iter().rev() {
        let rest = match digit.axis {
            Axis::Row => &mut row,
            Axis::K => &mut k,
        };
        bit += *rest % digit.extent * step(digit);
        *rest /= digit.extent;
    }
    bit
}

/// The digits that count along rows, and those along k, but for those of one value.
fn axes(digits: &[TileDigit]) -> (Vec<&TileDigit>, Vec<&TileDigit>) {
    digits.iter().filter(|digit| digit.extent > 1).partition(|digit| digit.axis == Axis::Row)
}

/// What packed codes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Codes {
    /// value - min.
    Differences,
    /// The same in steps of the distance between the two values that there are.
    Steps,
    /// The same in steps, without the shift of their group.
    Shifted,
    /// Indices into a table of value - min.
    Indices,
}

fn upper_plane(tile: &Tile) -> Option<UpperPlane> {
    let plane = tile.upper.as_ref()?;
    let nibbles = plane.digits.iter().any(|digit| digit.axis == Axis::Row && digit.stride == 16);
    Some(UpperPlane { bits: plane.bits, nibbles, offset: plane.offset / 8, lower: tile.offset / 8 })
}

/// As [`PackPlan::fit`], or why not.
pub(crate) fn fitted<'a>(
    plan: &FormatPlan<'_>,
    packing: &'a Packing,
    variant: &Origin,
) -> Result<PackPlan<'a>, Error> {
    fitted_for(plan, packing, Reader::WholeCodes, variant)
}

fn fitted_for<'a>(
    plan: &FormatPlan<'_>,
    packing: &'a Packing,
    reader: Reader,
    variant: &Origin,
) -> Result<PackPlan<'a>, Error> {
    PackPlan::fit_for(plan, packing, reader)
        .ok_or_else(|| Error::no_tile(plan.format, (plan.min(), plan.max()), packing, variant))
}
