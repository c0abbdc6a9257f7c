//! `tokenizer.ggml.*`: what a file says of its vocabulary, or why it can't be so.

use crate::declared::shown;
use crate::embedding;
use crate::error::{Error, room};
use gristmill::gguf::{GgufFile, Value};

/// Bytes of the longest token that is read: SentencePiece makes pieces of up to 512 characters (`max_sentencepiece_length`), and UTF-8 has
/// up to four bytes for each. Work on a vocabulary grows with the square of it.
const MOST_BYTES: usize = 2048;

/// What a token is, of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A piece of text.
    Text,
    /// It stands for a text that is not in the vocabulary.
    Unknown,
    /// It says something of the text and is no part of it.
    Control,
    /// Text that is never cut, as it stands.
    UserDefined,
    /// One byte.
    Byte,
    /// It is not used, or of no kind that has a name.
    Unused,
}

/// The tokens of a file.
pub(super) struct Listed<'a> {
    pub(super) tokens: Vec<&'a str>,
    /// One for each token; all are text where the file has none.
    pub(super) kinds: Vec<Kind>,
}

impl Listed<'_> {
    /// Tokens with their kinds.
    pub(super) fn each(&self) -> impl Iterator<Item = (&str, Kind)> {
        self.tokens.iter().copied().zip(self.kinds.iter().copied())
    }
}

/// The keys of a file.
pub(super) struct Keys<'a>(pub(super) &'a GgufFile);

/// What helps against what no program writes on purpose.
const CONVERT: &str = "convert the model again, with a converter of today";
/// The same for numbers of tokens.
const RENUMBER: &str = "convert the model again, or write another number by `gguf-new-metadata --special-token-by-id` (Python package gguf)";

fn wrong(key: &str, why: &str, help: &str) -> Error {
    Error::Tokenizer(format!("`tokenizer.ggml.{key}` {why}\n  help: {help}"))
}

fn other(key: &str, found: &Value<'_>, expected: &str, help: &str) -> Error {
    wrong(key, &format!("is {}, expected {expected}", shown(found)), help)
}

impl<'a> Keys<'a> {
    fn value(&self, key: &str) -> Option<Value<'a>> {
        self.0.value(&format!("tokenizer.ggml.{key}"))
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        let read =
            |value: Value<'_>| value.as_bool().ok_or_else(|| other(key, &value, "true or false", CONVERT));
        self.value(key).map(read).transpose()
    }

    /// The number of a token of a vocabulary of `count`.
    pub(super) fn token(&self, key: &str, count: usize) -> Result<Option<u32>, Error> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_u64() {
            None => Err(other(key, &value, "the number of a token", RENUMBER)),
            Some(number) => match u32::try_from(number) {
                Ok(token) if (token as usize) < count => Ok(Some(token)),
                Ok(_) | Err(_) => {
                    Err(wrong(key, &format!("is {number}, and the vocabulary has {count} tokens"), RENUMBER))
                }
            },
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, Error> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(found) => Err(other(key, &found, "a text", CONVERT)),
        }
    }

    pub(super) fn list<T>(&self, key: &str, read: impl Fn(Value<'a>) -> Option<T>) -> Result<Vec<T>, Error> {
        let array = match self.value(key) {
            None => return Err(wrong(key, "is missing", CONVERT)),
            Some(value) => value.as_array().ok_or_else(|| other(key, &value, "a list", CONVERT))?,
        };
        let count = usize::try_from(array.len()).unwrap_or(usize::MAX);
        let mut all = room("a list of the vocabulary", count)?;
        for element in array.elements() {
            let read = element.ok().and_then(&read);
            all.push(read.ok_or_else(|| wrong(key, "holds something of another type", CONVERT))?);
        }
        Ok(all)
    }

    /// A list with as many elements as there are tokens.
    pub(super) fn of_tokens<T>(
        &self,
        key: &str,
        count: usize,
        read: impl Fn(Value<'a>) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let list = self.list(key, read)?;
        if list.len() != count {
            let why = format!("has {} elements, and there are {count} tokens", list.len());
            return Err(wrong(key, &why, CONVERT));
        }
        Ok(list)
    }

    /// The tokens and what they are.
    pub(super) fn listed(&self) -> Result<Listed<'a>, Error> {
        let tokens = self.list("tokens", |value| value.as_str())?;
        if let Some((id, token)) = tokens.iter().enumerate().find(|(_, token)| token.len() > MOST_BYTES) {
            return Err(Error::Tokenizer(format!(
                "token {id} has {} bytes; up to {MOST_BYTES} are read, which no vocabulary comes near",
                token.len()
            )));
        }
        // A text could become tokens that have no vector. (Rows beyond the tokens are padding.)
        if let Some(tensor) = self.0.tensor(embedding::NAME)
            && let Some(rows) = tensor.dims().get(1).filter(|rows| **rows < tokens.len() as u64)
        {
            let why = format!("has {} elements, and `{}` has {rows} rows", tokens.len(), embedding::NAME);
            return Err(wrong("tokens", &why, CONVERT));
        }
        let kind = |value: Value<'_>| match value.as_u64()? {
            1 => Some(Kind::Text),
            2 => Some(Kind::Unknown),
            3 => Some(Kind::Control),
            4 => Some(Kind::UserDefined),
            6 => Some(Kind::Byte),
            _ => Some(Kind::Unused),
        };
        let kinds = match self.value("token_type") {
            Some(_) => self.of_tokens("token_type", tokens.len(), kind)?,
            None => vec![Kind::Text; tokens.len()],
        };
        Ok(Listed { tokens, kinds })
    }
}
