//! The command: what it prints, and that whatever is wrong is an error that says so, with exit code 1.

mod chat;
#[path = "../copies/mod.rs"]
mod copies;
mod experts;
mod support;
mod vocabulary;

use copies::declaring;
use gristmill::gguf::Value;
use std::path::Path;
use std::process::Command;
use support::{chat, decoder, edited, model, printed, refused, two_layers};

#[test]
fn what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = &model(folder.path(), "model.gguf", &[]);
    let run = |path: &str, more: &[&str], expected: &str| refused(&[&["run", path], more].concat(), expected);
    let none = |_: &str| None;

    let bytes = std::fs::read(path).unwrap();
    let short = folder.path().join("short.gguf").to_str().unwrap().to_owned();
    for length in (0..bytes.len()).step_by(bytes.len() / 23) {
        std::fs::write(&short, &bytes[..length]).unwrap();
        run(&short, &["--tokens", "1"], "short.gguf");
    }
    let missing = edited(path, "missing.gguf", "blk.0.ffn_up.weight", none);
    run(&missing, &["--tokens", "1"], "blk.0.ffn_up.weight");
    let missing = edited(path, "missing.gguf", "output_norm.weight", none);
    run(&missing, &["--tokens", "1"], "output_norm.weight");
    let with = |key: &'static str, value: Value<'static>| {
        edited(path, "other.gguf", "", move |found| (found == key).then_some(value))
    };
    run(&with("general.architecture", Value::String("gemma3")), &["--tokens", "1"], "`gemma3`");
    run(&with("general.architecture", Value::String("gemma3")), &["--tokens", "1"], "qwen3moe");
    run(
        &with("llama.feed_forward_length", Value::U32(513)),
        &["--tokens", "1"],
        "expected [256, 513] by the metadata",
    );
    run(&with("llama.attention.head_count_kv", Value::U32(3)), &["--tokens", "1"], "head_count_kv");
    run(&with("llama.attention.head_count", Value::U32(u32::MAX)), &["--tokens", "1"], "head_count");
    run(&with("llama.block_count", Value::U32(0)), &["--tokens", "1"], "llama.block_count");
    run(&with("llama.block_count", Value::U32(1 << 24)), &["--tokens", "1"], "blk.1.");
    run(&with("llama.context_length", Value::U64(u64::MAX)), &["--tokens", "1"], "context_length");
    run(&with("prism.hadamard.version", Value::U32(2)), &["--tokens", "1"], "prism.hadamard.version");
    run(&with("prism.other", Value::U32(1)), &["--tokens", "1"], "prism.other");
    run(&with("tokenizer.ggml.model", Value::String("rwkv")), &["-p", "a"], "`rwkv`");
    run(&with("tokenizer.ggml.pre", Value::String("tekken")), &["-p", "a"], "`tekken`");
    // The keys of another architecture.
    let qwen3 = &model(folder.path(), "qwen3.gguf", &["--arch", "qwen3"]);
    let unread = edited(qwen3, "unread.gguf", "", |key| match key {
        "general.architecture" => Some(Value::String("qwen2")),
        _ => None,
    });
    run(&unread, &["--tokens", "1"], "qwen2.");
    run(path, &["--tokens", "300"], "token 300 is not in the vocabulary of 300");

    let two = &two_layers(folder.path());
    let fewer = edited(two, "fewer.gguf", "", |key| (key == "llama.block_count").then_some(Value::U32(1)));
    run(&fewer, &["--tokens", "1"], "`blk.1.attn_norm.weight` is not part of");

    run(path, &["-p", ""], "the prompt is empty");
    run(path, &[], "the prompt is empty");
    run(path, &["-p", "a", "--context", "65"], "the model was made for 64 positions");
    run(path, &["-p", "a", "--context", "0"], "one position at least");
    run(path, &["-p", &"a ".repeat(80)], "do not fit in the context");
    run(path, &["-p", "a", "--temperature=-1"], "--temperature");
    run(path, &["-p", "a", "--threads", "1000000"], "1000000");
    run(path, &["-p", "a", "--head", "q9_9"], "q9_9");
    run(path, &["-p", "a", "--isa", "mmx"], "expected one of");
    run(path, &["-p", "a", "--cache", "q4_0"], "[possible values: f16, q8_0]");
    let odd = &model(folder.path(), "odd.gguf", &["--head-dim", "42", "--format", "f32"]);
    for command in [
        &["run", odd, "--tokens", "1"][..],
        &["run", odd, "--plan"],
        &["chat", odd],
        &["bench", odd],
        &["check", odd],
    ] {
        refused(
            &[command, &["--cache", "q8_0"]].concat(),
            "a multiple of 32 elements, which share a scale; those of this model have 42",
        );
    }
    assert!(printed(&["run", odd, "--plan"]).contains("positions in f16 takes"));
    run("there/is/none.gguf", &["-p", "a"], "none.gguf");
    let text = folder.path().join("prompt.txt");
    std::fs::write(&text, b"caf\xe9 au lait").unwrap();
    run(path, &["--file", text.to_str().unwrap()], "not UTF-8: byte 3");
    #[cfg(unix)]
    run(path, &["--file", "/dev/zero"], "too many for a text");
    let numbers = model(folder.path(), "numbers.gguf", &["--no-vocab"]);
    run(&numbers, &["-p", "a"], "no vocabulary");
    refused(&["chat", &numbers], "no vocabulary");
    refused(&["make-model", "-o", path, "--vocab", "100"], "--no-vocab");
    refused(&["make-model", "-o", path, "--heads", "3"], "does not divide");
    refused(&["make-model", "-o", path, "--arch", "gpt2"], "`gpt2`");
}

