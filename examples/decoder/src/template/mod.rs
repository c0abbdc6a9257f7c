//! Chat templates: Jinja, as Hugging Face's files and GGUF files have it (`tokenizer.chat_template`). A template is a program of whoever
//! made the file, so what it may take is bounded: instructions and bytes, the depth of its lists, and the text that comes out.

mod paid;

use crate::error::Error;
use gristmill::gguf::GgufFile;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};
use std::collections::HashMap;
use std::sync::mpsc;
use std::time::Duration;

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

/// Instructions of a rendering, with one more for every 64 bytes that it makes: published templates take some hundreds for a message.
/// It bounds memory to 13 MB, time to a fraction of a second, and lists in lists to a depth that [`STACK`] holds.
const FUEL: u64 = 200_000;
/// Bytes of a conversation as text: more than any context here takes.
const MOST_TEXT: usize = 4 << 20;
/// What the engine does not count ends by this, as the text of a list that holds others twice, and they others, behind a `~`.
const MOST_TIME: Duration = Duration::from_secs(3);
/// Bytes of the stack on which templates run. Lists in lists are dropped one inside the other, as many as fuel buys; pages that nothing
/// is written to are not taken from memory.
const STACK: usize = 1 << 30;

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
        Template::new(text)
    }

    /// The template `text`.
    ///
    /// # Errors
    /// [`Error::Template`]: it is no Jinja.
    pub fn new(text: &str) -> Result<Template, Error> {
        let mut environment = Environment::new();
        // As the `transformers` package of Python has it.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        paid::add(&mut environment);
        let text = text.to_owned();
        let environment = bounded(move || environment.add_template_owned(NAME, text).map(|()| environment))?;
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
        let length: usize = messages.iter().map(|message| message.content.len()).sum();
        // Eight readings of a long text, and at most as much again.
        let fuel = FUEL + (length as u64 / 8).min(FUEL);
        let messages: Vec<Value> = messages.iter().map(message).collect();
        let special = Value::from_pairs(special.iter().map(|(name, text)| (*name, text.clone())));
        let values = context! { messages => messages, add_generation_prompt => true, ..special };
        let mut environment = self.0.clone();
        environment.set_fuel(Some(fuel));
        let text = bounded(move || environment.get_template(NAME)?.render(values))?;
        if text.len() > MOST_TEXT {
            return Err(Error::Template(format!(
                "it makes {} bytes of the conversation; up to {MOST_TEXT} are read",
                text.len()
            )));
        }
        Ok(text)
    }
}

/// What `run` gives, on a thread with a stack of its own. Behind [`MOST_TIME`] nobody waits for it any more; it goes on until the
/// process ends.
fn bounded<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, minijinja::Error> + Send + 'static,
) -> Result<T, Error> {
    let (sender, receiver) = mpsc::channel();
    // Errors hold variables of the template, so they end on that thread too. A receiver that went away wants nothing.
    let run = move || drop(sender.send(run().map_err(failed)));
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(run);
    thread.map_err(|error| Error::Template(format!("no thread to run it on: {error}")))?;
    receiver.recv_timeout(MOST_TIME).unwrap_or_else(|_| {
        Err(Error::Template(format!("it was not done within {} seconds", MOST_TIME.as_secs())))
    })
}

