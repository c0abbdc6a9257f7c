//! The page of requirements names what there is.

use std::collections::BTreeMap;
use std::path::Path;

type Tested = Result<(), Box<dyn std::error::Error>>;

/// Requirements of each theme, by the letter of its heading.
const THEMES: [(char, usize); 8] =
    [('A', 10), ('B', 7), ('C', 9), ('D', 4), ('E', 6), ('F', 4), ('G', 2), ('H', 7)];

/// What stands between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Whether a file has a test of this name.
fn has_test(text: &str, function: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    while lines.by_ref().any(|line| line == "#[test]") {
        let named = lines.by_ref().find(|line| !line.starts_with("#["));
        let name = named.and_then(|line| line.strip_prefix("fn ")).and_then(|rest| rest.split_once('('));
        if name.is_some_and(|(name, _)| name == function) {
            return true;
        }
    }
    false
}

#[test]
fn the_page_names_what_there_is() -> Tested {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/requirements.md"))?;
    let mut found: BTreeMap<char, usize> = BTreeMap::new();
    for (number, line) in page.lines().enumerate() {
        let row: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", code, asked, places, shown, missing, ""] = row[..] else {
            assert!(!line.starts_with('|'), "line {}: a row has five cells: {line}", number + 1);
            continue;
        };
        let Some((letter, index)) = code.chars().next().zip(code.get(1..)) else { continue };
        let Ok(index) = index.parse::<usize>() else { continue };
        let count = found.entry(letter).or_default();
        *count += 1;
        assert_eq!(index, *count, "{code} does not follow its neighbour");
        assert!(!asked.is_empty(), "{code} says nothing");
        for place in quoted(places) {
            assert!(root.join(place).exists(), "{code}: there is no {place}");
        }
        let tests: Vec<&str> = quoted(shown).collect();
        assert!(!missing.is_empty() || !tests.is_empty(), "{code} is neither shown nor said to be missing");
        assert_eq!(
            places.is_empty(),
            tests.is_empty(),
            "{code}: what is somewhere is shown, and what is shown is somewhere"
        );
        for test in tests {
            let (file, function) =
                test.split_once("::").ok_or(format!("{code}: {test} is no file::function"))?;
            let text = std::fs::read_to_string(root.join(file))
                .map_err(|error| format!("{code}: {file}: {error}"))?;
            assert!(has_test(&text, function), "{code}: {file} has no test {function}");
        }
    }
    assert_eq!(found.into_iter().collect::<Vec<_>>(), THEMES);
    Ok(())
}
