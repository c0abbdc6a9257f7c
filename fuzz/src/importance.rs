//! The importance of a model's columns: GGUF files of `llama-imatrix`.

use crate::seeds::Seed;
use gristmill::gguf::{Gguf, GgufWriter, Importance, Value, WriteError, unquantized_only};

/// Never panics; what is read is finite and not negative.
pub fn run(data: &[u8]) {
    let Ok(file) = Gguf::parse(data, &unquantized_only) else { return };
    let importance = match Importance::of(&file) {
        Ok(importance) => importance,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    for name in importance.names() {
        let columns = importance.tensor(name).expect("a tensor of that name");
        for index in 0..columns.matrices() {
            let Some(values) = columns.matrix(index) else { continue };
            assert_eq!(values.len(), columns.k());
            assert!(values.iter().all(|value| value.is_finite() && *value >= 0.0), "{name}");
        }
        assert!(columns.matrix(columns.matrices()).is_none(), "a matrix behind the last one");
    }
}

/// A layer, stacked experts of which one had no input, and both.
pub fn seeds() -> Vec<Seed> {
    let layer = ("layer.weight", 1, [2.0].as_slice());
    let experts = ("experts.weight", 3, [2.0, 0.0, 5.0].as_slice());
    [("layer", vec![layer]), ("experts", vec![experts]), ("both", vec![layer, experts])]
        .into_iter()
        .map(|(name, entries)| (name.to_owned(), matrices(&entries).expect("what a writer is for")))
        .collect()
}

/// A file with these entries: the tensor of the model, its matrices, and the inputs of each.
fn matrices(entries: &[(&str, u64, &[f32])]) -> Result<Vec<u8>, WriteError> {
    const K: u64 = 4;
    let mut writer = GgufWriter::new();
    writer.metadata("general.type", Value::String("imatrix"))?;
    writer.metadata("imatrix.chunk_count", Value::U32(7))?;
    for (name, matrices, _) in entries {
        writer.tensor(&format!("{name}.in_sum2"), &[K, *matrices], 0, 4 * K * matrices)?;
        writer.tensor(&format!("{name}.counts"), &[1, *matrices], 0, 4 * matrices)?;
    }
    let bytes =
        |values: &mut dyn Iterator<Item = f32>| -> Vec<u8> { values.flat_map(f32::to_le_bytes).collect() };
    let mut stream = writer.write_to(Vec::new())?;
    for (name, matrices, counts) in entries {
        let mut sums = (0..K * matrices).map(|value| value as f32);
        stream.data(&format!("{name}.in_sum2"), &bytes(&mut sums))?;
        stream.data(&format!("{name}.counts"), &bytes(&mut counts.iter().copied()))?;
    }
    stream.finish()
}
