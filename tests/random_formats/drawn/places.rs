//! Where the bits of a block go. First every value gets an address; only then is it said in `shape`, `stride` and
//! `offset`, which are read off the addresses.

use crate::random::Random;

/// Equal pieces of bits that are to lie in a block: those of a field, or of a part of it.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    pub bits: usize,
    pub count: usize,
    /// Bytes of digits, which lie on byte boundaries.
    pub is_bytes: bool,
}

/// Where the pieces of a slice lie.
#[derive(Clone, Debug)]
pub struct Placed {
    /// First bit of each, by index.
    pub first: Vec<usize>,
    /// The digits of the index, outermost first.
    pub shape: Vec<usize>,
}

/// A block with everything in its place.
#[derive(Clone, Debug)]
pub struct Block {
    pub slices: Vec<Placed>,
    pub bytes: usize,
    pub gaps: Vec<(usize, usize)>,
}

/// Divisors of `n`, ascending.
pub fn divisors(n: usize) -> Vec<usize> {
    (1..=n).filter(|d| n.is_multiple_of(*d)).collect()
}

pub fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

/// True in `percent` of a hundred draws.
pub fn chance(random: &mut Random, percent: u64) -> bool {
    random.below(100) < percent
}

pub fn shuffle<T>(random: &mut Random, items: &mut [T]) {
    for i in (1..items.len()).rev() {
        items.swap(i, random.below(i as u64 + 1) as usize);
    }
}

/// Numbers whose product is `n`, at most four.
fn digits_of(random: &mut Random, n: usize) -> Vec<usize> {
    let mut digits = Vec::new();
    let mut rest = n;
    while rest > 1 && digits.len() < 3 && chance(random, 60) {
        let digit = pick(random, &divisors(rest));
        digits.push(digit);
        rest /= digit;
    }
    digits.push(rest);
    digits.retain(|&digit| digit > 1);
    shuffle(random, &mut digits);
    digits
}

/// Which index lies at each place, counted in the order of memory, and the digits of the index. The outermost digit in memory
/// takes `records` values.
fn order(random: &mut Random, records: usize, each: usize, plain: bool) -> (Vec<usize>, Vec<usize>) {
    let mut memory = digits_of(random, each);
    if records > 1 {
        memory.insert(0, records);
    }
    if memory.is_empty() && chance(random, 20) {
        memory.push(1);
    }
    // Position of each of memory's digits in the shape, and whether it counts down.
    let mut at: Vec<usize> = (0..memory.len()).collect();
    let mut down = vec![false; memory.len()];
    if !plain {
        shuffle(random, &mut at);
        down.iter_mut().for_each(|down| *down = chance(random, 25));
    }
    let mut shape = vec![1; memory.len()];
    for (digit, &at) in memory.iter().zip(&at) {
        shape[at] = *digit;
    }
    let weight = |at: usize| shape[at + 1..].iter().product::<usize>();
    let index = |place: usize| {
        let mut rest = place;
        let mut index = 0;
        for (i, &digit) in memory.iter().enumerate().rev() {
            let step = rest % digit;
            rest /= digit;
            index += weight(at[i]) * if down[i] { digit - 1 - step } else { step };
        }
        index
    };
    ((0..records * each).map(index).collect(), shape)
}

/// Places all slices in a block, in any order: one after the other, or several side by side in records.
pub fn place(random: &mut Random, slices: &[Slice]) -> Block {
    let aligned = chance(random, 60);
    let mut waiting: Vec<usize> = (0..slices.len()).collect();
    shuffle(random, &mut waiting);
    let mut placed: Vec<Option<Placed>> = vec![None; slices.len()];
    let mut gaps = Vec::new();
    let mut cursor = 0;
    while let Some(first) = waiting.pop() {
        let mut together = vec![first];
        let mut common = slices[first].count;
        while chance(random, 30) {
            let shares = |&at: &usize| gcd(common, slices[at].count) > 1;
            let Some(found) = waiting.iter().rposition(shares) else { break };
            let other = waiting.remove(found);
            common = gcd(common, slices[other].count);
            together.push(other);
        }
        let records =
            if together.len() > 1 || chance(random, 20) { pick(random, &divisors(common)) } else { 1 };
        let bytes = together.iter().any(|&at| slices[at].is_bytes);
        if bytes || aligned || chance(random, 20) {
            skip(&mut gaps, &mut cursor, 8);
        }
        if chance(random, 12) {
            let bits = if bytes || aligned { 8 } else { 1 } * (1 + random.below(5) as usize);
            gaps.push((cursor, bits));
            cursor += bits;
        }
        // One record, from bit 0: where each slice starts in it, and its gaps.
        let (mut starts, mut holes, mut end) = (Vec::new(), Vec::new(), 0);
        for &at in &together {
            let slice = slices[at];
            if slice.is_bytes || (aligned && chance(random, 40)) {
                skip(&mut holes, &mut end, 8);
            }
            if chance(random, 6) {
                let bits = 1 + random.below(9) as usize;
                holes.push((end, bits));
                end += bits;
                if slice.is_bytes {
                    skip(&mut holes, &mut end, 8);
                }
            }
            starts.push(end);
            end += slice.count / records * slice.bits;
        }
        if records > 1 && (bytes || (aligned && chance(random, 70))) {
            skip(&mut holes, &mut end, 8);
        }
        for (&at, &start) in together.iter().zip(&starts) {
            let slice = slices[at];
            let each = slice.count / records;
            let plain = chance(random, 30);
            let (indices, shape) = order(random, records, each, plain);
            let mut first = vec![usize::MAX; slice.count];
            for (place, &index) in indices.iter().enumerate() {
                first[index] = cursor + place / each * end + start + place % each * slice.bits;
            }
            placed[at] = Some(Placed { first, shape });
        }
        for record in 0..records {
            gaps.extend(holes.iter().map(|&(bit, bits)| (cursor + record * end + bit, bits)));
        }
        cursor += records * end;
    }
    if chance(random, 8) {
        gaps.push((cursor, 8));
        cursor += 8;
    }
    skip(&mut gaps, &mut cursor, 8);
    shuffle(random, &mut gaps);
    let slices = placed.into_iter().map(|slice| slice.expect("every slice was placed")).collect();
    Block { slices, bytes: cursor / 8, gaps }
}

/// Moves on to a multiple of `bits`.
fn skip(gaps: &mut Vec<(usize, usize)>, cursor: &mut usize, bits: usize) {
    let over = *cursor % bits;
    if over > 0 {
        gaps.push((*cursor, bits - over));
        *cursor += bits - over;
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Placed {
    /// What a step along each digit adds to the address, read off the addresses; a digit of one value steps anywhere, by a
    /// multiple of `unit`.
    pub fn strides(&self, random: &mut Random, unit: i64) -> Vec<i64> {
        let mut strides = Vec::new();
        for (at, &digit) in self.shape.iter().enumerate() {
            let weight: usize = self.shape[at + 1..].iter().product();
            strides.push(match digit {
                1 => unit * (random.below(41) as i64 - 20),
                _ => self.first[weight] as i64 - self.first[0] as i64,
            });
        }
        for (index, &first) in self.first.iter().enumerate() {
            let mut rest = index;
            let mut address = self.first[0] as i64;
            for (&digit, stride) in self.shape.iter().zip(&strides).rev() {
                address += (rest % digit) as i64 * stride;
                rest /= digit;
            }
            assert_eq!(address, first as i64, "value {index} of {self:?} is where the digits say");
        }
        strides
    }
}
