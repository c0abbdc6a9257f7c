//! NVRTC: the compiler as a library, opened at build time. It needs no host compiler and has no headers.

use super::problem::{Problem, TRIAL, acceptable, reason, words};
use super::version::{OLDEST, Version};
use crate::cuda::arch::{compute, sm};
use gristmill_spec::vocab::CudaArch;
use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An NVRTC that compiled an empty kernel.
#[derive(Clone)]
pub struct Nvrtc {
    /// The library.
    pub path: PathBuf,
    /// Version of the compiler in it.
    pub version: Version,
    /// What it can build, ascending.
    pub archs: Vec<CudaArch>,
    functions: Arc<Functions>,
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvrtc")
            .field("path", &self.path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// What comes out of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Machine code.
    Cubin,
    /// PTX.
    Ptx,
}

/// A finished compilation.
pub(crate) struct Compilation {
    /// The image, if it succeeded.
    pub(crate) image: Option<Vec<u8>>,
    /// What the compiler and the assembler said.
    pub(crate) log: String,
}

type Program = *mut c_void;
type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type GetSize = unsafe extern "C" fn(Program, *mut usize) -> c_int;

/// The functions that are used; they stay valid as long as the libraries beside them.
struct Functions {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    log_size: GetSize,
    log: Get,
    ptx_size: GetSize,
    ptx: Get,
    cubin_size: GetSize,
    cubin: Get,
    arch_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    archs: unsafe extern "C" fn(*mut c_int) -> c_int,
    _library: Library,
    _builtins: Option<Library>,
}

impl Nvrtc {
    /// Opens the library at `path` and compiles an empty kernel with it.
    pub fn examine(path: &Path) -> Result<Nvrtc, Problem> {
        let builtins = open_builtins(path)?;
        // SAFETY: opening a library runs its initializers; this is a compiler that the user installed or named.
        let library = unsafe { Library::new(path) }
            .map_err(|error| Problem::NotOpened { path: path.to_path_buf(), reason: reason(&error) })?;
        let functions = functions(library, builtins)
            .map_err(|reason| Problem::NotOpened { path: path.to_path_buf(), reason })?;
        let mut nvrtc = Nvrtc {
            path: path.to_path_buf(),
            version: OLDEST,
            archs: Vec::new(),
            functions: Arc::new(functions),
        };
        nvrtc.archs = nvrtc.list_archs();
        let failed =
            |words: String| Problem::Trial { tool: "nvrtc", version: path.display().to_string(), words };
        let first = *nvrtc.archs.first().ok_or_else(|| failed("it lists no architecture".to_string()))?;
        let cubin = nvrtc.compile("trial.cu", TRIAL, first, Kind::Cubin, &[]);
        if cubin.image.is_none() {
            return Err(failed(words(&cubin.log)));
        }
        let ptx = nvrtc.compile("trial.cu", TRIAL, first, Kind::Ptx, &[]);
        let text = ptx.image.unwrap_or_default();
        // The library tells major and minor only; its PTX tells all.
        nvrtc.version = Version::find(&String::from_utf8_lossy(&text))
            .ok_or_else(|| failed("its PTX names no version".to_string()))?;
        acceptable("nvrtc", nvrtc.version)?;
        Ok(nvrtc)
    }

    fn list_archs(&self) -> Vec<CudaArch> {
        let mut count = 0;
        // SAFETY: the pointer is to one int that lives through the call.
        if unsafe { (self.functions.arch_count)(&mut count) } != 0 || !(1..1000).contains(&count) {
            return Vec::new();
        }
        let mut numbers = vec![0 as c_int; count as usize];
        // SAFETY: the library writes as many ints as it just counted.
        if unsafe { (self.functions.archs)(numbers.as_mut_ptr()) } != 0 {
            return Vec::new();
        }
        let mut archs: Vec<CudaArch> =
            numbers.iter().filter_map(|number| CudaArch::from_name(&number.to_string())).collect();
        archs.sort_unstable();
        archs
    }

