//! What has one name in two packages and is not the same.

/// One name for two things, which can't be in [one registry](crate::Registry::joined).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {what} `{name}` of package `{}` ({}) is not that of package `{}` ({}): they differ in {differ}, and in one registry a name stands for \
     one thing\n  help: give one of them another name in its spec, compile both packages from the same spec, or keep their registries apart",
    .packages[1], .sources[1], .packages[0], .sources[0]
)]
pub struct Disagreement {
    /// What has the name: a kernel, a format, an activation format, an import layout.
    pub what: &'static str,
    /// The name.
    pub name: &'static str,
    /// The package that had it first, and the other one.
    pub packages: [&'static str; 2],
    /// Where each of them describes it.
    pub sources: [&'static str; 2],
    /// What of it is not the same.
    pub differ: &'static str,
}
