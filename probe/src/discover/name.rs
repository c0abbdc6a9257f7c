//! What a file's name says about a library.

use crate::analyze::Kind;

/// How a library is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Linkage {
    /// At run time.
    Shared,
    /// Into the program.
    Static,
}

impl Linkage {
    /// How a library is linked, by what it is.
    pub(super) fn of(kind: Kind) -> Linkage {
        match kind {
            Kind::Shared | Kind::Import => Linkage::Shared,
            Kind::Static | Kind::Object | Kind::Executable => Linkage::Static,
        }
    }
}

/// Which library it is. In the order in which a linker wants them: users before those they use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// bitnet.cpp's own library.
    Bitnet,
    /// llama.cpp.
    Llama,
    /// ggml, or the part of it that knows its backends.
    Ggml,
    /// ggml's backend for CUDA.
    GgmlCuda,
    /// Another backend of ggml.
    GgmlOther,
    /// ggml's backend for the processor.
    GgmlCpu,
    /// The same, built for certain processors; ggml loads it itself.
    GgmlCpuVariant,
    /// What ggml's backends share.
    GgmlBase,
}

impl Role {
    fn of(stem: &str) -> Option<Role> {
        match stem {
            "bitnet" | "bitnet_cpp" | "bitnet-cpp" => Some(Role::Bitnet),
            "llama" => Some(Role::Llama),
            "ggml" => Some(Role::Ggml),
            "ggml-base" => Some(Role::GgmlBase),
            "ggml-cpu" => Some(Role::GgmlCpu),
            "ggml-cuda" => Some(Role::GgmlCuda),
            other if other.starts_with("ggml-cpu-") => Some(Role::GgmlCpuVariant),
            other if other.starts_with("ggml-") => Some(Role::GgmlOther),
            _ => None,
        }
    }
}

/// A library's file name, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileName {
    /// The name without prefix, ending and version: `ggml-cpu`.
    pub stem: String,
    /// Which library it is.
    pub role: Role,
    /// How it is linked.
    pub linkage: Linkage,
    /// The numbers of its version, if its name has one.
    pub version: Vec<u64>,
    /// Whether `-l STEM` finds it.
    pub plain: bool,
}

impl FileName {
    /// Takes a file name apart; `None` if it is none of the libraries that are looked for.
    pub fn parse(file: &str) -> Option<FileName> {
        let numbers =
            |text: &str| text.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u64>>>();
        let library = |stem: &str, linkage, version: Vec<u64>, plain| {
            let stem = stem.to_owned();
            Some(FileName {
                role: Role::of(&stem)?,
                plain: plain && version.is_empty(),
                stem,
                linkage,
                version,
            })
        };
        let unix = file.strip_prefix("lib");
        if let Some(name) = unix {
            if let Some(stem) = name.strip_suffix(".dll.a").or_else(|| name.strip_suffix(".dll")) {
                return library(stem, Linkage::Shared, Vec::new(), true);
            }
            if let Some(stem) = name.strip_suffix(".a") {
                return library(stem, Linkage::Static, Vec::new(), true);
            }
            if let Some(stem) = name.strip_suffix(".so") {
                return library(stem, Linkage::Shared, Vec::new(), true);
            }
            if let Some((stem, version)) = name.split_once(".so.") {
                return library(stem, Linkage::Shared, numbers(version)?, true);
            }
            if let Some(name) = name.strip_suffix(".dylib") {
                return match name.split_once('.') {
                    Some((stem, version)) => library(stem, Linkage::Shared, numbers(version)?, true),
                    None => library(name, Linkage::Shared, Vec::new(), true),
                };
            }
        }
        if let Some(stem) = file.strip_suffix(".dll") {
            return library(stem, Linkage::Shared, Vec::new(), false);
        }
        // An import library of a DLL, or an archive: only its contents tell.
        file.strip_suffix(".lib").and_then(|stem| library(stem, Linkage::Static, Vec::new(), true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let parsed =
            |file: &str| FileName::parse(file).map(|n| (n.stem, n.role, n.linkage, n.version, n.plain));
        let shared = Linkage::Shared;
        assert_eq!(parsed("libllama.so"), Some(("llama".into(), Role::Llama, shared, vec![], true)));
        assert_eq!(
            parsed("libggml-cpu.so.0.20.2"),
            Some(("ggml-cpu".into(), Role::GgmlCpu, shared, vec![0, 20, 2], false))
        );
        assert_eq!(
            parsed("libggml-base.0.dylib"),
            Some(("ggml-base".into(), Role::GgmlBase, shared, vec![0], false))
        );
        assert_eq!(parsed("libggml.dylib"), Some(("ggml".into(), Role::Ggml, shared, vec![], true)));
        assert_eq!(
            parsed("libbitnet.a"),
            Some(("bitnet".into(), Role::Bitnet, Linkage::Static, vec![], true))
        );
        assert_eq!(
            parsed("ggml-cpu-haswell.dll"),
            Some(("ggml-cpu-haswell".into(), Role::GgmlCpuVariant, shared, vec![], false))
        );
        assert_eq!(parsed("llama.lib"), Some(("llama".into(), Role::Llama, Linkage::Static, vec![], true)));
        assert_eq!(
            parsed("libggml-cuda.dll.a"),
            Some(("ggml-cuda".into(), Role::GgmlCuda, shared, vec![], true))
        );
        for other in [
            "libllamafile.so",
            "llama",
            "libllama.so.x",
            "libc.so.6",
            "ggml.h",
            "libggml.so.",
            "libllama.1x.dylib",
            "",
        ] {
            assert_eq!(parsed(other), None, "{other}");
        }
    }
}
