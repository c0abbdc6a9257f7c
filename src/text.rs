//! Text from files, as a terminal may get it.
//!
//! Names in model files, libraries and receipts are whatever somebody wrote there: escape sequences that a terminal
//! obeys, line ends that make up lines of a report, marks that reverse what is read. Messages show them as escapes.

use std::fmt::{self, Display, Formatter, Write};

/// Shows text of a file in one line: what is not printable (control characters, line ends, marks that change the
/// direction of writing, characters without a shape) becomes an escape of Rust (`\n`, `\u{1b}`). A backslash stays as it is,
/// so that showing text twice changes nothing.
///
/// ```
/// use gristmill::text::Printable;
///
/// assert_eq!(Printable("blk.0\n\u{1b}[2J\u{202e}ß").to_string(), "blk.0\\n\\u{1b}[2J\\u{202e}ß");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

/// As [`Printable`], but line ends and tabs stay: for messages of several lines.
#[derive(Clone, Copy, Debug)]
pub struct PrintableLines<'a>(pub &'a str);

impl Display for Printable<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        escaped(self.0, |_| false, f)
    }
}

impl Display for PrintableLines<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        escaped(self.0, |c| c == '\n' || c == '\t', f)
    }
}

/// Whether a terminal shows a character as itself.
pub fn is_printable(c: char) -> bool {
    // Rust's own table says what has a shape; of ASCII it also escapes quotes and backslashes, which need none here.
    if c.is_ascii() { (' '..='~').contains(&c) } else { c.escape_debug().len() == 1 }
}

fn escaped(text: &str, stays: impl Fn(char) -> bool, f: &mut Formatter<'_>) -> fmt::Result {
    let mut rest = text;
    while let Some((at, c)) = rest.char_indices().find(|(_, c)| !is_printable(*c) && !stays(*c)) {
        f.write_str(&rest[..at])?;
        write!(f, "{}", c.escape_debug())?;
        rest = &rest[at + c.len_utf8()..];
    }
    f.write_str(rest)
}

/// JSON text with every character that is not printable as an escape of JSON. The value stays what it is.
pub fn printable_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        // Between strings JSON has line ends; inside of them it escapes them itself.
        if is_printable(c) || c == '\n' {
            text.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string can't fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        // C0, DEL, C1, marks of direction, no width, a line separator, a byte order mark, a tag, a private character.
        let text = "\0\u{1b}[31m\r\n\t\u{7f}\u{9b}\u{202e}\u{2066}\u{200b}\u{2028}\u{feff}\u{e0041}\u{e000}";
        let shown = Printable(text).to_string();
        assert!(shown.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{shown}");
        assert_eq!(Printable(&shown).to_string(), shown, "twice is as once");
        assert_eq!(PrintableLines("a\n\tb\u{1b}").to_string(), "a\n\tb\\u{1b}");
    }

    #[test]
    fn words_of_all_languages_stay() {
        for text in ["blk.0.attn_q.weight", "`'\"\\", "größe 重み вес وزن", "a b"] {
            assert_eq!(Printable(text).to_string(), text);
        }
    }

    #[test]
    fn json_keeps_its_meaning() -> Result<(), std::fmt::Error> {
        let mut shown = String::new();
        write!(shown, "{}", printable_json("{\n  \"\u{202e}\u{9b}\": \"\u{e0041}ß\"\n}"))?;
        assert_eq!(shown, "{\n  \"\\u202e\\u009b\": \"\\udb40\\udc41ß\"\n}");
        Ok(())
    }
}
