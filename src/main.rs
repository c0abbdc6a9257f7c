//! The `gristmill` command, which is a part of the library (`src/cli`): each command is a file there.

fn main() -> std::process::ExitCode {
    gristmill::cli::main()
}
