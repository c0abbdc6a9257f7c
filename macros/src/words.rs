//! Words in macro arguments: spelled as in specs, checked against the vocabulary.

use gristmill_spec::nearest;
use proc_macro2::Span;
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Ident, LitStr, Result};

/// A name, as an identifier or, where it is none (`"sse4.1"`), as a string.
#[derive(Debug)]
pub struct Word {
    pub text: String,
    pub span: Span,
}

impl Parse for Word {
    fn parse(input: ParseStream<'_>) -> Result<Word> {
        if input.peek(LitStr) {
            let literal: LitStr = input.parse()?;
            return Ok(Word { text: literal.value(), span: literal.span() });
        }
        if !input.peek(Ident::peek_any) {
            return Err(input.error("expected a name, or a name in quotes"));
        }
        let ident = Ident::parse_any(input)?;
        Ok(Word { text: ident.unraw().to_string(), span: ident.span() })
    }
}

impl Word {
    /// The word of a vocabulary that this is.
    pub fn of<T: Copy>(&self, what: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T> {
        if let Some(found) = all.iter().find(|word| name(**word) == self.text) {
            return Ok(*found);
        }
        let names: Vec<&str> = all.iter().map(|word| name(*word)).collect();
        Err(Error::new(self.span, unknown(what, &self.text, &names)))
    }

    /// The text, if a spec may have such a name.
    pub fn name(&self, what: &str) -> Result<&str> {
        let sound = self.text.starts_with(|c: char| c.is_ascii_lowercase())
            && self.text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if sound {
            return Ok(&self.text);
        }
        let message = format!("`{}` is no name for a {what}", self.text);
        Err(Error::new(self.span, format!("{message}: names are lower-case letters, digits and `_`")))
    }
}

/// The message for a word that is not on a list: what may have been meant, and short lists as a whole.
pub fn unknown(what: &str, found: &str, known: &[&str]) -> String {
    let meant = nearest(found, known.iter().copied()).map(|meant| format!(" (did you mean `{meant}`?)"));
    let list = (known.len() <= 4 || meant.is_none()).then(|| format!("; known are: {}", known.join(", ")));
    format!("`{found}` is no {what}{}{}", meant.unwrap_or_default(), list.unwrap_or_default())
}
