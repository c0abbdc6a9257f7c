//! Which format a type number means: by number, by the numbering of the file, by size, by name.
#![cfg(all(feature = "bitnet", feature = "ggml"))]

use super::{data, entry, raw, string};
use gristmill::REGISTRY;
use gristmill::gguf::{
    Candidate, DecidedBy, Gguf, GgufFile, NoDataReason, TensorType, TypeError, TypeNumbers,
};

/// Bytes of 256 elements of q2_0 and of stq1_0 (which no spec here describes), both numbered 42.
const Q2_0: u64 = 72;
const STQ1_0: u64 = 42;

fn architecture(name: &str) -> Vec<u8> {
    entry("general.architecture", 8, &string(name))
}

/// What a tensor of one block of stq1_0 is: in a build that has the format, or has not.
fn stq1_0(number: u32, bytes: u64) -> Result<(&'static str, u64, DecidedBy), TypeError> {
    match REGISTRY.format("stq1_0") {
        Ok((_, format)) => Ok((format.name, bytes, DecidedBy::Size)),
        Err(_) => Err(TypeError::Unknown { number, name: Some("stq1_0") }),
    }
}

/// What the tensor `w` is, in a file of one tensor of these dimensions with `room` bytes behind its start.
#[track_caller]
fn what(
    types: &TypeNumbers,
    entries: &[Vec<u8>],
    number: u32,
    dims: &[u64],
    room: u64,
) -> Result<(&'static str, u64, DecidedBy), TypeError> {
    let bytes = raw(entries, &[("w", dims, number, 0)], &vec![0; room as usize]);
    let file = Gguf::parse(bytes, &|query| types.size(query)).expect("the container has no defect");
    let tensor = file.tensor("w").expect("the tensor is there");
    let answer = match types.of(&tensor)? {
        TensorType::Plain(plain) => panic!("{plain:?} for a number of blocks"),
        TensorType::Format(resolved) => (resolved.format.name, resolved.bytes, resolved.by),
        TensorType::Tiled(tiled) => (tiled.layout.name(), tiled.bytes, tiled.by),
    };
    assert_eq!(tensor.size(), Ok(answer.1), "the reader was told something else");
    Ok(answer)
}

#[test]
fn a_number_that_nobody_else_has_is_enough() {
    let types = TypeNumbers::new(&REGISTRY);
    let file = GgufFile::open(&data("i2_s.gguf"), &|query| types.size(query)).expect("a real file");
    let tensor = file.tensor("blk.0.attn_q.weight").expect("it has one");
    let Ok(TensorType::Format(resolved)) = types.of(&tensor) else { panic!("{:?}", types.of(&tensor)) };
    assert_eq!((resolved.format.name, resolved.bytes, resolved.by), ("i2_s", 544, DecidedBy::Number));
    // Also where there is more room than it takes: nothing else is meant.
    assert_eq!(what(&types, &[], 12, &[256], 1024), Ok(("q4_k", 144, DecidedBy::Number)));
}

#[test]
fn sizes_decide_between_formats_of_one_number() {
    let types = TypeNumbers::new(&REGISTRY);
    for of in ["llama", "hunyuan-dense", "bitnet"] {
        let entries = [architecture(of)];
        for room in [4 * Q2_0, (4 * Q2_0).next_multiple_of(32)] {
            let found = what(&types, &entries, 42, &[512, 2], room);
            assert_eq!(found, Ok(("q2_0", 4 * Q2_0, DecidedBy::Size)), "{of}");
        }
        // Of the size that another format has: it is not this one, whatever the architecture.
        let other = what(&types, &entries, 42, &[512, 2], 4 * STQ1_0);
        assert_eq!(other, stq1_0(42, 4 * STQ1_0), "{of}");
    }
}

