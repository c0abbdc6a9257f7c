//! Every block of code in a page is run by something, or its commands are looked over here: that options, files, features and packages
//! that they name are there. A block of a kind that nothing looks after fails, and so does one that is not told what it is.

use crate::common::gristmill;
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};
use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};

/// Shipped files that pages show as they are, which other tests and steps compile and run.
pub const SHOWN: [(&str, &str, &str); 6] = [
    ("docs/new-format.md", "toml", "kernel-spec/formats/pq2_0.toml"),
    ("docs/new-format.md", "toml", "kernel-spec/formats/ptq1_0.toml"),
    ("docs/new-format.md", "toml", "kernel-spec/formats/stq1_0.toml"),
    ("docs/engines.md", "c", "bindings/c/examples/linear.c"),
    ("docs/engines.md", "python", "bindings/python/examples/linear.py"),
    ("docs/engines.md", "python", "bindings/python/examples/guarded.py"),
];

/// Blocks whose lines are lines of shipped files, which other tests and steps compile and run.
const LINES_OF: [(&str, &str, &[&str]); 3] = [
    ("docs/engines.md", "rs", &["examples/downstream/build.rs", "examples/downstream/src/main.rs"]),
    ("docs/engines.md", "rs", &["examples/cpp-backend/build.rs"]),
    ("docs/spec-reference.md", "cuda", &["tests/invented/by_hand/kernels/by_block.cu"]),
];

/// Blocks that a test elsewhere reads out of the page and runs: the page, the language, the test's file, and the words by which it is
/// seen there to read it.
const READ_BY: [(&str, &str, &str, &str); 6] = [
    ("docs/spec-reference.md", "toml", "kernel-spec/tests/language.rs", "../docs/spec-reference.md"),
    ("docs/spec-reference.md", "c", "codegen/tests/bodies.rs", "../docs/spec-reference.md"),
    ("README.md", "toml", ".ci/run", "README.md | grep -v '^```' >\"$scratch/extra/formats/q5_seq.toml\""),
    ("bindings/python/README.md", "python", "bindings/python/tests/test_gristmill.py", "\"README.md\""),
    // Their output is the README's machine's; the commands are run by CI, which fails if they do.
    ("README.md", "console", ".ci/run", "target/release/gristmill run"),
    ("README.md", "console", ".ci/run", "verify --format q5_seq"),
];

/// Programs that commands call besides ours. Not run by tests: they install what tests must not, or look at builds that tests do not make.
const TOOLS: [&str; 14] = [
    "apt-get", "bash", "cc", "export", "grep", "mdbook", "nm", "objdump", "pip", "python", "rustup",
    "source", "unzip", "wc",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> Result<String, Box<dyn Error>> {
    std::fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}").into())
}

/// The book, and the pages beside it.
fn pages() -> Result<Vec<String>, Box<dyn Error>> {
    let mut pages = ["README.md", "CONTRIBUTING.md", "bindings/python/README.md"].map(str::to_owned).to_vec();
    for entry in std::fs::read_dir(root().join("docs"))? {
        let name = entry?.file_name().into_string().map_err(|name| format!("{name:?} is no text"))?;
        if name.ends_with(".md") {
            pages.push(format!("docs/{name}"));
        }
    }
    Ok(pages)
}

/// A block of code: what it says to be in, and its text.
struct Block {
    language: String,
    text: String,
}

/// The blocks of a page, and pieces of code in its sentences.
fn code(page: &str) -> Result<(Vec<Block>, Vec<String>), Box<dyn Error>> {
    let text = read(page)?;
    let (mut blocks, mut pieces, mut inside) = (Vec::<Block>::new(), Vec::new(), false);
    // Code in tables is code too.
    for event in Parser::new_ext(&text, pulldown_cmark::Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                let language = match kind {
                    CodeBlockKind::Fenced(language) => language.to_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                blocks.push(Block { language, text: String::new() });
                inside = true;
            }
            Event::End(TagEnd::CodeBlock) => inside = false,
            Event::Text(text) if inside => {
                if let Some(block) = blocks.last_mut() {
                    block.text.push_str(&text);
                }
            }
            Event::Code(piece) => pieces.push(piece.to_string()),
            _ => (),
        }
    }
    Ok((blocks, pieces))
}

