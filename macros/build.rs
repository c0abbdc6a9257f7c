//! Puts the shipped specs and the compiler's version into the macros: when they expand they read no folder
//! and start no process.

use std::fmt::Write as _;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = gristmill_spec::shipped_dir();
    for folder in gristmill_spec::FOLDERS {
        println!("cargo::rerun-if-changed={}", dir.join(folder).display());
    }
    let mut list = String::from("&[\n");
    // What the shipped specs must cover is of no concern to a format that comes from elsewhere.
    for source in gristmill_spec::shipped()?.into_iter().filter(|s| s.path != "kernel-spec/coverage.toml") {
        let inside = source.path.split_once('/').map_or(source.path.as_str(), |(_, inside)| inside);
        writeln!(list, "    ({:?}, include_bytes!({:?})),", source.path, dir.join(inside))?;
    }
    list.push_str("]\n");
    let out = std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set: this must run as a build script")?;
    std::fs::write(PathBuf::from(out).join("shipped.rs"), list)?;

    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = std::process::Command::new(rustc).arg("--version").output()?;
    println!("cargo::rustc-env=GRISTMILL_RUSTC={}", String::from_utf8_lossy(&version.stdout).trim());
    Ok(())
}
