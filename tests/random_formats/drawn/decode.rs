//! Blocks from the places that were drawn: values by bit addresses, numbers by the definitions of their types.

use super::format::{Drawn, Factor, Float, Kind, Map, digit};
use super::places::pick;
use crate::random::Random;

/// What the numbers of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Scales of moderate size, so that products can be compared in f64.
    Moderate,
    /// Scales of every finite size, with subnormals, zeros of both signs and the largest.
    Wild,
}

/// A tensor and what it stands for.
pub struct Tensor {
    pub bytes: Vec<u8>,
    pub weights: Vec<f32>,
}

/// The number that bits of a type stand for, by its definition: sign, exponent and fraction.
pub fn number(float: Float, raw: u32) -> f32 {
    let ieee = |exponent: u32, fraction: u32| -> f64 {
        let bias = (1i32 << (exponent - 1)) - 1;
        let sign = if raw >> (exponent + fraction) & 1 == 1 { -1.0 } else { 1.0 };
        let power = (raw >> fraction & ((1 << exponent) - 1)) as i32;
        let digits = f64::from(raw & ((1 << fraction) - 1)) / f64::from(1u32 << fraction);
        match power {
            0 => sign * digits * 2f64.powi(1 - bias),
            _ if power == (1 << exponent) - 1 => sign * if digits == 0.0 { f64::INFINITY } else { f64::NAN },
            _ => sign * (1.0 + digits) * 2f64.powi(power - bias),
        }
    };
    // Every number of these types is one of f32, so nothing is rounded.
    match float {
        Float::F16 => ieee(5, 10) as f32,
        Float::Bf16 => ieee(8, 7) as f32,
        Float::F32 => f32::from_bits(raw),
        Float::E8m0Half => 2f64.powi(raw as i32 - 128) as f32,
        Float::Ue4m3Half => {
            let (power, digits) = (raw >> 3 & 15, f64::from(raw & 7) / 8.0);
            let whole = match (power, raw & 7) {
                (15, 7) => 0.0,
                (0, _) => digits * 2f64.powi(-6),
                _ => (1.0 + digits) * 2f64.powi(power as i32 - 7),
            };
            (whole / 2.0) as f32
        }
    }
}

/// Bits of a finite number. 255 of `e8m0-half` is a NaN to OCP and is never stored.
fn finite(random: &mut Random, float: Float, data: Data) -> u32 {
    let (exponent, fraction) = match float {
        Float::F16 => (5, 10),
        Float::Bf16 => (8, 7),
        Float::F32 => (8, 23),
        Float::E8m0Half if data == Data::Wild => return random.below(255) as u32,
        Float::E8m0Half => return 122 + random.below(8) as u32,
        Float::Ue4m3Half => return random.below(256) as u32,
    };
    let sign = (random.below(2) as u32) << (exponent + fraction);
    let digits = random.below(1 << fraction) as u32;
    let one = (1u32 << (exponent - 1)) - 1;
    let power = match data {
        Data::Moderate => one - random.below(6) as u32,
        Data::Wild if random.below(3) == 0 => {
            let largest = ((1 << exponent) - 2) << fraction | ((1 << fraction) - 1);
            // Zero, the smallest and largest subnormal, the smallest normal, the largest.
            let ends = [0, 1, (1 << fraction) - 1, 1 << fraction, largest];
            return sign | pick(random, &ends);
        }
        Data::Wild => random.below((1 << exponent) - 1) as u32,
    };
    sign | power << fraction | digits
}

impl Drawn {
    /// The raw value `index` of a field.
    fn raw(&self, block: &[u8], field: usize, index: usize) -> u32 {
        let field = &self.fields[field];
        if let Kind::Digit(base) = field.kind {
            let (byte, power) = field.digits[index];
            let numbers = base.pow(Kind::to_a_byte(base));
            // The number whose 256 / numbers fold, rounded up, the byte is.
            let number = u32::from(block[byte]) * numbers / 256;
            return number / base.pow(power) % base;
        }
        let mut raw = 0;
        for (at, bit) in field.bits[index].iter().enumerate() {
            raw |= u32::from(block[bit / 8] >> (bit % 8) & 1) << at;
        }
        raw
    }

    fn set(&self, block: &mut [u8], field: usize, index: usize, raw: u32) {
        let field = &self.fields[field];
        if let Kind::Digit(base) = field.kind {
            let (byte, power) = field.digits[index];
            let (numbers, weight) = (base.pow(Kind::to_a_byte(base)), base.pow(power));
            let number = u32::from(block[byte]) * numbers / 256;
            let number = number + raw * weight - number / weight % base * weight;
            block[byte] = (number * 256).div_ceil(numbers) as u8;
            return;
        }
        for (at, bit) in field.bits[index].iter().enumerate() {
            block[bit / 8] = block[bit / 8] & !(1 << (bit % 8)) | ((raw >> at & 1) as u8) << (bit % 8);
        }
    }

    /// Codes that mean something: all below this.
    fn codes(&self) -> u32 {
        match &self.map {
            Map::Affine { .. } => self.fields[self.code].kind.codes(),
            Map::Levels(levels) => levels.len() as u32,
            Map::Book(book) => book.entries.len() as u32,
        }
    }

