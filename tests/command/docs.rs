//! The generated pages under `docs/` say what the specs and the records of measurements say.
#![cfg(feature = "cli")]

use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compares a page with what `gristmill docs` prints with these arguments; with BLESS=1, rewrites it.
fn check(page: &str, arguments: &[OsString]) -> Result<(), Box<dyn Error>> {
    let output = Command::new(env!("CARGO_BIN_EXE_gristmill")).arg("docs").args(arguments).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let generated = String::from_utf8(output.stdout)?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &generated)?;
    }
    let found = std::fs::read_to_string(&path)?;
    let differs = found.lines().zip(generated.lines()).position(|(found, generated)| found != generated);
    assert!(
        found == generated,
        "{page} is not what `gristmill docs` prints (first difference in line {}); rewrite it with \
         `BLESS=1 cargo test --test command docs`",
        differs.map_or(found.lines().count().min(generated.lines().count()), |line| line) + 1
    );
    Ok(())
}

/// The newest record of a kind: their names begin with the date.
fn record(kind: &str) -> Result<PathBuf, Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/record");
    let mut records = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        let name = entry?.file_name().into_string().map_err(|name| format!("{name:?} is no text"))?;
        if name.ends_with(&format!("-{kind}.json")) {
            records.push(name);
        }
    }
    records.sort();
    Ok(folder.join(records.pop().ok_or(format!("no record of {kind}"))?))
}

#[test]
fn compatibility_page_is_up_to_date() -> Result<(), Box<dyn Error>> {
    check("docs/compatibility.md", &[])
}

#[test]
fn performance_page_is_up_to_date() -> Result<(), Box<dyn Error>> {
    let records = [record("formats")?, record("peers")?].map(PathBuf::into_os_string);
    let [formats, peers] = records;
    check("docs/performance.md", &["--performance".into(), formats, peers])
}

/// Each term of the glossary stands in the file that it names.
#[test]
fn the_glossary_says_where_its_terms_stand() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let plain = |text: &str| {
        let words = text.to_lowercase().replace(['-', '_'], " ");
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let mut terms = 0;
    for line in std::fs::read_to_string(root.join("docs/glossary.md"))?.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, term, meaning, place, _] = cells[..] else { continue };
        let Some(place) = place.strip_prefix('`').and_then(|place| place.strip_suffix('`')) else { continue };
        assert!(!meaning.is_empty(), "{term} has no meaning");
        let text = plain(&std::fs::read_to_string(root.join(place))?);
        for term in term.split(", ") {
            assert!(text.contains(&plain(term)), "`{term}` does not stand in {place}");
            terms += 1;
        }
    }
    assert!(terms >= 30, "only {terms} terms were found");
    Ok(())
}
