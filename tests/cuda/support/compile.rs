//! Compiling for the emulator, once for each text.

use gristmill_spec::Fnv;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Flags of all C++ here. Floating point rounds each operation once, as the device does.
const FLAGS: [&str; 7] = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-fPIC", "-g1"];

/// Mistakes that g++ finds at run time and tells the emulator about.
const CHECKS: &str =
    "-fsanitize=signed-integer-overflow,shift-exponent,bounds,float-cast-overflow,integer-divide-by-zero";

/// The C++ compiler: its command and what it says of itself.
#[derive(Debug)]
pub struct Compiler {
    command: OsString,
    version: Vec<u8>,
}

/// `$CXX` or g++, if there is one that runs.
pub fn compiler() -> Option<&'static Compiler> {
    static FOUND: OnceLock<Option<Compiler>> = OnceLock::new();
    let find = || {
        let command = std::env::var_os("CXX").unwrap_or_else(|| "g++".into());
        let output = Command::new(&command).arg("--version").output().ok()?;
        output.status.success().then_some(Compiler { command, version: output.stdout })
    };
    FOUND.get_or_init(find).as_ref()
}

/// The folder of the workspace.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = here.ancestors().find(|folder| folder.join("tests/cuda/emulator").is_dir());
    found.expect("the emulator is in the workspace").to_owned()
}

/// Reads a file of the workspace.
fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A shared object.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Where it is.
    pub path: PathBuf,
}

/// Compiles `text` and links it, unless that was done before. The name is for people.
///
/// # Errors
/// What the compiler says.
fn shared_object(name: &str, text: &str, flags: &[OsString], link: &[OsString]) -> Result<Compiled, String> {
    let compiler = compiler().expect("can_run was asked");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-emulator");
    let mut hasher = DefaultHasher::new();
    (text, flags, link, FLAGS, &compiler.command, &compiler.version, &folder).hash(&mut hasher);
    let stem = format!("{name}-{:016x}", hasher.finish());
    let path = folder.join(format!("{stem}.so"));
    if path.is_file() {
        return Ok(Compiled { path });
    }
    let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
    // Tests of several processes may want the same object: each makes its own, and the last to finish stays.
    let own = folder.join(format!("{stem}.{}-{:?}", std::process::id(), std::thread::current().id()));
    fs::create_dir_all(&own).map_err(|error| failed("the folder of compiled units", error))?;
    let (source, object) = (own.join(format!("{name}.cc")), own.join("unit.so"));
    fs::write(&source, text).map_err(|error| failed("the unit's text", error))?;
    let output = Command::new(&compiler.command)
        .args(FLAGS)
        .args(flags)
        .arg("-shared")
        .arg(&source)
        .args(link)
        .arg("-o")
        .arg(&object)
        .output()
        .map_err(|error| failed("the compiler", error))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    fs::rename(&object, &path).map_err(|error| failed("the compiled unit", error))?;
    fs::remove_dir_all(&own).map_err(|error| failed("the folder of the unit's text", error))?;
    Ok(Compiled { path })
}

/// The emulator itself.
pub fn emulator() -> &'static Compiled {
    static BUILT: OnceLock<Compiled> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut text = String::new();
        for part in ["emulator.h", "hopper.h", "emulator.cc", "hopper.cc", "checks.cc"] {
            let part_text = read(&format!("tests/cuda/emulator/{part}"))
                .replace("#include \"emulator.h\"", "")
                .replace("#include \"hopper.h\"", "");
            text.push_str(&format!("#line 1 \"{part}\"\n{part_text}\n"));
        }
        shared_object("emulator", &text, &["-O3".into()], &[]).unwrap_or_else(|said| panic!("{said}"))
    })
}

/// Compiles one unit, the text that nvcc would get without `device.h` in front, as `name`.
///
/// # Errors
/// What the compiler says.
pub fn build(name: &str, unit: &str) -> Result<Compiled, String> {
    let mut text = String::new();
    for header in ["tests/cuda/emulator/emulator.h", "tests/cuda/emulator/hopper.h", "codegen/cuda/device.h"]
    {
        text.push_str(&format!("#line 1 \"{header}\"\n{}\n", read(header)));
    }
    text.push_str(&format!("#line 1 \"{name}.cu\"\n{unit}\n"));
    // All kernels of an op have the same parameters, whether they need them or not.
    // Some run for longer than it takes to compile them, most do not: a sixth less of both together than with -O1.
    let flags = ["-Og", "-Wno-unused-parameter", CHECKS].map(OsString::from);
    shared_object(name, &text, &flags, &[emulator().path.clone().into_os_string()])
}

/// The stand-in for libcuda.so.1, for libnvidia-ml.so.1 and for libnccl.so: the folder that holds it under the names that programs load it by.
pub fn fake_driver() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let mut text = format!("#line 1 \"emulator.h\"\n{}\n", read("tests/cuda/emulator/emulator.h"));
        for part in ["driver.h", "driver.cc", "memory.cc", "stream.cc", "module.cc", "nvml.cc", "nccl.cc"] {
            let part_text =
                read(&format!("tests/cuda/fake_driver/{part}")).replace("#include \"driver.h\"", "");
            text.push_str(&format!("#line 1 \"{part}\"\n{part_text}\n"));
        }
        let link = [emulator().path.clone().into_os_string(), "-ldl".into()];
        let built = shared_object("libcuda", &text, &["-O1".into()], &link);
        let built = built.unwrap_or_else(|said| panic!("{said}"));
        let folder = built.path.with_extension("folder");
        fs::create_dir_all(&folder).expect("a folder for the fake driver");
        for name in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so"] {
            link_to(&built.path, &folder.join(name));
        }
        folder
    };
    BUILT.get_or_init(build).clone()
}

/// Where the fake driver finds the unit that stands for an image: a file of this name in its folder of units.
pub fn unit_file(image: &[u8]) -> String {
    // A driver reads PTX up to its end as a C string.
    let image = if image.starts_with(b"\x7fELF") {
        image
    } else {
        image.split(|byte| *byte == 0).next().unwrap_or(image)
    };
    format!("{:016x}.so", Fnv::EMPTY.with(image).get())
}

/// Puts a compiled unit where the fake driver finds it for `image`.
pub fn place_unit(folder: &Path, image: &[u8], unit: &Compiled) {
    fs::create_dir_all(folder).expect("a folder for units");
    link_to(&unit.path, &folder.join(unit_file(image)));
}

/// Makes `name` a link to `target`, whatever it was before.
fn link_to(target: &Path, name: &Path) {
    let failed = |error: std::io::Error| -> () { panic!("{}: {error}", name.display()) };
    // Renamed into place, since other processes may be reading it.
    let own = name.with_extension(format!("{}-{:?}", std::process::id(), std::thread::current().id()));
    std::os::unix::fs::symlink(target, &own).unwrap_or_else(failed);
    fs::rename(&own, name).unwrap_or_else(failed);
}
