//! What the system says of this process.

use sysinfo::{Pid, Process, ProcessRefreshKind, ProcessesToUpdate, System};

/// This process, with its memory as of now; `None` where the system does not tell.
pub(crate) fn with_memory(system: &mut System) -> Option<&Process> {
    let own = Pid::from_u32(std::process::id());
    let what = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), false, what);
    system.process(own)
}
