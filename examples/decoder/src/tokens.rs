//! Text to tokens and back, by the `tokenizers` crate, from what the metadata of a GGUF file says.

use crate::error::{Error, room};
use gristmill::gguf::{GgufFile, Value};
use serde_json::{Value as Json, json};
use std::collections::{HashMap, HashSet};
use tokenizers::Tokenizer;

/// The vocabulary of a file.
#[derive(Debug)]
pub struct Tokens {
    tokenizer: Tokenizer,
    /// Stands before a text.
    bos: Option<u32>,
    add_bos: bool,
    /// Where one of these is drawn, a text ends.
    ends: Vec<u32>,
    texts: HashMap<&'static str, String>,
}

/// Regular expressions by which a text is cut into words before byte pairs are merged, by `tokenizer.ggml.pre`. They are those of the
/// models' own tokenizers (Qwen 2, Llama 3, GPT-2).
const WORDS: &[(&[&str], &str)] = &[
    (
        &["qwen2"],
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (
        &["llama-bpe", "llama3", "llama-v3"],
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (&["gpt-2", "default"], r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
];

impl Tokens {
    /// Reads the vocabulary; none where the file says `no_vocab`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`]: a kind of vocabulary that is not known, or one that is not whole.
    pub fn of(file: &GgufFile) -> Result<Option<Tokens>, Error> {
        let keys = Keys(file);
        let tokenizer = match keys.text("model")? {
            None | Some("no_vocab") => return Ok(None),
            Some("gpt2") => byte_pairs(&keys)?,
            Some("llama") => sentence_piece(&keys)?,
            Some(other) => {
                return Err(Error::Tokenizer(format!(
                    "`{other}` is not a kind that this decoder knows: it knows `gpt2`, `llama` and `no_vocab`"
                )));
            }
        };
        let spm = keys.text("model")? == Some("llama");
        // What converters leave out, llama.cpp takes from the kind.
        let usual = spm || matches!(keys.text("pre")?, Some("llama-bpe" | "llama3" | "llama-v3"));
        let add_bos = keys.value("add_bos_token").and_then(|value| value.as_bool()).unwrap_or(usual);
        // A text that has ended can't be continued: llama.cpp refuses such models there, too.
        if keys.value("add_eos_token").and_then(|value| value.as_bool()) == Some(true) {
            return Err(Error::Tokenizer(
                "`tokenizer.ggml.add_eos_token` ends every text, and this decoder continues texts; an encoder's \
                 file needs a program for encoders"
                    .to_owned(),
            ));
        }
        let bos = keys.number("bos_token_id");
        let mut ends: Vec<u32> = ["eos_token_id", "eot_token_id", "eom_token_id"]
            .iter()
            .filter_map(|key| keys.number(key))
            .collect();
        // Models that end a turn by another token than a text.
        ends.extend(
            ["<|eot_id|>", "<|im_end|>", "<|endoftext|>"]
                .iter()
                .filter_map(|text| tokenizer.token_to_id(text)),
        );
        let mut texts = HashMap::new();
        for (name, token) in [("bos_token", bos), ("eos_token", keys.number("eos_token_id"))] {
            texts.insert(name, token.and_then(|token| tokenizer.id_to_token(token)).unwrap_or_default());
        }
        Ok(Some(Tokens { tokenizer, bos, add_bos, ends, texts }))
    }

    /// The tokens of a text, with the one that begins a text where the model wants it.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let encoding = self.tokenizer.encode_fast(text, false).map_err(failed)?;
        let begin = self.bos.filter(|bos| self.add_bos && encoding.get_ids().first() != Some(bos));
        Ok(begin.into_iter().chain(encoding.get_ids().iter().copied()).collect())
    }

    /// The tokens of a text that stands in the middle of another.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn encode_middle(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self.tokenizer.encode_fast(text, false).map_err(failed)?.get_ids().to_vec())
    }

    /// Text from tokens as they come, whole characters at a time.
    pub fn stream(&self) -> impl FnMut(u32) -> Result<Option<String>, Error> + '_ {
        let mut stream = self.tokenizer.decode_stream(true);
        move |token| stream.step(token).map_err(failed)
    }

    /// Whether a text ends with this token.
    pub fn ends(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// The texts of special tokens that chat templates name: `bos_token` and `eos_token`.
    pub fn special(&self) -> &HashMap<&'static str, String> {
        &self.texts
    }
}

/// Bytes of the longest token that is read: SentencePiece makes pieces of up to 512 characters (`max_sentencepiece_length`), and UTF-8 has
/// up to four bytes for each. Work on a vocabulary grows with the square of it.
const MOST_BYTES: usize = 2048;

/// Refuses merges whose parts or whole are no tokens, by their number: the library speaks of a JSON that nobody sees.
fn check_merges(tokens: &[&str], merges: &[&str]) -> Result<(), Error> {
    let known: HashSet<&str> = tokens.iter().copied().collect();
    for (number, merge) in merges.iter().enumerate() {
        let wrong = |why: String| Err(Error::Tokenizer(format!("merge {number}, `{merge}`, {why}")));
        let Some((left, right)) = merge.split_once(' ') else {
            return wrong("is not two tokens with a space between them".to_owned());
        };
        let whole = format!("{left}{right}");
        if let Some(missing) = [left, right, &whole].into_iter().find(|part| !known.contains(part)) {
            return wrong(format!(
                "needs the token `{missing}`, which is not among the {} of the file",
                tokens.len()
            ));
        }
    }
    Ok(())
}

