//! What pictures of records are drawn with.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;

pub const WIDTH: i32 = 980;
pub const OURS: RGBColor = RGBColor(31, 95, 168);
/// One for each peer, in order.
pub const PEERS: &[RGBColor] = &[RGBColor(228, 152, 62), RGBColor(120, 164, 92)];
pub const GREY: RGBColor = RGBColor(110, 110, 110);

/// The whole picture.
pub type Area<'t> = DrawingArea<SVGBackend<'t>, Shift>;

/// What plotters said.
pub fn failed<E: Error + Send + Sync>(error: DrawingAreaErrorKind<E>) -> String {
    error.to_string()
}

/// Writes `text` of a `size`, on this side of a point.
pub fn label(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: i32,
    colour: &RGBColor,
    side: HPos,
) -> Result<(), String> {
    let style =
        TextStyle::from(("sans-serif", size).into_font()).color(colour).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style)).map_err(failed)
}

/// Fills a rectangle.
pub fn block(area: &Area<'_>, corners: [(i32, i32); 2], colour: RGBColor) -> Result<(), String> {
    area.draw(&Rectangle::new(corners, colour.filled())).map_err(failed)
}
