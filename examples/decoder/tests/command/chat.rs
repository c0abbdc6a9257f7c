//! Conversations.

use crate::copies::declaring;
use crate::support::{chat, model};
use gristmill::gguf::Value;

#[test]
fn a_conversation_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = &model(folder.path(), "model.gguf", &[]);
    // A line that is no text, and a next one.
    let (code, out, error) = chat(path, &["-n", "3"], b"caf\xe9\nthe\n");
    assert!(code == Some(0) && error.contains("not UTF-8: byte 3"), "{error}");
    assert_eq!(out.matches("> ").count(), 3, "{out}");
    // More turns than the context holds.
    let (code, out, error) = chat(path, &["-n", "6", "--system", "b"], "a b c\n".repeat(9).as_bytes());
    assert!(
        code == Some(0)
            && error.contains("the context of 64 positions is full: the oldest turns were dropped, 1"),
        "{error}"
    );
    assert_eq!(out.matches("> ").count(), 10, "{out}");
    // One that is too long by itself.
    let (code, _, error) = chat(path, &["-n", "6"], [&b"a ".repeat(70)[..], b"\nthe\n"].concat().as_slice());
    assert!(code == Some(0) && error.contains("leaves no room for an answer"), "{error}");
    // What was said before it stays, as dropping that would not help.
    let lines = [b"the\n", &b"a ".repeat(70)[..], b"\nthe\n"].concat();
    let (code, _, error) = chat(path, &["-n", "6"], &lines);
    assert!(code == Some(0) && error.contains("leaves no room for an answer"), "{error}");
    assert!(!error.contains("were dropped"), "{error}");
    let (code, _, error) = chat(path, &["-n", "6"], &vec![0; 3 << 20]);
    assert!(code == Some(1) && error.contains("longer than 1048576 bytes"), "{error}");
}

#[test]
fn a_conversation_begins_with_the_token_for_that_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = &model(folder.path(), "model.gguf", &[]);
    let template = "{% for message in messages %}<|turn|>{{ message['content'] }}{% endfor %}";
    let said = |path: &str, begin: &str| {
        let template = format!("{begin}{template}");
        let path = declaring(path, "tokenizer.chat_template", Value::String(&template));
        let (code, out, error) = chat(&path, &["-n", "9"], b"the\nquick\n");
        assert_eq!(code, Some(0), "{error}");
        out
    };
    let once = said(path, "{{ bos_token }}");
    assert_eq!(said(path, ""), once, "by the template or without it");
    // A copy under another name, as `said` writes where `declaring` does.
    let other = folder.path().join("never.gguf");
    std::fs::rename(declaring(path, "tokenizer.ggml.add_bos_token", Value::Bool(false)), &other).unwrap();
    let never = other.to_str().unwrap();
    assert_eq!(said(never, "{{ bos_token }}"), once);
    assert_ne!(said(never, ""), once, "without it the answers are others");
}
