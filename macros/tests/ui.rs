//! What the macros accept and, word by word, how they refuse.
//!
//! `TRYBUILD=overwrite cargo test -p gristmill-macros --test ui` rewrites the expected messages. The wording of
//! rustc's own lines changes with its version; a mismatch there alone is no failure of the macros.

#[path = "../../tests/choice/mod.rs"]
mod choice;

#[test]
fn ui() {
    if choice::left_out("what the macros accept and refuse") {
        return;
    }
    let tests = trybuild::TestCases::new();
    tests.pass("tests/ui/pass/*.rs");
    tests.compile_fail("tests/ui/fail/*.rs");
}
