//! A validation in a process of its own, which a kernel may end: by an instruction that this processor refuses, or by memory that it may not
//! touch. Its parent learns by what it ended, which nobody else does, puts the kernel into quarantine, and begins again without it.

use super::super::say::say;
use super::arguments::Arguments;
use crate::cli::error::{CliError, Outcome};
use gristmill::Quarantine;
use gristmill::text::Printable;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// How the process of a validation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// By itself.
    Code(i32),
    /// By what its own instructions did.
    Own(String),
    /// Somebody ended it.
    Outside(String),
}

/// Validates until nothing ends the process any more.
///
/// # Errors
/// A quarantine that can't be read or written; a process that can't be started, was ended from outside, or ended in no kernel's first run.
pub(super) fn run(arguments: &Arguments, folder: &Path, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let quarantine = Quarantine::kept_in(folder)?;
    let program = std::env::current_exe().map_err(CliError::file("find", Path::new("gristmill")))?;
    loop {
        let mut command = Command::new(&program);
        command.args(words(arguments, folder)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let started = command.stderr(Stdio::inherit()).spawn().and_then(|mut child| {
            // Held until the child has ended: `ends_with_its_parent` waits for nothing else.
            let held = child.stdin.take();
            let output = child.wait_with_output();
            drop(held);
            output
        });
        let output = started.map_err(CliError::file("start", &program))?;
        let how = match end(output.status) {
            End::Code(code) => {
                out.write_all(&output.stdout)?;
                return Ok(match code {
                    0 => Outcome::Yes,
                    2 => Outcome::NoKernel,
                    _ => Outcome::Failed,
                });
            }
            End::Outside(how) => {
                // No kernel is to blame.
                quarantine.forgive()?;
                return Err(CliError::usage(
                    format!("the validation was ended by {how}, which comes from outside"),
                    "look for who ended it (a limit of time, the system for want of memory), and start it again",
                ));
            }
            End::Own(how) => how,
        };
        let came = quarantine.take_in(Some(&how))?;
        if came.is_empty() {
            return Err(CliError::usage(
                format!("the validation was ended by {how}, and no kernel was in its first run"),
                "`gristmill verify` names the kernel that it calls when an instruction is refused or memory is not to be touched",
            ));
        }
        for kernel in came {
            let name = kernel.kernel.unwrap_or_else(|| kernel.id.to_string());
            say(format_args!("{} is in quarantine: {}", Printable(&name), Printable(&kernel.why)));
        }
    }
}

/// Ends this process with the one that started it, however that ended: nobody would read what it finds, and its kernels would take the
/// machine from whoever goes on. Standard input is a pipe of which the parent holds the other end, and which nobody writes to.
///
/// # Errors
/// Where the system has no thread more.
pub(super) fn ends_with_its_parent() -> Result<(), CliError> {
    let wait = || {
        // An error is no end of the parent, and there is nothing else to wait for then.
        if io::copy(&mut io::stdin().lock(), &mut io::sink()).is_ok() {
            std::process::exit(1);
        }
    };
    let started = std::thread::Builder::new().name("gristmill-parent".to_owned()).spawn(wait);
    started.map(drop).map_err(CliError::file("wait for the program that started", Path::new("gristmill")))
}

/// The command line of the process.
fn words(arguments: &Arguments, folder: &Path) -> Vec<OsString> {
    let Arguments {
        device,
        format,
        threads,
        rounds,
        baseline,
        tolerance,
        save_baseline,
        library,
        quarantine: _,
        here: _,
        json,
    } = arguments;
    let mut words: Vec<OsString> = vec!["validate".into(), "--here".into()];
    let mut option = |name: &str, value: OsString| words.extend([name.into(), value]);
    option("--quarantine", folder.into());
    option("--device", device.to_string().into());
    option("--rounds", rounds.to_string().into());
    option("--tolerance", tolerance.to_string().into());
    if !format.is_empty() {
        option("--format", format.join(",").into());
    }
    if let Some(threads) = threads {
        option("--threads", threads.to_string().into());
    }
    for (name, file) in [("--baseline", baseline), ("--save-baseline", save_baseline)] {
        if let Some(file) = file {
            option(name, file.into());
        }
    }
    if let Some(folder) = library {
        words.push("--library".into());
        words.extend(folder.iter().map(|folder| folder.into()));
    }
    words.extend(json.then(|| "--json".into()));
    words
}

#[cfg(unix)]
fn end(status: ExitStatus) -> End {
    use std::os::unix::process::ExitStatusExt as _;
    const OWN: [(i32, &str); 7] = [
        (libc::SIGILL, "SIGILL"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGSYS, "SIGSYS"),
    ];
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Code(code),
        (None, Some(signal)) => match OWN.iter().find(|(number, _)| *number == signal) {
            Some((_, name)) => End::Own((*name).to_owned()),
            None => End::Outside(format!("signal {signal}")),
        },
        (None, None) => End::Outside(status.to_string()),
    }
}

/// Exceptions that nobody handles are codes from 0xC0000000 on (NTSTATUS, severity error).
#[cfg(not(unix))]
fn end(status: ExitStatus) -> End {
    match status.code() {
        Some(code) if code.cast_unsigned() >= 0xc000_0000 => {
            End::Own(format!("exception {:#010x}", code.cast_unsigned()))
        }
        Some(code) => End::Code(code),
        None => End::Outside(status.to_string()),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;

    #[test]
    fn signals_are_a_programs_own_or_come_from_outside() {
        let of = |raw| end(ExitStatus::from_raw(raw));
        assert_eq!(of(2 << 8), End::Code(2));
        assert_eq!(of(libc::SIGILL), End::Own("SIGILL".to_owned()));
        // With a core dump.
        assert_eq!(of(libc::SIGSEGV | 0x80), End::Own("SIGSEGV".to_owned()));
        assert_eq!(of(libc::SIGKILL), End::Outside("signal 9".to_owned()));
    }
}
