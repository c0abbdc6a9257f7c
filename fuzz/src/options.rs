//! The driver's arguments.

use std::path::PathBuf;

pub const USAGE: &str = "\
Usage: cargo run --release --manifest-path fuzz/Cargo.toml -- [OPTIONS] [TARGET]...

Runs fuzz targets (all, if none is named), each for a stated time, beginning with seeds from the repository and with what
earlier runs kept (fuzz/target/corpus). An input that panics, aborts, overflows the stack, takes more than 60 s or more
than 2 GiB is a find: it is kept in fuzz/target/findings and the exit code is 1.

  --seconds N     for each target (10)
  --seed N        of the mutations; each run prints its own
  --sanitize      with the address sanitizer
  --replay FILE   one input, for the one target that is named
  --list          the targets
";

/// The targets: `fuzz_targets/*.rs`.
pub const TARGETS: [&str; 10] = [
    "specs",
    "gguf",
    "safetensors",
    "objects",
    "tuning",
    "receipts",
    "imports",
    "importance",
    "monitors",
    "records",
];

/// Those that need nothing of the command.
const WITHOUT_COMMAND: [&str; 2] = ["specs", "objects"];

#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    pub targets: Vec<String>,
    pub seconds: u64,
    pub seed: Option<u32>,
    pub sanitize: bool,
    pub replay: Option<PathBuf>,
}

impl Options {
    /// `None`: the usage was asked for (or the list, which has been printed).
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
        let mut options =
            Options { targets: Vec::new(), seconds: 10, seed: None, sanitize: false, replay: None };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("`{argument}` needs a value"));
            match argument.as_str() {
                "--help" | "-h" => return Ok(None),
                "--list" => {
                    TARGETS.iter().for_each(|target| println!("{target}"));
                    return Ok(None);
                }
                "--seconds" => options.seconds = number(&value()?)?,
                "--seed" => options.seed = Some(number(&value()?)?),
                "--sanitize" => options.sanitize = true,
                "--replay" => options.replay = Some(value()?.into()),
                name if TARGETS.contains(&name) => options.targets.push(argument),
                other => {
                    return Err(format!("no option or target `{other}`; targets are {}", TARGETS.join(", ")));
                }
            }
        }
        if options.replay.is_some() && options.targets.len() != 1 {
            return Err("`--replay` needs one target".to_owned());
        }
        if options.targets.is_empty() {
            options.targets = TARGETS.map(str::to_owned).to_vec();
        }
        Ok(Some(options))
    }

    /// Whether a target is among them that runs parts of the command.
    pub fn need_command(&self) -> bool {
        self.targets.iter().any(|target| !WITHOUT_COMMAND.contains(&target.as_str()))
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number that fits"))
}
