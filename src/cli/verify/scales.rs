//! Every number that a factor can be: sweeps over one factor of a format, while the others keep out of its way.
//!
//! A sweep holds every value of a type of eight bits, and of the others zero, subnormals, the smallest normal and the
//! largest finite number, of both signs. Left out are infinities and NaN, which no file should hold: of `e8m0-half` that is
//! 255, a NaN to OCP.

use super::inputs::{self, Weights};
use gristmill::oracle::{FormatOracle, Random};
use gristmill_spec::model::{Factor, FieldType, Scalar};

/// A factor, and the raw values that it takes.
#[derive(Clone, Debug)]
pub struct Sweep {
    factor: Factor,
    raws: Vec<u32>,
    /// In words, for reports.
    pub name: String,
}

/// How a sweep's values lie in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// One after the other, for kernels that look at each weight.
    Dense,
    /// A value for each row, so that no other one drowns it in a sum.
    ByRow,
}

/// Rows and blocks of a row.
#[derive(Clone, Debug)]
pub struct Swept {
    pub bytes: Vec<u8>,
    pub n: usize,
    pub blocks: usize,
}

/// The sweeps of a format, one for each of its factors. `whole` is for every subnormal of types of sixteen bits.
pub fn sweeps(oracle: &FormatOracle<'_>, whole: bool) -> Vec<Sweep> {
    let format = oracle.format();
    let value = &format.value;
    let mut sweeps: Vec<Sweep> = Vec::new();
    for &factor in value.scale.iter().chain(&value.add).chain(&value.subtract) {
        if sweeps.iter().any(|sweep| sweep.factor == factor) {
            continue;
        }
        let (raws, name) = match factor {
            Factor::Field(field) => {
                let field = &format.fields[field];
                (raws(field.ty, whole), format!("every `{}`", field.name))
            }
            Factor::Row => {
                (format.row_header.map_or(Vec::new(), |s| floats(s, whole)), "every row's number".to_owned())
            }
            Factor::Tensor => {
                let tail = format.tensor_tail.map(|(scalar, _)| floats(scalar, false));
                (tail.unwrap_or_default(), "every tensor's number".to_owned())
            }
        };
        if !raws.is_empty() {
            sweeps.push(Sweep { factor, raws, name });
        }
    }
    sweeps
}

/// Raw values of a field.
fn raws(ty: FieldType, whole: bool) -> Vec<u32> {
    match ty {
        FieldType::Scalar(scalar) => floats(scalar, whole),
        FieldType::Digit(radix) => (0..radix.base()).collect(),
        FieldType::Unsigned(bits) | FieldType::Signed(bits) if bits <= 8 => (0..1 << bits).collect(),
        FieldType::Unsigned(bits) | FieldType::Signed(bits) => {
            let powers = (0..bits).map(|bit| 1 << bit);
            powers.flat_map(|power| [power - 1, power]).chain([(1 << bits) - 1]).collect()
        }
    }
}

/// Raw values of a floating-point number.
fn floats(scalar: Scalar, whole: bool) -> Vec<u32> {
    let (exponent, fraction) = match scalar {
        Scalar::E8m0Half => return (0..255).collect(),
        Scalar::Ue4m3Half => return (0..256).collect(),
        Scalar::F16 => (5, 10),
        Scalar::Bf16 => (8, 7),
        Scalar::F32 => (8, 23),
    };
    let sign = 1u32 << (exponent + fraction);
    let first = 1u32 << fraction;
    let one = ((1 << (exponent - 1)) - 1) << fraction;
    let largest = (((1 << exponent) - 1) << fraction) - 1;
    let powers = (0..fraction).map(|bit| 1 << bit);
    let both = powers.chain([0, first / 3, first - 1, first, first + 1, one, largest]);
    let mut raws: Vec<u32> = both.flat_map(|raw| [raw, sign | raw]).collect();
    if whole && fraction <= 10 {
        raws.extend((0..first).map(|raw| if raw % 2 == 0 { raw } else { sign | raw }));
    }
    raws
}

