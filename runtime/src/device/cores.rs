//! Physical cores among the hardware threads that this program may use.

use std::collections::BTreeSet;

/// Physical cores that have at least one of `threads` hardware threads; `threads` where the system does not say which share a
/// core.
pub(super) fn physical(threads: usize) -> usize {
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    let siblings = |id: usize| {
        std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{id}/topology/thread_siblings_list")).ok()
    };
    distinct(allowed.iter().map(|core| siblings(core.id)))
        .map_or(threads, |cores| cores.clamp(1, threads.max(1)))
}

/// How many different lists there are; `None` if one is missing, or there is none.
fn distinct(lists: impl Iterator<Item = Option<String>>) -> Option<usize> {
    let lists: BTreeSet<String> = lists.collect::<Option<_>>()?;
    (!lists.is_empty()).then_some(lists.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(lists: &[&str]) -> Option<usize> {
        distinct(lists.iter().map(|list| (*list != "?").then(|| (*list).to_owned())))
    }

    #[test]
    fn threads_of_one_core_count_once() {
        assert_eq!(cores(&["0,4", "1,5", "0,4", "1,5"]), Some(2));
        assert_eq!(cores(&["0", "1", "2"]), Some(3));
        assert_eq!(cores(&["0-1", "?"]), None, "the system does not say");
        assert_eq!(cores(&[]), None);
    }

    #[test]
    fn there_are_at_least_one_and_at_most_as_many_as_threads() {
        for threads in [0, 1, 2, 1000] {
            assert!((1..=threads.max(1)).contains(&physical(threads)));
        }
    }
}
