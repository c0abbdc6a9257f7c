//! The shipped formats decode the golden vectors bit for bit.
//!
//! The interpreter below knows the model and nothing of any format; it shares no code with the compiler.

use gristmill_spec::model::{
    Factor, Field, FieldLayout, FieldType, Format, Scalar, Segment, SpecSet, ValueMap,
};
use gristmill_spec::{check, shipped};
use serde_json::Value as Json;
use std::path::PathBuf;

fn set() -> SpecSet {
    check(&shipped().expect("readable")).set.expect("the shipped specs are sound")
}

struct Vectors {
    dir: PathBuf,
    entries: Vec<Json>,
}

impl Vectors {
    fn load() -> Vectors {
        let dir = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/vectors"));
        let text = std::fs::read_to_string(dir.join("manifest.json")).expect("the manifest is in tests/data");
        let manifest: Json = serde_json::from_str(&text).expect("JSON");
        let entries = manifest["entries"].as_array().expect("a list").clone();
        Vectors { dir, entries }
    }

    fn array(&self, entry: &Json, key: &str) -> Vec<u8> {
        let part = &entry[key];
        let number = |key: &str| part[key].as_u64().expect("a number") as usize;
        let file = part["file"].as_str().unwrap_or_else(|| panic!("no array {key} in {entry}"));
        let bytes = std::fs::read(self.dir.join(file)).expect("a container of tests/data");
        bytes[number("offset")..number("offset") + number("bytes")].to_vec()
    }

    fn floats(&self, entry: &Json, key: &str) -> Vec<f32> {
        self.array(entry, key).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }
}

fn bits(block: &[u8], first: i64, width: u32) -> u64 {
    (0..i64::from(width)).fold(0, |value, i| {
        let at = usize::try_from(first + i).expect("inside the block");
        value | u64::from(block[at / 8] >> (at % 8) & 1) << i
    })
}

/// Raw bits of value `index` of a field (a trit for base-3 fields).
fn raw(field: &Field, block: &[u8], index: u32) -> u64 {
    match &field.layout {
        FieldLayout::Bits(slices) => {
            let (mut value, mut shift) = (0, 0);
            for slice in slices {
                value |= bits(block, slice.address(index), slice.bits) << shift;
                shift += slice.bits;
            }
            value
        }
        FieldLayout::Digits { most_significant_first, segments, .. } => {
            let (byte, digit) =
                segments.iter().find_map(|s| find(s, index)).expect("every element has a digit");
            let power = if *most_significant_first { digit } else { 4 - digit };
            let v = u32::from(block[byte]).wrapping_mul(3u32.pow(power)) & 255;
            u64::from((v * 3) >> 8)
        }
    }
}

fn find(segment: &Segment, element: u32) -> Option<(usize, u32)> {
    let count: u32 = segment.digits.iter().map(|d| d.extent).product();
    (0..count).find_map(|index| {
        let (mut rest, mut at, mut bit, mut digit) = (index, segment.first, i64::from(segment.offset), 0);
        for d in segment.digits.iter().rev() {
            let i = rest % d.extent;
            rest /= d.extent;
            at += i * d.element;
            bit += i64::from(i) * d.stride;
            digit += i * d.digit;
        }
        (at == element).then_some((bit as usize / 8, digit))
    })
}

fn integer(ty: FieldType, raw: u64) -> i64 {
    match ty {
        FieldType::Signed(bits) if raw >> (bits - 1) & 1 == 1 => raw as i64 - (1 << bits),
        _ => raw as i64,
    }
}

fn scalar(ty: Scalar, raw: u64) -> f32 {
    match ty {
        Scalar::F16 => half::f16::from_bits(raw as u16).to_f32(),
        Scalar::Bf16 => half::bf16::from_bits(raw as u16).to_f32(),
        Scalar::F32 => f32::from_bits(raw as u32),
        Scalar::E8m0Half => 2f64.powi(raw as i32 - 128) as f32,
        Scalar::Ue4m3Half => {
            let (e, m) = ((raw >> 3 & 15) as i32, (raw & 7) as f32);
            match raw & 127 {
                0 | 127 => 0.0,
                _ if e == 0 => m * 2f32.powi(-10),
                _ => (1.0 + m / 8.0) * 2f32.powi(e - 8),
            }
        }
    }
}

/// Weights of one block; `None` where a code means nothing.
fn decode(format: &Format, block: &[u8], row: f32, tensor: f32) -> Vec<Option<f32>> {
    let value = &format.value;
    let at = |index: usize, element: u32| {
        let field = &format.fields[index];
        raw(field, block, element / (format.elements / field.count))
    };
    let factor = |factor: &Factor, element: u32| match *factor {
        Factor::Row => row,
        Factor::Tensor => tensor,
        Factor::Field(index) => {
            let field = &format.fields[index];
            match field.ty {
                FieldType::Scalar(ty) => scalar(ty, at(index, element)),
                ty => {
                    (i64::from(field.times) * integer(ty, at(index, element)) + i64::from(field.plus)) as f32
                }
            }
        }
    };
    let product =
        |factors: &[Factor], element: u32| factors.iter().map(|f| factor(f, element)).reduce(|a, b| a * b);
    let weight = |element: u32| {
        // Codes are interleaved where their elements are not neighbours.
        let span = value.group * value.stride;
        let index = element / span * value.stride + element % value.stride;
        let code = integer(format.fields[value.code].ty, raw(&format.fields[value.code], block, index));
        let mut v = match &value.map {
            ValueMap::Affine { times, zero } => i64::from(*times) * code - i64::from(*zero),
            ValueMap::Levels(levels) => i64::from(*levels.get(code as usize)?),
            ValueMap::Codebook { times, entries, .. } => {
                i64::from(*times)
                    * i64::from(entries.get(code as usize)?[(element % span / value.stride) as usize])
            }
        };
        if let Some(signs) = &value.signs {
            let run = format.elements / format.fields[signs.field].count;
            let mut mask = at(signs.field, element);
            if signs.parity {
                mask |= u64::from(mask.count_ones() % 2) << (run - 1);
            }
            if mask >> (element % run) & 1 == 1 {
                v = -v;
            }
        }
        if let Some(shift) = &value.shift {
            v += i64::from(shift.values[at(shift.field, element) as usize]);
        }
        let mut w = product(&value.scale, element).map_or(1.0, |s| s * value.unit) * v as f32;
        if let Some(add) = product(&value.add, element) {
            w += add;
        }
        if let Some(subtract) = product(&value.subtract, element) {
            w -= subtract;
        }
        Some(w)
    };
    (0..format.elements).map(weight).collect()
}