fn failed(error: tokenizers::Error) -> Error {
    Error::Tokenizer(error.to_string())
}

/// `tokenizer.ggml.*`.
struct Keys<'a>(&'a GgufFile);

impl<'a> Keys<'a> {
    fn value(&self, key: &str) -> Option<Value<'a>> {
        self.0.value(&format!("tokenizer.ggml.{key}"))
    }

    fn number(&self, key: &str) -> Option<u32> {
        self.value(key)?.as_u64().and_then(|number| u32::try_from(number).ok())
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, Error> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Error::Tokenizer(format!("`{key}` is not a text"))),
        }
    }

    fn list<T>(&self, key: &str, read: impl Fn(Value<'a>) -> Option<T>) -> Result<Vec<T>, Error> {
        let array = self.value(key).and_then(|value| value.as_array());
        let array = array.ok_or_else(|| Error::Tokenizer(format!("there is no list `{key}`")))?;
        let wrong = || Error::Tokenizer(format!("`{key}` holds something of another type"));
        let count = usize::try_from(array.len()).unwrap_or(usize::MAX);
        let mut all = room("a list of the vocabulary", count)?;
        for element in array.elements() {
            all.push(element.ok().and_then(&read).ok_or_else(wrong)?);
        }
        Ok(all)
    }

    /// The tokens, and those that are not ordinary text.
    fn tokens(&self) -> Result<(Vec<&'a str>, Vec<Json>), Error> {
        let tokens = self.list("tokens", |value| value.as_str())?;
        if let Some((id, token)) = tokens.iter().enumerate().find(|(_, token)| token.len() > MOST_BYTES) {
            return Err(Error::Tokenizer(format!(
                "token {id} has {} bytes; up to {MOST_BYTES} are read, which no vocabulary comes near",
                token.len()
            )));
        }
        let kinds = match self.value("token_type") {
            Some(_) => self.list("token_type", |value| value.as_u64())?,
            None => Vec::new(),
        };
        // 3: control, 4: defined by the user.
        let added = tokens.iter().zip(&kinds).enumerate().filter(|(_, (_, kind))| matches!(kind, 3 | 4));
        let added = added.map(|(id, (token, kind))| {
            json!({
                "id": id, "content": token, "special": *kind == 3, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        });
        let added = added.collect();
        Ok((tokens, added))
    }
}

/// A description in the form of Hugging Face's `tokenizer.json`.
fn build(parts: Json) -> Result<Tokenizer, Error> {
    Tokenizer::from_bytes(parts.to_string()).map_err(failed)
}

fn vocabulary(tokens: &[&str]) -> serde_json::Map<String, Json> {
    tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id))).collect()
}

/// Byte pairs of the bytes of UTF-8: GPT-2, Llama 3, Qwen.
fn byte_pairs(keys: &Keys<'_>) -> Result<Tokenizer, Error> {
    let (tokens, added) = keys.tokens()?;
    let merges = keys.list("merges", |value| value.as_str())?;
    check_merges(&tokens, &merges)?;
    let pre = keys.text("pre")?.unwrap_or("default");
    let Some((_, words)) = WORDS.iter().find(|(names, _)| names.contains(&pre)) else {
        let known: Vec<&str> = WORDS.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        let known = known.join(", ");
        return Err(Error::Tokenizer(format!(
            "how `{pre}` cuts a text into words is not known here: known are {known}"
        )));
    };
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    build(json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false},
            byte_level,
        ]},
        "decoder": byte_level,
        "model": {
            "type": "BPE", "vocab": vocabulary(&tokens), "merges": merges,
            // Llama 3 has whole words that its merges do not reach.
            "ignore_merges": pre.starts_with("llama"),
            "fuse_unk": false, "byte_fallback": false,
        },
    }))
}

/// Pieces with scores: Llama 2. The pair that makes the piece of the highest score is merged first.
fn sentence_piece(keys: &Keys<'_>) -> Result<Tokenizer, Error> {
    let (tokens, added) = keys.tokens()?;
    let scores = keys.list("scores", |value| value.as_f64())?;
    if scores.len() != tokens.len() {
        return Err(Error::Tokenizer(format!("{} scores for {} tokens", scores.len(), tokens.len())));
    }
    let known: HashMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let mut merges: Vec<(f64, usize, &str, &str)> = Vec::new();
    for (id, token) in tokens.iter().enumerate() {
        for (cut, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(cut);
            if known.contains_key(left) && known.contains_key(right) {
                merges.push((scores[id], id, left, right));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let merges: Vec<[&str; 2]> = merges.iter().map(|(_, _, left, right)| [*left, *right]).collect();
    let prefix = keys.value("add_space_prefix").and_then(|value| value.as_bool()).unwrap_or(true);
    let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"})];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unknown = keys.number("unknown_token_id").unwrap_or(0) as usize;
    build(json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "vocab": vocabulary(&tokens), "merges": merges, "unk_token": tokens.get(unknown),
            "fuse_unk": true, "byte_fallback": true,
        },
    }))
}
