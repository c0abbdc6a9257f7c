//! Keeping threads on processors.

/// Processors that the systems' sets of processors have places for.
const NUMBERED_CPUS: usize = if cfg!(windows) { 64 } else { 1024 };

/// Whether [`stay_on`] can keep a thread on several processors here.
pub(crate) const KNOWS_SEVERAL: bool = cfg!(all(target_os = "linux", not(miri)));

/// The processors that the calling thread may run on; `None` where the system does not say, as it does not of a machine with
/// more processors than its set has places for.
pub(crate) fn of_caller() -> Option<Vec<usize>> {
    Some(core_affinity::get_core_ids()?.iter().map(|core| core.id).collect())
}

/// Keeps the calling thread on processor `cpu`; `false` if this program may not use it.
pub(crate) fn pin(cpu: usize) -> bool {
    cpu < NUMBERED_CPUS && core_affinity::set_for_current(core_affinity::CoreId { id: cpu })
}

/// Keeps the calling thread on processors, on whichever of them the system puts it; `false` if this program may use none of them, or the
/// system can't.
pub(crate) fn stay_on(cpus: &[usize]) -> bool {
    match cpus {
        [] => false,
        [cpu] => pin(*cpu),
        _ => stay_on_several(cpus),
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
fn stay_on_several(cpus: &[usize]) -> bool {
    // SAFETY: a set of bits, of which none is a value of the type too.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().copied().filter(|cpu| *cpu < NUMBERED_CPUS) {
        // SAFETY: the set has a place for each number below 1024.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: 0 is the calling thread; the set is read, and as long as is said.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) == 0 }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn stay_on_several(_: &[usize]) -> bool {
    false
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn processors_that_are_not_there_are_refused() {
        for cpu in [NUMBERED_CPUS - 1, NUMBERED_CPUS, usize::MAX] {
            assert!(!pin(cpu) && !stay_on(&[cpu]) && !stay_on(&[cpu, NUMBERED_CPUS - 1]), "{cpu}");
        }
        assert!(!stay_on(&[]));
    }

    #[test]
    fn a_thread_stays_where_it_is_put() {
        if !cfg!(target_os = "linux") {
            eprintln!("skipped: only Linux says where a thread may run");
            return;
        }
        std::thread::spawn(|| {
            let all = of_caller().expect("Linux says");
            assert!(stay_on(&all), "processors of this program");
            assert_eq!(of_caller().as_ref(), Some(&all));
            let last = &all[all.len() - 1..];
            assert!(stay_on(last));
            assert_eq!(of_caller().as_deref(), Some(last));
        })
        .join()
        .expect("pinned");
    }
}