fn number(ty: Scalar, bytes: &[u8]) -> f32 {
    scalar(ty, bits(bytes, 0, ty.bits()))
}

fn tensor(format: &Format, bytes: &[u8], row_len: usize) -> Vec<Option<f32>> {
    let header = format.row_header.map_or(0, |ty| ty.bits() as usize / 8);
    let tail = format.tensor_tail.map_or(0, |(_, bytes)| bytes as usize);
    let outer = format.tensor_tail.map_or(1.0, |(ty, _)| number(ty, &bytes[bytes.len() - tail..]));
    let row_bytes = header + row_len / format.elements as usize * format.bytes as usize;
    let mut weights = Vec::new();
    for row in bytes[..bytes.len() - tail].chunks_exact(row_bytes) {
        let scale = format.row_header.map_or(1.0, |ty| number(ty, row));
        for block in row[header..].chunks_exact(format.bytes as usize) {
            weights.extend(decode(format, block, scale, outer));
        }
    }
    weights
}

#[track_caller]
fn same(what: &str, got: &[Option<f32>], want: &[f32], skip_unknown: bool) {
    assert_eq!(got.len(), want.len(), "{what}: number of weights");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        match got {
            Some(got) => assert_eq!(got.to_bits(), want.to_bits(), "{what}: weight {i}: {got} is not {want}"),
            None => {
                assert!(skip_unknown, "{what}: the code of weight {i} means nothing, but {want} was expected")
            }
        }
    }
}

#[test]
fn formats_decode_the_golden_vectors() {
    let (set, vectors) = (set(), Vectors::load());
    let mut ran = std::collections::BTreeMap::new();
    for entry in &vectors.entries {
        let name = entry["format"].as_str().expect("a name").to_lowercase();
        let Some(format) = set.formats.iter().find(|f| f.name == name) else { continue };
        if entry.get("q").is_none() || entry.get("y").is_none() {
            continue;
        }
        let what = format!("{name} {}", entry["case"]);
        let row_len = entry["row_len"].as_u64().expect("a number") as usize;
        let got = tensor(format, &vectors.array(entry, "q"), row_len);
        // Random bytes hold codes that i2_s gives no meaning.
        let random = entry["case"] == "random_codes";
        same(&what, &got, &vectors.floats(entry, "y"), random);
        assert_eq!(random, got.iter().any(Option::is_none), "{what}");
        *ran.entry(name).or_insert(0) += 1;
    }
    for format in &set.formats {
        let least = match format.name.as_str() {
            // Their vectors hold codes and scales apart; see the test below.
            "i2s_absmax" | "i2s_clamp" => 0,
            // Their vectors go by other names; see tests/import.rs of the facade.
            _ if format.family == "import" => 0,
            // No quantizer of theirs was there to make cases with: random blocks in short and in long rows.
            "pq2_0" | "ptq1_0" | "stq1_0" => 2,
            _ => 5,
        };
        let entries = ran.get(&format.name).copied().unwrap_or(0);
        assert!(entries >= least, "only {entries} entries for {}", format.name);
    }
}

#[test]
fn block_variants_decode_their_codes() {
    let (set, vectors) = (set(), Vectors::load());
    let mut ran = 0;
    for (name, offset) in [("i2s_absmax", 1), ("i2s_clamp", 2)] {
        let format = set.formats.iter().find(|f| f.name == name).expect("shipped");
        let entries = vectors.entries.iter().filter(|e| e["format"] == name.to_uppercase());
        for entry in entries {
            let codes = vectors.array(entry, "codes");
            let scales = vectors.floats(entry, "scales");
            let mut bytes = Vec::new();
            for (codes, scale) in codes.chunks_exact(32).zip(&scales) {
                for four in codes.chunks_exact(4) {
                    let code = |i: usize| ((four[i] as i8 + offset) as u8) << (2 * i);
                    bytes.push(code(0) | code(1) | code(2) | code(3));
                }
                bytes.extend(scale.to_le_bytes());
            }
            let what = format!("{name} {}", entry["case"]);
            same(&what, &tensor(format, &bytes, 32), &vectors.floats(entry, "y"), false);
            ran += 1;
        }
    }
    assert_eq!(ran, 15);
}

#[test]
fn activations_agree_with_the_golden_vectors_in_size() {
    let set = set();
    let block = |name: &str| set.activations.iter().find(|a| a.name == name).and_then(|a| a.block);
    assert_eq!((block("q8_0"), block("q8_k"), block("int8_row")), (Some(32), Some(256), None));
}
