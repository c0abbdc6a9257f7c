//! The search for a CUDA compiler and its use: with pretended compilers (shell scripts) for everything that can go
//! wrong, and with the one of this machine where there is one.
#![cfg(unix)]

use gristmill_codegen::cuda::arch::Wanted;
use gristmill_codegen::cuda::compile::{Budget, Unit, compile, cuobjdump, disassemble, excesses};
use gristmill_codegen::cuda::toolchain::{Discovery, Env, Problem, Toolchain, discover};
use gristmill_spec::vocab::CudaArch;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

fn arch(name: &str) -> CudaArch {
    CudaArch::from_name(name).unwrap()
}

/// A folder that stands for a machine; scripts use nothing but what the shell itself has.
struct Machine {
    folder: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// One test at a time: a process that another thread starts while a script is being written holds the script open for
/// a moment, and then it can't be run.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a pretended toolkit behaves.
#[derive(Clone)]
struct Toolkit {
    nvcc: &'static str,
    cicc: &'static str,
    ptxas: Option<&'static str>,
    /// What the compiler prints and fails with, if it does.
    fails: Option<&'static str>,
}

const GOOD: Toolkit = Toolkit { nvcc: "13.0.88", cicc: "13.0.88", ptxas: Some("13.0.88"), fails: None };

/// Leaves machine code of one kernel in `$out`.
const CODE: &str = "printf 'code' >\"$out\"\n\
    echo \"ptxas info    : Compiling entry function 'k' for 'sm_75'\" >&2\n\
    echo \"ptxas info    : Function properties for k\" >&2\n\
    echo \"    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\" >&2\n\
    echo \"ptxas info    : Used 40 registers, used 0 barriers\" >&2";

impl Machine {
    fn new() -> Machine {
        Machine { _alone: alone(), folder: TempDir::new().unwrap() }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    fn script(&self, relative: &str, text: &str) -> PathBuf {
        let path = self.path(relative);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    /// Puts a toolkit into `relative`; returns its nvcc. It appends a line to `calls` for every compilation.
    fn toolkit(&self, relative: &str, toolkit: &Toolkit) -> PathBuf {
        let Toolkit { nvcc, cicc, ptxas, fails } = toolkit;
        if let Some(ptxas) = ptxas {
            self.script(
                &format!("{relative}/ptxas"),
                &format!(
                    "case \"$1\" in --version) echo 'Cuda compilation tools, release X, V{ptxas}'; exit 0;; esac\n\
                     for word; do\n\
                       case \"$word\" in *.ptx) input=$word;; esac\n\
                       case \"$previous\" in -o) out=$word;; esac\n\
                       previous=$word\n\
                     done\n\
                     case \"$*\" in *sm_80*) echo 'no such instruction' >&2; exit 2;; esac\n\
                     while read -r word rest; do\n\
                       case \"$word $rest\" in '.version 7.0') echo 'Unsupported .version 7.0' >&2; exit 1;; esac\n\
                     done <\"$input\"\n\
                     {CODE}"
                ),
            );
        }
        let fails = fails.map_or(String::new(), |words| format!("echo '{words}' >&2; exit 1\n"));
        self.script(
            &format!("{relative}/nvcc"),
            &format!(
                "case \"$1\" in\n\
                 --version) echo 'Cuda compilation tools, release X, V{nvcc}'; exit 0;;\n\
                 --list-gpu-code) printf 'sm_75\\nsm_80\\nsm_90\\n'; exit 0;;\n\
                 esac\n\
                 {fails}\
                 echo \"$*\" >>{calls}\n\
                 for word; do\n\
                   case \"$previous\" in -o) out=$word;; esac\n\
                   previous=$word\n\
                 done\n\
                 case \"$*\" in\n\
                 *-ptx*) printf '// Cuda compilation tools, release X, V{cicc}\\n.version 9.0\\n' >\"$out\";;\n\
                 *sm_80*) echo \"u.cu(1): error: no such instruction\" >&2; exit 2;;\n\
                 *) {CODE};;\n\
                 esac\n",
                calls = self.path("calls").display(),
            )
        )
    }

    /// Compilations since the last time this was asked.
    fn calls(&self) -> usize {
        let path = self.path("calls");
        let lines = std::fs::read_to_string(&path).unwrap_or_default().lines().count();
        let _ = std::fs::remove_file(path);
        lines
    }

    fn discover(&self, variables: &[(&str, &Path)]) -> Discovery {
        let env = Env::of(variables.iter().map(|(name, path)| (*name, path.as_os_str())));
        discover(&env, None)
    }
}

/// Why the place that begins like this gave nothing.
fn why<'d>(discovery: &'d Discovery, place: &str) -> &'d Problem {
    let found = discovery.looked.iter().find(|looked| looked.place.starts_with(place));
    &found.unwrap_or_else(|| panic!("{place} is not among {:?}", discovery.looked)).why_not
}

fn nvcc_of(discovery: &Discovery) -> &Path {
    match &discovery.found {
        Some(Toolchain::Nvcc(nvcc)) => &nvcc.path,
        other => panic!("found {other:?}, looked at {:?}", discovery.looked),
    }
}

#[test]
fn nothing_anywhere_lists_every_place() {
    let machine = Machine::new();
    let found = machine.discover(&[("PATH", &machine.path("bin")), ("VIRTUAL_ENV", &machine.path("venv"))]);
    // A machine may have NVRTC where the loader finds it; nothing else can be found here.
    if found.found.is_none() {
        let text = found.require().unwrap_err().to_string();
        for place in [
            "GRISTMILL_CUDA_IMAGES: not set",
            "GRISTMILL_NVCC: not set",
            "NVCC: not set",
            "CUDA_HOME: not set",
            "CUDA_PATH: not set",
            "PATH: no `nvcc` there",
            "CONDA_PREFIX: not set",
            "python3 on PATH: no python3 there",
            "NVRTC, system (libnvrtc.so.13)",
            "pip install --no-deps nvidia-cuda-nvcc==13.0.88",
        ] {
            assert!(text.contains(place), "{place} is not in\n{text}");
        }
        assert!(text.contains("holds no site-packages"), "{text}");
        let warning = found.warning();
        assert_eq!(warning.lines().count(), 1);
        assert!(warning.starts_with("built without CUDA kernels: no CUDA compiler found"), "{warning}");
    }
}

#[test]
fn places_come_in_their_order() {
    let machine = Machine::new();
    let named = machine.toolkit("named", &GOOD);
    let plain = machine.toolkit("plain", &GOOD);
    let home = machine.toolkit("home/bin", &GOOD);
    let on_path = machine.toolkit("bin", &GOOD);
    let wheel = machine.toolkit("venv/lib/python3.11/site-packages/nvidia/cu13/bin", &GOOD);
    let mut variables: Vec<(&str, &Path)> = vec![
        ("GRISTMILL_NVCC", &named),
        ("NVCC", &plain),
        ("CUDA_HOME", home.parent().unwrap().parent().unwrap()),
        ("PATH", on_path.parent().unwrap()),
    ];
    let venv = machine.path("venv");
    variables.push(("VIRTUAL_ENV", &venv));
    for expected in [&named, &plain, &home, &on_path, &wheel] {
        assert_eq!(nvcc_of(&machine.discover(&variables)), expected.as_path());
        variables.remove(0);
    }
}

#[test]
fn a_place_that_is_named_for_us_is_not_replaced_by_another() {
    let machine = Machine::new();
    let on_path = machine.toolkit("bin", &GOOD);
    let bin = on_path.parent().unwrap();
    let missing = machine.path("gone/nvcc");
    let found = machine.discover(&[("GRISTMILL_NVCC", &missing), ("PATH", bin)]);
    assert!(found.found.is_none());
    assert_eq!(*why(&found, "GRISTMILL_NVCC"), Problem::NoProgram(missing.clone()));
    assert!(found.warning().contains("GRISTMILL_NVCC"), "{}", found.warning());
    // NVCC is set for many purposes, so that what it names may be stale.
    let found = machine.discover(&[("NVCC", &missing), ("PATH", bin)]);
    assert_eq!(nvcc_of(&found), on_path);
    assert_eq!(*why(&found, "NVCC"), Problem::NoProgram(missing));
}

#[test]
fn compilers_are_refused_for_what_they_are() {
    type Expected = fn(&Problem) -> bool;
    let cases: [(Toolkit, Expected, &str); 10] = [
        (
            Toolkit { nvcc: "13.2.51", ..GOOD },
            |p| matches!(p, Problem::KnownBad { tool: "nvcc", .. }),
            "13.2.51 is refused: it miscompiles",
        ),
        (
            Toolkit { nvcc: "13.2.86", cicc: "13.2.78", ptxas: Some("13.2.86"), fails: None },
            |p| matches!(p, Problem::KnownBad { tool: "cicc", .. }),
            "cicc 13.2.78 is refused",
        ),
        (
            Toolkit { nvcc: "11.8.89", cicc: "11.8.89", ptxas: Some("11.8.89"), fails: None },
            |p| matches!(p, Problem::TooOld { .. }),
            "nvcc 11.8.89 is too old: 12.0.0 is needed",
        ),
        (
            Toolkit { ptxas: None, ..GOOD },
            |p| matches!(p, Problem::Incomplete { tool: "ptxas", .. }),
            "nvidia-cuda-nvcc, nvidia-nvvm",
        ),
        (
            Toolkit { ptxas: Some("13.5.10"), ..GOOD },
            |p| matches!(p, Problem::Mixed { tool: "ptxas", .. }),
            "parts of different toolkits: nvcc 13.0.88, ptxas 13.5.10",
        ),
        (
            Toolkit { cicc: "13.5.10", ..GOOD },
            |p| matches!(p, Problem::Mixed { tool: "cicc", .. }),
            "parts of different toolkits: nvcc 13.0.88, cicc 13.5.10",
        ),
        (
            Toolkit {
                fails: Some(
                    "host_config.h:137:2: error: #error -- unsupported GNU version! gcc versions later than 15 are not supported! The nvcc flag",
                ),
                ..GOOD
            },
            |p| matches!(p, Problem::HostCompilerTooNew { .. }),
            "gcc versions later than 15 are not supported! The nvcc flag; put an older one first on PATH",
        ),
        (
            Toolkit {
                fails: Some(
                    "gcc: No such file or directory\nnvcc fatal   : Failed to preprocess host compiler properties.",
                ),
                ..GOOD
            },
            |p| matches!(p, Problem::NoHostCompiler { .. }),
            "install gcc",
        ),
        (
            Toolkit { fails: Some("sh: 1: ../nvvm/bin/cicc: not found"), ..GOOD },
            |p| matches!(p, Problem::Incomplete { tool: "cicc", .. }),
            "cicc is missing beside",
        ),
        (
            Toolkit { fails: Some("something else"), ..GOOD },
            |p| matches!(p, Problem::Trial { .. }),
            "nvcc 13.0.88 can't compile an empty kernel: something else",
        ),
    ];
    for (toolkit, expected, words) in cases {
        let machine = Machine::new();
        let nvcc = machine.toolkit("kit", &toolkit);
        let found = machine.discover(&[("GRISTMILL_NVCC", &nvcc)]);
        assert!(found.found.is_none(), "{words}");
        let problem = why(&found, "GRISTMILL_NVCC");
        assert!(expected(problem), "{problem:?}");
        assert!(problem.to_string().contains(words), "{problem}");
    }
}

#[test]
fn something_that_is_no_compiler() {
    let machine = Machine::new();
    let odd = machine.script("odd/nvcc", "echo hello\n");
    let found = machine.discover(&[("GRISTMILL_NVCC", &odd)]);
    assert!(why(&found, "GRISTMILL_NVCC").to_string().ends_with("printed no version: hello"));
    // A wheel of CUDA 12 has an assembler and nothing else.
    machine.script("venv/lib/python3.11/site-packages/nvidia/cuda_nvcc/bin/ptxas", "exit 0\n");
    let venv = machine.path("venv");
    let found = machine.discover(&[("VIRTUAL_ENV", &venv)]);
    assert!(matches!(why(&found, "VIRTUAL_ENV"), Problem::AssemblerOnly(_)), "{:?}", found.looked);
}

#[test]
fn a_trial_that_succeeded_is_remembered_until_the_compiler_changes() {
    let machine = Machine::new();
    let nvcc = machine.toolkit("kit", &GOOD);
    let memo = machine.path("memo");
    std::fs::create_dir_all(&memo).unwrap();
    let find = || {
        let env = Env::of([("GRISTMILL_NVCC", nvcc.as_os_str())]);
        discover(&env, Some(&memo)).found.is_some()
    };
    assert!(find() && find());
    assert_eq!(machine.calls(), 1);
    machine.toolkit("kit", &Toolkit { fails: Some("broken now"), ..GOOD });
    assert!(!find());
}

fn toolchain(machine: &Machine) -> Toolchain {
    let nvcc = machine.toolkit("kit", &GOOD);
    machine.discover(&[("GRISTMILL_NVCC", &nvcc)]).found.unwrap()
}

#[test]
fn an_architecture_that_fails_costs_its_image_only() {
    let machine = Machine::new();
    let toolchain = toolchain(&machine);
    assert_eq!(toolchain.archs_for(&Wanted::All, &[]).unwrap(), [arch("75"), arch("80"), arch("90a")]);
    let cache = machine.path("cache");
    let units = [
        Unit::new("u", "int u;\n", (7, 5), &[arch("75"), arch("80"), arch("90a"), arch("61"), arch("100")]),
        Unit::new("v", "int v;\n", (9, 0), &[arch("75"), arch("90")]),
    ];
    machine.calls();
    let made = compile(&units, &toolchain, &cache, 2).unwrap();
    let names: Vec<String> = made.images.iter().map(|i| format!("{} {}", i.unit, i.target())).collect();
    assert_eq!(names, ["u sm_75", "u sm_90a", "u compute_75", "v sm_90", "v compute_90"]);
    let words: Vec<String> = made.failures.iter().map(ToString::to_string).collect();
    assert_eq!(words[0], "unit `u` for sm_80: u.cu(1): error: no such instruction");
    assert!(words[1].starts_with("unit `u` for sm_100: nvcc 13.0.88"), "{}", words[1]);
    assert!(words[1].ends_with("builds for 75, 80, 90, not for this"), "{}", words[1]);
    assert_eq!(made.images[0].usage[0].registers, 40);
    // The oldest version that the assembler takes; the driver wants the zero.
    assert!(made.images[2].bytes.ends_with(b".version 7.4\n\0"));
    // One call for each text, and one more for the image that its PTX does not serve.
    assert_eq!((made.compiled, machine.calls()), (5, 3));
    // Again: only what failed is tried again.
    let again = compile(&units, &toolchain, &cache, 2).unwrap();
    assert_eq!((again.compiled, machine.calls()), (0, 2));
    assert_eq!(again.images, made.images);
    // Another source, another image; the others stay.
    let changed = [Unit { text: "int w;\n".into(), ..units[0].clone() }, units[1].clone()];
    assert_eq!(compile(&changed, &toolchain, &cache, 2).unwrap().compiled, 3);
    // A damaged file is made again.
    let file = std::fs::read_dir(&cache).unwrap().map(|e| e.unwrap().path());
    let file =
        file.filter(|p| p.file_name().unwrap().to_string_lossy().starts_with("v.sm_90.")).last().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert_eq!(compile(&units, &toolchain, &cache, 1).unwrap().compiled, 1);
    // Nothing but images is left behind.
    let rest = std::fs::read_dir(&cache).unwrap().map(|e| e.unwrap().path());
    let rest: Vec<PathBuf> = rest.filter(|p| p.extension().is_none_or(|e| e != "image")).collect();
    assert!(rest.is_empty(), "{rest:?}");
}

#[test]
fn a_cache_serves_as_a_folder_of_images() {
    let machine = Machine::new();
    let compiler = toolchain(&machine);
    let cache = machine.path("cache");
    let units = [Unit::new("u", "int u;\n", (7, 5), &[arch("75"), arch("90")])];
    let made = compile(&units, &compiler, &cache, 1).unwrap();
    let found = machine.discover(&[("GRISTMILL_CUDA_IMAGES", &cache)]);
    let images = found.found.unwrap();
    assert_eq!(images.archs(), [arch("75"), arch("90")]);
    let again = compile(&units, &images, &machine.path("unused"), 1).unwrap();
    assert_eq!(again.images, made.images);
    assert!(again.failures.is_empty());
    // Images of other sources are not taken for these.
    let changed = [Unit { text: "int w;\n".into(), ..units[0].clone() }];
    let none = compile(&changed, &images, &machine.path("unused"), 1).unwrap();
    assert!(none.images.is_empty());
    assert_eq!(none.failures.len(), 3);
    assert!(none.failures[0].stderr.contains("but of another source"), "{}", none.failures[0]);
    // A damaged folder is refused as a whole, an empty one too.
    std::fs::write(cache.join("x.image"), "gristmill image 1\n").unwrap();
    let found = machine.discover(&[("GRISTMILL_CUDA_IMAGES", &cache)]);
    assert!(why(&found, "GRISTMILL_CUDA_IMAGES").to_string().ends_with("x.image: it is no image file"));
    let empty = machine.path("empty");
    std::fs::create_dir_all(&empty).unwrap();
    let found = machine.discover(&[("GRISTMILL_CUDA_IMAGES", &empty)]);
    assert!(matches!(why(&found, "GRISTMILL_CUDA_IMAGES"), Problem::Images { .. }));
}

#[test]
fn a_unit_needs_a_name_that_a_file_can_have() {
    let machine = Machine::new();
    let toolchain = toolchain(&machine);
    for name in ["", "../u", "a b", "-o", "ü"] {
        let unit = Unit { name: name.into(), text: String::new(), archs: vec![arch("75")], ptx: Vec::new() };
        assert!(compile(&[unit], &toolchain, &machine.path("cache"), 1).is_err(), "{name}");
    }
}

/// What is compiled where there is a compiler: four products of bytes at once, 16-byte loads, shared memory; and for
/// architectures that have none, an instruction of 9.0 only.
const REAL: &str = r#"
extern "C" __global__ void product(const uint4 *a, const uint4 *b, int *out) {
    __shared__ int sums[32];
    uint4 x = a[threadIdx.x], y = b[threadIdx.x];
    int sum = __dp4a((int)x.x, (int)y.x, 0);
    sum = __dp4a((int)x.y, (int)y.y, sum);
    sum = __dp4a((int)x.z, (int)y.z, sum);
    sums[threadIdx.x] = __dp4a((int)x.w, (int)y.w, sum);
    __syncthreads();
    if (threadIdx.x == 0) {
        int all = 0;
        for (int i = 0; i < 32; ++i) all += sums[i];
        *out = all;
    }
}
"#;

const NEW_ONLY: &str =
    "extern \"C\" __global__ void wait() { asm volatile(\"griddepcontrol.wait;\" ::: \"memory\"); }\n";

/// Compiles the same units and looks at the images.
fn try_real(toolchain: &Toolchain, env: &Env) {
    let folder = TempDir::new().unwrap();
    let archs = [arch("75"), arch("80"), arch("90a")];
    let units = [Unit::new("product", REAL, (6, 1), &archs), Unit::new("wait", NEW_ONLY, (7, 5), &archs)];
    let made = compile(&units, toolchain, folder.path(), 2).unwrap();
    let names: Vec<String> = made.images.iter().map(|i| format!("{} {}", i.unit, i.target())).collect();
    let failed: Vec<String> = made.failures.iter().map(|f| format!("{} {}", f.unit, f.arch)).collect();
    assert_eq!(
        &names[..5],
        ["product sm_75", "product sm_80", "product sm_90a", "product compute_75", "wait sm_90a"]
    );
    assert_eq!(&failed[..2], ["wait 75", "wait 80"], "{:?}", made.failures);
    assert!(made.failures[0].stderr.contains("griddepcontrol"), "{}", made.failures[0]);
    for image in made.images.iter().filter(|image| image.unit == "product" && !image.ptx) {
        assert!(image.bytes.starts_with(b"\x7fELF"));
        let usage = &image.usage[0];
        assert_eq!((usage.kernel.as_str(), usage.shared, usage.spill_stores), ("product", 128, 0));
        assert!((8..=64).contains(&usage.registers), "{usage:?}");
    }
    let budget = |registers| Budget {
        kernel: "product".into(),
        registers: Some(registers),
        shared: Some(128),
        source: "here:1".into(),
    };
    let images: Vec<_> = made.images.iter().filter(|image| image.unit == "product").cloned().collect();
    let (wide, narrow) = ([budget(64)], [budget(4)]);
    assert_eq!(excesses(&images, |_| &wide), []);
    assert_eq!(excesses(&images, |_| &narrow).len(), 3);
    let ptx = String::from_utf8(made.images[3].bytes.clone()).unwrap();
    let version = ptx.lines().find(|line| line.starts_with(".version")).unwrap();
    match toolchain {
        Toolchain::Nvcc(_) => assert_eq!(version, ".version 7.0"),
        Toolchain::Nvrtc(_) | Toolchain::Images(_) => assert!(version > ".version 8."),
    }
    let again = compile(&units, toolchain, folder.path(), 2).unwrap();
    assert_eq!((again.compiled, &again.images), (0, &made.images));
    match cuobjdump(toolchain, env) {
        None => eprintln!("skipped: instructions (no cuobjdump)"),
        Some(tool) => {
            for image in images.iter().filter(|image| !image.ptx) {
                let kernels = disassemble(&tool, env, &image.bytes).unwrap();
                let product = &kernels["product"];
                assert_eq!(product.count("IDP.4A"), 4, "{product:?}");
                assert_eq!(product.count("LDG.128"), 2, "{product:?}");
                assert_eq!((product.count("LDL"), product.count("STL")), (0, 0));
            }
        }
    }
}

#[test]
fn the_compilers_of_this_machine() {
    let _alone = alone();
    let env = Env::of_process();
    let found = discover(&env, None);
    let mut tried = 0;
    if let Some(toolchain @ Toolchain::Nvcc(nvcc)) = &found.found {
        eprintln!("{toolchain}");
        try_real(toolchain, &env);
        tried += 1;
        if let Some(library) = &nvcc.library {
            // Its programs, and the library alone.
            let mut programs = nvcc.clone();
            programs.library = None;
            let programs = Toolchain::Nvcc(programs);
            assert_ne!(toolchain.identity(), programs.identity());
            let named = Env::of([("GRISTMILL_NVRTC", library.path.as_os_str())]);
            let found = discover(&named, None);
            let alone = found.found.unwrap_or_else(|| panic!("{:?}", found.looked));
            for toolchain in [programs, alone] {
                eprintln!("{toolchain}");
                try_real(&toolchain, &env);
                tried += 1;
            }
            // Flags that are for nvcc are not lost.
            let path = std::env::var_os("PATH").unwrap_or_default();
            let flagged = Env::of([
                ("GRISTMILL_NVCC", nvcc.path.as_os_str()),
                ("NVCC_APPEND_FLAGS", "-DEXTRA".as_ref()),
                ("PATH", path.as_os_str()),
            ]);
            match discover(&flagged, None).found {
                Some(Toolchain::Nvcc(nvcc)) => assert!(nvcc.library.is_none()),
                other => panic!("{other:?}"),
            }
        }
    }
    eprintln!("tried {tried} of 3 ways");
    let strict = std::env::var_os("GRISTMILL_NO_SKIP").is_some_and(|value| value == "1");
    assert!(!strict || tried > 0, "no CUDA compiler: {:?}", found.looked);
}
