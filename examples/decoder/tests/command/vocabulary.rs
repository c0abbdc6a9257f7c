//! What files say of their vocabularies.

use crate::copies::declaring;
use crate::support::{decoder, model, printed, refused, without};
use ::decoder::tokens::Tokens;
use gristmill::gguf::{ArrayBuf, Model, Value};

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

/// The vocabulary of a file.
fn read(path: &str) -> Tokens {
    Tokens::of(Model::open(path).unwrap().file()).unwrap().unwrap()
}

#[test]
fn bytes_that_are_no_text_end_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = &pieces(&model(folder.path(), "model.gguf", &[]), "x");
    // Nearly all tokens are bytes, in any order.
    for seed in ["1", "2", "3"] {
        let drawn = ["run", path, "-p", "a", "-n", "50", "--temperature", "9", "--seed", seed];
        assert!(printed(&drawn).contains('\u{fffd}'));
    }
}

#[test]
fn what_is_malformed_is_told_before_the_weights_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let made = &model(folder.path(), "model.gguf", &[]);
    let three = ArrayBuf::i32s([1, 1, 3]);
    let many = ArrayBuf::i32s([1; 301]);
    let words = ArrayBuf::strings(["1"; 300]);
    let more: Vec<String> = (0..301).map(|number| format!("t{number}")).collect();
    let more = ArrayBuf::strings(more.iter().map(String::as_str));
    for (key, value, expected) in [
        ("eos_token_id", Value::String("2"), "is \"2\", expected the number of a token"),
        ("eot_token_id", Value::I32(-1), "is -1, expected the number of a token"),
        ("bos_token_id", Value::U32(300), "is 300, and the vocabulary has 300 tokens"),
        ("eom_token_id", Value::U64(1 << 40), "is 1099511627776, and the vocabulary has 300 tokens"),
        ("fim_pad_token_id", Value::U32(u32::MAX), "is 4294967295, and the vocabulary has 300 tokens"),
        ("add_bos_token", Value::U32(1), "is 1, expected true or false"),
        ("add_eos_token", Value::String("no"), "is \"no\", expected true or false"),
        ("pre", Value::U32(1), "is 1, expected a text"),
        ("token_type", three.value(), "has 3 elements, and there are 300 tokens"),
        ("token_type", many.value(), "has 301 elements, and there are 300 tokens"),
        ("token_type", words.value(), "holds something of another type"),
        ("tokens", more.value(), "has 301 elements, and `token_embd.weight` has 300 rows"),
        ("merges", Value::U32(1), "is 1, expected a list"),
    ] {
        let path = declaring(made, &format!("tokenizer.ggml.{key}"), value);
        for command in [&["run", &path, "-p", "a"][..], &["chat", &path]] {
            refused(command, &format!("`tokenizer.ggml.{key}` {expected}"));
            let error = decoder(command).stderr;
            let error = String::from_utf8_lossy(&error);
            assert!(error.contains("\n  help: ") && !error.contains("loaded in"), "{error}");
        }
    }
    let scored = pieces(made, "x");
    let space = declaring(&scored, "tokenizer.ggml.add_space_prefix", Value::U32(1));
    refused(&["run", &space, "-p", "a"], "`tokenizer.ggml.add_space_prefix` is 1");
    let unknown = declaring(&pieces(made, "x"), "tokenizer.ggml.unknown_token_id", Value::U32(300));
    refused(&["run", &unknown, "-p", "a"], "`tokenizer.ggml.unknown_token_id` is 300");
}

#[test]
fn sentence_pieces_have_tokens_for_begin_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = pieces(&model(folder.path(), "model.gguf", &[]), "x");
    let path = without(&path, "tokenizer.ggml.bos_token_id");
    let path = declaring(&path, "tokenizer.ggml.add_bos_token", Value::Bool(true));
    assert!(read(&path).ends(257) && read(&path).special()["eos_token"] != "</s>", "what the file says");
    let tokens = read(&without(&path, "tokenizer.ggml.eos_token_id"));
    assert_eq!(tokens.encode("a").unwrap().first(), Some(&1));
    assert!(tokens.ends(2) && !tokens.ends(257));
    assert_eq!((&tokens.special()["bos_token"][..], &tokens.special()["eos_token"][..]), ("<s>", "</s>"));
}

