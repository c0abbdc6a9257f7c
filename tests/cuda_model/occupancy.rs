//! Occupancy against the rules that NVIDIA publishes as code: `cuda_occupancy.h` of the toolkit, where one is.

use super::skipped;
use gristmill::runtime::occupancy::{BlockNeeds, Limit, Multiprocessor};
use gristmill_codegen::cuda::toolchain::{Env, discover};
use std::path::PathBuf;
use std::process::Command;

/// Prints the blocks of a multiprocessor, and what bounds them, for a line of numbers each: compute capability, threads, KiB of shared
/// memory and bytes of it that are reserved, of the multiprocessor; threads, registers and shared memory of a block.
const PROGRAM: &str = r#"
#include <cstdio>
#include <cstring>
#include <cuda_occupancy.h>
int main() {
    int major, minor, most, reserved, threads, registers;
    unsigned long shared, bytes;
    while (std::scanf("%d %d %d %lu %d %d %d %lu", &major, &minor, &most, &shared, &reserved, &threads, &registers, &bytes) == 8) {
        cudaOccDeviceProp device;
        std::memset(&device, 0, sizeof device);
        device.computeMajor = major;
        device.computeMinor = minor;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = most;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536;
        device.warpSize = 32;
        device.sharedMemPerBlock = 48 * 1024;
        device.sharedMemPerMultiprocessor = shared;
        device.numSms = 1;
        device.sharedMemPerBlockOptin = shared - reserved;
        device.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes function;
        std::memset(&function, 0, sizeof function);
        function.maxThreadsPerBlock = 1024;
        function.numRegs = registers;
        function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        function.maxDynamicSharedSizeBytes = shared - reserved;
        cudaOccDeviceState state;
        cudaOccResult result;
        const cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state, threads, bytes);
        if (error != CUDA_OCC_SUCCESS) return std::printf("error %d\n", error), 1;
        std::printf("%d %u\n", result.activeBlocksPerMultiprocessor, result.limitingFactors);
    }
}
"#;

/// The toolkit's headers.
fn headers() -> Option<PathBuf> {
    let found = discover(&Env::of_process(), None).found?;
    let real = found.path().canonicalize().ok()?;
    let folders = real.ancestors().map(|folder| folder.join("include"));
    folders.into_iter().find(|folder| folder.join("cuda_occupancy.h").is_file())
}

#[test]
fn occupancy_is_what_nvidia_s_calculator_says() {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "g++".into());
    let there = Command::new(&compiler).arg("--version").output().is_ok();
    let Some(headers) = headers().filter(|_| there) else {
        skipped("no cuda_occupancy.h, or no C++ compiler");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("occupancy.cc"), folder.path().join("occupancy"));
    std::fs::write(&source, PROGRAM).expect("it is written");
    let mut command = Command::new(&compiler);
    command.arg("-I").arg(headers).arg(&source).arg("-o").arg(&program);
    let built = command.output().expect("it runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let capabilities =
        [(7, 0), (7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)];
    let mut cases = Vec::new();
    for cc in capabilities {
        let of = Multiprocessor::of(cc).expect("known");
        let most = of.shared - of.reserved_shared;
        for threads in [1, 32, 64, 96, 128, 160, 224, 256, 352, 384, 512, 768, 1024] {
            for registers in [16, 24, 31, 32, 40, 44, 64, 80, 96, 104, 126, 128, 168, 176, 216, 224, 255] {
                for shared in [0, 1, 1000, 4096, 17_000, 32_464, 40_960, 49_152, most / 2, most] {
                    cases.push((cc, of, BlockNeeds { threads, registers, shared }));
                }
            }
        }
    }
    let lines: String = cases
        .iter()
        .map(|(cc, of, block)| {
            let BlockNeeds { threads, registers, shared } = block;
            let Multiprocessor { threads: most, shared: all, reserved_shared: reserved, .. } = of;
            format!("{} {} {most} {all} {reserved} {threads} {registers} {shared}\n", cc.0, cc.1)
        })
        .collect();
    let input = folder.path().join("cases");
    std::fs::write(&input, lines).expect("it is written");
    let output = Command::new(&program)
        .stdin(std::fs::File::open(&input).expect("it was written"))
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", text.lines().last().unwrap_or_default());
    let mut limits = [0; 4];
    for ((cc, of, block), line) in cases.iter().zip(text.lines()) {
        let found = of.occupancy(block);
        let mut numbers = line.split(' ').map(|word| word.parse::<u32>().expect("a number"));
        let (blocks, factors) = (numbers.next().expect("blocks"), numbers.next().expect("factors"));
        assert_eq!(found.blocks, blocks, "{cc:?} {block:?}");
        // OCC_LIMIT_WARPS, _REGISTERS, _SHARED_MEMORY, _BLOCKS: all that bound it alike.
        let (at, bit) = match found.limit {
            Limit::Threads => (0, 1),
            Limit::Registers => (1, 2),
            Limit::Shared => (2, 4),
            Limit::Blocks => (3, 8),
        };
        assert_ne!(factors & bit, 0, "{cc:?} {block:?}: {found:?}, not {factors:#x}");
        limits[at] += 1;
    }
    assert_eq!(text.lines().count(), cases.len());
    println!("{} cases, bounded by threads, registers, shared memory and blocks in {limits:?}", cases.len());
    assert!(limits.iter().all(|count| *count > 100), "{limits:?}");
}
