//! The machine instructions of an image, to see whether a kernel is what its plan promised. The tools for it come
//! separately; see [`PIP_TOOLS_LINE`](crate::cuda::toolchain::PIP_TOOLS_LINE).

use super::Toolchain;
use super::messages::CompileError;
use crate::cuda::toolchain::{Env, Scratch, both, words};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The instructions of a kernel's code in their order, by their whole names: `LDG.E.128.CONSTANT`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instructions {
    names: Vec<String>,
}

impl Instructions {
    /// Places of instructions with this name and these modifiers, in any order: `LDG.128` finds `LDG.E.128.CONSTANT`.
    fn places<'a>(&'a self, name: &'a str) -> impl Iterator<Item = usize> + 'a {
        let (first, modifiers) = name.split_once('.').unwrap_or((name, ""));
        let modifiers: Vec<&str> = modifiers.split('.').filter(|word| !word.is_empty()).collect();
        let wanted = move |full: &str| {
            let (word, rest) = full.split_once('.').unwrap_or((full, ""));
            word == first && modifiers.iter().all(|modifier| rest.split('.').any(|has| has == *modifier))
        };
        self.names.iter().enumerate().filter(move |(_, full)| wanted(full)).map(|(at, _)| at)
    }

    /// Occurrences of instructions with this name and these modifiers, in any order: `LDG.128` finds
    /// `LDG.E.128.CONSTANT`.
    pub fn count(&self, name: &str) -> usize {
        self.places(name).count()
    }

    /// Whether one with the name `first` stands before all with the name `second`, of which there is one.
    pub fn in_front(&self, first: &str, second: &str) -> bool {
        let [first, second] = [first, second].map(|name| self.places(name).next());
        first.zip(second).is_some_and(|(first, second)| first < second)
    }

    /// All instructions.
    pub fn total(&self) -> usize {
        self.names.len()
    }
}

/// Where `cuobjdump` is: beside the compiler, or on the path.
pub fn cuobjdump(toolchain: &Toolchain, env: &Env) -> Option<PathBuf> {
    let beside = match toolchain {
        Toolchain::Nvcc(nvcc) => {
            let real = nvcc.path.canonicalize().unwrap_or_else(|_| nvcc.path.clone());
            real.parent().map(|folder| folder.join(crate::cuda::toolchain::exe("cuobjdump")))
        }
        Toolchain::Nvrtc(_) | Toolchain::Images(_) => None,
    };
    beside.filter(|path| path.is_file()).or_else(|| env.on_path("cuobjdump"))
}

/// Disassembles machine code: instructions by kernel.
///
/// # Errors
///
/// A tool that can't be run or does not understand the image.
pub fn disassemble(
    cuobjdump: &Path,
    env: &Env,
    image: &[u8],
) -> Result<BTreeMap<String, Instructions>, CompileError> {
    let failed = |reason: String| CompileError::Tool { path: cuobjdump.to_path_buf(), reason };
    let scratch = Scratch::new(None).map_err(|error| failed(error.to_string()))?;
    let file = scratch.path.join("image.cubin");
    std::fs::write(&file, image).map_err(|error| failed(error.to_string()))?;
    let output =
        env.command(cuobjdump).arg("-sass").arg(&file).output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(words(&both(&output))));
    }
    Ok(parse_sass(&String::from_utf8_lossy(&output.stdout)))
}

/// Reads what `cuobjdump -sass` prints.
pub fn parse_sass(text: &str) -> BTreeMap<String, Instructions> {
    let mut kernels: BTreeMap<String, Instructions> = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        if let Some(name) = line.trim().strip_prefix("Function : ") {
            kernels.entry(name.to_string()).or_default();
            current = Some(name.to_string());
            continue;
        }
        let Some(kernel) = current.as_ref().and_then(|name| kernels.get_mut(name)) else { continue };
        // /*00c0*/  @!P0 BRA 0xe0 ;  /* the encoding */
        let Some((address, rest)) = line.trim().strip_prefix("/*").and_then(|rest| rest.split_once("*/"))
        else {
            continue;
        };
        if !rest.contains(';') || address.len() < 4 {
            continue;
        }
        let mut parts = rest.split_whitespace();
        let name = parts.find(|word| !word.starts_with('@') && *word != "{");
        if let Some(name) = name {
            kernel.names.push(name.trim_end_matches(';').to_string());
        }
    }
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_counted_by_kernel() {
        let text = "
\tcode for sm_90a
\t\tFunction : first
\t.headerflags\t@\"EF_CUDA_SM90\"
        /*0000*/                   LDC R1, c[0x0][0x28] ;          /* 0x00000a00ff017b82 */
                                                                   /* 0x000ff00000000800 */
        /*00b0*/              @!P0 BRA 0xe0 ;                      /* 0x0000000000000000 */
        /*00c0*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ; /* 0x1 */
        /*00d0*/                   LDG.E R4, desc[UR4][R2.64] ;    /* 0x1 */
        /*00e0*/                   EXIT ;                          /* 0x1 */
\t\t..........
\t\tFunction : second
        /*0000*/                   IDP.4A.U8.S8 R1, R2, R3, R1 ;   /* 0x1 */
";
        let kernels = parse_sass(text);
        let first = &kernels["first"];
        assert_eq!(first.total(), 5);
        assert_eq!(first.count("LDG"), 2);
        assert_eq!(first.count("LDG.128"), 1);
        assert_eq!(first.count("LDG.64"), 0);
        assert_eq!(first.count("BRA"), 1);
        assert_eq!(first.count("LD"), 0);
        assert_eq!(first.count("EXIT"), 1);
        assert_eq!(kernels["second"].count("IDP.4A"), 1);
        assert!(
            first.in_front("BRA", "LDG") && !first.in_front("LDG", "BRA") && !first.in_front("BRA", "IDP")
        );
    }
}
