//! Text of C, C++ and CUDA as a compiler reads it.

/// The text without its comments, of which those between `/*` and `*/` are a space.
pub(crate) fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['/', '"', '\'']) {
        let (before, from) = rest.split_at(at);
        code.push_str(before);
        let (len, kept) = if from.starts_with("//") {
            (from.find('\n').unwrap_or(from.len()), "")
        } else if let Some(comment) = from.strip_prefix("/*") {
            (comment.find("*/").map_or(from.len(), |end| end + 4), " ")
        } else {
            let len = literal(from);
            (len, &from[..len])
        };
        code.push_str(kept);
        rest = &from[len..];
    }
    code + rest
}

/// Bytes of the literal that a text begins with, or of its first letter where no literal ends on its line.
fn literal(text: &str) -> usize {
    let first = text.bytes().next().filter(|first| *first != b'/');
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1).take_while(|(_, byte)| *byte != b'\n') {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if Some(byte) == first => return at + 1,
            _ => {}
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_go_and_literals_stay() {
        for (text, code) in [
            ("a / b // c\nd", "a / b \nd"),
            ("a/* b\n \" */c", "a c"),
            ("a /* no end", "a  "),
            ("a // no end", "a "),
            ("\"http://x /* \" // y", "\"http://x /* \" "),
            ("'\"' /* y */ \"\\\"//\"", "'\"'   \"\\\"//\""),
            ("1'000 + 2 /* x */", "1'000 + 2  "),
            ("\"no end\n// x\ny", "\"no end\n\ny"),
            ("/", "/"),
            ("", ""),
        ] {
            assert_eq!(without_comments(text), code, "{text}");
        }
    }
}
