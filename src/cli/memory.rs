//! What a command needs in memory, held against what the machine has before any of it is taken.

use super::error::CliError;
#[cfg(unix)]
use crate::own_process;
use sysinfo::System;

/// Bytes that may be left for the program itself and for what the estimate leaves out.
const RESERVE: u64 = 32 << 20;

/// Bytes that a command is going to need, added up without overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need(u128);

impl Need {
    /// Nothing.
    pub fn new() -> Need {
        Need(0)
    }

    /// The same with `count` values of `bytes` bytes each; a count is a product of dimensions.
    pub fn and(self, dims: &[usize], bytes: usize) -> Need {
        let count = dims.iter().fold(1u128, |count, dim| count.saturating_mul(*dim as u128));
        Need(self.0.saturating_add(count.saturating_mul(bytes as u128)))
    }

    /// Whether the machine has as much, now.
    ///
    /// # Errors
    /// [`CliError::Memory`] with both numbers: `what` needs it, `help` would make it less.
    pub fn check(self, what: impl FnOnce() -> String, help: &'static str) -> Result<(), CliError> {
        // No allocation is larger than half the address space.
        let available = available().unwrap_or(u64::MAX).min(isize::MAX as u64);
        if self.0.saturating_add(u128::from(RESERVE)) <= u128::from(available) {
            return Ok(());
        }
        Err(CliError::Memory { what: what(), needed: self.0, reserve: RESERVE, available, help })
    }
}

/// Bytes that this program can take without others having to give some back: what the system calls available, and what the
/// control group of a container and the limit of the process leave of it. `None` where the system does not say.
pub fn available() -> Option<u64> {
    let mut system = System::new();
    system.refresh_memory();
    // The library answers 0 where it can't read the system's numbers.
    let of_system = (system.total_memory() > 0).then(|| system.available_memory());
    let of_group = system.cgroup_limits().map(|group| group.free_memory);
    [of_system, of_group, limit()].into_iter().flatten().min()
}

/// What the limit of the process' address space (`ulimit -v`) leaves, where there is one.
#[cfg(unix)]
fn limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to an rlimit of this frame.
    let refused = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    if refused != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return None;
    }
    let used = own_process::with_memory(&mut System::new())?.virtual_memory();
    Some(limit.rlim_cur.saturating_sub(used))
}

#[cfg(not(unix))]
fn limit() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_do_not_overflow() {
        let need = Need::new().and(&[usize::MAX, usize::MAX, usize::MAX], 8).and(&[3, 5], 4);
        assert_eq!(need, Need(u128::MAX));
        assert_eq!(Need::new().and(&[3, 5], 4).and(&[7], 1), Need(67));
        assert!(matches!(need.check(|| "all".to_owned(), "less"), Err(CliError::Memory { .. })));
        let error = Need::new().and(&[1 << 50], 1).check(|| "a lot".to_owned(), "less").err();
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("1024 TiB") && text.contains("available"), "{text}");
        assert!(Need::new().and(&[1024], 1).check(|| "little".to_owned(), "").is_ok());
    }

    #[test]
    fn the_system_says_what_it_has() {
        assert!(available().is_some_and(|bytes| bytes > RESERVE));
    }
}