    /// Compiles one unit for one architecture.
    pub(crate) fn compile(
        &self,
        name: &str,
        text: &str,
        arch: CudaArch,
        kind: Kind,
        flags: &[&str],
    ) -> Compilation {
        let failed = |log: &str| Compilation { image: None, log: log.to_string() };
        let target = match kind {
            Kind::Cubin => sm(arch),
            Kind::Ptx => compute(arch),
        };
        let mut options = vec![format!("--gpu-architecture={target}")];
        options.extend(flags.iter().map(|flag| (*flag).to_string()));
        if kind == Kind::Cubin {
            options.push("--ptxas-options=-v".to_string());
        }
        let (Ok(text), Ok(name)) = (CString::new(text), CString::new(name)) else {
            return failed("the source holds a zero byte");
        };
        let options: Vec<CString> =
            options.into_iter().filter_map(|option| CString::new(option).ok()).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let functions = &self.functions;
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: both strings end with zero and live through the call; zero headers need no arrays.
        let status = unsafe {
            (functions.create)(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        if status != 0 {
            return failed(&format!("nvrtcCreateProgram returned {status}"));
        }
        // SAFETY: the program was just created; `pointers` are as many as said, to strings that outlive the call.
        let status = unsafe { (functions.compile)(program, pointers.len() as c_int, pointers.as_ptr()) };
        // SAFETY: `get` is called with a live program, for text.
        let mut log = unsafe { get(program, functions.log_size, functions.log) }.unwrap_or_default();
        // The log ends with its zero.
        while log.last() == Some(&0) {
            log.pop();
        }
        let mut log = String::from_utf8_lossy(&log).into_owned();
        let image = if status == 0 {
            let (size, fetch) = match kind {
                Kind::Cubin => (functions.cubin_size, functions.cubin),
                Kind::Ptx => (functions.ptx_size, functions.ptx),
            };
            // SAFETY: as above.
            unsafe { get(program, size, fetch) }.filter(|image| !image.is_empty())
        } else {
            if log.trim().is_empty() {
                log = format!("nvrtcCompileProgram returned {status}");
            }
            None
        };
        // SAFETY: created above, destroyed once.
        unsafe { (functions.destroy)(&mut program) };
        let image = image.map(|mut image| {
            if kind == Kind::Ptx && image.last() == Some(&0) {
                image.pop();
            }
            image
        });
        Compilation { image, log }
    }
}

/// Asks for a size, then for that many bytes.
///
/// # Safety
///
/// `program` is a live program of the library that both functions belong to.
unsafe fn get(program: Program, size: GetSize, fetch: Get) -> Option<Vec<u8>> {
    let mut bytes = 0usize;
    // SAFETY: the caller's program; the pointer is to one usize.
    if unsafe { size(program, &mut bytes) } != 0 {
        return None;
    }
    let mut buffer = vec![0u8; bytes];
    // SAFETY: the library writes the number of bytes that it just named.
    (unsafe { fetch(program, buffer.as_mut_ptr().cast()) } == 0).then_some(buffer)
}

/// Resolves all functions.
fn functions(library: Library, builtins: Option<Library>) -> Result<Functions, String> {
    macro_rules! function {
        ($name:literal) => {
            // SAFETY: the type is that of the function of this name in nvrtc.h, unchanged since CUDA 11.2.
            *unsafe { library.get($name) }.map_err(|error| reason(&error))?
        };
    }
    Ok(Functions {
        create: function!("nvrtcCreateProgram"),
        compile: function!("nvrtcCompileProgram"),
        destroy: function!("nvrtcDestroyProgram"),
        log_size: function!("nvrtcGetProgramLogSize"),
        log: function!("nvrtcGetProgramLog"),
        ptx_size: function!("nvrtcGetPTXSize"),
        ptx: function!("nvrtcGetPTX"),
        cubin_size: function!("nvrtcGetCUBINSize"),
        cubin: function!("nvrtcGetCUBIN"),
        arch_count: function!("nvrtcGetNumSupportedArchs"),
        archs: function!("nvrtcGetSupportedArchs"),
        _library: library,
        _builtins: builtins,
    })
}

/// The library's second half, which it looks for by a bare name: where it lies in no folder of the loader's, it must
/// be in the process already.
fn open_builtins(path: &Path) -> Result<Option<Library>, Problem> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(None) };
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Err(Problem::NoFile(path.to_path_buf()));
    };
    // Of several releases in one folder, that of the library itself: a link names the major number alone, what it leads to all of them.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let wanted = release_of(&target, "libnvrtc.so.").unwrap_or_default();
    let builtins = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter_map(|path| Some((release_of(&path, "libnvrtc-builtins.so.")?, path)))
        .filter(|(release, _)| wanted.first().is_none_or(|major| release.first() == Some(major)))
        .max_by_key(|(release, _)| (wanted.starts_with(release), release.clone()));
    builtins.map(|(_, path)| open_global(&path)).transpose()
}

/// The numbers behind the name of a shared library: 12, 9, 86 of `libnvrtc.so.12.9.86`.
fn release_of(path: &Path, name: &str) -> Option<Vec<u32>> {
    let numbers = path.file_name()?.to_str()?.strip_prefix(name)?;
    numbers.split('.').map(|number| number.parse().ok()).collect()
}

#[cfg(unix)]
fn open_global(path: &Path) -> Result<Library, Problem> {
    use libloading::os::unix::{Library as Unix, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: as for the library itself, whose part this is.
    unsafe { Unix::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }
        .map(Library::from)
        .map_err(|error| Problem::NotOpened { path: path.to_path_buf(), reason: reason(&error) })
}

#[cfg(not(unix))]
fn open_global(path: &Path) -> Result<Library, Problem> {
    // SAFETY: as for the library itself, whose part this is.
    unsafe { Library::new(path) }
        .map_err(|error| Problem::NotOpened { path: path.to_path_buf(), reason: reason(&error) })
}