/// Every manifest of the repository, by the name of its package.
fn manifests() -> Result<HashMap<String, PathBuf>, Box<dyn Error>> {
    let (mut found, mut folders) = (HashMap::new(), vec![root().to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let (path, kind) = (entry.as_ref().map(|e| e.path()), entry.as_ref().map(|e| e.file_type()));
            let (Ok(path), Ok(Ok(kind))) = (path, kind) else { continue };
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if kind.is_dir() && name != "target" && name != ".git" {
                folders.push(path);
            } else if name == "Cargo.toml" {
                let text = std::fs::read_to_string(&path)?;
                let named = text
                    .lines()
                    .skip_while(|line| *line != "[package]")
                    .find_map(|line| line.strip_prefix("name = "));
                if let Some(named) = named {
                    found.insert(named.trim_matches('"').to_owned(), path);
                }
            }
        }
    }
    Ok(found)
}

/// The features of a manifest that are stated as such.
fn has_feature(manifest: &Path, feature: &str) -> Result<bool, Box<dyn Error>> {
    let text = std::fs::read_to_string(manifest)?;
    let features = text.lines().skip_while(|line| *line != "[features]").skip(1);
    Ok(features
        .take_while(|line| !line.starts_with('['))
        .any(|line| line.split(" =").next() == Some(feature)))
}

/// Looks over commands as a shell would read them, one after the other.
struct Commands<'a> {
    manifests: &'a HashMap<String, PathBuf>,
    /// Where the commands before have gone, from the root.
    folder: PathBuf,
    /// Command lines of ours that were parsed.
    parsed: usize,
}

impl Commands<'_> {
    fn line(&mut self, line: &str) -> Result<(), Box<dyn Error>> {
        let words = shlex::split(line).ok_or("its quotes do not match")?;
        for command in words.split(|word| matches!(word.as_str(), "&&" | "|" | "||" | ";")) {
            self.command(command).map_err(|error| format!("`{line}`: {error}"))?;
        }
        Ok(())
    }

    fn command(&mut self, words: &[String]) -> Result<(), Box<dyn Error>> {
        let is_variable = |word: &&String| {
            word.split_once('=').is_some_and(|(name, _)| {
                name.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit())
            })
        };
        let end = words.iter().position(|word| word == ">").unwrap_or(words.len());
        let words: Vec<&str> = words[..end].iter().skip_while(is_variable).map(String::as_str).collect();
        let Some((&program, arguments)) = words.split_first() else { return Ok(()) };
        for word in &words {
            self.path(word)?;
        }
        match program {
            "cd" => {
                let [folder] = arguments else { return Err("`cd` expects one folder".into()) };
                self.folder.push(folder);
                match root().join(&self.folder).is_dir() {
                    true => Ok(()),
                    false => Err(format!("there is no folder {}", self.folder.display()).into()),
                }
            }
            "gristmill" => self.ours(arguments),
            "cargo" => self.cargo(arguments),
            _ if program.contains('/') => {
                match root().join(&self.folder).join(program).is_file() || program.starts_with("target/") {
                    true => Ok(()),
                    false => Err(format!("there is no {program}").into()),
                }
            }
            _ if TOOLS.contains(&program) => Ok(()),
            _ => Err(format!(
                "nothing here looks after `{program}`: run it in a test, or name it in TOOLS of {}",
                file!()
            )
            .into()),
        }
    }

    /// A word that begins with a file or folder of the repository names one.
    fn path(&self, word: &str) -> Result<(), Box<dyn Error>> {
        let word = word.trim_start_matches("./");
        let here = root().join(&self.folder);
        let Some((first, _)) = word.split_once('/') else { return Ok(()) };
        let open =
            first.is_empty() || first == "target" || first == ".." || word.contains(['$', '*', '{', '~']);
        match open || !here.join(first).is_dir() || here.join(word).exists() {
            true => Ok(()),
            false => Err(format!("there is no {word}").into()),
        }
    }

    /// Arguments of the command: each option is one that it knows, each value one that it takes.
    fn ours(&mut self, arguments: &[&str]) -> Result<(), Box<dyn Error>> {
        let elsewhere = match arguments.first() {
            Some(&"history" | &"report" | &"top") => !cfg!(feature = "ops"),
            _ => arguments.contains(&"--monitor") && !cfg!(feature = "ops"),
        };
        if elsewhere {
            return Ok(());
        }
        // Options are parsed in order, so the help at the end is reached by those that are known alone.
        let ran = gristmill(arguments.iter().copied().chain(["--help"]));
        self.parsed += 1;
        match ran.code {
            0 => Ok(()),
            _ => Err(ran.stderr.into()),
        }
    }

    fn cargo(&mut self, arguments: &[&str]) -> Result<(), Box<dyn Error>> {
        let arguments = match arguments {
            [first, rest @ ..] if first.starts_with('+') => rest,
            all => all,
        };
        let Some((&what, arguments)) = arguments.split_first() else { return Ok(()) };
        let end = arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len());
        let (own, passed) = arguments.split_at(end);
        let mut manifest = root().join(&self.folder).join("Cargo.toml");
        let value = |option: &str| {
            own.iter().position(|word| *word == option).and_then(|at| own.get(at + 1)).copied()
        };
        if let Some(path) = value("--manifest-path") {
            manifest = root().join(&self.folder).join(path);
        }
        if let Some(package) = value("-p").or(value("--package")) {
            manifest =
                self.manifests.get(package).ok_or_else(|| format!("there is no package {package}"))?.clone();
        }
        let folder = manifest.parent().ok_or("a manifest is in a folder")?;
        let text =
            std::fs::read_to_string(&manifest).map_err(|error| format!("{}: {error}", manifest.display()))?;
        for (option, folder_of) in [("--example", "examples"), ("--test", "tests"), ("--bench", "benches")] {
            let Some(name) = value(option) else { continue };
            let files = [format!("{folder_of}/{name}.rs"), format!("{folder_of}/{name}/main.rs")];
            if !files.iter().any(|file| folder.join(file).is_file())
                && !text.contains(&format!("name = \"{name}\""))
            {
                return Err(format!("there is no {option} {name} in {}", folder.display()).into());
            }
        }
        for feature in
            value("--features").unwrap_or_default().split(',').filter(|feature| !feature.is_empty())
        {
            let (manifest, feature) = match feature.split_once('/') {
                Some((package, feature)) => (
                    self.manifests.get(package).ok_or_else(|| format!("there is no package {package}"))?,
                    feature,
                ),
                None => (&manifest, feature),
            };
            if !has_feature(manifest, feature)? {
                return Err(format!("{} has no feature {feature}", manifest.display()).into());
            }
        }
        if what == "run" && manifest == root().join("Cargo.toml") && value("--example").is_none() {
            return self.ours(passed.get(1..).unwrap_or_default());
        }
        Ok(())
    }
}

