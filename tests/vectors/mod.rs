//! The golden vectors in `tests/data/vectors`, which nobody here made: entries of the manifest, with their arrays.

use serde_json::Value;
use std::ops::Deref;
use std::path::PathBuf;

/// An entry of the manifest.
pub struct Vector(Value);

impl Deref for Vector {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors")
}

/// All of a format, in whatever case its name is spelled there.
pub fn of(format: &str) -> Vec<Vector> {
    let text = std::fs::read(folder().join("manifest.json")).expect("the manifest is there");
    let manifest: Value = serde_json::from_slice(&text).expect("the manifest is JSON");
    let same =
        |entry: &&Value| entry["format"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(format));
    manifest["entries"].as_array().expect("a list").iter().filter(same).cloned().map(Vector).collect()
}

/// Those that are a tensor, with its rows and their length.
pub fn tensors(format: &str) -> Vec<(Vector, usize, usize)> {
    let shaped = |vector: Vector| {
        let k = vector.get("row_len")?.as_u64()? as usize;
        let n = vector.get("rows").map_or_else(|| vector.number("n_elements") / k, |_| vector.number("rows"));
        Some((vector, n, k))
    };
    of(format).into_iter().filter(|vector| vector["case"] != "dot").filter_map(shaped).collect()
}

impl Vector {
    /// A number that it has.
    pub fn number(&self, key: &str) -> usize {
        number(self, key)
    }

    /// An array, if it has it.
    pub fn bytes(&self, key: &str) -> Option<Vec<u8>> {
        let array = self.get(key)?;
        let file = std::fs::read(folder().join(array["file"].as_str().expect("a name")));
        Some(
            file.expect("the container is there")[number(array, "offset")..][..number(array, "bytes")]
                .to_vec(),
        )
    }

    /// An array of f32, if it has it.
    pub fn floats(&self, key: &str) -> Option<Vec<f32>> {
        Some(self.bytes(key)?.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}

fn number(value: &Value, key: &str) -> usize {
    value[key].as_u64().unwrap_or_else(|| panic!("no number `{key}` in {value}")) as usize
}
