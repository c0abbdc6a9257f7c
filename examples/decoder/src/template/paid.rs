//! Filters and methods of chat templates whose work or memory the engine counts only when it is done, or not at all. Here they pay before
//! they begin, in the fuel of the engine (one for 64 bytes), so that it bounds what a template can cost.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Rest, StringInput, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};
use std::borrow::Cow;
use std::sync::Arc;

/// Bytes of a value, and of a place in a list.
const SLOT: usize = 32;
/// Lists in lists.
const MOST_DEPTH: usize = 64;

/// Puts them into an environment.
pub fn add(environment: &mut Environment<'_>) {
    environment.add_filter("join", join);
    environment.add_filter("trim", trim);
    environment.add_filter("split", split);
    environment.add_filter("lines", lines);
    environment.add_filter("format", printf);
    // A list that holds others twice, and they others, is longer as text than the engine sees.
    environment.add_filter("string", |state: &State, value: &Value| {
        measure(state, value, MOST_DEPTH)?;
        filters::string(state, value)
    });
    environment.add_filter(
        "tojson",
        |state: &State, value: &Value, indent: Option<Value>, kwargs: Kwargs| {
            measure(state, value, MOST_DEPTH)?;
            filters::tojson(value, indent, kwargs)
        },
    );
    environment.add_filter("pprint", |state: &State, value: &Value| {
        measure(state, value, MOST_DEPTH).map(|_| filters::pprint(value))
    });
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| {
        measure(state, value, MOST_DEPTH)?;
        minijinja::escape_formatter(out, state, value)
    });
    environment.add_function("raise_exception", |state: &State, why: Value| -> Result<String, Error> {
        measure(state, &why, MOST_DEPTH)?;
        Err(Error::new(ErrorKind::InvalidOperation, why.to_string()))
    });
}

fn pay(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel(bytes as u64 / 64 + 1)
}

/// Bytes of a value as text, about; a list that holds another twice is as long as both. Pays for what it looks at.
fn measure(state: &State, value: &Value, depth: usize) -> Result<usize, Error> {
    let own = value.as_str().map_or(SLOT, str::len);
    pay(state, own)?;
    let mut all = own;
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(Error::new(ErrorKind::InvalidOperation, "lists in lists, too many of them"));
        };
        for item in value.try_iter()? {
            all = all.saturating_add(measure(state, &item, depth)?);
            if value.kind() == ValueKind::Map {
                all = all.saturating_add(measure(state, &value.get_item(&item)?, depth)?);
            }
        }
    }
    Ok(all)
}

fn join(
    state: &mut State<'_, '_>,
    values: &Value,
    joiner: Option<StringInput<'_>>,
    attribute: Option<&str>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let between = joiner.as_ref().map_or(0, |joiner| joiner.as_str().len());
    let between = between.max(kwargs.peek::<Option<&str>>("d").ok().flatten().map_or(0, str::len));
    pay_for_joining(state, values, between)?;
    filters::join(state, values, joiner, attribute, kwargs)
}

fn pay_for_joining(state: &State, values: &Value, between: usize) -> Result<(), Error> {
    // What is not a list is refused behind this.
    let Ok(items) = values.try_iter() else { return Ok(()) };
    for item in items {
        measure(state, &item, MOST_DEPTH)?;
        pay(state, between)?;
    }
    Ok(())
}

/// Every character may be compared with each of `chars`.
fn pay_for_trimming(state: &State, text: &str, chars: Option<&str>) -> Result<(), Error> {
    pay(state, text.len().saturating_mul(chars.map_or(1, str::len).max(1)))
}

fn trim(state: &State, text: StringInput<'_>, chars: Option<Cow<'_, str>>) -> Result<Value, Error> {
    pay_for_trimming(state, text.as_str(), chars.as_deref())?;
    Ok(filters::trim(text, chars))
}

/// Each piece is a value of a list.
fn pay_for_splitting(state: &State, text: &str, by: Option<&str>) -> Result<(), Error> {
    pay(state, text.len())?;
    let pieces = match by {
        Some(by) => text.matches(by).count(),
        None => text.split_whitespace().count(),
    };
    pay(state, pieces.saturating_mul(SLOT))
}

fn split(state: &State, text: &Value, by: Option<Arc<str>>, most: Option<i64>) -> Result<Value, Error> {
    pay_for_splitting(state, text.as_str().unwrap_or_default(), by.as_deref())?;
    filters::split(text, by, most)
}

fn lines(state: &State, text: &Value) -> Result<Value, Error> {
    pay_for_splitting(state, text.as_str().unwrap_or_default(), Some("\n"))?;
    filters::lines(text)
}

fn printf(state: &State, text: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let Some(text) = text.as_str() else {
        return Err(Error::new(ErrorKind::InvalidOperation, "value is not a string"));
    };
    let arguments = arguments.into_values();
    pay_for_formatting(state, text, '%', &arguments)?;
    format(FormatStyle::Printf, text, &arguments).map(Value::from)
}

/// Each place may take the longest of the values, filled up to the widths that the text names.
fn pay_for_formatting(state: &State, text: &str, place: char, arguments: &[Value]) -> Result<(), Error> {
    let mut longest = 0;
    for argument in arguments {
        longest = longest.max(measure(state, argument, MOST_DEPTH)?);
    }
    let widths = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    // More digits than a number has are a large one.
    let widths = widths.map(|digits| digits.parse().unwrap_or(usize::MAX)).fold(0, usize::saturating_add);
    // A character takes up to four bytes.
    let values = text.matches(place).count().saturating_mul(longest);
    pay(state, values.saturating_add(widths).saturating_mul(4).saturating_add(text.len()))
}

/// The methods of Python that published chat templates call.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let text = |at: usize| arguments.get(at).and_then(Value::as_str);
    match (value.as_str(), method) {
        (Some(own), "join") => {
            if let Some(values) = arguments.first() {
                pay_for_joining(state, values, own.len())?;
            }
        }
        (Some(own), "format") => pay_for_formatting(state, own, '{', arguments)?,
        (Some(own), "strip" | "lstrip" | "rstrip") => pay_for_trimming(state, own, text(0))?,
        (Some(own), "split") => pay_for_splitting(state, own, text(0))?,
        (Some(own), "splitlines") => pay_for_splitting(state, own, Some("\n"))?,
        (Some(own), "replace") => {
            let (old, new) = (text(0).unwrap_or_default(), text(1).unwrap_or_default());
            pay(state, own.len())?;
            pay(state, own.matches(old).count().saturating_mul(new.len()))?;
        }
        (Some(own), _) => pay(state, own.len())?,
        // It would compare lists with lists.
        (None, "count") => return Err(Error::from(ErrorKind::UnknownMethod)),
        (None, _) => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
}
