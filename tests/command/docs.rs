//! The generated pages under `docs/` say what the specs and the records of measurements say.
#![cfg(feature = "cli")]

use gristmill_records::peers::{ModelRun, Models};
use pulldown_cmark::{Event, Tag, TagEnd};
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compares a page with what `gristmill docs` prints with these arguments; with BLESS=1, rewrites it.
fn check(page: &str, arguments: &[OsString]) -> Result<(), Box<dyn Error>> {
    let output = Command::new(env!("CARGO_BIN_EXE_gristmill")).arg("docs").args(arguments).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let generated = String::from_utf8(output.stdout)?;
    hold(page, &generated, "what `gristmill docs` prints")
}

/// Compares a page with what it is to be, said in words too; with BLESS=1, rewrites it.
fn hold(page: &str, generated: &str, what: &str) -> Result<(), Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, generated)?;
    }
    let found = std::fs::read_to_string(&path)?;
    let differs = found.lines().zip(generated.lines()).position(|(found, generated)| found != generated);
    assert!(
        found == generated,
        "{page} is not {what} (first difference in line {}); rewrite it with \
         `BLESS=1 cargo test --test command docs`",
        differs.map_or(found.lines().count().min(generated.lines().count()), |line| line) + 1
    );
    Ok(())
}

/// The newest record of a kind of each machine that there is one of, in the order of the days with which their names begin.
fn records(kind: &str) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/record");
    let mut newest = BTreeMap::new();
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.to_str().ok_or("a name is no text")?.ends_with(&format!("-{kind}.json")) {
            let record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
            let machine = record["machine"]["cpu"].as_str().ok_or("a record names no processor")?.to_owned();
            let so_far: &mut PathBuf = newest.entry(machine).or_default();
            *so_far = path.max(std::mem::take(so_far));
        }
    }
    let mut records: Vec<PathBuf> = newest.into_values().collect();
    records.sort();
    Ok(records)
}

#[test]
fn compatibility_page_is_up_to_date() -> Result<(), Box<dyn Error>> {
    check("docs/compatibility.md", &[])
}

#[test]
fn performance_page_is_up_to_date() -> Result<(), Box<dyn Error>> {
    let mut arguments = vec!["--performance".into()];
    // Whole models, the last, take an idle machine for an hour.
    for (kind, required) in [("formats", true), ("peers", true), ("candle", true), ("models", false)] {
        let records = records(kind)?;
        assert!(!required || !records.is_empty(), "no record of {kind}");
        arguments.extend(records.into_iter().map(PathBuf::into_os_string));
    }
    check("docs/performance.md", &arguments)
}

/// The README's table of whole models has the newest record of each machine; with BLESS=1, it is rewritten.
#[test]
fn models_in_the_readme_are_those_of_the_records() -> Result<(), Box<dyn Error>> {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"))?;
    let head = "| machine | model | beside |";
    let start = page.find(head).ok_or("README.md has no table of whole models")?;
    let length = page[start..].find("\n\n").ok_or("the table ends with an empty line")?;
    let mut table =
        format!("{head} prompt of 512, one and two threads | generation, one and two threads |\n");
    table.push_str("|---|---|---|---|---|\n");
    for record in records("models")?.into_iter().rev() {
        let Models { date, machine, models } = serde_json::from_slice(&std::fs::read(record)?)?;
        for run in models {
            let cpu = machine.cpu.replace("(R)", "");
            let [prompt, generation] = ["pp512", "tg128"].map(|test| speeds(&run, test));
            let (model, peer) = (&run.model, &run.peer);
            table.push_str(&format!("| {cpu}, {date} | {model} | {peer} | {prompt} | {generation} |\n"));
        }
    }
    let generated = format!("{}{}{}", &page[..start], table.trim_end(), &page[start + length..]);
    hold("README.md", &generated, "what benches/record says of whole models")
}

/// Our tokens a second in a test on one thread and on two, and how many times those of the peer in its best setting.
fn speeds(run: &ModelRun, test: &str) -> String {
    let rates: Vec<[f64; 2]> = [1, 2].into_iter().filter_map(|threads| run.rates(test, threads)).collect();
    let each = |text: fn(&[f64; 2]) -> String| rates.iter().map(text).collect::<Vec<_>>().join(" and ");
    let ours = each(|[ours, _]| format!("{ours:.*}", if *ours < 100.0 { 1 } else { 0 }));
    format!("{ours} tokens/s: {} times", each(|[ours, theirs]| format!("{:.2}", ours / theirs)))
}