/// What looks after a block, or why nothing does.
fn looked_after(page: &str, block: &Block, commands: &mut Commands<'_>) -> Result<(), Box<dyn Error>> {
    let Block { language, text } = block;
    let of_page = |(at, is): (&str, &str)| at == page && is == language;
    match language.as_str() {
        "" => return Err("is not told what it is: ```sh, ```console, ```rust, ```text and so on".into()),
        "console" if page.starts_with("docs/") => return Ok(()), // `commands_in_pages_print_what_the_pages_say`
        "rust" | "rust,no_run" => {
            let included = format!("include_str!(\"../{page}\")");
            return match read("src/lib.rs")?.contains(&included) {
                true => Ok(()),
                false => {
                    Err(format!("is compiled by nothing: src/lib.rs does not have {included} for doctests")
                        .into())
                }
            };
        }
        // Formulas, folders, and what commands print that no machine of the tests can. Commands in it are looked over.
        "text" | "sh" | "console" => {
            let lines = text.replace("\\\n", " ");
            let is_command =
                |line: &&str| !line.trim().is_empty() && (language == "sh" || line.starts_with("$ "));
            for line in lines.lines().filter(is_command) {
                commands.line(line.trim_start_matches("$ "))?;
            }
            if language != "console" {
                return Ok(());
            }
        }
        _ => (),
    }
    for (at, is, shipped) in SHOWN {
        if of_page((at, is)) && *text == read(shipped)? {
            return Ok(());
        }
    }
    for (at, is, files) in LINES_OF {
        let files: Vec<String> = files.iter().map(|file| read(file)).collect::<Result<_, _>>()?;
        let known = |line: &str| {
            let line = line.trim();
            line.is_empty()
                || line.starts_with("//")
                || files.iter().any(|file| file.lines().any(|other| other.trim() == line))
        };
        if of_page((at, is)) && text.lines().all(known) {
            return Ok(());
        }
    }
    for (at, is, file, words) in READ_BY {
        if of_page((at, is)) && read(file)?.contains(words) {
            return Ok(());
        }
    }
    if of_page(("docs/engines.md", "toml")) {
        return dependency(text);
    }
    Err("is of a kind that nothing runs or looks over: see tests/command/pages.rs".into())
}

