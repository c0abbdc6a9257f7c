//! Classes of shapes, within which one kernel is taken to be the fastest.

use crate::request::Shape;

/// Largest number of tokens in each class of tokens but the last: decode, some sequences at once, and prompts up to what the tiles of
/// GPUs are for.
const TOKENS: [usize; 7] = [1, 4, 16, 64, 256, 512, 1024];
/// Tokens of which more are many.
const MANY: usize = 64;
/// Largest number of weights in each class of weights but the last: about what two bits a weight need for half
/// of an L2 cache, twice it, and ten times it.
const WEIGHTS: [usize; 3] = [1 << 20, 1 << 22, 1 << 24];

/// A class of shapes, within which one kernel is taken to be the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShapeClass(pub(super) u8);

impl ShapeClass {
    /// How many there are.
    pub const COUNT: usize = (TOKENS.len() + 1) * (WEIGHTS.len() + 1);

    /// Every class.
    pub fn all() -> impl Iterator<Item = ShapeClass> {
        // COUNT is a small constant.
        (0..Self::COUNT as u8).map(ShapeClass)
    }

    /// The class of a shape.
    #[inline]
    pub fn of(shape: Shape) -> ShapeClass {
        let weights = shape.n.saturating_mul(shape.k);
        let weights = WEIGHTS.iter().filter(|most| weights > **most).count();
        let tokens = TOKENS.iter().filter(|most| shape.m > **most).count();
        // Below COUNT.
        ShapeClass((weights * (TOKENS.len() + 1) + tokens) as u8)
    }

    /// Its number, below [`ShapeClass::COUNT`].
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Every class whose weights are of the same size as this one's.
    pub(crate) fn siblings(self) -> impl DoubleEndedIterator<Item = ShapeClass> {
        let tokens = TOKENS.len() as u8 + 1;
        let first = self.0 / tokens * tokens;
        (first..first + tokens).map(ShapeClass)
    }

    /// The classes with fewer tokens, but many, whose weights are of the same size; those with the most first. What is fastest for
    /// them on a processor is fastest for this one's: all are more than a tile of any kernel.
    pub(crate) fn fewer_but_many(self) -> impl Iterator<Item = ShapeClass> {
        self.siblings().rev().filter(move |class| class.0 < self.0 && class.tokens().0 > MANY)
    }

    /// Its number among the classes whose weights are of the same size.
    #[inline]
    pub(crate) fn of_tokens(self) -> usize {
        self.index() % (TOKENS.len() + 1)
    }

    /// The classes with as many tokens and fewer weights, those with the most first.
    pub(crate) fn of_fewer_weights(self) -> impl Iterator<Item = ShapeClass> {
        let tokens = TOKENS.len() as u8 + 1;
        (1..=self.0 / tokens).map(move |less| ShapeClass(self.0 - less * tokens))
    }

    /// The numbers of tokens in it, from and to.
    pub fn tokens(self) -> (usize, usize) {
        let at = self.index() % (TOKENS.len() + 1);
        let from = at.checked_sub(1).and_then(|before| TOKENS.get(before)).map_or(0, |most| most + 1);
        (from, TOKENS.get(at).copied().unwrap_or(usize::MAX))
    }

    /// The numbers of weights in it, from and to.
    pub fn weights(self) -> (usize, usize) {
        let at = self.index() / (TOKENS.len() + 1);
        let from = at.checked_sub(1).and_then(|before| WEIGHTS.get(before)).map_or(0, |most| most + 1);
        (from, WEIGHTS.get(at).copied().unwrap_or(usize::MAX))
    }

    /// Something of the class to measure: with whole blocks of every known format, and not larger than need be.
    pub fn example(self) -> Shape {
        const MATRICES: [(usize, usize); WEIGHTS.len() + 1] =
            [(512, 1024), (640, 2560), (2560, 2560), (6912, 2560)];
        let (n, k) = MATRICES[self.index() / (TOKENS.len() + 1)];
        let (from, to) = self.tokens();
        Shape { m: if to == usize::MAX { 2 * (from - 1) } else { to }, n, k }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_every_shape_and_their_examples_are_in_them() {
        for class in ShapeClass::all() {
            assert_eq!(ShapeClass::of(class.example()), class);
            let (from, to) = class.tokens();
            let Shape { n, k, .. } = class.example();
            for m in [from.max(1), to] {
                assert_eq!(ShapeClass::of(Shape { m, n, k }), class, "m = {m}");
            }
        }
        assert_eq!(
            ShapeClass::of(Shape::new(usize::MAX, usize::MAX, usize::MAX)).index(),
            ShapeClass::COUNT - 1
        );
        assert_eq!(ShapeClass::of(Shape::new(0, 0, 0)).index(), 0);
    }
}
