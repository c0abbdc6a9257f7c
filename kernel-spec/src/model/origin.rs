//! Where in the specs something stands.

/// Where something was described.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Origin {
    /// File as the reader should see it, for example `kernel-spec/kernels/matmul.toml`.
    pub file: String,
    /// 1-based line.
    pub line: u32,
    /// Bytes of the file, for [`Diagnostic`](crate::Diagnostic)s.
    pub span: std::ops::Range<usize>,
}
