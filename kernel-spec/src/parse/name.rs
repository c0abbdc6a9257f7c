//! Names: what a spec is called, and what its fields and quantizers are called.

use crate::toml_walk::{At, Node};

/// File name without folder and `.toml`.
pub(crate) fn stem(path: &str) -> &str {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    name.strip_suffix(".toml").unwrap_or(name)
}

/// Names become Rust identifiers, parts of kernel names and command-line words.
pub(crate) fn is_name(name: &str) -> bool {
    name.len() <= 40
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// A lower-case identifier.
pub(crate) fn ident(node: &Node<'_>) -> Option<At<String>> {
    let at = node.string()?;
    if is_name(&at.value) {
        return Some(at);
    }
    let message = format!("`{}` is not a name", at.value.escape_debug());
    let help = "names are a lower-case letter, then lower-case letters, digits and `_`, at most 40";
    node.file.report(node.file.error("bad-name", at.span, message).help(help));
    None
}