#[test]
fn where_sizes_do_not_decide_both_are_named() {
    let types = TypeNumbers::new(&REGISTRY);
    let entries = [architecture("llama")];
    let refused = what(&types, &entries, 42, &[512, 2], 1000).expect_err("no size fits");
    let both = vec![
        Candidate { name: "q2_0", bytes: Some(4 * Q2_0) },
        Candidate { name: "stq1_0", bytes: Some(4 * STQ1_0) },
    ];
    assert_eq!(
        refused,
        TypeError::Undecided { number: 42, room: 1000, candidates: both.clone(), several: false }
    );
    assert_eq!(
        refused.to_string(),
        "type number 42 is ambiguous: q2_0 (288 bytes) or stq1_0 (168 bytes); the tensor has room for 1000 bytes, which \
         none is proven to fit: name the format"
    );
    // Padding of 128 bytes hides the difference between one block of each.
    let aligned = [architecture("llama"), entry("general.alignment", 4, &128u32.to_le_bytes())];
    let mut file = raw(&aligned, &[("w", &[256], 42, 0)], &[]);
    file.resize(file.len().next_multiple_of(128) + 128, 0);
    let file = Gguf::parse(file, &|query| types.size(query)).expect("the container has no defect");
    let tensor = file.tensor("w").expect("the tensor is there");
    let Err(TypeError::Undecided { candidates, several: true, room: 128, .. }) = types.of(&tensor) else {
        panic!("{:?}", types.of(&tensor));
    };
    assert_eq!(candidates.len(), 2);
    let Err(NoDataReason::Ambiguous(why)) = tensor.size().map_err(|error| error.reason) else {
        panic!("{:?}", tensor.size())
    };
    assert!(why.contains("q2_0 (72 bytes) or stq1_0 (42 bytes)") && why.contains("fits several"), "{why}");
    assert_eq!(types.name_of(&tensor), "q2_0 or stq1_0");
}

#[test]
fn numbers_of_forks_are_believed_where_the_size_proves_them() {
    let types = TypeNumbers::new(&REGISTRY);
    assert_eq!(what(&types, &[], 41, &[256], 64), Ok(("q1_0", 36, DecidedBy::Size)));
    let refused = what(&types, &[], 41, &[256], 96).expect_err("another size");
    assert!(refused.to_string().contains("q1_0 (36 bytes) or a fork's own type"), "{refused}");
    // What is not proven is not called by the name alone.
    let mut file = raw(&[], &[("w", &[256], 41, 0)], &[]);
    file.resize(file.len().next_multiple_of(32) + 96, 0);
    let file = Gguf::parse(file, &|query| types.size(query)).expect("the container has no defect");
    assert_eq!(types.name_of(&file.tensor("w").expect("the tensor is there")), "q1_0 or a fork's own");
    // A number that others have begun to use.
    assert_eq!(what(&types, &[], 43, &[256], 64), stq1_0(43, STQ1_0));
}

#[test]
fn the_numbering_of_bitnet_cpp_is_its_own() {
    let types = TypeNumbers::new(&REGISTRY);
    let ours = [architecture("llama")];
    let theirs = [architecture("bitnet-b1.58"), entry("general.file_type", 4, &39u32.to_le_bytes())];
    assert_eq!(what(&types, &ours, 39, &[32, 4], 96), Ok(("mxfp4", 68, DecidedBy::Origin)));
    for number in [39, 42] {
        let refused = what(&types, &theirs, number, &[64, 4], 96).expect_err("TL2");
        assert!(matches!(&refused, TypeError::BadShape(why) if why.contains("tl2")), "{refused}");
        // 32 x 32 / 3 x 5 / 8 + 128 x 32 x 4 / 8 bytes to a multiple of 32, and 32 of the scale.
        assert_eq!(what(&types, &theirs, number, &[288, 32], 2304), Ok(("tl2", 2304, DecidedBy::Origin)));
        // Not said, sizes tell: the same shape takes 4896 bytes as mxfp4 and is none of q2_0.
        assert_eq!(what(&types, &[], number, &[288, 32], 2304), Ok(("tl2", 2304, DecidedBy::Size)));
    }
    // bitnet.cpp's alone, whatever a file says of itself.
    assert_eq!(what(&types, &ours, 38, &[64, 32], 544), Ok(("tl1", 544, DecidedBy::Number)));
    let named = TypeNumbers::new(&REGISTRY).named(42, "tl2").expect("a layout");
    assert_eq!(what(&named, &ours, 42, &[288, 32], 2304), Ok(("tl2", 2304, DecidedBy::Name)));
    // A file that does not say whose numbers it has.
    assert_eq!(what(&types, &[], 39, &[32, 4], 96), Ok(("mxfp4", 68, DecidedBy::Size)));
    let refused = what(&types, &[], 39, &[32, 4], 64).expect_err("neither is proven");
    assert!(refused.to_string().contains("mxfp4 (68 bytes) or tl2 (size not known)"), "{refused}");
}

