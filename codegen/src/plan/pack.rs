//! How the codes of a format lie in a packing, and which loops can read them there.

use super::format::FormatPlan;
use super::terms::TermTypes;
use crate::error::Error;
use gristmill_spec::model::{Axis, Origin, Packing, Tile, TileCode, TileDigit};
use gristmill_spec::vocab::Strategy;

/// The codes of a format inside a packing.
#[derive(Clone, Debug)]
pub struct PackPlan<'a> {
    /// The packing.
    pub packing: &'a Packing,
    /// The tile layout taken.
    pub tile: &'a Tile,
    /// Where packed codes index a table: operand of each code (value - min).
    pub table: Option<Vec<u8>>,
    /// Elements of a unit in packed order are padded to a multiple of this.
    pub multiple: u32,
    /// Fields in a byte: codes that lie over each other, of bits or trits.
    pub fields: u32,
    /// Largest operand.
    pub operand_max: u32,
    /// How scales and minima lie beside the codes.
    pub terms: TermTypes,
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
        let pack = fitted(plan, packing, variant)?;
        pack.check_form(strategy, variant)?;
        Ok(PackPlan { terms: TermTypes::stored(plan, packing.rows), ..pack })
    }

    /// Name of what packs this way, among all of a format: of the packing, and how scales and minima lie in it.
    pub fn ident(&self) -> String {
        format!("{}{}", self.packing.name, self.terms.suffix())
    }

    /// The narrowest tile of `packing` that holds value - min, or an index into a table of sixteen; none if none is wide
    /// enough.
    pub fn fit(plan: &FormatPlan<'_>, packing: &'a Packing) -> Option<PackPlan<'a>> {
        let span = (plan.max() - plan.min()) as u32;
        let direct = packing.tiles.iter().find(|t| span < t.code.levels());
        let holds_all = |t: &&Tile| match t.code {
            TileCode::Bits(bits) => bits <= 4 && plan.values.len() <= 1 << bits && !plan.values.is_empty(),
            // Trits are looked up already.
            TileCode::Trit => false,
        };
        let looked_up = packing.tiles.iter().find(holds_all);
        let (tile, table) = match (direct, looked_up) {
            (Some(d), Some(l)) if l.code.levels() < d.code.levels() => (l, true),
            (Some(d), _) => (d, false),
            (None, Some(l)) => (l, true),
            (None, None) => return None,
        };
        let table = table.then(|| {
            let mut entries: Vec<u8> = plan.values.iter().map(|v| (v - plan.min()) as u8).collect();
            entries.resize(16, 0);
            entries
        });
        let fields = match tile.code {
            TileCode::Bits(bits) => 8 / bits,
            TileCode::Trit => TileCode::TRITS,
        };
        Some(PackPlan {
            packing,
            tile,
            table,
            multiple: tile.k,
            fields,
            operand_max: span,
            terms: TermTypes::F32,
        })
    }

    /// Whether the tile has the order that the loops of a strategy need.
    pub(crate) fn check_form(&self, strategy: Strategy, variant: &Origin) -> Result<(), Error> {
        let (packing, tile) = (self.packing, self.tile);
        let fits = match strategy {
            Strategy::Multiply => PackPlan::holds_lanes(packing, tile, self.fields),
            Strategy::Lookup => PackPlan::holds_indices(packing, tile, self.fields),
        };
        if fits { Ok(()) } else { Err(Error::strategy_order(packing, tile, strategy, variant)) }
    }

    /// A row to an i32 lane, four k to its bytes and fields of further k above.
    fn holds_lanes(packing: &Packing, tile: &Tile, fields: u32) -> bool {
        let rows: Vec<_> = tile.digits.iter().filter(|d| d.axis == Axis::Row && d.extent > 1).collect();
        let ks: Vec<_> = tile.digits.iter().filter(|d| d.axis == Axis::K && d.extent > 1).collect();
        let lanes = rows.len() == 1 && rows[0].stride == 32 && rows[0].extent == packing.rows;
        let inner = ks.last().is_some_and(|d| d.extent == 4 && d.stride == 8);
        let over = |d: &TileDigit| match tile.code {
            TileCode::Bits(bits) => d.stride == bits,
            TileCode::Trit => d.stride == 0 && d.trit == 1,
        };
        let outer = (ks.len() == 1 && fields == 1)
            || (ks.len() == 2 && ks[0].extent == fields && over(ks[0]) && ks[1].trit == 0);
        lanes && inner && outer
    }

    /// A row to a byte, with the k of an index in each half of it.
    fn holds_indices(packing: &Packing, tile: &Tile, fields: u32) -> bool {
        let [rows, ks] = [Axis::Row, Axis::K]
            .map(|axis| tile.digits.iter().filter(|d| d.axis == axis && d.extent > 1).collect::<Vec<_>>());
        matches!(rows[..], [d] if d.stride == 8 && d.extent == packing.rows)
            && matches!(tile.code, TileCode::Bits(bits @ (1 | 2 | 4))
                if matches!(ks[..], [d] if d.stride == bits && d.extent == fields))
    }

    /// Bits that a weight of `plan` takes in long rows: its codes, scales and minima. Rows are filled up to whole tiles and panels,
    /// and have an f32 each besides.
    pub fn bits_per_weight(&self, plan: &FormatPlan<'_>) -> f64 {
        let rows = self.packing.rows;
        let codes = 8.0 * f64::from(self.tile.bytes) / f64::from(rows * self.tile.k);
        if plan.unit == 0 {
            return codes;
        }
        let filled = f64::from(plan.unit.next_multiple_of(self.multiple)) / f64::from(plan.unit);
        let of_a_run = |bits: u32| match plan.runs() {
            1 => f64::from(bits),
            runs => 32.0 * f64::from(self.terms.words(runs, rows)) / f64::from(runs * rows),
        };
        let mut run = 0.0;
        if plan.has_scales() {
            run += of_a_run(self.terms.scale.bits());
        }
        if plan.offset {
            run += of_a_run(self.terms.min.bits());
        }
        codes * filled + run / f64::from(plan.unit)
    }

    /// Codes are trits.
    pub fn trits(&self) -> bool {
        self.tile.code == TileCode::Trit
    }

    /// Bits of a code as loops handle it.
    pub fn bits(&self) -> u32 {
        self.tile.code.bits()
    }

    /// Bit at which a field stands in its byte, or in the byte that it is looked up in.
    pub fn place(&self, field: u32) -> u32 {
        // The fifth trit has a byte of its own.
        (field * self.bits()).min(8u32.saturating_sub(self.bits()))
    }

    /// Bit address of element (row, k) within a tile; that of its byte where codes are trits.
    pub fn bit(&self, row: u32, k: u32) -> u32 {
        self.address(row, k, |digit| digit.stride)
    }

    /// Number of the trit of element (row, k) in its byte.
    pub fn trit(&self, row: u32, k: u32) -> u32 {
        self.address(row, k, |digit| digit.trit)
    }

    fn address(&self, row: u32, k: u32, step: impl Fn(&TileDigit) -> u32) -> u32 {
        let (mut row, mut k) = (row, k);
        let mut bit = 0;
        for digit in self.tile.digits.iter().rev() {
            let rest = match digit.axis {
                Axis::Row => &mut row,
                Axis::K => &mut k,
            };
            bit += *rest % digit.extent * step(digit);
            *rest /= digit.extent;
        }
        bit
    }
}

/// As [`PackPlan::fit`], or why not.
pub(crate) fn fitted<'a>(
    plan: &FormatPlan<'_>,
    packing: &'a Packing,
    variant: &Origin,
) -> Result<PackPlan<'a>, Error> {
    PackPlan::fit(plan, packing)
        .ok_or_else(|| Error::no_tile(plan.format, (plan.min(), plan.max()), packing, variant))
}
