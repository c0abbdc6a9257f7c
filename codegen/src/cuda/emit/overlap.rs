//! Launches that overlap those in front of them.

/// Statements in front of everything that reads what other kernels write: the kernel behind may begin, and `early`, which
/// touches weights only, is under way while those in front still run.
pub(super) fn wait(early: &str) -> String {
    format!("gm_launch_next();\n    {early}gm_wait_for_previous();\n    ")
}
