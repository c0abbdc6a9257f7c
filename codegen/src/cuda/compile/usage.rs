//! What kernels use, as the assembler tells it.

/// Resources of one kernel in one image.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// The function's name.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of stack of a thread.
    pub stack: u32,
    /// Bytes of registers that a thread stores to memory for want of registers.
    pub spill_stores: u32,
    /// Bytes that it loads again.
    pub spill_loads: u32,
    /// Bytes of static shared memory of a block.
    pub shared: u32,
}

/// Reads what `-Xptxas -v` prints, of nvcc and of NVRTC: kernels in the order of the output.
pub fn parse_ptxas(text: &str) -> Vec<Usage> {
    let mut found: Vec<Usage> = Vec::new();
    // The properties of functions that are called follow those of their kernel, under their own names.
    let mut of_kernel = false;
    for line in text.lines() {
        if let Some(rest) = after(line, "Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or_default();
            found.push(Usage { kernel: name.to_string(), ..Usage::default() });
            continue;
        }
        let Some(usage) = found.last_mut() else { continue };
        if let Some(name) = after(line, "Function properties for ") {
            of_kernel = name.trim() == usage.kernel;
        } else if line.contains("bytes stack frame") {
            let stack = before(line, " bytes stack frame");
            let stores = before(line, " bytes spill stores");
            let loads = before(line, " bytes spill loads");
            if of_kernel {
                usage.stack = stack;
            }
            usage.spill_stores += stores;
            usage.spill_loads += loads;
        } else if after(line, "Used ").is_some() && line.contains(" registers") {
            usage.registers = before(line, " registers");
            usage.shared = before(line, " bytes smem");
            // The total, where functions are called.
            usage.stack = usage.stack.max(before(line, " bytes cumulative stack size"));
        }
    }
    found
}

fn after<'t>(line: &'t str, needle: &str) -> Option<&'t str> {
    line.find(needle).map(|at| &line[at + needle.len()..])
}

/// The number that stands before `needle`; 0 where there is none.
fn before(line: &str, needle: &str) -> u32 {
    line.find(needle)
        .and_then(|at| line[..at].rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_nvcc_and_of_nvrtc() {
        let nvcc = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'small' for 'sm_90a'
ptxas info    : Function properties for small
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers, used 0 barriers
ptxas info    : Compiling entry function 'large' for 'sm_75'
ptxas info    : Function properties for large
    48 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads
ptxas info    : Function properties for callee
    16 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 64 bytes cumulative stack size, 256 bytes smem, 380 bytes cmem[0]
ptxas info    : Compile time = 3.081 ms
";
        let expected = [
            Usage { kernel: "small".into(), registers: 14, ..Usage::default() },
            Usage {
                kernel: "large".into(),
                registers: 255,
                stack: 64,
                spill_stores: 44,
                spill_loads: 48,
                shared: 256,
            },
        ];
        assert_eq!(parse_ptxas(nvcc), expected);
        // NVRTC puts words of its own before the properties.
        let nvrtc = nvcc.replace("\n    ", "\nptxas         .     ");
        assert_eq!(parse_ptxas(&nvrtc), expected);
        assert_eq!(parse_ptxas("nvcc fatal   : Unsupported gpu architecture 'compute_61'\n"), []);
    }
}