#[test]
fn a_caller_can_say_what_a_number_means() {
    let types = TypeNumbers::new(&REGISTRY).named(42, "q4_0").expect("a format of this build");
    assert_eq!(what(&types, &[], 42, &[64, 2], 72), Ok(("q4_0", 72, DecidedBy::Name)));
    assert_eq!(what(&types, &[], 42, &[64, 2], 500), Ok(("q4_0", 72, DecidedBy::Name)));
    // What was named is not in the file as a whole.
    let bytes = raw(&[], &[("w", &[64, 2], 42, 0)], &[0; 71]);
    assert!(Gguf::parse(bytes, &|query| types.size(query)).is_err());
    // The last name counts; a shape that the format can't have is told.
    let types = types.named(42, "q4_k").expect("a format of this build");
    assert!(matches!(what(&types, &[], 42, &[64, 2], 500), Err(TypeError::BadShape(_))));
    assert!(TypeNumbers::new(&REGISTRY).named(42, "q9_z").is_err());
    // Types without blocks stay what they are.
    let types = TypeNumbers::new(&REGISTRY).named(0, "q4_k").expect("a format of this build");
    let file = Gguf::parse(raw(&[], &[("w", &[2], 0, 0)], &[0; 8]), &|query| types.size(query)).expect("f32");
    assert!(matches!(types.of(&file.tensor("w").expect("it is there")), Ok(TensorType::Plain(_))));
}

#[test]
fn further_numbers_of_a_format_are_told_by_size() {
    let types = TypeNumbers::new(&REGISTRY).also(42, "tq2_0").expect("a format of this build");
    assert_eq!(
        what(&types, &[], 42, &[256], 96),
        Err(TypeError::Undecided {
            number: 42,
            room: 96,
            candidates: vec![
                Candidate { name: "q2_0", bytes: Some(72) },
                Candidate { name: "tq2_0", bytes: Some(66) },
                Candidate { name: "tl2", bytes: None },
                Candidate { name: "stq1_0", bytes: Some(42) },
            ],
            several: true,
        })
    );
    assert_eq!(what(&types, &[], 42, &[256, 4], 66 * 4), Ok(("tq2_0", 264, DecidedBy::Size)));
    assert_eq!(types.candidates(42), ["q2_0", "tq2_0", "tl2", "stq1_0"]);
}

#[test]
fn nothing_in_a_query_makes_it_panic() {
    let types = TypeNumbers::new(&REGISTRY);
    for number in (0..512).chain([u32::MAX]) {
        for dims in [&[][..], &[0], &[u64::MAX], &[1 << 62, 3], &[256, 0], &[255, 1], &[1 << 40, 1 << 23]] {
            for (room, alignment) in [(0, 0), (u64::MAX, u32::MAX), (1, 1)] {
                let query = gristmill::gguf::SizeQuery {
                    name: "w",
                    type_id: number,
                    dims,
                    room,
                    alignment,
                    architecture: Some("bitnet"),
                    file_type: Some(u64::MAX),
                    origin: None,
                };
                let _ = (types.find(&query), types.size(&query));
            }
        }
    }
}
