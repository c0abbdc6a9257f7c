//! The machine instructions of an image, to see whether a kernel is what its plan promised. The tools for it come
//! separately; see [`PIP_TOOLS_LINE`](crate::cuda::toolchain::PIP_TOOLS_LINE).

use super::Toolchain;
use super::messages::CompileError;
use crate::cuda::toolchain::{Env, Scratch, both, words};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The instructions of a kernel's code in their order, by their whole names: `LDG.E.128.CONSTANT`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instructions {
    names: Vec<String>,
    /// Bytes from the kernel's start to each.
    addresses: Vec<u64>,
    /// Branches: the instruction, the address that it leads to, and whether there is a condition.
    branches: Vec<(usize, u64, bool)>,
}

impl Instructions {
    /// Where those stand that [`count`](Self::count) counts.
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

    /// The loop in which a kernel executes an instruction with this name and these modifiers: of those that hold no smaller one with it, the
    /// one with the most. Instructions with the name `always` are executed each time, also where a branch goes past them.
    pub fn loop_with(&self, name: &str, always: &str) -> Option<Loop> {
        let places: Vec<usize> = self.places(name).collect();
        let kept: Vec<usize> = self.places(always).chain(places.iter().copied()).collect();
        let count = |range: &Range<usize>| places.iter().filter(|at| range.contains(at)).count();
        // What stands behind the kernel's end leads back to where it was left, which is no loop.
        let end = self.places("EXIT").last().unwrap_or(self.names.len());
        let loops: Vec<(Range<usize>, usize)> = self
            .branches
            .iter()
            .filter(|(at, _, conditional)| *conditional || *at < end)
            .filter_map(|(at, target, _)| {
                let begin = self.addresses.binary_search(target).ok()?;
                let range = begin..at + 1;
                (begin <= *at).then(|| (range.clone(), count(&range)))
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        let inside = |inner: &Range<usize>, outer: &Range<usize>| {
            inner.len() < outer.len() && outer.start <= inner.start && inner.end <= outer.end
        };
        let innermost =
            loops.iter().filter(|(range, _)| !loops.iter().any(|(other, _)| inside(other, range)));
        let most = innermost.max_by_key(|(range, count)| (*count, std::cmp::Reverse(range.len())));
        most.map(|(range, count)| {
            // What a branch may go past, each instruction once, and nothing of what was asked for.
            let mut past = vec![false; range.len()];
            for (at, target, _) in self.branches.iter().filter(|(at, _, given)| *given && range.contains(at))
            {
                let Ok(to) = self.addresses.binary_search(target) else { continue };
                if to > *at && range.contains(&to) && !kept.iter().any(|place| (*at..to).contains(place)) {
                    past[at + 1 - range.start..to - range.start].fill(true);
                }
            }
            let sometimes = past.iter().filter(|past| **past).count();
            Loop { instructions: range.len(), found: *count, sometimes }
        })
    }
}

/// A loop of a kernel, as its code has it: from where a branch leads back to, to the branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Its instructions.
    pub instructions: usize,
    /// Those that were asked for.
    pub found: usize,
    /// Those that a branch within the loop may go past.
    pub sometimes: usize,
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
        // Behind the `;` stands the encoding.
        let mut parts = rest.split(';').next().unwrap_or_default().split_whitespace();
        let name = parts.find(|word| !word.starts_with('@') && *word != "{");
        let Some(name) = name else { continue };
        let target = parts.filter_map(|word| word.strip_prefix("0x")).next_back();
        let conditional = rest.trim_start().starts_with('@');
        if let Some(target) = target.filter(|_| name.split('.').next() == Some("BRA")) {
            // An address that is none leads nowhere.
            let to = u64::from_str_radix(target, 16).ok();
            kernel.branches.extend(to.map(|to| (kernel.names.len(), to, conditional)));
        }
        kernel.names.push(name.to_string());
        kernel.addresses.push(u64::from_str_radix(address, 16).unwrap_or_default());
    }
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_of_an_instruction_is_found() {
        let line = |at: u32, text: &str| format!("        /*{:04x}*/   {text} ;   /* 0x0bad */\n", at * 16);
        let lines = [
            "IMMA.16832.S8 R0, R1",
            "LDS R0, [R1]",
            "NOP",
            "@!P0 BRA 0x20",
            "IMMA.16832.S8 R0, R1",
            "IMMA.16832.S8 R0, R1",
            "@P0 BRA 0x80",
            "NOP",
            "@P1 BRA 0x40",
            "@P2 BRA 0x0",
            "EXIT",
            "BRA 0x10",
        ];
        let text: String = lines.iter().enumerate().map(|(at, text)| line(at as u32, text)).collect();
        let kernels = parse_sass(&format!("\t\tFunction : k\n{text}"));
        assert_eq!(kernels["k"].total(), 12);
        // Not the whole kernel, which is a loop around it, nor one that only waits.
        assert_eq!(
            kernels["k"].loop_with("IMMA", "STS"),
            Some(Loop { instructions: 5, found: 2, sometimes: 1 })
        );
        let around = Loop { instructions: 10, found: 1, sometimes: 1 };
        assert_eq!(kernels["k"].loop_with("LDS", "STS"), Some(around));
        assert_eq!((kernels["k"].loop_with("EXIT", ""), kernels["k"].loop_with("STS", "")), (None, None));
    }

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
