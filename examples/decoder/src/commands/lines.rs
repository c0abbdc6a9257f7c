//! Lines that somebody types, or that stand in a file.

use crate::error::Error;
use std::io::BufRead;

/// Bytes of a line: more than any context takes.
const MOST_BYTES: usize = 1 << 20;

/// A line, or why it is none.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Its text.
    Text(String),
    /// It is not UTF-8 from this byte on.
    NotText(usize),
    /// There are no more.
    End,
}

/// Reads a line.
///
/// # Errors
/// It can't be read; it is longer than [`MOST_BYTES`], as what is no text at all may be for ever.
pub(super) fn read(input: &mut dyn BufRead) -> Result<Line, Error> {
    let failed = |source| Error::Io { action: "read", path: "standard input".into(), source };
    let mut line = Vec::new();
    loop {
        let read = match input.fill_buf() {
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        if read.is_empty() && line.is_empty() {
            return Ok(Line::End);
        }
        let end = read.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(read.len(), |end| end + 1);
        line.extend_from_slice(&read[..taken]);
        input.consume(taken);
        if line.len() > MOST_BYTES {
            return Err(Error::Asked(format!("a line of standard input is longer than {MOST_BYTES} bytes")));
        }
        if end.is_some() || taken == 0 {
            return Ok(match String::from_utf8(line) {
                Ok(text) => Line::Text(text),
                Err(error) => Line::NotText(error.utf8_error().valid_up_to()),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    #[test]
    fn lines_are_whole_and_bounded() -> Result<(), Error> {
        let mut input = BufReader::with_capacity(3, &b"one two\n\ncaf\xe9\nlast"[..]);
        for expected in [
            Line::Text("one two\n".into()),
            Line::Text("\n".into()),
            Line::NotText(3),
            Line::Text("last".into()),
            Line::End,
        ] {
            assert_eq!(read(&mut input)?, expected);
        }
        let error = read(&mut BufReader::new(std::io::repeat(0))).map_err(|error| error.to_string());
        assert_eq!(error, Err("a line of standard input is longer than 1048576 bytes".to_owned()));
        Ok(())
    }
}