impl Sweep {
    /// The tensors that hold all its values: one, but for a factor that a tensor has only one of.
    pub fn tensors(&self, oracle: &FormatOracle<'_>, random: &mut Random, spread: Spread) -> Vec<Swept> {
        let values = self.raws.len();
        // Activations that share a scale are not cut.
        let elements = oracle.format().elements as usize;
        let shared = oracle.activations().block.map_or(1, |block| (block as usize / elements).max(1));
        match (self.factor, spread) {
            (Factor::Tensor, _) => {
                self.raws.iter().map(|raw| self.tensor(oracle, random, (1, shared), |_| *raw)).collect()
            }
            (Factor::Field(field), Spread::Dense) => {
                let blocks = values.div_ceil(oracle.count(field));
                vec![self.tensor(oracle, random, (1, blocks), |at| self.raws[at.value % values])]
            }
            (Factor::Field(_) | Factor::Row, _) => {
                vec![self.tensor(oracle, random, (values, shared), |at| self.raws[at.row])]
            }
        }
    }

    fn tensor(
        &self,
        oracle: &FormatOracle<'_>,
        random: &mut Random,
        (n, blocks): (usize, usize),
        raw: impl Fn(At) -> u32,
    ) -> Swept {
        let format = oracle.format();
        let (bytes, elements) = (format.bytes as usize, format.elements as usize);
        let mut tensor = inputs::tensor(oracle, random, n, blocks * elements, Weights::Random);
        let header = format.row_header.map_or(0, |scalar| scalar.bits() as usize / 8);
        let row_bytes = header + blocks * bytes;
        let zeroed = self.zeroed(oracle);
        let code = inputs::nonzero_code(oracle);
        let mut value = 0;
        for row in 0..n {
            let start = row * row_bytes;
            if self.factor == Factor::Row {
                let number = raw(At { row, value: row }).to_le_bytes();
                tensor[start..][..header].copy_from_slice(&number[..header]);
            }
            for block in tensor[start + header..start + row_bytes].chunks_exact_mut(bytes) {
                for index in (0..oracle.count(format.value.code)).filter(|index| index % 4 != 3) {
                    oracle.set_raw(block, format.value.code, index, code);
                }
                for field in 0..format.fields.len() {
                    for index in 0..oracle.count(field) {
                        let now = oracle.raw(block, field, index);
                        let new = if self.factor == Factor::Field(field) {
                            value += 1;
                            raw(At { row, value: value - 1 })
                        } else if zeroed.contains(&field) {
                            zero(oracle, field).unwrap_or(now)
                        } else if self.is_beside(oracle, field) && oracle.factor(field, now) == 0.0 {
                            one(oracle, field).unwrap_or(now)
                        } else {
                            continue;
                        };
                        oracle.set_raw(block, field, index, new);
                    }
                }
            }
        }
        if let (Factor::Tensor, Some((scalar, _))) = (self.factor, format.tensor_tail) {
            let number = raw(At { row: 0, value: 0 }).to_le_bytes();
            let size = scalar.bits() as usize / 8;
            tensor[n * row_bytes..][..size].copy_from_slice(&number[..size]);
        }
        Swept { bytes: tensor, n, blocks }
    }

    /// Fields of the terms that the factor is not in: as zeros they drown nothing.
    fn zeroed(&self, oracle: &FormatOracle<'_>) -> Vec<usize> {
        let value = &oracle.format().value;
        let terms = [&value.scale, &value.add, &value.subtract];
        let (with, without): (Vec<_>, Vec<_>) =
            terms.into_iter().partition(|term| term.contains(&self.factor));
        let fields = without.into_iter().flatten().filter_map(|factor| match factor {
            Factor::Field(field) if !with.iter().any(|term| term.contains(factor)) => Some(*field),
            Factor::Field(_) | Factor::Row | Factor::Tensor => None,
        });
        fields.collect()
    }

    /// Whether the factor is multiplied with a field.
    fn is_beside(&self, oracle: &FormatOracle<'_>, field: usize) -> bool {
        let value = &oracle.format().value;
        [&value.scale, &value.add, &value.subtract]
            .into_iter()
            .any(|term| term.contains(&self.factor) && term.contains(&Factor::Field(field)))
    }
}

/// Where a value of the factor stands: its row, and how many stand before it.
#[derive(Clone, Copy)]
struct At {
    row: usize,
    value: usize,
}

/// A raw value that counts as zero, if a field has one.
fn zero(oracle: &FormatOracle<'_>, field: usize) -> Option<u32> {
    raws(oracle.format().fields[field].ty, false).into_iter().find(|raw| oracle.factor(field, *raw) == 0.0)
}

/// A raw value that counts as something moderate, if a field has one.
fn one(oracle: &FormatOracle<'_>, field: usize) -> Option<u32> {
    let moderate = |raw: &u32| (0.01..1000.0).contains(&oracle.factor(field, *raw).abs());
    raws(oracle.format().fields[field].ty, false).into_iter().find(moderate)
}
