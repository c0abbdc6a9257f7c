//! Chat templates: Jinja, as Hugging Face's files and GGUF files have it (`tokenizer.chat_template`).

use crate::error::Error;
use gristmill::gguf::GgufFile;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};
use std::collections::HashMap;

/// Who said what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// What.
    pub content: String,
}

/// The template of a file.
#[derive(Debug)]
pub struct Template(Environment<'static>);

const NAME: &str = "chat";

impl Template {
    /// Reads it.
    ///
    /// # Errors
    /// [`Error::Template`]: the file has none, or one that is no Jinja.
    pub fn of(file: &GgufFile) -> Result<Template, Error> {
        let text = file.value("tokenizer.chat_template").and_then(|value| value.as_str());
        let text = text.ok_or_else(|| {
            Error::Template(
                "there is none (`tokenizer.chat_template`)\n  help: `decoder run -p TEXT` continues a text"
                    .to_owned(),
            )
        })?;
        let mut environment = Environment::new();
        // As the `transformers` package of Python has it.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?;
        environment.set_syntax(syntax);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |why: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, why))
        });
        environment.add_template_owned(NAME, text.to_owned()).map_err(failed)?;
        Ok(Template(environment))
    }

    /// A conversation as text, up to where the model is to go on.
    ///
    /// # Errors
    /// [`Error::Template`].
    pub fn render(
        &self,
        messages: &[Message],
        special: &HashMap<&'static str, String>,
    ) -> Result<String, Error> {
        let message =
            |Message { role, content }: &Message| context! { role => *role, content => content.clone() };
        let messages: Vec<Value> = messages.iter().map(message).collect();
        let special = Value::from_pairs(special.iter().map(|(name, text)| (*name, text.clone())));
        let values = context! { messages => messages, add_generation_prompt => true, ..special };
        self.0.get_template(NAME).and_then(|template| template.render(values)).map_err(failed)
    }
}

fn failed(error: minijinja::Error) -> Error {
    Error::Template(format!("{error:#}"))
}
