//! Threads of the model stay nowhere.

pub(crate) fn stay_on(_: &[usize]) -> bool {
    true
}
