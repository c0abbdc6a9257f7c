//! Formats that tensor cores multiply as they are: FP4 (E2M1) in runs with one scale each.

use super::{Factor, FieldLayout, FieldType, Format, Scalar, ValueMap};

/// The values of E2M1 by code, doubled; what is left of a negative zero is a zero.
const E2M1: [i32; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Codes of a 32-bit word.
const OF_A_WORD: u32 = 8;

/// Elements whose blocks a CUDA kernel takes at once: two steps of block-scaled `mma`.
const AT_ONCE: u32 = 128;

/// Where FP4 codes and their scales lie in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp4 {
    /// Elements that share a scale: 32 with exponents (MXFP4), 16 with e4m3 (NVFP4).
    pub run: u32,
    /// [`Scalar::E8m0Half`] or [`Scalar::Ue4m3Half`]; half the scale, because the table is doubled.
    pub scale: Scalar,
    /// First byte of the codes, which are runs one after the other.
    pub codes: u32,
    /// First byte of the scales, one for each run.
    pub scales: u32,
    /// Which elements of a run a word holds, lowest bits first: those of the run's first word.
    pub elements: [u32; OF_A_WORD as usize],
    /// What is added to these for each further word of the run.
    pub next: u32,
}

impl Format {
    /// Its codes and scales as block-scaled tensor cores take them.
    ///
    /// # Errors
    /// What about the format they do not take.
    pub fn fp4(&self) -> Result<Fp4, String> {
        let value = &self.value;
        let code = &self.fields[value.code];
        let is_e2m1 = matches!(&value.map, ValueMap::Levels(levels) if levels[..] == E2M1);
        if !is_e2m1 || code.ty != FieldType::Unsigned(4) || value.signs.is_some() || value.shift.is_some() {
            return Err(format!("its values are not those of E2M1 doubled ({E2M1:?} by code)"));
        }
        if !value.add.is_empty() || !value.subtract.is_empty() {
            return Err("it has a minimum".to_owned());
        }
        let number = |scalar| FieldType::Scalar(scalar);
        let field = match value.scale[..] {
            [Factor::Field(field)] if value.unit == 1.0 => field,
            _ => return Err("its scale is not one number of the block".to_owned()),
        };
        let scale = &self.fields[field];
        let (run, scalar) = if scale.ty == number(Scalar::E8m0Half) {
            (32, Scalar::E8m0Half)
        } else if scale.ty == number(Scalar::Ue4m3Half) {
            (16, Scalar::Ue4m3Half)
        } else {
            return Err("its scale is neither an `e8m0-half` nor a `ue4m3-half`".to_owned());
        };
        if scale.count * run != self.elements || !AT_ONCE.is_multiple_of(self.elements) {
            let message = format!(
                "its blocks are not 16, 32, 64 or 128 elements with {} for each {run}",
                scalar.name()
            );
            return Err(message);
        }
        let apart =
            || format!("its codes or scales are not runs of bytes one after the other, {run} codes to a run");
        let (codes, scales) = (self.bits(value.code), self.bits(field));
        let (codes, scales) = codes.zip(scales).ok_or_else(apart)?;
        let first = |bits: &[u32]| bits.iter().copied().min().filter(|bit| bit.is_multiple_of(8));
        let (codes_at, scales_at) = first(&codes).zip(first(&scales)).ok_or_else(apart)?;
        if (0..scale.count).any(|index| scales[index as usize] != scales_at + 8 * index) {
            return Err(apart());
        }
        // The element that each place holds.
        let mut held = vec![u32::MAX; self.elements as usize];
        for (element, bit) in (0..).zip(&codes) {
            let place = (bit - codes_at) / 4;
            match held.get_mut(place as usize) {
                Some(held) if bit.is_multiple_of(4) && place / run == element / run => *held = element % run,
                _ => return Err(apart()),
            }
        }
        let elements = std::array::from_fn(|place| held[place]);
        let next = held[OF_A_WORD as usize].wrapping_sub(held[0]);
        let expected = |place: u32| {
            let within = place % run;
            elements[(within % OF_A_WORD) as usize].wrapping_add(within / OF_A_WORD * next)
        };
        if (0..self.elements).any(|place| held[place as usize] != expected(place)) {
            return Err("the words of a run do not hold its elements alike".to_owned());
        }
        Ok(Fp4 { run, scale: scalar, codes: codes_at / 8, scales: scales_at / 8, elements, next })
    }

    /// Bit addresses of the values of a field that lie in one piece each.
    fn bits(&self, field: usize) -> Option<Vec<u32>> {
        let field = &self.fields[field];
        match &field.layout {
            FieldLayout::Bits(slices) if slices.len() == 1 => {
                (0..field.count).map(|index| slices[0].address(index).try_into().ok()).collect()
            }
            FieldLayout::Bits(_) | FieldLayout::Digits { .. } => None,
        }
    }
}
