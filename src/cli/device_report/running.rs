//! A process of a stage that does not outlive it.

use std::io;
use std::process::{Child, Command};

/// A process that is ended, and waited for, where it is dropped while it runs.
///
/// One with a program in front is the first of a process group: ending it ends what that program started, which goes on otherwise.
pub(super) struct Running(pub(super) Child, bool);

impl Running {
    pub(super) fn start(command: &mut Command, wrapped: bool) -> io::Result<Running> {
        #[cfg(unix)]
        if wrapped {
            std::os::unix::process::CommandExt::process_group(command, 0);
        }
        let child = command.spawn()?;
        #[cfg(unix)]
        if wrapped {
            interrupted::end_with_this(&child);
        }
        Ok(Running(child, wrapped))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Running(child, wrapped) = self;
        // Until it was waited for nothing else has its number.
        if let Ok(None) = child.try_wait() {
            #[cfg(unix)]
            if *wrapped && let Ok(group) = libc::pid_t::try_from(child.id()) {
                // SAFETY: it takes numbers alone.
                unsafe { libc::kill(-group, libc::SIGKILL) };
            }
            // It may have ended in the meantime.
            let _ = child.kill();
            let _ = child.wait();
        }
        #[cfg(unix)]
        if *wrapped {
            interrupted::leave();
        }
    }
}

/// A terminal's interrupt reaches the group of this program alone, so it is handed on.
#[cfg(unix)]
mod interrupted {
    use std::process::Child;
    use std::sync::atomic::{AtomicI32, Ordering};

    /// The group that runs, 0 for none: one stage runs at a time, and wrapped ones have one process.
    static GROUP: AtomicI32 = AtomicI32::new(0);

    extern "C" fn end(signal: libc::c_int) {
        let group = GROUP.load(Ordering::Relaxed);
        // SAFETY: all three may be called in a handler, and take numbers alone.
        unsafe {
            if group > 0 {
                libc::kill(-group, libc::SIGKILL);
            }
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }

    pub(super) fn end_with_this(child: &Child) {
        GROUP.store(libc::pid_t::try_from(child.id()).unwrap_or(0), Ordering::Relaxed);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the handler does only what handlers may.
            let before =
                unsafe { libc::signal(signal, end as extern "C" fn(libc::c_int) as libc::sighandler_t) };
            if before == libc::SIG_IGN {
                // As under nohup: it stays ignored.
                // SAFETY: it takes numbers alone.
                unsafe { libc::signal(signal, libc::SIG_IGN) };
            }
        }
    }

    pub(super) fn leave() {
        GROUP.store(0, Ordering::Relaxed);
    }
}

/// Panics where a process still runs after five seconds.
#[cfg(all(test, target_os = "linux"))]
pub(super) fn assert_ends(process: &str) {
    assert!(process.parse::<u32>().is_ok(), "`{process}` is no process");
    // Behind the name in parentheses stands the state; who is to wait for it may not have done so yet.
    let runs = || {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    };
    for _ in 0..100 {
        if !runs() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("process {process} still runs");
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    #[test]
    fn what_is_dropped_ends() -> io::Result<()> {
        for wrapped in [false, true] {
            let mut command = Command::new("sh");
            let script = if wrapped { "sleep 600 & echo $!; wait" } else { "echo $$; exec sleep 600" };
            command.args(["-c", script]).stdout(Stdio::piped());
            let mut running = Running::start(&mut command, wrapped)?;
            let mut line = String::new();
            BufReader::new(running.0.stdout.take().expect("a pipe")).read_line(&mut line)?;
            drop(running);
            assert_ends(line.trim());
        }
        Ok(())
    }
}