    /// A block in which every code means something and every number is finite; gaps hold anything.
    fn block(&self, random: &mut Random, data: Data) -> Vec<u8> {
        let mut block: Vec<u8> = (0..self.bytes).map(|_| random.bits() as u8).collect();
        for (at, field) in self.fields.iter().enumerate() {
            for index in 0..field.count {
                if at == self.code && self.raw(&block, at, index) >= self.codes() {
                    let code = random.below(u64::from(self.codes())) as u32;
                    self.set(&mut block, at, index, code);
                } else if let Kind::Float(float) = field.kind {
                    let bits = finite(random, float, data);
                    self.set(&mut block, at, index, bits);
                }
            }
        }
        block
    }

    /// The weights of a block, given the numbers of the row and of the tensor; none where a code means nothing.
    pub fn decode(&self, block: &[u8], row: f32, tensor: f32) -> Option<Vec<f32>> {
        (0..self.elements).map(|element| self.weight(block, element, row, tensor)).collect()
    }

    fn weight(&self, block: &[u8], element: usize, row: f32, tensor: f32) -> Option<f32> {
        // w = product(scale) * unit * v + product(add) - product(subtract), from left to right; where both are there, their
        // difference is taken away.
        let v = self.integer(block, element)? as f32;
        let mut w = self.product(&self.scale, block, element, row, tensor).unwrap_or(1.0);
        if let Some(unit) = self.unit {
            w *= 2f64.powi(unit) as f32;
        }
        w *= v;
        let [add, subtract] =
            [&self.add, &self.subtract].map(|term| self.product(term, block, element, row, tensor));
        match (add, subtract) {
            (Some(add), None) => w += add,
            (None, Some(subtract)) => w -= subtract,
            (Some(add), Some(subtract)) => w -= subtract - add,
            (None, None) => {}
        }
        Some(w)
    }

    /// The code of an element, and its place in the code's entry: code after code where `stride` is 1, elsewhere so many
    /// codes give their first elements, then their second ones, and so on.
    fn code_of(&self, element: usize) -> (usize, usize) {
        let Map::Book(book) = &self.map else { return (element, 0) };
        for first in (0..self.elements).step_by(book.width * book.stride) {
            for place in 0..book.width {
                for turn in 0..book.stride {
                    if first + place * book.stride + turn == element {
                        return (first / book.width + turn, place);
                    }
                }
            }
        }
        unreachable!("codes are for every element")
    }

    fn integer(&self, block: &[u8], element: usize) -> Option<i64> {
        let (code, place) = self.code_of(element);
        let raw = self.raw(block, self.code, code);
        let mut v = match &self.map {
            Map::Affine { times, zero } => times * self.fields[self.code].kind.integer(raw) - zero,
            Map::Levels(levels) => *levels.get(raw as usize)?,
            Map::Book(book) => {
                let entry = *book.entries.get(raw as usize)?;
                book.times * book.values[digit(book, entry, place)]
            }
        };
        if let Some((field, parity)) = self.signs {
            let run = self.elements / self.fields[field].count;
            let bits = self.raw(block, field, element / run);
            let at = element % run;
            // With the top bit left out, it is what makes the number of ones even.
            let negative = match parity && at == run - 1 {
                true => bits.count_ones() % 2 == 1,
                false => bits >> at & 1 == 1,
            };
            v = if negative { -v } else { v };
        }
        if let Some((field, values)) = &self.shift {
            let run = self.elements / self.fields[*field].count;
            v += values[self.raw(block, *field, element / run) as usize];
        }
        Some(v)
    }

    fn product(
        &self,
        factors: &[Factor],
        block: &[u8],
        element: usize,
        row: f32,
        tensor: f32,
    ) -> Option<f32> {
        let mut product = None;
        for factor in factors {
            let value = match *factor {
                Factor::Row => row,
                Factor::Tensor => tensor,
                Factor::Field(at) => {
                    let field = &self.fields[at];
                    let raw = self.raw(block, at, element / (self.elements / field.count));
                    match field.kind {
                        Kind::Float(float) => number(float, raw),
                        kind => (field.times * kind.integer(raw) + field.plus) as f32,
                    }
                }
            };
            product = Some(product.map_or(value, |product: f32| product * value));
        }
        product
    }

    /// A tensor of `n` rows of `blocks` blocks, and its weights.
    pub fn tensor(&self, random: &mut Random, n: usize, blocks: usize, data: Data) -> Tensor {
        let mut bytes = Vec::new();
        let mut rows = Vec::new();
        let push = |bytes: &mut Vec<u8>, float: Float, raw: u32| {
            bytes.extend(&raw.to_le_bytes()[..float.bits() as usize / 8]);
        };
        for _ in 0..n {
            let mut row = 1.0;
            if let Some(float) = self.row {
                let raw = finite(random, float, data);
                push(&mut bytes, float, raw);
                row = number(float, raw);
            }
            for _ in 0..blocks {
                let block = self.block(random, data);
                bytes.extend(&block);
                rows.push((row, block));
            }
        }
        let mut tensor = 1.0;
        if let Some((float, tail)) = self.tensor {
            let raw = finite(random, float, data);
            let end = bytes.len() + tail.unwrap_or(float.bits() as usize / 8);
            push(&mut bytes, float, raw);
            bytes.resize_with(end, || random.bits() as u8);
            tensor = number(float, raw);
        }
        let decode = |(row, block): &(f32, Vec<u8>)| self.decode(block, *row, tensor);
        let weights = rows.iter().flat_map(|block| decode(block).expect("only codes that mean something"));
        Tensor { bytes, weights: weights.collect() }
    }
}
