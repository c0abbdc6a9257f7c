//! Inputs of the differential run: weights with every kind of code, activations at their extremes.

use gristmill::oracle::{FormatOracle, Random};
use gristmill::vocab::DType;
use gristmill_spec::model::{FieldType, Scalar};

/// What a tensor of weights is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Random codes, scales of moderate size.
    Random,
    /// Random codes, scales of any finite size.
    Wild,
    /// Every element at the highest value that its code can give, with the largest sub-scales.
    Highest,
    /// Every element at the lowest value.
    Lowest,
    /// The codes in order, so that each occurs.
    EveryCode,
}

impl Weights {
    /// In words, for reports.
    pub fn name(self) -> &'static str {
        match self {
            Weights::Random => "random weights",
            Weights::Wild => "wild scales",
            Weights::Highest => "highest codes",
            Weights::Lowest => "lowest codes",
            Weights::EveryCode => "every code",
        }
    }
}

/// Codes in raw bits.
struct Codes {
    valid: Vec<u32>,
    invalid: Vec<u32>,
    highest: u32,
    lowest: u32,
}

fn codes(oracle: &FormatOracle<'_>) -> Codes {
    let value = &oracle.format().value;
    let count = match oracle.format().fields[value.code].ty {
        FieldType::Digit(radix) => radix.base(),
        FieldType::Unsigned(bits) | FieldType::Signed(bits) => 1u32 << bits.min(16),
        FieldType::Scalar(_) => 0,
    };
    let (valid, invalid): (Vec<u32>, Vec<u32>) =
        (0..count).partition(|code| oracle.mapped(*code, 0).is_some());
    let total =
        |code: &u32| -> i32 { (0..value.group as usize).filter_map(|i| oracle.mapped(*code, i)).sum() };
    let highest = valid.iter().copied().max_by_key(total).unwrap_or(0);
    // With signs apart, the lowest value is the highest one negated.
    let lowest = match value.signs {
        Some(_) => highest,
        None => valid.iter().copied().min_by_key(total).unwrap_or(0),
    };
    Codes { valid, invalid, highest, lowest }
}

/// A code without meaning, if the format has one.
pub fn invalid_code(oracle: &FormatOracle<'_>) -> Option<u32> {
    codes(oracle).invalid.first().copied()
}

/// A code that stands for another integer than zero, if the format has one.
pub fn nonzero_code(oracle: &FormatOracle<'_>) -> u32 {
    let codes = codes(oracle);
    let is_zero =
        |code: u32| (0..oracle.format().value.group as usize).all(|i| oracle.mapped(code, i) == Some(0));
    if is_zero(codes.highest) { codes.lowest } else { codes.highest }
}

/// A whole tensor of `n` rows of `k` elements with headers and tail; every code in it means something.
pub fn tensor(oracle: &FormatOracle<'_>, random: &mut Random, n: usize, k: usize, kind: Weights) -> Vec<u8> {
    let format = oracle.format();
    let codes = codes(oracle);
    let mut tensor = Vec::new();
    let mut counter = 0;
    for _ in 0..n {
        if let Some(scalar) = format.row_header {
            push_scalar(&mut tensor, scalar, random, kind);
        }
        for _ in 0..k / format.elements as usize {
            let mut block: Vec<u8> = (0..format.bytes).map(|_| random.bits() as u8).collect();
            fill(oracle, &codes, random, kind, &mut block, &mut counter);
            tensor.extend(block);
        }
    }
    if let Some((scalar, bytes)) = format.tensor_tail {
        let end = tensor.len() + bytes as usize;
        push_scalar(&mut tensor, scalar, random, kind);
        // What follows the scale means nothing, so it may be anything.
        tensor.resize_with(end, || random.bits() as u8);
    }
    tensor
}

