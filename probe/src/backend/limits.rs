//! How far the libraries that one needs are followed, and why one was not.

/// How far the libraries that one needs are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Steps from the library to one that it needs.
    pub depth: usize,
    /// Files that are read, the library itself included.
    pub files: usize,
    /// Their size together, in bytes.
    pub bytes: u64,
}

impl Default for Limits {
    /// 16 steps, 256 files, 8 GiB: several times of what builds with CUDA have.
    fn default() -> Limits {
        Limits { depth: 16, files: 256, bytes: 8 << 30 }
    }
}

/// Why a needed library was not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotFollowed {
    /// It is in none of the folders that are known before loading; the loader may know it from its cache.
    NotFound,
    /// A library of the system needs it: that one was validated, what it needs itself is left to the system.
    OfSystem,
    /// More steps away than the limit.
    Depth {
        /// The limit.
        most: usize,
    },
    /// There were as many files as the limit allows.
    Files {
        /// The limit.
        most: usize,
    },
    /// With it, the files would have more bytes than the limit.
    Bytes {
        /// The limit in bytes.
        most: u64,
        /// What they would have.
        wanted: u64,
    },
}

impl NotFollowed {
    /// Whether a limit is the reason. Such a library is not loaded.
    pub fn is_limit(self) -> bool {
        match self {
            NotFollowed::NotFound | NotFollowed::OfSystem => false,
            NotFollowed::Depth { .. } | NotFollowed::Files { .. } | NotFollowed::Bytes { .. } => true,
        }
    }
}

impl std::fmt::Display for NotFollowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotFollowed::NotFound => f.write_str("it is in no folder that is known before loading"),
            NotFollowed::OfSystem => f.write_str("a library of the system needs it"),
            NotFollowed::Depth { most } => write!(f, "it is more than {most} steps away, which is the limit"),
            NotFollowed::Files { most } => write!(f, "{most} files were read, which is the limit"),
            NotFollowed::Bytes { most, wanted } => {
                write!(f, "the files would have {wanted} bytes, and the limit is {most}")
            }
        }
    }
}
