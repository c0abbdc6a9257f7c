//! A report as one page that needs nothing else: style and plots are in it, and it asks no network.

use super::{Report, Trend};
use crate::date::date;
use minijinja::value::Serde;
use minijinja::{Environment, context};
use std::fmt::Write;

/// Size of a plot, in its own units.
const SIZE: (f64, f64) = (240.0, 40.0);

impl Report {
    /// As one HTML page (well-formed XML too). Names from records are escaped.
    ///
    /// # Errors
    /// What the template engine says; with this template and these values it has nothing to say.
    pub fn to_html(&self) -> Result<String, minijinja::Error> {
        let mut environment = Environment::new();
        // Names that end in .html are escaped.
        environment.add_template("report.html", include_str!("report.html"))?;
        let trends: Vec<_> = self
            .trends
            .iter()
            .map(|trend| context! { points => points(trend), first => trend.points.first(), last => trend.points.last(), ..minijinja::Value::from(Serde(trend)) })
            .collect();
        environment.get_template("report.html")?.render(context! {
            trends,
            report => Serde(self),
            from => self.from.map(date),
            to => self.to.map(date),
            width => SIZE.0,
            height => SIZE.1,
        })
    }
}

/// The times of a trend as points of an SVG polyline: time to the right, microseconds up from zero.
fn points(trend: &Trend) -> String {
    let most = trend.points.iter().fold(0.0, |most: f64, point| most.max(point.1));
    let (first, last) = (trend.points.first().map_or(0, |p| p.0), trend.points.last().map_or(0, |p| p.0));
    let mut out = String::new();
    for (index, (at, us)) in trend.points.iter().enumerate() {
        // Measurements of one second stand in their order.
        let right = match last.checked_sub(first) {
            Some(span @ 1..) => (at - first) as f64 / span as f64,
            Some(0) | None => index as f64 / (trend.points.len() - 1).max(1) as f64,
        };
        // Writing to a String can't fail.
        let _ = write!(out, "{:.1},{:.1} ", SIZE.0 * right, SIZE.1 * (1.0 - us / most));
    }
    out.trim_end().to_owned()
}