fn fill(
    oracle: &FormatOracle<'_>,
    codes: &Codes,
    random: &mut Random,
    kind: Weights,
    block: &mut [u8],
    counter: &mut usize,
) {
    let format = oracle.format();
    let value = &format.value;
    for (index, field) in format.fields.iter().enumerate() {
        for i in 0..oracle.count(index) {
            let any = oracle.raw(block, index, i);
            let raw = if index == value.code {
                match kind {
                    Weights::Random | Weights::Wild if codes.invalid.is_empty() => any,
                    Weights::Random | Weights::Wild => {
                        codes.valid[random.below(codes.valid.len() as u64) as usize]
                    }
                    Weights::Highest => codes.highest,
                    Weights::Lowest => codes.lowest,
                    Weights::EveryCode => {
                        *counter += 1;
                        codes.valid[(*counter - 1) % codes.valid.len().max(1)]
                    }
                }
            } else if let FieldType::Scalar(scalar) = field.ty {
                scalar_bits(scalar, random, kind)
            } else {
                match kind {
                    Weights::Random | Weights::Wild | Weights::EveryCode => any,
                    Weights::Highest => extreme(oracle, index, false),
                    Weights::Lowest => extreme(oracle, index, true),
                }
            };
            // Bits of a base-3 byte that are random already may stay: writing would make them canonical.
            if raw != any {
                oracle.set_raw(block, index, i, raw);
            }
        }
    }
}

/// The raw value of a field beside the codes (sub-scale, signs, shift) that makes weights highest or lowest.
fn extreme(oracle: &FormatOracle<'_>, index: usize, lowest: bool) -> u32 {
    let value = &oracle.format().value;
    let ones = match oracle.format().fields[index].ty {
        FieldType::Unsigned(bits) => ((1u64 << bits) - 1) as u32,
        FieldType::Signed(bits) => (1u32 << (bits - 1)) - 1,
        FieldType::Digit(radix) => radix.base() - 1,
        FieldType::Scalar(_) => 0,
    };
    if let Some(shift) = value.shift.as_ref().filter(|shift| shift.field == index) {
        let shifts = shift.values.iter().enumerate();
        let found = if lowest { shifts.min_by_key(|v| v.1) } else { shifts.max_by_key(|v| v.1) };
        return found.map_or(0, |(i, _)| i as u32);
    }
    let is_signs = value.signs.as_ref().is_some_and(|signs| signs.field == index);
    if is_signs && !lowest { 0 } else { ones }
}

/// A scale: of either sign and between 1/64 and 2, or any finite one.
fn scalar_bits(scalar: Scalar, random: &mut Random, kind: Weights) -> u32 {
    let mantissa = random.bits() as u32;
    let exponent = random.below(7) as u32;
    let sign = random.below(2) as u32;
    let bits = |exponent_bits: u32, mantissa_bits: u32| {
        let field = match kind {
            // All but the last, which is that of infinities and NaN.
            Weights::Wild => mantissa.rotate_left(9) % ((1 << exponent_bits) - 1),
            Weights::Random | Weights::Highest | Weights::Lowest | Weights::EveryCode => {
                (1 << (exponent_bits - 1)) - 1 - exponent
            }
        };
        sign << (exponent_bits + mantissa_bits)
            | field << mantissa_bits
            | (mantissa & ((1 << mantissa_bits) - 1))
    };
    match scalar {
        Scalar::F16 => bits(5, 10),
        Scalar::Bf16 => bits(8, 7),
        Scalar::F32 => bits(8, 23),
        Scalar::E8m0Half if kind == Weights::Wild => mantissa & 0xff,
        Scalar::E8m0Half => 128 - exponent,
        Scalar::Ue4m3Half => mantissa & 0xff,
    }
}

fn push_scalar(tensor: &mut Vec<u8>, scalar: Scalar, random: &mut Random, kind: Weights) {
    let bytes = scalar_bits(scalar, random, kind).to_le_bytes();
    tensor.extend(&bytes[..scalar.bits() as usize / 8]);
}

