//! The bytes that tokens stand for, and text from them as they come.

use super::keys::{Kind, Listed};
use std::collections::HashMap;

/// How a vocabulary writes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// As characters, one for each byte: GPT-2.
    Characters,
    /// As text in which U+2581 is a space, and as `<0x41>`: SentencePiece.
    Pieces,
}

/// The bytes of each token, one behind the other.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Where those of each token end.
    ends: Vec<usize>,
}

impl Pieces {
    pub(super) fn of(listed: &Listed<'_>, spelling: Spelling) -> Pieces {
        let of_characters: HashMap<char, u8> = (0..=255).map(|byte| (byte_char(byte), byte)).collect();
        let mut pieces = Pieces { bytes: Vec::new(), ends: Vec::with_capacity(listed.tokens.len()) };
        for (token, kind) in listed.each() {
            let bytes = &mut pieces.bytes;
            match (kind, spelling) {
                // No part of a text: llama.cpp (`token_to_piece`) writes nothing either.
                (Kind::Control | Kind::Unknown | Kind::Unused, _) => {}
                (Kind::UserDefined, _) => bytes.extend(token.as_bytes()),
                // Files that don't tell their kinds have them too.
                (Kind::Byte, _) | (Kind::Text, Spelling::Pieces) if numbered(token).is_some() => {
                    bytes.extend(numbered(token));
                }
                (Kind::Byte | Kind::Text, Spelling::Pieces) => {
                    bytes.extend(token.replace('\u{2581}', " ").as_bytes());
                }
                (Kind::Byte | Kind::Text, Spelling::Characters) => {
                    let found: Option<Vec<u8>> =
                        token.chars().map(|c| of_characters.get(&c).copied()).collect();
                    // Another character stands for itself.
                    bytes.extend(found.unwrap_or_else(|| token.as_bytes().to_vec()));
                }
            }
            pieces.ends.push(pieces.bytes.len());
        }
        pieces
    }

    /// Those of a token; none of one that the vocabulary lacks, as rows of padding are.
    fn bytes(&self, token: u32) -> &[u8] {
        let token = token as usize;
        let Some(end) = self.ends.get(token) else { return &[] };
        let start = token.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..*end]
    }
}

/// The byte that `<0x41>` is.
fn numbered(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let both = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| both)
}

/// The character by which GPT-2's vocabulary writes a byte: itself where it is printable, else one from U+0100 on.
pub fn byte_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !printable(*byte)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Text from tokens as they come: whole characters, as soon as their last byte is there. Bytes that are no UTF-8 become U+FFFD.
#[derive(Debug)]
pub struct TextStream<'t> {
    pieces: &'t Pieces,
    /// The begin of a character.
    open: Vec<u8>,
    /// Whether a space that comes first is left out.
    strip: bool,
}

impl<'t> TextStream<'t> {
    pub(super) fn new(pieces: &'t Pieces, strip: bool) -> TextStream<'t> {
        TextStream { pieces, open: Vec::new(), strip }
    }

    /// What is whole with `token`.
    pub fn push(&mut self, token: u32) -> String {
        let mut bytes = self.pieces.bytes(token);
        if self.strip && !bytes.is_empty() {
            self.strip = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.open.extend(bytes);
        let mut text = String::new();
        loop {
            let error = match str::from_utf8(&self.open) {
                Ok(rest) => {
                    text.push_str(rest);
                    self.open.clear();
                    return text;
                }
                Err(error) => error,
            };
            let valid = error.valid_up_to();
            text.push_str(&String::from_utf8_lossy(&self.open[..valid]));
            let Some(wrong) = error.error_len() else {
                self.open.drain(..valid);
                return text;
            };
            text.push(char::REPLACEMENT_CHARACTER);
            self.open.drain(..valid + wrong);
        }
    }

    /// What is left where no token follows: a character whose last bytes never came.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.open).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of each token, and at the end.
    fn texts(pieces: &Pieces, strip: bool, tokens: &[u32]) -> Vec<String> {
        let mut stream = TextStream::new(pieces, strip);
        let mut texts: Vec<String> = tokens.iter().map(|token| stream.push(*token)).collect();
        texts.push(stream.finish());
        texts
    }

    #[test]
    fn characters_come_whole_and_wrong_bytes_are_replaced() {
        // U+20AC is E2 82 AC.
        let tokens = vec![
            "<s>",
            "\u{2581}Paris",
            "<0xE2>",
            "<0x82>",
            "<0xAC>",
            "a\u{2581}b",
            "<0xFF>",
            "<0x4>",
            "<d\u{2581}>",
            "<unk>",
            "<unused>",
        ];
        let kinds = vec![
            Kind::Control,
            Kind::Text,
            Kind::Byte,
            Kind::Byte,
            // As in files without kinds.
            Kind::Text,
            Kind::Text,
            Kind::Byte,
            Kind::Text,
            Kind::UserDefined,
            Kind::Unknown,
            Kind::Unused,
        ];
        let pieces = Pieces::of(&Listed { tokens, kinds }, Spelling::Pieces);
        assert_eq!(texts(&pieces, false, &[2, 3, 4, 5]), ["", "", "\u{20ac}", "a b", ""]);
        // One that is cut off, by a text, by another one, and by the end.
        assert_eq!(texts(&pieces, false, &[2, 3, 5, 5]), ["", "", "\u{fffd}a b", "a b", ""]);
        assert_eq!(texts(&pieces, false, &[2, 2, 3, 4]), ["", "\u{fffd}", "", "\u{20ac}", ""]);
        assert_eq!(texts(&pieces, false, &[1, 2, 3]), [" Paris", "", "", "\u{fffd}"]);
        assert_eq!(
            texts(&pieces, false, &[6, 4, 7, 8, 99]),
            ["\u{fffd}", "\u{fffd}", "<0x4>", "<d\u{2581}>", "", ""]
        );
        assert_eq!(texts(&pieces, false, &[9, 1, 10]), ["", " Paris", "", ""]);
        // A space is left out only where a text begins, whatever says nothing before it.
        assert_eq!(texts(&pieces, true, &[0, 1, 1]), ["", "Paris", " Paris", ""]);
        assert_eq!(texts(&pieces, true, &[5, 1]), ["a b", " Paris", ""]);
    }

    #[test]
    fn bytes_of_gpt2_are_characters() {
        let all: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
        let mut tokens: Vec<&str> = all.iter().map(String::as_str).collect();
        tokens.extend(["\u{120}the", "a b", "caf\u{e9}", "caf\u{e9}"]);
        let mut kinds = vec![Kind::Text; tokens.len()];
        kinds[259] = Kind::UserDefined;
        let pieces = Pieces::of(&Listed { tokens, kinds }, Spelling::Characters);
        for byte in 0..=255u8 {
            assert_eq!(pieces.bytes(u32::from(byte)), [byte]);
        }
        assert_eq!(pieces.bytes(256), b" the");
        assert_eq!(pieces.bytes(257), b"a b", "a space is none of the characters");
        assert_eq!((pieces.bytes(258), pieces.bytes(259)), (&b"caf\xe9"[..], "caf\u{e9}".as_bytes()));
    }
}
