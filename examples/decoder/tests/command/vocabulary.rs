//! What files say of their vocabularies.

use crate::support::{declaring, decoder, model, printed, refused};
use gristmill::gguf::{ArrayBuf, Value};

/// Metadata of a vocabulary of the kind `llama`, whose last token is `last`.
fn pieces(path: &str, last: &str) -> String {
    let mut pieces: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    pieces.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    pieces.extend((0..300 - pieces.len() - 1).map(|number| format!("x{number}")));
    pieces.push(last.to_owned());
    let path = declaring(path, "tokenizer.ggml.model", Value::String("llama"));
    for (key, list) in [
        ("tokenizer.ggml.tokens", ArrayBuf::strings(pieces.iter().map(String::as_str))),
        ("tokenizer.ggml.scores", ArrayBuf::f32s(pieces.iter().map(|_| 0.0))),
        ("tokenizer.ggml.token_type", ArrayBuf::i32s(pieces.iter().map(|_| 1))),
    ] {
        declaring(&path, key, list.value());
    }
    path
}

#[test]
fn a_vocabulary_that_is_not_whole_is_told_by_its_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = &model(folder.path(), "model.gguf", &[]);
    let start = std::time::Instant::now();
    refused(
        &["run", &pieces(path, &"a".repeat(300_000)), "-p", "a"],
        "token 299 has 300000 bytes; up to 2048",
    );
    // The longest that is read, with as many ways to cut it as there are.
    printed(&["run", &pieces(path, &"a".repeat(2048)), "-p", "aaaa", "-n", "1"]);
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    let strings = |list: &[&str]| ArrayBuf::strings(list.iter().copied());
    let merges = strings(&["a b", "a \u{e9}q"]);
    let merges = declaring(path, "tokenizer.ggml.merges", merges.value());
    refused(&["run", &merges, "-p", "a"], "merge 1, `a \u{e9}q`, needs the token `\u{e9}q`");
    let whole = declaring(path, "tokenizer.ggml.merges", strings(&["x x"]).value());
    refused(&["run", &whole, "-p", "a"], "needs the token `xx`, which is not among the 300 of the file");
    let one = declaring(path, "tokenizer.ggml.merges", strings(&["ab"]).value());
    refused(&["run", &one, "-p", "a"], "merge 0, `ab`, is not two tokens");
    for command in [&["run", &one, "-p", "a"][..], &["chat", &one]] {
        let error = decoder(command).stderr;
        assert!(!String::from_utf8_lossy(&error).contains("loaded in"), "{command:?}");
    }
}
