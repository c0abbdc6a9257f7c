//! Standard output without what a terminal would obey: the last line of defence behind [`gristmill::text::Printable`].

use gristmill::text::PrintableLines;
use std::io::{self, Write};

/// Passes text on with everything that is not printable as an escape; line ends and tabs stay. A name with a line end in it
/// is the business of whoever prints the name.
#[derive(Debug)]
pub struct Plain<W> {
    inner: W,
    /// Whether sequences that only set colours pass.
    colours: bool,
    /// The beginning of a character whose end is still to come.
    begun: Vec<u8>,
}

impl<W: Write> Plain<W> {
    /// Text for `inner`.
    pub fn new(inner: W) -> Plain<W> {
        Plain { inner, colours: false, begun: Vec::new() }
    }

    /// Lets sequences pass that only set colours, for what is made for a terminal.
    pub fn with_colours(&mut self) -> &mut Plain<W> {
        self.colours = true;
        self
    }

    /// Empties the screen of a terminal; what follows begins at its top.
    ///
    /// # Errors
    /// Those of what is written to.
    #[cfg(feature = "ops")]
    pub fn clear_screen(&mut self) -> io::Result<()> {
        self.inner.write_all(b"\x1b[H\x1b[2J")
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some((before, colour, behind)) = self.colours.then(|| first_colour(rest)).flatten() {
            write!(self.inner, "{}{colour}", PrintableLines(before))?;
            rest = behind;
        }
        write!(self.inner, "{}", PrintableLines(rest))
    }
}

/// The first sequence that sets colours, with what stands before and behind it.
fn first_colour(text: &str) -> Option<(&str, &str, &str)> {
    text.match_indices("\u{1b}[").find_map(|(at, opening)| {
        let numbers = &text[at + opening.len()..];
        let end = numbers.find(|c: char| !c.is_ascii_digit() && c != ';')?;
        let end = numbers[end..].starts_with('m').then_some(at + opening.len() + end + 1)?;
        Some((&text[..at], &text[at..end], &text[end..]))
    })
}

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut rest = all.as_slice();
        loop {
            let (text, error) = match std::str::from_utf8(rest) {
                Ok(text) => (text, None),
                Err(error) => {
                    (std::str::from_utf8(&rest[..error.valid_up_to()]).unwrap_or_default(), Some(error))
                }
            };
            self.text(text)?;
            match error.map(|error| (error.valid_up_to(), error.error_len())) {
                None => return Ok(bytes.len()),
                Some((at, None)) => {
                    self.begun = rest[at..].to_vec();
                    return Ok(bytes.len());
                }
                Some((at, Some(wrong))) => {
                    write!(self.inner, "{}", char::REPLACEMENT_CHARACTER)?;
                    rest = &rest[at + wrong..];
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_pass_where_they_are_meant() -> io::Result<()> {
        let text = "\u{1b}[1;31merror\u{1b}[0m\u{1b}[2J\u{1b}[";
        let mut out = Plain::new(Vec::new());
        out.write_all(text.as_bytes())?;
        assert_eq!(String::from_utf8_lossy(&out.inner), text.replace('\u{1b}', "\\u{1b}"));
        let mut out = Plain::new(Vec::new());
        out.with_colours().write_all(text.as_bytes())?;
        let shown = String::from_utf8_lossy(&out.inner).into_owned();
        assert_eq!(shown, "\u{1b}[1;31merror\u{1b}[0m\\u{1b}[2J\\u{1b}[");
        Ok(())
    }

    #[test]
    fn however_the_bytes_are_cut() -> io::Result<()> {
        let text = "a\u{1b}[0mß\n\t\u{202e}重\u{0}".as_bytes();
        let text = [text, &[0xff, b'z']].concat();
        for size in 1..=text.len() {
            let mut out = Plain::new(Vec::new());
            for piece in text.chunks(size) {
                out.write_all(piece)?;
            }
            out.flush()?;
            let shown = String::from_utf8_lossy(&out.inner).into_owned();
            assert_eq!(shown, "a\\u{1b}[0mß\n\t\\u{202e}重\\0\u{fffd}z", "pieces of {size}");
        }
        Ok(())
    }
}
