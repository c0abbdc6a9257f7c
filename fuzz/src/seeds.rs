//! Files to begin with, and the words that are in them.

use std::collections::BTreeMap;
use std::path::Path;

/// A name for people, and the bytes of an input.
pub type Seed = (String, Vec<u8>);

/// Set by the driver: a folder to put the seeds in, and a file for the words. The target then ends.
const FOLDER: &str = "GRISTMILL_FUZZ_SEEDS";
const WORDS: &str = "GRISTMILL_FUZZ_WORDS";
/// Set by the driver, which removes it when it ends: a folder for files that targets hand to what reads paths.
const SCRATCH: &str = "GRISTMILL_FUZZ_SCRATCH";

/// Longest word that is kept, in bytes; libFuzzer takes 64.
const LONGEST: usize = 40;
/// Words that are kept, the most frequent first.
const MOST: usize = 600;

/// Before the first input: writes seeds if that is what is asked for.
pub fn begin(seeds: fn() -> Vec<Seed>) {
    // What is obeyed by default would make runs differ.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("GRISTMILL_") && ![FOLDER, WORDS, SCRATCH].contains(&&*name) {
            eprintln!("{name} is set; unset it, so that this run can be repeated");
            std::process::exit(1);
        }
    }
    let Some(folder) = std::env::var_os(FOLDER) else { return use_a_signal_stack() };
    let seeds = seeds();
    for (name, bytes) in &seeds {
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        std::fs::write(Path::new(&folder).join(name), bytes).expect("the folder of seeds can be written");
    }
    if let Some(file) = std::env::var_os(WORDS) {
        std::fs::write(file, dictionary(&seeds)).expect("the file of words can be written");
    }
    println!("{} seeds", seeds.len());
    std::process::exit(0);
}

/// Where the files of this target lie. Without the driver always in one place, so that runs leave no more than one does.
#[cfg(feature = "command")]
pub fn scratch() -> std::path::PathBuf {
    std::env::var_os(SCRATCH).map_or_else(
        || {
            let program = std::env::current_exe().expect("a program has a file");
            let name = program.file_name().expect("and that a name").to_owned();
            Path::new(env!("CARGO_MANIFEST_DIR")).join("target/scratch").join(name)
        },
        Into::into,
    )
}

/// The words of the seeds as a dictionary of libFuzzer's.
fn dictionary(seeds: &[Seed]) -> String {
    let mut words: BTreeMap<&[u8], usize> = BTreeMap::new();
    for (_, bytes) in seeds {
        let inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-\"".contains(byte);
        for word in bytes.split(|byte| !inside(byte)).filter(|word| (2..LONGEST).contains(&word.len())) {
            *words.entry(word).or_default() += 1;
        }
    }
    let mut words: Vec<(&[u8], usize)> = words.into_iter().collect();
    words.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
    let mut text = String::new();
    for (word, _) in words.into_iter().take(MOST) {
        text.push('"');
        // Only what `inside` lets pass: ASCII.
        text.extend(
            word.iter()
                .map(|byte| if *byte == b'"' { "\\\"".to_owned() } else { char::from(*byte).to_string() }),
        );
        text.push_str("\"\n");
    }
    text
}

/// The files of a folder of the repository, by name; none if there is no such folder.
pub fn files(folder: &str) -> Vec<Seed> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Ok(bytes) = std::fs::read(entry.path()) {
            found.push((name, bytes));
        }
    }
    found.sort();
    found
}

/// libFuzzer's handler of signals runs on the stack that overflowed unless it has another: then a stack overflow ends
/// the process before its input is kept.
fn use_a_signal_stack() {
    const SIZE: usize = 256 << 10;
    let memory: &'static mut [u8] = Vec::leak(vec![0; SIZE]);
    let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: SIZE };
    // SAFETY: the memory is never given back, and nothing else uses it.
    unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
}
