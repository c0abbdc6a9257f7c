//! Digits that share bytes: which byte holds which elements.

use gristmill_spec::model::{Radix, Segment};

/// The byte of each of `count` elements, and which of its digits it is.
pub(crate) fn places(count: u32, segments: &[Segment]) -> Vec<(u32, u32)> {
    let mut places = vec![(0, 0); count as usize];
    for segment in segments {
        let combinations: u32 = segment.digits.iter().map(|d| d.extent).product();
        for combination in 0..combinations {
            let mut rest = combination;
            let (mut element, mut bit, mut number) = (segment.first, i64::from(segment.offset), 0);
            for digit in segment.digits.iter().rev() {
                let i = rest % digit.extent;
                rest /= digit.extent;
                element += i * digit.element;
                bit += i64::from(i) * digit.stride;
                number += i * digit.digit;
            }
            if let Some(place) = places.get_mut(element as usize) {
                *place = ((bit / 8) as u32, number);
            }
        }
    }
    places
}

/// What brings a digit to the front of its byte: a byte times a power of the base has the next digit in front.
pub(crate) fn power(radix: Radix, most_significant_first: bool, digit: u32) -> u32 {
    radix.base().pow(if most_significant_first { digit } else { radix.digits() - 1 - digit })
}

/// Each byte with its elements from the most significant digit down; `count`, which no element is, for a digit without one.
pub(crate) fn bytes(
    count: u32,
    segments: &[Segment],
    radix: Radix,
    most_significant_first: bool,
) -> Vec<(u32, Vec<u32>)> {
    let places = places(count, segments);
    let mut bytes: Vec<u32> = places.iter().map(|place| place.0).collect();
    bytes.sort_unstable();
    bytes.dedup();
    let digits = radix.digits();
    let mut rows: Vec<(u32, Vec<u32>)> =
        bytes.into_iter().map(|byte| (byte, vec![count; digits as usize])).collect();
    for (element, (byte, number)) in places.into_iter().enumerate() {
        let row = rows.binary_search_by_key(&byte, |row| row.0).unwrap_or(0);
        let place = if most_significant_first { number } else { digits - 1 - number };
        rows[row].1[place as usize] = element as u32;
    }
    rows
}
