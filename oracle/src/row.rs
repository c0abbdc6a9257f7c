//! A row of weights: its numbers, and the integer sums of its products.

use std::ops::Range;

/// Elements whose products are one integer sum.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) elements: Range<usize>,
    /// What the sum is multiplied with.
    pub(super) scale: f32,
    /// What the sum of the activations is multiplied with, and subtracted.
    pub(super) low: f32,
    /// The integers of each run's scale and minimum; 1 where there are none.
    pub(super) integers: Vec<(i64, i64)>,
}

/// A row of weights: integers, and what they are multiplied with and moved by.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The integer of each element.
    pub integers: Vec<i32>,
    /// Each weight by f32 operations in the order of the spec: what `dequantize` must give, bit by bit.
    pub f32s: Vec<f32>,
    /// Each weight in f64.
    pub f64s: Vec<f64>,
    /// The scale outside the blocks; 1 where there is none.
    pub outer: f32,
    /// The integer sums of a product.
    pub(super) steps: Vec<Step>,
}