/// The dependency that a page shows is one on this version, with features and a profile that there are.
fn dependency(text: &str) -> Result<(), Box<dyn Error>> {
    let version = env!("CARGO_PKG_VERSION").rsplit_once('.').map(|(version, _)| version).unwrap_or_default();
    let line =
        text.lines().find(|line| line.starts_with("gristmill = ")).ok_or("has no dependency on gristmill")?;
    if !line.contains(&format!("\"{version}\"")) {
        return Err(format!("names another version than {version}: {line}").into());
    }
    // Behind the version: those of the list, or what its comment puts between backticks.
    let features = line.split(['"', '`']).skip(3).step_by(2);
    for feature in features {
        if !has_feature(&root().join("Cargo.toml"), feature)? {
            return Err(format!("names a feature that there is not: {feature}").into());
        }
    }
    let profile = text.lines().find(|line| line.starts_with("[profile")).unwrap_or_default();
    match read("Cargo.toml")?.lines().any(|line| line == profile) {
        true => Ok(()),
        false => Err(format!("names a profile that the workspace does not have: {profile}").into()),
    }
}

#[test]
fn every_block_of_a_page_is_run_or_looked_over() -> Result<(), Box<dyn Error>> {
    let manifests = manifests()?;
    let (mut found, mut parsed, mut wrong) = (0, 0, Vec::new());
    for page in pages()? {
        let (blocks, pieces) = code(&page)?;
        for block in &blocks {
            let mut commands = Commands { manifests: &manifests, folder: PathBuf::new(), parsed: 0 };
            if let Err(error) = looked_after(&page, block, &mut commands) {
                let first = block.text.lines().next().unwrap_or_default();
                wrong.push(format!(
                    "{page}: the block ```{} that begins with `{first}` {error}",
                    block.language
                ));
            }
            (found, parsed) = (found + 1, parsed + commands.parsed);
        }
        for piece in pieces.iter().filter(|piece| {
            ["cargo ", "gristmill ", ".ci/", "bash .ci/"].iter().any(|start| piece.starts_with(start))
                && !piece.contains('|')
        }) {
            let mut commands = Commands { manifests: &manifests, folder: PathBuf::new(), parsed: 0 };
            // A sentence may name an option without its value.
            if let Err(error) = commands.line(piece).or_else(|error| match piece.rsplit(' ').next() {
                Some(last) if last.starts_with("--") => commands.line(&format!("{piece} VALUE")),
                _ => Err(error),
            }) {
                wrong.push(format!("{page}: {error}"));
            }
            parsed += commands.parsed;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found >= 80 && parsed >= 60, "only {found} blocks and {parsed} command lines of ours were found");
    Ok(())
}

/// What workflows run in one line is there.
#[test]
fn workflows_run_what_there_is() -> Result<(), Box<dyn Error>> {
    let (manifests, mut lines) = (manifests()?, 0);
    for name in ["ci", "release"] {
        for line in read(&format!(".github/workflows/{name}.yml"))?.lines() {
            let Some(line) = line.trim_start().strip_prefix("- run: ").filter(|line| *line != "|") else {
                continue;
            };
            Commands { manifests: &manifests, folder: PathBuf::new(), parsed: 0 }.line(line)?;
            lines += 1;
        }
    }
    assert!(lines >= 4, "only {lines} lines were found");
    Ok(())
}

/// What the README says that `explain` prints, it prints; `[...]` stands for what is left out.
#[test]
#[cfg(all(target_arch = "x86_64", feature = "bitnet", not(feature = "cuda")))]
fn the_readme_s_answer_is_the_command_s() -> Result<(), Box<dyn Error>> {
    let (blocks, _) = code("README.md")?;
    let block =
        blocks.iter().find(|block| block.text.contains("\n$ gristmill explain ")).ok_or("no such command")?;
    let (_, said) = block.text.split_once("\n$ gristmill explain ").ok_or("no such command")?;
    let (arguments, said) = said.split_once('\n').ok_or("no answer")?;
    let ran = gristmill(["explain"].into_iter().chain(arguments.split_whitespace())).code(2);
    let printed = format!("{}{}", ran.stdout, ran.stderr);
    let mut rest = printed.as_str();
    for piece in said.split("[...]").map(str::trim_end) {
        let at = rest.find(piece).ok_or_else(|| format!("`{piece}` is not in what it prints:\n{printed}"))?;
        rest = &rest[at + piece.len()..];
    }
    Ok(())
}