#[test]
fn text_goes_in_and_comes_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = &model(folder.path(), "model.gguf", &[]);
    let receipt = folder.path().join("receipt.json").to_str().unwrap().to_owned();
    let text = printed(&["run", path, "-p", "the quick", "-n", "12", "--receipt", &receipt]);
    assert!(text.len() > 3, "{text}");
    assert_eq!(text, printed(&["run", path, "-p", "the quick", "-n", "12", "--threads", "1"]));
    let receipt: serde_json::Value = serde_json::from_slice(&std::fs::read(receipt).unwrap()).unwrap();
    let launches = |name: &str| {
        let kernels = receipt["kernels"].as_array().unwrap().iter();
        let of = kernels.filter(|kernel| kernel["name"].as_str().unwrap().starts_with(name));
        of.map(|kernel| kernel["launches"].as_u64().unwrap()).sum::<u64>()
    };
    // A layer is four products, and there is the head, for the prompt and for each token but the last.
    assert_eq!((launches("matmul.q4_k."), launches("matmul.q6_k.")), (4 * 12, 12));
    assert!(receipt["fallbacks"].as_array().unwrap().is_empty());

    let numbers = printed(&["run", path, "--tokens", "1,2,3", "-n", "5"]);
    assert_eq!(numbers.split_whitespace().filter(|number| number.parse::<u32>().unwrap() < 300).count(), 5);
    let drawn = |seed| {
        printed(&["run", path, "-p", "a", "-n", "9", "--temperature", "2", "--top-k", "99", "--seed", seed])
    };
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
    assert!(printed(&["run", path, "--plan"]).contains("token_embd.weight (head)"));
    let both = decoder(&["run", path, "--plan", "--receipt", path]);
    assert!(String::from_utf8_lossy(&both.stderr).contains("cannot be used with"), "nothing runs by a plan");
    // 4096 positions of two heads of 64 in two layers, keys and values.
    let two = &two_layers(folder.path());
    for (cache, mebibytes) in [("f16", "4.0"), ("q8_0", "2.1")] {
        let plan = printed(&["run", two, "--plan", "--cache", cache]);
        let expected = format!("a cache of 4096 positions in {cache} takes {mebibytes} MiB;");
        assert!(plan.contains(&expected), "{plan}");
    }
}

