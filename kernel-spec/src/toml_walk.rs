//! Walking parsed TOML by hand: every leaf keeps its span, every mistake is reported and the walk goes on.
//!
//! Methods return `None` after they have reported what is wrong, so a caller only decides what can
//! still be checked without the value.

use crate::diagnostic::{Diagnostic, Sink, quoted, shown};
use crate::model::Origin;
use crate::nearest::nearest;
use std::ops::{Range, RangeInclusive};
use toml::de::{DeTable, DeValue};

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Span {
    pub start: usize,
    pub end: usize,
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Span {
        Span { start: range.start, end: range.end }
    }
}

impl From<Span> for Range<usize> {
    fn from(span: Span) -> Range<usize> {
        span.start..span.end
    }
}

/// A value and where it was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<T> {
    pub value: T,
    pub span: Span,
}

/// A text file of the set, and the place for what is said about it.
#[derive(Debug)]
pub(crate) struct File<'a> {
    pub path: &'a str,
    pub text: &'a str,
    pub sink: &'a Sink,
    /// Where lines end.
    ends: Vec<usize>,
}

impl<'a> File<'a> {
    pub(crate) fn new(path: &'a str, text: &'a str, sink: &'a Sink) -> File<'a> {
        File { path, text, sink, ends: text.match_indices('\n').map(|(at, _)| at).collect() }
    }

    /// A new error about this file, not yet reported.
    pub(crate) fn error(&self, code: &'static str, span: Span, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(code, self.path, span, message)
    }

    pub(crate) fn report(&self, diagnostic: Diagnostic) {
        self.sink.push(diagnostic);
    }

    pub(crate) fn origin(&self, span: Span) -> Origin {
        let line = self.ends.partition_point(|end| *end < span.start) + 1;
        Origin {
            file: self.path.to_owned(),
            line: u32::try_from(line).unwrap_or(u32::MAX),
            span: span.into(),
        }
    }
}

/// A TOML value under a key.
#[derive(Clone, Copy)]
pub(crate) struct Node<'d> {
    pub file: &'d File<'d>,
    /// The key it stands under (for an element of an array, the array's).
    pub key: &'d str,
    pub value: &'d DeValue<'d>,
    pub span: Span,
    /// It is an element of the array under the key.
    item: bool,
}

/// A TOML table whose keys have been checked against the allowed ones.
#[derive(Clone, Copy)]
pub(crate) struct Table<'d> {
    pub file: &'d File<'d>,
    /// What it describes, for messages: `a field`.
    pub what: &'static str,
    pub table: &'d DeTable<'d>,
    pub span: Span,
    keys: &'static [&'static str],
}

impl<'d> Node<'d> {
    /// What a message calls it.
    fn subject(&self) -> String {
        if self.item { format!("an element of `{}`", self.key) } else { format!("`{}`", self.key) }
    }

    fn wrong_type(&self, expected: &str) {
        let article = |word: &str| if word.starts_with(['a', 'i']) { "an" } else { "a" };
        let found = self.value.type_str();
        self.file.report(
            self.file
                .error("wrong-type", self.span, format!("{} must be {expected}", self.subject()))
                .label(format!("this is {} {found}", article(found))),
        );
    }

    /// A string.
    pub(crate) fn string(&self) -> Option<At<String>> {
        match self.value {
            DeValue::String(s) => Some(At { value: s.to_string(), span: self.span }),
            _ => {
                self.wrong_type("a string");
                None
            }
        }
    }

    /// A line of text for people.
    pub(crate) fn doc(&self) -> Option<String> {
        let text = self.string()?;
        if text.value.trim().is_empty() || text.value.chars().any(char::is_control) {
            self.file.report(
                self.file
                    .error("out-of-range", text.span, format!("`{}` must be one line of text", self.key))
                    .help("it becomes the first line of the generated documentation"),
            );
            return None;
        }
        Some(text.value)
    }

    /// An integer within bounds.
    pub(crate) fn integer(&self, bounds: RangeInclusive<i64>) -> Option<At<i64>> {
        let DeValue::Integer(number) = self.value else {
            self.wrong_type("an integer");
            return None;
        };
        let value = i64::from_str_radix(number.as_str(), number.radix()).ok();
        match value {
            Some(value) if bounds.contains(&value) => Some(At { value, span: self.span }),
            _ => {
                let bounds = if *bounds.end() == i64::MAX {
                    format!("at least {}", bounds.start())
                } else {
                    format!("from {} to {}", bounds.start(), bounds.end())
                };
                self.file.report(
                    self.file
                        .error("out-of-range", self.span, format!("{} must be {bounds}", self.subject()))
                        .label("out of range"),
                );
                None
            }
        }
    }

