//! Files damaged at random: no panic, whatever is accepted can be walked.

use super::{FILES, bytes_of, header, rich, sizes};
use gristmill::gguf::{Gguf, SizeAnswer, SizeQuery, unquantized_only};
use proptest::prelude::*;

/// Uses everything that an accepted file offers.
fn walk(bytes: &[u8], sizes: &dyn Fn(&SizeQuery<'_>) -> SizeAnswer) {
    let Ok(file) = Gguf::parse(bytes, sizes) else { return };
    for (key, value) in file.metadata() {
        assert!(file.value(key).is_some());
        if let Some(array) = value.as_array() {
            assert_eq!(array.elements().filter(|element| element.is_ok()).count() as u64, array.len());
        }
    }
    for tensor in file.tensors() {
        assert!(file.tensor(tensor.name()).is_some());
        if let (Ok(data), Ok(size)) = (tensor.data(), tensor.size()) {
            assert_eq!(data.len() as u64, size);
        }
    }
}
proptest! {
    #[test]
    fn mutated_files_never_panic(
        which in 0..FILES.len() + 1,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
        keep in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = FILES.get(which).map_or_else(rich, |name| bytes_of(name));
        // Most defects are found in the tables, which are the first part of these files.
        let table = bytes.len().min(512);
        for (at, byte) in changes {
            bytes[at.index(table)] = byte;
        }
        if let Some(keep) = keep {
            bytes.truncate(keep.index(bytes.len() + 1));
        }
        walk(&bytes, &sizes);
        walk(&bytes, &unquantized_only);
        walk(&bytes, &|tensor| SizeAnswer::Bytes(tensor.room));
        walk(&bytes, &|_| SizeAnswer::Bytes(u64::MAX));
    }

    #[test]
    fn numbers_in_the_tables_never_panic(
        which in 0..FILES.len() + 1,
        at in 4usize..500,
        number in prop_oneof![Just(u64::MAX), Just(1 << 63), Just(u64::MAX - 31), any::<u64>(), 0u64..64],
    ) {
        let mut bytes = FILES.get(which).map_or_else(rich, |name| bytes_of(name));
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        walk(&bytes, &sizes);
        walk(&bytes, &|tensor| SizeAnswer::Bytes(tensor.room));
    }

    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        walk(&noise, &sizes);
        walk(&[header(3, 1, 1), noise].concat(), &sizes);
    }
}