#[test]
fn what_is_declared_and_not_done_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let llama = model(folder.path(), "llama.gguf", &["--head-dim", "64"]);
    let moe = model(folder.path(), "moe.gguf", &["--arch", "qwen3moe", "--experts", "3"]);
    let sections = gristmill::gguf::ArrayBuf::u32s([16, 24, 24, 0]);
    for (path, architecture) in [(&llama, "llama"), (&moe, "qwen3moe")] {
        let tokens = |path: &str| printed(&["run", path, "--tokens", "5,6,7", "-n", "4"]);
        let before = tokens(path);
        // A value that is refused, and one by which nothing changes.
        for (key, other, neutral) in [
            ("attention.causal", Value::Bool(false), Some(Value::Bool(true))),
            ("attention.clamp_kqv", Value::F32(0.1), Some(Value::F32(0.0))),
            ("attention.max_alibi_bias", Value::F32(8.0), Some(Value::F32(0.0))),
            ("attention.scale", Value::F32(0.5), Some(Value::F32(0.125))),
            ("use_parallel_residual", Value::Bool(true), Some(Value::Bool(false))),
            ("tensor_data_layout", Value::String("jploski"), Some(Value::String("reference"))),
            ("logit_scale", Value::F32(3.0), Some(Value::F32(1.0))),
            ("embedding_scale", Value::F32(9.0), Some(Value::F64(1.0))),
            ("residual_scale", Value::F32(0.1), Some(Value::F32(1.0))),
            ("rope.scaling.attn_factor", Value::F32(2.0), Some(Value::F32(1.0))),
            ("attn_logit_softcapping", Value::F32(1.0), Some(Value::F32(0.0))),
            ("final_logit_softcapping", Value::F32(30.0), Some(Value::F32(0.0))),
            ("expert_weights_scale", Value::F32(5.0), Some(Value::F32(1.0))),
            ("expert_gating_func", Value::U32(2), Some(Value::U32(1))),
            ("expert_weights_norm", Value::Bool(false), Some(Value::Bool(true))),
            ("expert_shared_count", Value::U32(1), Some(Value::U32(0))),
            ("leading_dense_block_count", Value::U32(1), Some(Value::U32(0))),
            ("rope.dimension_sections", sections.value(), None),
            ("no_rope_layer_interval", Value::U32(1), None),
            ("invented_yesterday", Value::String("\u{1b}[31m"), None),
        ] {
            let key = format!("{architecture}.{key}");
            let path = declaring(path, &key, other);
            for arguments in [&["run", &path, "--tokens", "5", "-n", "1"][..], &["run", &path, "--plan"]] {
                refused(arguments, &format!("metadata `{key}`: "));
            }
            if let Some(neutral) = neutral {
                assert_eq!(tokens(&declaring(&path, &key, neutral)), before, "{key}");
            }
        }
        for (key, value) in [("general.type", Value::String("adapter")), ("split.count", Value::U16(2))] {
            refused(&["run", &declaring(path, key, value), "--tokens", "5"], key);
        }
        let ended = declaring(path, "tokenizer.ggml.add_eos_token", Value::Bool(true));
        refused(&["run", &ended, "-p", "a", "-n", "1"], "`tokenizer.ggml.add_eos_token` ends every text");
        let open = declaring(path, "tokenizer.ggml.add_eos_token", Value::Bool(false));
        assert_eq!(tokens(&open), before);
        // What files of these architectures have, and what others may say.
        for (key, value) in [
            ("general.type", Value::String("model")),
            ("general.sampling.temp", Value::F32(0.6)),
            ("another.logit_scale", Value::F32(3.0)),
            (&format!("{architecture}.rope.scaling.original_context_length"), Value::U32(8)),
        ] {
            assert_eq!(tokens(&declaring(path, key, value)), before, "{key}");
        }
    }
    let layout = |path| declaring(path, "llama.tensor_data_layout", Value::String("Meta AI original pth"));
    printed(&["run", &layout(&llama), "--tokens", "5", "-n", "1"]);
}