    /// A small unsigned integer within bounds.
    pub(crate) fn unsigned(&self, bounds: RangeInclusive<u32>) -> Option<At<u32>> {
        let at = self.integer(i64::from(*bounds.start())..=i64::from(*bounds.end()))?;
        u32::try_from(at.value).ok().map(|value| At { value, span: at.span })
    }

    /// A signed integer within bounds.
    pub(crate) fn signed(&self, bounds: RangeInclusive<i32>) -> Option<At<i32>> {
        let at = self.integer(i64::from(*bounds.start())..=i64::from(*bounds.end()))?;
        i32::try_from(at.value).ok().map(|value| At { value, span: at.span })
    }

    /// A finite number, written with or without a point.
    pub(crate) fn number(&self) -> Option<At<f64>> {
        let value = match self.value {
            DeValue::Float(number) => number.as_str().parse::<f64>().ok(),
            DeValue::Integer(number) => {
                // 2^53 and below: a larger one would not be the number that was written.
                let value = i64::from_str_radix(number.as_str(), number.radix()).ok();
                value.filter(|v| v.unsigned_abs() <= 1 << 53).map(|v| v as f64)
            }
            _ => {
                self.wrong_type("a number");
                return None;
            }
        };
        match value.filter(|v| v.is_finite()) {
            Some(value) => Some(At { value, span: self.span }),
            None => {
                self.file.report(
                    self.file
                        .error(
                            "out-of-range",
                            self.span,
                            format!("{} must be a finite number", self.subject()),
                        )
                        .label("not finite in double precision"),
                );
                None
            }
        }
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&self) -> Option<At<bool>> {
        match self.value {
            DeValue::Boolean(value) => Some(At { value: *value, span: self.span }),
            _ => {
                self.wrong_type("`true` or `false`");
                None
            }
        }
    }

