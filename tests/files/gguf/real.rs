//! Real files, and the sizes of their tensors.

use super::{bytes_of, data, raw, sizes};
use gristmill::gguf::{
    Gguf, GgufFile, NoDataReason, Origin, SizeAnswer, Value, blocked_size, unquantized_only,
};

#[test]
fn i2_s_file_has_the_tensors_that_the_reference_lists() {
    let file = GgufFile::open(&data("i2_s.gguf"), &sizes).unwrap();
    assert_eq!((file.version(), file.alignment()), (3, 32));
    assert_eq!(file.architecture(), Some("bitnet-b1.58"));
    assert_eq!(file.file_type(), Some(40));
    assert_eq!(file.origin(), Some(Origin::BitnetCpp));
    assert_eq!(file.value("golden.seed"), Some(Value::U32(99)));
    assert_eq!(file.value("golden.see"), None);
    let found: Vec<_> =
        file.tensors().map(|t| (t.name(), t.dims(), t.type_id(), t.offset(), t.size().unwrap())).collect();
    let start = file.data_start();
    assert_eq!(start % 32, 0);
    assert_eq!(
        found,
        [
            // 512 bytes of codes and the tail of 32: section 6.1 of the reference.
            ("blk.0.attn_q.weight", &[256, 8][..], 36, start, 544),
            ("blk.0.attn_norm.weight", &[256][..], 0, start + 544, 1024),
            ("blk.0.attn_k.weight", &[128, 3][..], 36, start + 1568, 128),
            ("token_embd.weight", &[64, 2][..], 1, start + 1696, 256),
        ]
    );
    for tensor in file.tensors() {
        assert_eq!(file.tensor(tensor.name()).unwrap().data().unwrap(), tensor.data().unwrap());
    }
    assert!(file.tensor("blk.0").is_none());
}

#[test]
fn i2_s_codes_and_tail_decode_to_the_golden_values() {
    let file = GgufFile::open(&data("i2_s.gguf"), &sizes).unwrap();
    let packed = file.tensor("blk.0.attn_q.weight").unwrap().data().unwrap();
    let scale = f32::from_le_bytes(packed[512..516].try_into().unwrap());
    let golden = bytes_of("i2_s.attn_q.f32");
    let golden: Vec<f32> = golden.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(golden.len(), 2048);
    for (i, &value) in golden.iter().enumerate() {
        let code = packed[i / 128 * 32 + i % 32] >> (6 - 2 * (i % 128 / 32)) & 3;
        assert_eq!(scale * (f32::from(code) - 1.0), value, "element {i}");
    }
}

#[test]
fn block_formats_have_their_sizes() {
    for (name, sizes_of) in [("tq2_0", [528, 28, 66]), ("iq2_s", [656, 28, 82]), ("q4_k", [1152, 28, 144])] {
        let file = GgufFile::open(&data(&format!("{name}.gguf")), &sizes).unwrap();
        let found: Vec<u64> = file.tensors().map(|t| t.size().unwrap()).collect();
        assert_eq!(found, sizes_of, "{name}");
        assert_eq!(file.origin(), Some(Origin::Ggml));
        assert!(file.tensors().all(|t| t.data().unwrap().len() as u64 == t.size().unwrap()));
    }
}

#[test]
fn undescribed_types_are_listed_and_refuse_their_data() {
    let file = GgufFile::open(&data("i2_s.gguf"), &unquantized_only).unwrap();
    assert_eq!(file.tensors().len(), 4);
    let unknown = file.tensor("blk.0.attn_k.weight").unwrap();
    assert_eq!((unknown.type_id(), unknown.elements()), (36, 384));
    let refusal = unknown.data().unwrap_err();
    assert_eq!(refusal.reason, NoDataReason::UnknownType);
    assert_eq!(
        refusal.to_string(),
        "tensor `blk.0.attn_k.weight` (type id 36, dimensions [128, 3]): no described format has this type id, \
         so its size is unknown"
    );
    assert_eq!(file.tensor("token_embd.weight").unwrap().data().unwrap().len(), 256);
}

#[test]
fn lookup_is_told_what_decides_between_formats_of_one_id() {
    let seen = std::cell::RefCell::new(Vec::new());
    let file = Gguf::parse(bytes_of("i2_s.gguf"), &|tensor| {
        let known = (tensor.architecture, tensor.file_type, tensor.origin);
        assert_eq!(known, (Some("bitnet-b1.58"), Some(40), Some(Origin::BitnetCpp)));
        seen.borrow_mut().push((tensor.name.to_owned(), tensor.room));
        SizeAnswer::Ambiguous("39 is mxfp4 or tl2".to_owned())
    })
    .unwrap();
    let expected = [("blk.0.attn_q.weight".to_owned(), 544), ("blk.0.attn_k.weight".to_owned(), 128)];
    assert_eq!(*seen.borrow(), expected);
    let reason = file.tensor("blk.0.attn_q.weight").unwrap().size().unwrap_err().reason;
    assert_eq!(reason, NoDataReason::Ambiguous("39 is mxfp4 or tl2".to_owned()));
}

#[test]
fn origin_is_told_only_where_it_is_certain() {
    assert_eq!(Origin::of(Some("llama"), Some(39)), Some(Origin::Ggml));
    assert_eq!(Origin::of(Some("bitnet"), Some(39)), Some(Origin::BitnetCpp));
    assert_eq!(Origin::of(Some("bitnet"), Some(36)), None);
    assert_eq!(Origin::of(None, Some(39)), None);
}

#[test]
fn blocked_sizes() {
    assert_eq!(blocked_size(&[256, 8], 128, 32, 0, 32), SizeAnswer::Bytes(544));
    assert_eq!(blocked_size(&[128, 3, 2], 64, 16, 4, 0), SizeAnswer::Bytes(6 * 36));
    assert_eq!(blocked_size(&[0, 3], 64, 16, 0, 0), SizeAnswer::Bytes(0));
    let SizeAnswer::BadShape(why) = blocked_size(&[300, 3], 256, 66, 0, 0) else {
        panic!("300 is no multiple")
    };
    assert_eq!(why, "rows of 300 elements are not a whole number of blocks of 256");
    assert!(matches!(blocked_size(&[1 << 40, 1 << 40], 256, 66, 0, 0), SizeAnswer::BadShape(_)));
    assert!(matches!(blocked_size(&[256], 0, 66, 0, 0), SizeAnswer::BadShape(_)));
    let bad = raw(&[], &[("w", &[300, 1], 35, 0)], &[0; 128]);
    let file = Gguf::parse(bad, &sizes).unwrap();
    assert!(matches!(file.tensor("w").unwrap().size().unwrap_err().reason, NoDataReason::BadShape(_)));
}