/// What is asked for is compared with the context of the model before it is loaded, and before a list is made of it.
#[test]
fn numbers_of_tokens_are_compared_with_the_context() {
    let folder = tempfile::tempdir().unwrap();
    let path = &model(folder.path(), "model.gguf", &[]);
    for number in ["65", "1000000000", "1000000000000", "18446744073709551615"] {
        for (command, option) in [("bench", "--prompt"), ("bench", "--generate"), ("check", "--count")] {
            let expected =
                format!("{option} {number}: the context has 64 positions\n  help: {option} N, up to 64");
            let output = decoder(&[command, path, option, number, "--context", "64"]);
            let error = String::from_utf8_lossy(&output.stderr);
            if option == "--generate" {
                // The other test's default comes first.
                assert!(error.contains("--prompt 512: the context has 64 positions"), "{error}");
                refused(&[command, path, "--prompt", "8", option, number], &expected);
                continue;
            }
            assert!(output.status.code() == Some(1) && error.contains(&expected), "{error}");
            assert!(!error.contains("loaded in"), "{error}");
        }
    }
    refused(&["bench", path], "help: --prompt N, up to 64");
    refused(
        &["check", path, "--context", "32"],
        "--count N, up to 32, or --context N, up to 64 for this model",
    );
    refused(&["check", path, "--count", "0"], "there are no logits to compare");
    refused(&["run", path, "-p", &"a ".repeat(80)], "the model was made for no more\n  help: a shorter text");
    refused(
        &["run", path, "-p", &"a ".repeat(40), "--context", "9"],
        "help: --context N, up to 64 for this model",
    );
    let ways = |more: &[&str]| {
        let printed = printed(&[&["check", path, "--threads", "1"], more].concat());
        printed.lines().map(|line| line.split_once("threads  ").unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ways(&["--batch", "1"]), ["token by token"]);
    assert_eq!(ways(&["--batch", "5"]), ["token by token", "in batches of 5"]);
    assert_eq!(ways(&[]), ["token by token", "in batches of 7", "in one batch"]);
    assert_eq!(ways(&["--count", "7"]), ["token by token", "in one batch"]);
    assert_eq!(ways(&["--count", "3"]), ["token by token", "in one batch"]);
    assert_eq!(ways(&["--count", "1"]), ["token by token"]);
}

#[test]
fn a_text_that_ends_with_the_context_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = &model(folder.path(), "model.gguf", &[]);
    for (context, count, expected) in [
        (
            "16",
            "99",
            Some("the context of 16 positions is full\n  help: --context N, up to 64 for this model\n"),
        ),
        ("64", "99", Some("the context of 64 positions is full, and the model was made for no more\n")),
        // The last one needs no place, as nothing follows it.
        ("16", "14", None),
    ] {
        let output = decoder(&["run", path, "--tokens", "1,2,3", "--context", context, "--count", count]);
        let error = String::from_utf8_lossy(&output.stderr);
        let count = String::from_utf8_lossy(&output.stdout).split_whitespace().count();
        assert!(output.status.success(), "{error}");
        assert_eq!(count, context.parse::<usize>().unwrap() - 3 + 1);
        match expected {
            Some(expected) => {
                assert!(error.contains(&format!("the text ends here, as {expected}")), "{error}")
            }
            None => assert!(!error.contains("ends here"), "{error}"),
        }
    }
}

#[test]
fn options_are_checked_before_a_model_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = &model(folder.path(), "model.gguf", &[]);
    for [option, value] in [["--temperature", "nan"], ["--top-p", "2"], ["--min-p", "1.5"]] {
        for command in [&["run", path, "-p", "a"][..], &["chat", path]] {
            let output = decoder(&[command, &[option, value]].concat());
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(1) && error.contains(option), "{error}");
            assert!(!error.contains("loaded in"), "{error}");
        }
    }
    for command in [&["run", path, "-p", "a"][..], &["chat", path], &["bench", path], &["check", path]] {
        refused(&[command, &["--threads", "0"]].concat(), "threads are a number from 1 to");
    }
    let other = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    refused(
        &["run", path, "-p", "a", "--isa", other],
        "an instruction set of another processor architecture",
    );
}

