//! Models with experts.

use crate::copies::declaring;
use crate::support::{model, printed, refused, reshaped, with_bytes};
use gristmill::gguf::Value;

#[test]
fn dimensions_are_compared_and_not_their_products() {
    let folder = tempfile::tempdir().unwrap();
    let path =
        &model(folder.path(), "moe.gguf", &["--arch", "qwen3moe", "--experts", "3", "--format", "q8_0"]);
    let run = |path: &str| printed(&["run", path, "--tokens", "5,6,7", "-n", "4"]);
    let before = run(path);
    for (tensor, dims) in [
        ("blk.0.ffn_gate_exps.weight", vec![256, 3, 512]),
        ("blk.0.ffn_up_exps.weight", vec![256, 1536]),
        ("blk.0.ffn_down_exps.weight", vec![512, 768]),
        ("blk.0.attn_q.weight", vec![256, 128, 2]),
        ("blk.0.attn_norm.weight", vec![1, 256]),
        ("blk.0.attn_q_norm.weight", vec![32, 2]),
        ("output_norm.weight", vec![128, 2]),
    ] {
        let other = reshaped(path, |name, found| if name == tensor { dims.clone() } else { found.to_vec() });
        refused(&["run", &other, "--tokens", "5"], &format!("tensor `{tensor}` has dimensions {dims:?}"));
    }
    // More matrices in a stack than there are experts.
    let fewer = declaring(path, "qwen3moe.expert_count", Value::U32(2));
    refused(&["run", &fewer, "--tokens", "5"], "blk.0.ffn_gate_inp.weight");
    // Dimensions of 1 at the end say nothing.
    let ones = reshaped(path, |_, dims| if dims.len() < 3 { [dims, &[1]].concat() } else { dims.to_vec() });
    refused(&["run", &ones, "--tokens", "5"], "token_embd.weight");
    let ones = reshaped(path, |name, dims| {
        if dims.len() < 3 && name != "token_embd.weight" { [dims, &[1]].concat() } else { dims.to_vec() }
    });
    assert_eq!(run(&ones), before);
}

/// What would be made for each of so many experts is gigabytes.
#[test]
fn a_number_of_experts_is_believed_only_with_their_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = &model(folder.path(), "moe.gguf", &["--arch", "qwen3moe", "--experts", "3"]);
    let start = std::time::Instant::now();
    let many = declaring(path, "qwen3moe.expert_count", Value::U32(1 << 24));
    refused(&["run", &many, "--tokens", "5"], "tensor `blk.0.ffn_gate_inp.weight` has dimensions [256, 3]");
    refused(&["run", &many, "--plan"], "expected [256, 16777216]");
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
}

/// A score that is NaN is in no order with the others, so that one expert would be chosen as often as a token has some.
#[test]
fn a_score_that_is_not_finite_is_told_by_layer_and_token() {
    let folder = tempfile::tempdir().unwrap();
    for format in ["f32", "q8_0"] {
        let path =
            model(folder.path(), "moe.gguf", &["--arch", "qwen3moe", "--experts", "3", "--format", format]);
        // A weight of the router for expert 1.
        let path = with_bytes(&path, "blk.0.ffn_gate_inp.weight", |bytes| {
            bytes[256 * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        });
        for batch in ["1", "8"] {
            refused(
                &["run", &path, "--tokens", "5,6,7", "--batch", batch],
                "layer 0: the router scores expert 1 with NaN for the token at position 0",
            );
        }
    }
}