/// What activations are filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// Bell-shaped, as f32.
    F32,
    /// Bell-shaped, as f16.
    F16,
    /// Bell-shaped, as bf16.
    Bf16,
    /// Random int8.
    I8,
    /// int8, all of this value.
    All(i8),
    /// int8, 127 and -127 in turn.
    Alternating,
}

impl Tokens {
    /// The type that a handle is given.
    pub fn dtype(self) -> DType {
        match self {
            Tokens::F32 => DType::F32,
            Tokens::F16 => DType::F16,
            Tokens::Bf16 => DType::Bf16,
            Tokens::I8 | Tokens::All(_) | Tokens::Alternating => DType::I8,
        }
    }

    /// Kernels that compute in integers quantize them.
    pub fn are_floats(self) -> bool {
        matches!(self, Tokens::F32 | Tokens::F16 | Tokens::Bf16)
    }

    /// In words, for reports.
    pub fn name(self) -> String {
        match self {
            Tokens::F32 => "f32 activations".to_owned(),
            Tokens::F16 => "f16 activations".to_owned(),
            Tokens::Bf16 => "bf16 activations".to_owned(),
            Tokens::I8 => "int8 activations".to_owned(),
            Tokens::All(value) => format!("activations all {value}"),
            Tokens::Alternating => "activations 127, -127, ...".to_owned(),
        }
    }

    /// One row of int8; `None` for float activations.
    pub fn row(self, random: &mut Random, k: usize) -> Option<Vec<i8>> {
        match self {
            Tokens::F32 | Tokens::F16 | Tokens::Bf16 => None,
            Tokens::I8 => Some((0..k).map(|_| (random.below(256) as u8).cast_signed()).collect()),
            Tokens::All(value) => Some(vec![value; k]),
            Tokens::Alternating => Some((0..k).map(|i| if i % 2 == 0 { 127 } else { -127 }).collect()),
        }
    }
}

/// Values for quantizers: name, values.
pub fn sources(random: &mut Random, len: usize) -> Vec<(&'static str, Vec<f32>)> {
    let mut outlier = random.gauss_vec(len, 0.02);
    if let Some(x) = outlier.get_mut(len / 3) {
        *x = -7.5;
    }
    let mut single = vec![0.0; len];
    if let Some(x) = single.last_mut() {
        *x = 0.75;
    }
    let signs: Vec<f32> = (0..len).map(|_| random.below(3) as f32 - 1.0).collect();
    // Multiples of an eighth: every rule of rounding meets its ties.
    let ties: Vec<f32> = (0..len).map(|i| ((7 * i) % 33) as f32 * 0.125 - 2.0).collect();
    let mut half_steps: Vec<f32> = (0..len).map(|i| ((i * 5) % 255) as f32 * 0.5 - 63.5).collect();
    if let Some(x) = half_steps.first_mut() {
        *x = 127.0;
    }
    vec![
        ("gauss", random.gauss_vec(len, 0.02)),
        ("zeros", vec![0.0; len]),
        ("minus zeros", vec![-0.0; len]),
        ("ties", ties),
        ("half steps", half_steps),
        ("ternary", signs.iter().map(|s| s * 0.0421).collect()),
        (
            "ternary ties",
            signs.iter().enumerate().map(|(i, s)| if i % 2 == 0 { *s } else { s * 0.5 }).collect(),
        ),
        ("outlier", outlier),
        ("single", single),
        ("constant", vec![0.3; len]),
        ("tiny", random.gauss_vec(len, 1e-6)),
        ("subnormal steps", random.gauss_vec(len, 1e-37)),
        ("subnormal", random.gauss_vec(len, 1e-42)),
        ("large", random.gauss_vec(len, 5e4)),
        ("huge", random.gauss_vec(len, 1e37)),
        ("largest", signs.iter().map(|s| s * f32::MAX).collect()),
    ]
}