    /// The elements of an array.
    pub(crate) fn items(&self) -> Option<Vec<Node<'d>>> {
        let DeValue::Array(array) = self.value else {
            self.wrong_type("an array");
            return None;
        };
        let item = |item: &'d toml::Spanned<DeValue<'d>>| Node {
            file: self.file,
            key: self.key,
            value: item.get_ref(),
            span: item.span().into(),
            item: true,
        };
        Some(array.iter().map(item).collect())
    }

    /// An array in which every element is right; `None` if any is not.
    pub(crate) fn list<T>(&self, f: impl FnMut(&Node<'d>) -> Option<T>) -> Option<Vec<T>> {
        let items: Vec<Option<T>> = self.items()?.iter().map(f).collect();
        items.into_iter().collect()
    }

    /// One string or an array of strings.
    pub(crate) fn strings(&self) -> Option<Vec<At<String>>> {
        match self.value {
            DeValue::Array(_) => self.list(Node::string),
            DeValue::String(_) => self.string().map(|s| vec![s]),
            _ => {
                self.wrong_type("a string or an array of strings");
                None
            }
        }
    }

    /// A table; reports every key that is not in `keys`.
    pub(crate) fn table(&self, what: &'static str, keys: &'static [&'static str]) -> Option<Table<'d>> {
        match self.value {
            DeValue::Table(table) => Some(Table::open(self.file, what, table, self.span, keys)),
            _ => {
                self.wrong_type("a table");
                None
            }
        }
    }

    /// One of a list of words.
    pub(crate) fn word<T: Copy>(&self, what: &str, words: &[(&str, T)]) -> Option<At<T>> {
        let at = self.string()?;
        match words.iter().find(|(word, _)| *word == at.value) {
            Some((_, value)) => Some(At { value: *value, span: at.span }),
            None => {
                self.unknown(&at, what, words.iter().map(|(word, _)| *word));
                None
            }
        }
    }

    /// Reports a word that is none of `words`.
    pub(crate) fn unknown<'w>(&self, found: &At<String>, what: &str, words: impl Iterator<Item = &'w str>) {
        self.file.report(unknown(self.file, found, what, words));
    }
}

/// The error for a name that is none of `names`, with the nearest one.
pub(crate) fn unknown<'w>(
    file: &File<'_>,
    found: &At<String>,
    what: &str,
    names: impl Iterator<Item = &'w str>,
) -> Diagnostic {
    let names: Vec<&str> = names.collect();
    let mut help = match nearest(&found.value, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`? "),
        None => String::new(),
    };
    if names.is_empty() {
        help.push_str("there is none to choose from");
    } else {
        help.push_str(&format!("known: {}", quoted(names)));
    }
    file.error("unknown-name", found.span, format!("unknown {what} `{}`", shown(&found.value)))
        .label(format!("no such {what}"))
        .help(help)
}

/// Keys that there were once, each with what it stood in and why it went.
const GONE: &[(&str, &str, &str)] = &[
    ("a quantizer", "nan", "there is one policy, NaN and infinities are always refused with their position"),
    ("`[quantize]`", "nan", "there is one policy, NaN and infinities are always refused with their position"),
    (
        "a kernel",
        "accuracy",
        "what each op gives on every device is fixed and verified, see docs/architecture.md",
    ),
    ("a CPU variant", "workspace", "a kernel's workspace always follows from its shapes"),
];

impl<'d> Table<'d> {
    /// Takes a table and reports every key that is not in `keys`.
    pub(crate) fn open(
        file: &'d File<'d>,
        what: &'static str,
        table: &'d DeTable<'d>,
        span: Span,
        keys: &'static [&'static str],
    ) -> Table<'d> {
        for (key, _) in table.iter() {
            let name = key.get_ref().as_ref();
            if !keys.contains(&name) {
                let help = match GONE.iter().find(|(of, key, _)| *of == what && *key == name) {
                    Some((_, _, why)) => format!("leave it out: {why}"),
                    None => {
                        let near = nearest(name, keys.iter().copied());
                        let near = near.map_or(String::new(), |near| format!("did you mean `{near}`? "));
                        format!("{near}{what} has: {}", quoted(keys.iter().copied()))
                    }
                };
                file.report(
                    file.error(
                        "unknown-key",
                        key.span().into(),
                        format!("unknown key `{}` in {what}", shown(name)),
                    )
                    .label("unknown key")
                    .help(help),
                );
            }
        }
        Table { file, what, table, span, keys }
    }

    /// The value of an optional key.
    pub(crate) fn get(&self, key: &'static str) -> Option<Node<'d>> {
        debug_assert!(self.keys.contains(&key), "`{key}` is asked for but not allowed in {}", self.what);
        let value = self.table.get(key)?;
        Some(Node { file: self.file, key, value: value.get_ref(), span: value.span().into(), item: false })
    }

    /// The value of a required key; reports it if it is missing.
    pub(crate) fn need(&self, key: &'static str) -> Option<Node<'d>> {
        let node = self.get(key);
        if node.is_none() {
            let code = "missing-key";
            self.file.report(
                self.file
                    .error(code, self.span, format!("{} needs `{key}`", self.what))
                    .label(format!("`{key}` is missing")),
            );
        }
        node
    }

    /// The line that describes the spec `name`. Specs should have one; without it the name stands in.
    pub(crate) fn doc(&self, name: &str) -> String {
        match self.get("doc") {
            Some(node) => node.doc().unwrap_or_default(),
            None => {
                let message = format!("{} should say in `doc` what it is", self.what);
                let help = "one line, for example `doc = \"4 bits in blocks of 32, one f16 scale\"`; lists and generated code show it";
                self.file.report(self.file.error("missing-doc", self.span, message).help(help).warning());
                name.to_owned()
            }
        }
    }

    /// Where a key (not its value) is written.
    pub(crate) fn key_span(&self, key: &str) -> Option<Span> {
        self.table.get_key_value(key).map(|(k, _)| k.span().into())
    }

    /// The tables of an array of tables; empty if the key is absent.
    pub(crate) fn tables(
        &self,
        key: &'static str,
        what: &'static str,
        keys: &'static [&'static str],
    ) -> Option<Vec<Table<'d>>> {
        match self.get(key) {
            None => Some(Vec::new()),
            Some(node) => node.list(|item| item.table(what, keys)),
        }
    }
}