/// What the table says of memory, worked out by the compiler, is what the library says that packing takes.
#[test]
fn packed_bits_are_those_of_the_library() -> Result<(), Box<dyn Error>> {
    use gristmill::vocab::{DeviceKind, Op};
    use gristmill::{CpuProfile, REGISTRY, Request, Restrict, Shape, Threads};
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/compatibility.md"))?;
    let (_, table) = page.split_once("## Weights in memory").ok_or("no such section")?;
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let cell = |format: &str, packing: &str| -> Option<f64> {
        let name = format!("`{packing}`");
        let column = rows[0].iter().position(|c| c.contains(&name) && !c.ends_with("GPUs"))?;
        let row = rows.iter().find(|row| row[0] == format!("`{format}`"))?;
        row[column].split(' ').next()?.parse().ok()
    };
    let mut compared = 0;
    for entry in REGISTRY.entries.iter().filter(|e| e.op == Op::Matmul && e.device == DeviceKind::Cpu) {
        let format = &REGISTRY.formats[entry.format];
        // Whole panels and blocks of all formats, and few bits for the f32 of a row.
        let shape = Shape::new(1, 64, 1 << 18);
        let only = Restrict { kernel: Some(entry.name.to_owned()), ..Restrict::default() };
        let prepared =
            REGISTRY.prepare_for(&Request::matmul(format.name, shape), CpuProfile::detect(), &only)?;
        let Ok(memory) = prepared.decide(shape).memory(&Threads::single()) else { continue };
        let Some(packing) = memory.packing else { continue };
        let said = cell(format.name, packing).ok_or(format!("no cell for {} in {packing}", format.name))?;
        assert!(
            (said - memory.bits_per_weight).abs() < 0.006,
            "{}: {memory:?}, {said} on the page",
            entry.name
        );
        compared += 1;
    }
    assert!(compared > 0 || CpuProfile::detect().features == Default::default(), "nothing was compared");
    Ok(())
}

/// What pages say that commands print, they print: `...` stands for any lines and `[..]` for some of one.
#[test]
#[cfg(all(target_arch = "x86_64", feature = "bitnet", not(feature = "cuda")))]
fn commands_in_pages_print_what_the_pages_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    trycmd::TestCases::new()
        .register_bin("gristmill", Path::new(env!("CARGO_BIN_EXE_gristmill")))
        // Which asks of `verify` what pages do not.
        .env("GRISTMILL_NO_SKIP", "")
        .case(root.join("docs/*.md"));
}

/// Files that a page shows are the shipped ones, which other tests and steps compile and run.
#[test]
fn files_in_pages_are_the_shipped_ones() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (page, language, file) in crate::pages::SHOWN {
        let page = std::fs::read_to_string(root.join(page))?;
        let shipped = std::fs::read_to_string(root.join(file))?;
        assert!(page.contains(&format!("```{language}\n{shipped}```\n")), "no page shows {file} as it is");
    }
    Ok(())
}

/// The headings of a page, as links name them.
fn headings(page: &str) -> Vec<String> {
    let (mut names, mut inside) = (Vec::new(), false);
    for event in pulldown_cmark::Parser::new(page) {
        match event {
            Event::Start(Tag::Heading { .. }) => {
                names.push(String::new());
                inside = true;
            }
            Event::End(TagEnd::Heading(_)) => inside = false,
            Event::Text(text) | Event::Code(text) if inside => {
                if let Some(name) = names.last_mut() {
                    let text = text.to_lowercase().replace(' ', "-");
                    name.extend(text.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')));
                }
            }
            _ => (),
        }
    }
    names
}

/// Pages of the book are in its contents, and what pages link to is there.
#[test]
fn links_of_pages_lead_somewhere() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = Vec::new();
    for folder in ["", "docs"] {
        for entry in std::fs::read_dir(root.join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    let contents = std::fs::read_to_string(root.join("docs/SUMMARY.md"))?;
    let mut links = 0;
    for page in &pages {
        let name = page.file_name().and_then(|name| name.to_str()).ok_or("a page's name")?;
        if page.parent() == Some(&root.join("docs")) && name != "SUMMARY.md" {
            assert!(contents.contains(&format!("]({name})")), "{name} is not in docs/SUMMARY.md");
        }
        for link in std::fs::read_to_string(page)?.split("](").skip(1) {
            let link = link.split(')').next().unwrap_or_default();
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().ok_or("a page is in a folder")?.join(file),
            };
            assert!(target.exists(), "{}: no {link}", page.display());
            if !heading.is_empty() {
                let there = headings(&std::fs::read_to_string(&target)?).iter().any(|name| name == heading);
                assert!(there, "{}: no heading {link}", page.display());
            }
            links += 1;
        }
    }
    assert!(links >= 50, "only {links} links were found");
    Ok(())
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
