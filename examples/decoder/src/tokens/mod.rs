//! Text to tokens, by the `tokenizers` crate, and back, from what the metadata of a GGUF file says.

mod ends;
mod keys;
mod pieces;
mod rules;

pub use pieces::{TextStream, byte_char};

use crate::error::Error;
use gristmill::gguf::GgufFile;
use keys::{Keys, Kind, Listed};
use pieces::{Pieces, Spelling};
use rules::Rules;
use serde_json::{Value as Json, json};
use std::collections::{HashMap, HashSet};
use tokenizers::Tokenizer;

/// The vocabulary of a file.
#[derive(Debug)]
pub struct Tokens {
    tokenizer: Tokenizer,
    pieces: Pieces,
    /// Stands before a text.
    bos: Option<u32>,
    add_bos: bool,
    /// Whether a space stands before a text, which is not its own.
    add_space: bool,
    /// Where one of these is drawn, a text ends.
    ends: Vec<u32>,
    /// Whether the file does not name the rules by which a text is cut into words.
    guesses: bool,
    /// Texts of control tokens that the file says are none.
    retyped: Vec<String>,
    texts: HashMap<&'static str, String>,
}

impl Tokens {
    /// Reads the vocabulary; none where the file says `no_vocab`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`]: a kind of vocabulary that is not known, or one that is not whole.
    pub fn of(file: &GgufFile) -> Result<Option<Tokens>, Error> {
        let keys = Keys(file);
        let rules = match keys.text("model")? {
            None | Some("no_vocab") => return Ok(None),
            Some("gpt2") => Some(Rules::named(keys.text("pre")?)?),
            // The pairs that are merged first, and nothing else, cut a text.
            Some("llama") => None,
            Some(other) => {
                return Err(Error::Tokenizer(format!(
                    "`{other}` is not a kind that this decoder knows: it knows `gpt2`, `llama` and `no_vocab`"
                )));
            }
        };
        // A text that has ended can't be continued: llama.cpp refuses such models there, too.
        if keys.flag("add_eos_token")? == Some(true) {
            return Err(Error::Tokenizer(
                "`tokenizer.ggml.add_eos_token` ends every text, and this decoder continues texts; an encoder's \
                 file needs a program for encoders"
                    .to_owned(),
            ));
        }
        let mut listed = keys.listed()?;
        let retyped = ends::retype(&mut listed).into_iter().map(str::to_owned).collect();
        let count = listed.tokens.len();
        // What converters leave out, llama.cpp takes from the kind.
        let usual = |token: u32| Some(token).filter(|token| rules.is_none() && (*token as usize) < count);
        let bos = keys.token("bos_token_id", count)?.or(usual(1));
        let eos = keys.token("eos_token_id", count)?.or(usual(2));
        let add_bos = keys.flag("add_bos_token")?.unwrap_or(rules.is_none_or(|rules| rules.add_bos));
        let add_space = rules.is_none() && keys.flag("add_space_prefix")?.unwrap_or(true);
        let ends = ends::of(&keys, &listed, eos)?;
        let (tokenizer, spelling) = match rules {
            Some(rules) => (byte_pairs(&keys, &listed, rules)?, Spelling::Characters),
            None => (sentence_piece(&keys, &listed, add_space)?, Spelling::Pieces),
        };
        let text = |token: Option<u32>| token.map(|token| listed.tokens[token as usize].to_owned());
        let texts = [("bos_token", bos), ("eos_token", eos)]
            .map(|(name, token)| (name, text(token).unwrap_or_default()))
            .into();
        let guesses = rules.is_some() && keys.text("pre")?.is_none();
        let pieces = Pieces::of(&listed, spelling);
        Ok(Some(Tokens { tokenizer, pieces, bos, add_bos, add_space, ends, guesses, retyped, texts }))
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

    /// Text from tokens that begin one.
    pub fn beginning(&self) -> TextStream<'_> {
        TextStream::new(&self.pieces, self.add_space)
    }

    /// Text from tokens that continue one: the first may begin with a space.
    pub fn continuation(&self) -> TextStream<'_> {
        TextStream::new(&self.pieces, false)
    }

    /// Whether the file does not say how a text is cut into words (`tokenizer.ggml.pre`), so that llama.cpp's default rules are used.
    pub fn guesses(&self) -> bool {
        self.guesses
    }

    /// Texts of tokens that are control tokens by their text, and by their type in the file are not.
    pub fn retyped(&self) -> &[String] {
        &self.retyped
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

/// A description in the form of Hugging Face's `tokenizer.json`.
fn build(parts: Json) -> Result<Tokenizer, Error> {
    Tokenizer::from_bytes(parts.to_string()).map_err(failed)
}

fn vocabulary(tokens: &[&str]) -> serde_json::Map<String, Json> {
    tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id))).collect()
}

/// The tokens that are not ordinary text: they are found before anything is cut.
fn added(listed: &Listed<'_>) -> Vec<Json> {
    let added = |(id, (token, kind)): (usize, (&str, Kind))| {
        let special = match kind {
            Kind::Control | Kind::Unknown => true,
            Kind::UserDefined => false,
            Kind::Text | Kind::Byte | Kind::Unused => return None,
        };
        Some(json!({
            "id": id, "content": token, "special": special, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false,
        }))
    };
    listed.each().enumerate().filter_map(added).collect()
}

/// Byte pairs of the bytes of UTF-8: GPT-2, Llama 3, Qwen.
fn byte_pairs(keys: &Keys<'_>, listed: &Listed<'_>, rules: &Rules) -> Result<Tokenizer, Error> {
    let merges = keys.list("merges", |value| value.as_str())?;
    check_merges(&listed.tokens, &merges)?;
    let mut steps: Vec<Json> = rules.steps().collect();
    steps.push(
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}),
    );
    build(json!({
        "version": "1.0",
        "added_tokens": added(listed),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "model": {
            "type": "BPE", "vocab": vocabulary(&listed.tokens), "merges": merges,
            "ignore_merges": rules.ignore_merges, "fuse_unk": false, "byte_fallback": false,
        },
    }))
}

/// Pieces with scores: Llama 2. The pair that makes the piece of the highest score is merged first.
fn sentence_piece(keys: &Keys<'_>, listed: &Listed<'_>, add_space: bool) -> Result<Tokenizer, Error> {
    let tokens = &listed.tokens;
    let scores = keys.of_tokens("scores", tokens.len(), |value| value.as_f64())?;
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
    let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"})];
    if add_space {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
    }
    let unknown = keys.token("unknown_token_id", tokens.len())?.unwrap_or(0) as usize;
    build(json!({
        "version": "1.0",
        "added_tokens": added(listed),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "model": {
            "type": "BPE", "vocab": vocabulary(tokens), "merges": merges, "unk_token": tokens.get(unknown),
            "fuse_unk": true, "byte_fallback": true,
        },
    }))
}