fn failed(error: minijinja::Error) -> Error {
    if error.kind() == ErrorKind::OutOfFuel {
        return Error::Template(format!(
            "it takes more than the instructions and the memory that a conversation may take (from {FUEL} on, and 64 bytes for each)"
        ));
    }
    Error::Template(format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str) -> Result<String, Error> {
        let messages = [Message { role: "user", content: " a, b\nc ".to_owned() }];
        Template::new(text)?.render(&messages, &HashMap::from([("bos_token", "<s>".to_owned())]))
    }

    /// What was refused took a second at most, whatever it asked for.
    #[test]
    fn a_template_takes_no_more_than_it_may() {
        let deep =
            "{% set ns = namespace(l=[]) %}{% for i in range(30000) %}{% set ns.l = [ns.l] %}{% endfor %}";
        let doubled = "{% set ns = namespace(l=['abcdefgh']) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}";
        for text in [
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
            "{{ '%1000000000d'|format(1) }}",
            "{{ '%(a)s%(a)s%(a)s'|format(a='b'*9000000) }}",
            "{{ '{:1000000000}'.format(1) }}",
            "{{ ('{0}'*10000).format('b'*100000) }}",
            "{{ 'a'|indent(10000000000) }}",
            "{{ 'a' * 100000000000 }}",
            "{{ ('a' * 1000000) * 10000 }}",
            "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
            "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}",
            "{{ ('a' * 10000)|list|join('b' * 1000000) }}",
            "{{ (['a' * 1000000] * 10000)|join }}",
            "{{ ''.join(['a' * 1000000] * 10000) }}",
            "{{ ('a' * 9000000)|trim('bcdefghi' * 100000 ~ 'a') }}",
            "{{ ('a' * 9000000).strip('bcdefghi' * 100000 ~ 'a') }}",
            "{{ ('a' * 9000000).split('a')|length }}",
            "{{ ('a' * 9000000)|split('a')|length }}",
            "{{ [1] * 10000000000 }}",
            "{% set ns = namespace(s='a') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
            "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
            "{{ 'a' * 5000000 }}",
            "{{ range(10000000000)|list }}",
            &format!("{deep}{{{{ ns.l }}}}"),
            &format!("{deep}{{{{ ns.l|tojson }}}}"),
            &format!("{deep}{{% for i in range(100000) %}}{{% set ns.l = [ns.l] %}}{{% endfor %}}"),
            &format!("{doubled}{{{{ ns.l }}}}"),
            &format!("{doubled}{{{{ ns.l|tojson }}}}"),
            &format!("{doubled}{{{{ ns.l|string|length }}}}"),
            &format!("{doubled}{{{{ ns.l|pprint|length }}}}"),
            &format!("{doubled}{{{{ [ns.l, 1]|join }}}}"),
            &format!("{doubled}{{{{ ','.join([ns.l, 1]) }}}}"),
            &format!("{doubled}{{{{ '{{}}'.format(ns.l) }}}}"),
            &format!("{doubled}{{{{ raise_exception(ns.l) }}}}"),
            &format!("{doubled}{{{{ ns.l.count(ns.l) }}}}"),
            &format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000)),
            &format!("{{{{ {}1{} }}}}", "[".repeat(5000), "]".repeat(5000)),
            // By its time; the thread ends with the process.
            &format!("{doubled}{{{{ ('a' ~ ns.l)|length }}}}"),
        ] {
            let start = std::time::Instant::now();
            let error = render(text).map(|text| text.len());
            let took = start.elapsed().as_secs_f64();
            println!("{took:.2} s: {}: {error:?}", text.chars().take(90).collect::<String>());
            assert!(matches!(error, Err(Error::Template(_))), "{text}: {error:?}");
            assert!(took < 20.0, "{text}: {took} s");
        }
    }

    /// The most fuel there is, for a text and for lists in lists.
    #[test]
    fn a_long_conversation_is_rendered() {
        let messages = vec![Message { role: "user", content: "word ".repeat(60_000) }; 6];
        let rendered = |text: &str| Template::new(text)?.render(&messages, &HashMap::new());
        let turns = "{% for message in messages %}{% set content = message.content.split('</think>')[-1].strip() %}\
                     {{ '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}{% endfor %}";
        let text = rendered(turns).map_err(|error| error.to_string());
        assert!(
            text.as_ref().is_ok_and(|text| text.len() > 6 * 5 * 59_999),
            "{:?}",
            text.map(|text| text.len())
        );
        let deep =
            "{% set ns = namespace(l=[]) %}{% for i in range(40000) %}{% set ns.l = [ns.l] %}{% endfor %}";
        let alone = rendered(deep).map_err(|error| error.to_string());
        assert_eq!(alone.as_deref(), Ok(""), "the lists themselves can be paid for");
        for end in [
            "{{ ns.l|tojson|length }}",
            "{{ ns.l|string|length }}",
            "{{ ns.l }}",
            "{{ raise_exception(ns.l) }}",
        ] {
            // What comes of it is up to the engine; that the stack holds it is shown by getting here.
            let found = rendered(&format!("{deep}{end}")).map(|text| text.len());
            println!("{end}: {found:?}");
        }
    }

    /// What published templates call gives what it did.
    #[test]
    fn filters_and_methods_are_pythons() {
        for (text, expected) in [
            ("{{ messages[0].content.strip() }}", "a, b\nc"),
            ("{{ messages[0]['content'] | trim }}|", "a, b\nc|"),
            ("{{ 'xaax'.strip('x') }}{{ 'xbx' | trim('x') }}{{ 'cx'.rstrip('x') }}", "aabc"),
            ("{{ messages[0].content.split(',')[-1] }}", " b\nc "),
            ("{{ 'a b'|split|join('-') }}{{ 'a,b' | split(',', 1) | length }}", "a-b2"),
            ("{{ 'a\\nb'.splitlines() | length }}{{ 'a\\nb' | lines | length }}", "22"),
            (
                "{{ ['a', 1, 'b'] | join(', ') }}{{ ','.join(['c', 'd']) }}{{ ['e', 'f'] | join(d='+') }}",
                "a, 1, bc,de+f",
            ),
            (
                "{{ messages | map(attribute='role') | join }}{{ messages | join('', attribute='role') }}",
                "useruser",
            ),
            (
                "{{ '%s is %02d' | format('a', 7) }}{{ '%(x)s' | format(x='y') }}{{ '{} {:>3}'.format('b', 7) }}",
                "a is 07yb   7",
            ),
            ("{{ 'aba'.replace('a', 'cc') }}{{ 'a'.upper() }}{{ 'abc'.startswith('ab') }}", "ccbccATrue"),
            ("{{ {'a': 1}.items() | list | length }}{{ {'a': 1}.get('b', 2) }}", "12"),
            (
                "{{ {'a': [1]} | tojson(indent=2) }}{{ [1, 'b'] | string }}",
                "{\n  \"a\": [\n    1\n  ]\n}[1, 'b']",
            ),
            ("{{ messages | tojson }}", "[{\"role\": \"user\", \"content\": \" a, b\\nc \"}]"),
        ] {
            let found = render(text).map_err(|error| error.to_string());
            assert_eq!(found.as_deref(), Ok(expected), "{text}");
        }
        let error = render("{{ raise_exception('no such ' ~ 'role') }}").map_err(|error| error.to_string());
        assert!(error.as_ref().is_err_and(|error| error.contains("no such role")), "{error:?}");
    }
}