#[test]
fn restrictions_of_the_environment_hold() {
    let folder = tempfile::tempdir().unwrap();
    let path = &model(folder.path(), "model.gguf", &["--format", "q8_0"]);
    let run = |variable: &str, value: &str, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_decoder"));
        let output = command.args(["run", path]).args(arguments).env(variable, value).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let other = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    for (variable, value) in [
        ("GRISTMILL_ISA", "bogus"),
        ("GRISTMILL_ISA", other),
        ("GRISTMILL_DISABLE", "xx"),
        ("GRISTMILL_TUNING", "no/file"),
    ] {
        for arguments in [&["-p", "a"][..], &["--plan"]] {
            let (code, said) = run(variable, value, arguments);
            assert!(code == Some(1) && said.contains(value), "{variable}={value} {arguments:?}: {said}");
        }
    }
    let (code, plan) = run("GRISTMILL_ISA", "scalar", &["--plan"]);
    assert!(code == Some(0) && plan.contains("matmul.q8_0.scalar"), "{plan}");
    assert!(!plan.contains(".avx") && !plan.contains(".neon"), "{plan}");
}

#[test]
fn what_is_made_can_be_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.gguf").to_str().unwrap().to_owned();
    for (options, expected) in [
        (&["--arch", "qwen3moe", "--experts", "0"][..], "qwen3moe.expert_count"),
        (&["--arch", "qwen3moe", "--experts", "4", "--experts-used", "5"], "5 of 4 experts"),
        (&["--kv-heads", "3"], "3 does not divide 4 heads"),
        (&["--head-dim", "512"], "even and up to 256"),
        (&["--head-dim", "33"], "even and up to 256"),
        (&["--context", "0"], "llama.context_length"),
        (&["--context", "99999999999"], "context_length"),
        (&["--layers", "0"], "llama.block_count"),
        (&["--layers", "1000000000"], "--layers 1000000000"),
        (&["--vocab", "1000000000"], "--vocab 1000000000"),
        (&["--head-dim", "64", "--embd", "4194304", "--ffn", "4194304"], "larger than 256 GiB"),
        (
            &["--no-vocab", "--vocab", "4294967295", "--head-dim", "64", "--embd", "16777216"],
            "larger than 256 GiB",
        ),
        (&["--threads", "0"], "threads are a number from 1"),
    ] {
        refused(&[&["make-model", "-o", &path], options].concat(), expected);
        assert!(!Path::new(&path).exists(), "{options:?}");
    }
    if cfg!(target_os = "linux") {
        refused(&["make-model", "-o", "/dev/full"], "/dev/full: cannot write");
    }
}

#[test]
fn escape_sequences_of_a_file_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = &model(folder.path(), "model.gguf", &[]);
    for (key, value) in [
        ("general.architecture", "x\u{1b}[2Jx"),
        ("tokenizer.ggml.pre", "x\u{1b}[2Jx"),
        ("tokenizer.ggml.model", "x\u{1b}[2Jx"),
        ("general.type", "x\u{1b}[2Jx"),
        ("tokenizer.chat_template", "{{ raise_exception('x\u{1b}[2Jx') }}"),
    ] {
        let (code, _, error) = chat(&declaring(path, key, Value::String(value)), &[], b"a\n");
        assert_eq!(code, Some(1), "{key}: {error}");
        assert!(!error.contains('\u{1b}') && error.contains("x\\u{1b}[2Jx"), "{key}: {error}");
    }
}