/// Files of models that end a turn by another token than a text name one of both, or none.
#[test]
fn control_tokens_are_found_by_their_text() {
    let folder = tempfile::tempdir().unwrap();
    let made = &model(folder.path(), "model.gguf", &[]);
    let names = [
        "<|end_of_text|>",
        "<|eom_id|>",
        "<EOT>",
        "</s>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|im_end|>",
        "<end_of_turn>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
        // These end nothing.
        "<|fim_prefix|>",
        "<fim_suffix>",
        "<MID>",
    ];
    let ending = names.len() - 3;
    let vocabulary = |kind: i32| {
        let mut tokens: Vec<String> =
            (0..256u32).map(|byte| ::decoder::tokens::byte_char(byte as u8).to_string()).collect();
        tokens.extend(names.map(str::to_owned));
        let kinds = (0..tokens.len()).map(|id| if id < 256 { 1 } else { kind });
        let kinds = ArrayBuf::i32s(kinds);
        let none = ArrayBuf::strings([""; 0]);
        let tokens = ArrayBuf::strings(tokens.iter().map(String::as_str));
        let path = declaring(made, "tokenizer.ggml.merges", none.value());
        let path = declaring(&path, "tokenizer.ggml.tokens", tokens.value());
        let path = without(&path, "tokenizer.ggml.eos_token_id");
        declaring(&path, "tokenizer.ggml.token_type", kinds.value())
    };
    let ends = |path: &str| {
        let tokens = read(path);
        (0..300).filter(|token| tokens.ends(*token)).collect::<Vec<u32>>()
    };
    let all: Vec<u32> = (256..256 + ending as u32).collect();
    // What the file says of their kinds, or that it says nothing, changes only whether that is told.
    for kind in 0..=5 {
        let path = match kind {
            0 => without(&vocabulary(1), "tokenizer.ggml.token_type"),
            kind => vocabulary(kind),
        };
        assert_eq!(ends(&path), all, "kind {kind}");
        let tokens = read(&path);
        for (id, name) in (256..).zip(names) {
            let text = format!("a{name}b");
            assert_eq!(tokens.encode(&text).unwrap(), [256, 97, id, 98], "kind {kind}");
        }
        let told: &[&str] = if kind == 3 { &[] } else { &names };
        assert_eq!(tokens.retyped(), told, "kind {kind}");
    }
    let said = declaring(&vocabulary(1), "tokenizer.ggml.fim_rep_token_id", Value::U32(7));
    assert_eq!(ends(&said), [&[7], &all[..]].concat());
    let output = decoder(&["run", &vocabulary(1), "-p", "a", "-n", "1"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("<|im_end|>, <end_of_turn>, ") && told.contains("taken as such"), "{told}");
}

/// As in llama.cpp: of text, control, user-defined and unknown tokens, those that are not used, and kinds that there are not.
#[test]
fn a_token_is_written_and_read_by_its_kind() {
    let folder = tempfile::tempdir().unwrap();
    let made = &model(folder.path(), "model.gguf", &[]);
    let kinds =
        [("qu", 1, "qu", false), ("<x>", 3, "", true), ("<y>", 4, "<y>", true), ("<unk>", 2, "", true)];
    let kinds =
        [&kinds[..], &[("<spare>", 5, "", false), ("<zero>", 0, "", false), ("<z>", 9, "", false)]].concat();
    let mut tokens: Vec<String> =
        (0..=255u8).map(|byte| ::decoder::tokens::byte_char(byte).to_string()).collect();
    tokens.extend(kinds.iter().map(|(token, ..)| (*token).to_owned()));
    let types = ArrayBuf::i32s([1; 256].into_iter().chain(kinds.iter().map(|(_, kind, ..)| *kind)));
    let path = declaring(made, "tokenizer.ggml.merges", ArrayBuf::strings([""; 0]).value());
    let tokens = ArrayBuf::strings(tokens.iter().map(String::as_str));
    let path = declaring(&path, "tokenizer.ggml.tokens", tokens.value());
    let tokens = read(&declaring(&path, "tokenizer.ggml.token_type", types.value()));
    for (id, (text, kind, written, whole)) in (256..).zip(kinds) {
        assert_eq!(tokens.continuation().push(id), written, "{text}, kind {kind}");
        assert_eq!(tokens.encode(text).unwrap()[1..].contains(&id), whole, "{text}, kind {kind}");
    }
}

#[test]
fn rules_that_are_a_guess_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let made = &model(folder.path(), "model.gguf", &[]);
    let said = |path: &str| {
        let output = decoder(&["run", path, "-p", "a", "-n", "1"]);
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).contains("`tokenizer.ggml.pre` is missing")
    };
    assert!(said(&without(made, "tokenizer.ggml.pre")));
    assert!(!said(&declaring(made, "tokenizer.ggml.pre", Value::String("default"))));
    assert!(!said(made));
    // Those of Llama 3 begin a text by a token, where the file does not say.
    let path = without(made, "tokenizer.ggml.add_bos_token");
    for (pre, begins) in [("lfm2", true), ("llama-bpe", true), ("kormo", false), ("gpt-2", false)] {
        let tokens = read(&declaring(&path, "tokenizer.ggml.pre", Value::String(pre)));
        assert_eq!(tokens.encode("a").unwrap().first() == Some(&256), begins, "{pre}");
    }
}
