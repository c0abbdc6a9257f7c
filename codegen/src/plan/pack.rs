//! How the codes of a format lie in a packing, and which loops can read them there.

use super::FormatPlan;
use crate::Error;
use gristmill_spec::model::{Axis, Packing, Tile};
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
    /// Fields in a byte.
    pub fields: u32,
    /// Largest operand.
    pub operand_max: u32,
}

impl<'a> PackPlan<'a> {
    /// Fits the values of `plan` into `packing`: the narrowest tile that holds value - min, or an index
    /// into a table of sixteen.
    pub fn new(
        plan: &FormatPlan<'_>,
        packing: &'a Packing,
        strategy: Strategy,
    ) -> Result<PackPlan<'a>, Error> {
        let pack = PackPlan::fit(plan, packing)?;
        PackPlan::check_form(packing, pack.tile, pack.fields, strategy)?;
        Ok(pack)
    }

    /// As [`new`](PackPlan::new), for a skeleton that has an order of its own.
    ///
    /// # Errors
    /// No tile is wide enough.
    pub fn fit(plan: &FormatPlan<'_>, packing: &'a Packing) -> Result<PackPlan<'a>, Error> {
        let span = (plan.max() - plan.min()) as u32;
        let direct = packing.tiles.iter().find(|t| span < 1 << t.bits);
        let looked_up = packing
            .tiles
            .iter()
            .find(|t| t.bits <= 4 && plan.values.len() <= 1 << t.bits && !plan.values.is_empty());
        let (tile, table) = match (direct, looked_up) {
            (Some(d), Some(l)) if l.bits < d.bits => (l, true),
            (Some(d), _) => (d, false),
            (None, Some(l)) => (l, true),
            (None, None) => {
                return Err(Error::plan(
                    plan.format,
                    &format!(
                        "packing `{}` has no tile wide enough for values {}..{}",
                        packing.name,
                        plan.min(),
                        plan.max()
                    ),
                ));
            }
        };
        let table = table.then(|| {
            let mut entries: Vec<u8> = plan.values.iter().map(|v| (v - plan.min()) as u8).collect();
            entries.resize(16, 0);
            entries
        });
        let fields = 8 / tile.bits;
        Ok(PackPlan { packing, tile, table, multiple: tile.k, fields, operand_max: span })
    }

    /// The order that the loops of a strategy need.
    pub(crate) fn check_form(
        packing: &Packing,
        tile: &Tile,
        fields: u32,
        strategy: Strategy,
    ) -> Result<(), Error> {
        let fits = match strategy {
            Strategy::Multiply => PackPlan::holds_lanes(packing, tile, fields),
            Strategy::Lookup => PackPlan::holds_indices(packing, tile, fields),
        };
        if fits {
            return Ok(());
        }
        Err(Error::Packing {
            packing: packing.name.clone(),
            file: packing.origin.file.clone(),
            line: packing.origin.line,
            bits: tile.bits,
            strategy,
        })
    }

    /// A row to an i32 lane, four k to its bytes and fields of further k above.
    fn holds_lanes(packing: &Packing, tile: &Tile, fields: u32) -> bool {
        let rows: Vec<_> = tile.digits.iter().filter(|d| d.axis == Axis::Row && d.extent > 1).collect();
        let ks: Vec<_> = tile.digits.iter().filter(|d| d.axis == Axis::K && d.extent > 1).collect();
        let lanes = rows.len() == 1 && rows[0].stride == 32 && rows[0].extent == packing.rows;
        let inner = ks.last().is_some_and(|d| d.extent == 4 && d.stride == 8);
        let outer = (ks.len() == 1 && fields == 1)
            || (ks.len() == 2 && ks[0].extent == fields && ks[0].stride == tile.bits);
        lanes && inner && outer
    }

    /// A row to a byte, with the k of an index in each half of it.
    fn holds_indices(packing: &Packing, tile: &Tile, fields: u32) -> bool {
        let [rows, ks] = [Axis::Row, Axis::K]
            .map(|axis| tile.digits.iter().filter(|d| d.axis == axis && d.extent > 1).collect::<Vec<_>>());
        matches!(rows[..], [d] if d.stride == 8 && d.extent == packing.rows)
            && matches!(ks[..], [d] if d.stride == tile.bits && d.extent == fields)
            && [1, 2, 4].contains(&tile.bits)
    }

    /// Bit address of element (row, k) within a tile.
    pub fn bit(&self, row: u32, k: u32) -> u32 {
        let (mut row, mut k) = (row, k);
        let mut bit = 0;
        for digit in self.tile.digits.iter().rev() {
            let rest = match digit.axis {
                Axis::Row => &mut row,
                Axis::K => &mut k,
            };
            bit += *rest % digit.extent * digit.stride;
            *rest /= digit.extent;
        }
        bit
    }
}