#[test]
fn a_receipt_overwrites_nothing_that_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = &model(folder.path(), "model.gguf", &[]);
    let [text, link, receipt] = ["prompt.txt", "link", "receipt.json"]
        .map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    std::fs::write(&text, "the quick").unwrap();
    std::fs::hard_link(path, &link).unwrap();
    let before = std::fs::read(path).unwrap();
    for to in [path, &link, &text] {
        let run = ["run", path, "--file", &text, "-n", "2", "--receipt", to];
        refused(&run, "would be overwritten");
    }
    assert!(std::fs::read(path).unwrap() == before);
    assert_eq!(std::fs::read(&text).unwrap(), b"the quick");
    // Before the model is read, and without anything that is left behind where the work fails.
    let nowhere = folder.path().join("no/receipt.json").to_str().unwrap().to_owned();
    let output = decoder(&["run", path, "-p", "a", "--receipt", &nowhere]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{error}");
    assert!(error.contains("no/receipt.json") && !error.contains("loaded in"), "{error}");
    std::fs::write(&receipt, "old").unwrap();
    refused(&["run", path, "--tokens", "300", "--receipt", &receipt], "token 300");
    assert_eq!(std::fs::read(&receipt).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
}

#[test]
fn records_of_bench_have_the_keys_that_they_should() {
    let folder = tempfile::tempdir().unwrap();
    let path = &model(folder.path(), "model.gguf", &[]);
    let bench = |more: &[&str]| -> Vec<serde_json::Value> {
        let tests = ["bench", path, "--prompt", "16", "--generate", "4", "--repeat", "1", "--json"];
        serde_json::from_str(&printed(&[&tests[..], more].concat())).unwrap()
    };
    let records = bench(&["--threads", "1,2"]);
    let tests: Vec<_> = records
        .iter()
        .map(|record| (record["test"].as_str().unwrap(), record["threads"].as_u64().unwrap()))
        .collect();
    assert_eq!(tests, [("pp16", 1), ("tg4", 1), ("pp16", 2), ("tg4", 2)]);
    for record in &records {
        let mut keys: Vec<&str> = record.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            [
                "cache",
                "cache_bytes_in_memory",
                "model_bytes",
                "test",
                "threads",
                "tokens_per_second",
                "weights_bytes_in_memory"
            ]
        );
        assert_eq!(record["cache"], "f16");
        assert_eq!(record["cache_bytes_in_memory"], 64 * 2 * 64 * 2 * 2);
        assert!(record["tokens_per_second"].as_f64().unwrap() > 0.0);
        assert_eq!(record["model_bytes"].as_u64().unwrap(), std::fs::metadata(path).unwrap().len());
    }
    for record in bench(&["--cache", "q8_0"]) {
        assert_eq!(record["cache"], "q8_0");
        assert_eq!(record["cache_bytes_in_memory"], 64 * 2 * 64 * 2 * 2 * 34 / 64);
    }
}

#[test]
fn logits_are_the_same_bits_with_either_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = &model(folder.path(), "model.gguf", &[]);
    // More than a block of the cache.
    let digest = |cache: &str| {
        let digests = printed(&["check", path, "--count", "40", "--every-isa", "--cache", cache]);
        assert!(digests.lines().count() >= 6, "{digests}");
        assert!(digests.contains(" scalar "), "{digests}");
        assert!(
            digests.lines().all(|line| line[..16] == digests[..16] && !line.contains("differs")),
            "{digests}"
        );
        digests[..16].to_owned()
    };
    assert_ne!(digest("f16"), digest("q8_0"));
    // A receipt names what quantized keys and values too: two heads of each for every token.
    let receipt = folder.path().join("receipt.json").to_str().unwrap().to_owned();
    let arguments = ["run", path, "--tokens", "1,2,3", "-n", "5", "--cache", "q8_0", "--receipt", &receipt];
    printed(&arguments);
    let receipt: serde_json::Value = serde_json::from_slice(&std::fs::read(receipt).unwrap()).unwrap();
    let kernels = receipt["kernels"].as_array().unwrap();
    let quantize =
        kernels.iter().find(|kernel| kernel["name"].as_str().unwrap().starts_with("quantize.q8_0."));
    assert_eq!(quantize.unwrap()["launches"], (3 + 4) * 2 * 2);
}
