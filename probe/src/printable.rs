//! Names from files, made safe for a terminal and for lines of text.
//!
//! A symbol, a SONAME or a file name may hold any byte. Printed as it is, it can move the cursor, change colours or the
//! window's title, end a line and begin another that looks like ours, or turn the direction of writing round.

use std::borrow::Cow;
use std::path::Path;

/// Longer names are cut: no linker's or compiler's name that says anything to a person is this long.
const MOST_CHARACTERS: usize = 400;

/// A name for people: characters that a terminal obeys, ends of lines and invisible characters as `\u{1b}` or `\n`, and
/// the end of very long names as a count of characters.
pub fn printable(name: &str) -> Cow<'_, str> {
    if name.len() <= MOST_CHARACTERS {
        return escaped(name);
    }
    match name.char_indices().nth(MOST_CHARACTERS) {
        None => escaped(name),
        Some((end, _)) => {
            let (shown, rest) = name.split_at(end);
            Cow::Owned(format!("{}... ({} more characters)", escaped(shown), rest.chars().count()))
        }
    }
}

/// A path for people, escaped in the same way but never cut: it may have to be copied.
pub fn printable_path(path: &Path) -> String {
    escaped(&path.to_string_lossy()).into_owned()
}

/// Several names, separated by commas.
pub(crate) fn printable_list<S: AsRef<str>>(names: &[S]) -> String {
    names.iter().map(|name| printable(name.as_ref())).collect::<Vec<_>>().join(", ")
}

/// A text of several lines that was put together from such names or comes from another program: only the ends of
/// lines are kept as they are.
pub(crate) fn printable_lines(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("\n")
}

fn escaped(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_dangerous) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_dangerous(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Control characters (C0, DEL, C1), and Unicode's that are not seen but change how others are: ends of lines and
/// paragraphs, directions of writing, zero width.
fn is_dangerous(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{061C}' | '\u{180E}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}'
                | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E007F}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_the_rest_is_not() {
        for plain in ["", "ggml_init", "libggml.so.0", "C:\\llama\\ggml.dll", "größe \u{1F600}", "a`b'c\"d"]
        {
            assert!(matches!(printable(plain), Cow::Borrowed(text) if text == plain), "{plain}");
        }
        for (name, shown) in [
            ("\u{1b}[2Jx", "\\u{1b}[2Jx"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\u{9b}31m\u{7f}", "\\u{9b}31m\\u{7f}"),
            ("ab\u{202e}cd\u{2028}\u{200b}\u{feff}", "ab\\u{202e}cd\\u{2028}\\u{200b}\\u{feff}"),
        ] {
            assert_eq!(printable(name), shown);
            assert_eq!(printable_path(Path::new(name)), shown);
        }
        assert_eq!(printable_lines("one\u{1b}\ntwo\u{7}"), "one\\u{1b}\ntwo\\u{7}");
        // Whatever goes in: nothing that is obeyed comes out.
        let all: String = (0..=0x10FFFFu32).filter_map(char::from_u32).collect();
        assert!(!escaped(&all).chars().any(|c| c.is_control() || is_dangerous(c)));
    }

    #[test]
    fn very_long_names_are_cut_between_characters() {
        let long = "ü".repeat(5000);
        let shown = printable(&long);
        assert!(shown.starts_with("üü") && shown.ends_with("... (4600 more characters)"), "{shown}");
        assert_eq!(printable_path(Path::new(&long)), long);
        assert_eq!(printable(&"x".repeat(400)).len(), 400);
    }
}
