//! The `gristmill` command: a thin layer over the library. Each command is a file in `cli/`.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
