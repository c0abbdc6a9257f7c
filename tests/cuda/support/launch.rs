//! Device memory and launches in the emulator, in this process.

use super::compile::{build, emulator};
use libloading::Library;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{CStr, CString, c_char, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;

/// As in `emulator.h`.
#[repr(C)]
struct KernelInfo {
    name: *const c_char,
    file: *const c_char,
    threads: u32,
    parameters: u32,
    sizes: *const u32,
    kinds: *const c_char,
    call: *const c_void,
}

type AllocateFn = unsafe extern "C" fn(*const c_void, usize, *const c_char, bool, bool);
type FreshFn = unsafe extern "C" fn(*const c_void);
type WrittenFn = unsafe extern "C" fn(*const c_void, usize);
type UnsetFn = unsafe extern "C" fn(*const c_void, usize) -> usize;
type FreeFn = unsafe extern "C" fn(*const c_void) -> bool;
type LaunchFn = unsafe extern "C" fn(
    *const KernelInfo,
    u32,
    u32,
    u32,
    u32,
    u32,
    *mut *mut c_void,
    bool,
    u64,
    *mut c_char,
    usize,
) -> i32;

struct Emulator {
    allocate: AllocateFn,
    fresh: FreshFn,
    written: WrittenFn,
    unset: UnsetFn,
    free: FreeFn,
    launch: LaunchFn,
    _library: Library,
}

fn loaded() -> &'static Emulator {
    static LOADED: OnceLock<Emulator> = OnceLock::new();
    LOADED.get_or_init(|| {
        // SAFETY: the library is ours; its initializers only set up its own state.
        let library = unsafe { Library::new(&emulator().path) }.expect("the emulator loads");
        // SAFETY: the types are those of emulator.cc, and the library is kept.
        unsafe {
            Emulator {
                allocate: *library.get(b"gm_emulator_allocate\0").expect("exported"),
                fresh: *library.get(b"gm_emulator_fresh\0").expect("exported"),
                written: *library.get(b"gm_emulator_written\0").expect("exported"),
                unset: *library.get(b"gm_emulator_unset\0").expect("exported"),
                free: *library.get(b"gm_emulator_free\0").expect("exported"),
                launch: *library.get(b"gm_emulator_launch\0").expect("exported"),
                _library: library,
            }
        }
    })
}

/// A compiled unit, loaded.
pub struct Unit {
    library: Library,
}

impl Unit {
    /// Compiles and loads a unit's text (without `device.h`). Panics with the compiler's words if it doesn't compile.
    pub fn new(name: &str, text: &str) -> Unit {
        loaded();
        let compiled = build(name, text).unwrap_or_else(|said| panic!("{name}: {said}"));
        // SAFETY: the object holds generated kernels; its initializers only build their tables.
        let library = unsafe { Library::new(&compiled.path) }.expect("the unit loads");
        Unit { library }
    }

    /// The start of a launch of one kernel: one block of as many threads as its bounds say, seed 1.
    pub fn launch(&self, kernel: &str) -> Launch<'_> {
        let symbol = format!("gm_export_{kernel}\0");
        // SAFETY: objects of that name are of that type, and live as long as the library, which the launch borrows.
        let info = unsafe {
            let found = self.library.get::<*const KernelInfo>(symbol.as_bytes());
            &**found.unwrap_or_else(|error| panic!("{kernel}: {error}"))
        };
        Launch {
            info,
            blocks: (1, 1, 1),
            threads: info.threads,
            shared: 0,
            arguments: Vec::new(),
            seed: 1,
            overlaps: false,
            _unit: PhantomData,
        }
    }
}

/// What a kernel can be given: bytes of a number, and the letter of its kind in `emulator.h`.
pub trait Argument {
    /// The bytes, little-endian as in memory.
    fn bytes(&self) -> Vec<u8>;
    /// Letters of parameters that take it.
    const KINDS: &'static str;
}

macro_rules! number {
    ($($t:ty: $kinds:literal),*) => {$(
        impl Argument for $t {
            fn bytes(&self) -> Vec<u8> { self.to_ne_bytes().to_vec() }
            const KINDS: &'static str = $kinds;
        }
    )*};
}
number!(u32: "i", i32: "i", u64: "i", i64: "i", f32: "f", f64: "f");

impl<T> Argument for &Buffer<T> {
    fn bytes(&self) -> Vec<u8> {
        (self.data as usize).to_ne_bytes().to_vec()
    }
    const KINDS: &'static str = "pc";
}

/// An address inside or outside a buffer.
#[derive(Clone, Copy)]
pub struct Address(usize);

impl Argument for Address {
    fn bytes(&self) -> Vec<u8> {
        self.0.to_ne_bytes().to_vec()
    }
    const KINDS: &'static str = "pc";
}

/// A launch in preparation.
pub struct Launch<'a> {
    info: &'a KernelInfo,
    blocks: (u32, u32, u32),
    threads: u32,
    shared: u32,
    /// Each in words of its own, from their first byte on.
    arguments: Vec<Vec<u64>>,
    seed: u64,
    overlaps: bool,
    _unit: PhantomData<&'a Unit>,
}

impl Launch<'_> {
    /// Blocks in x and y.
    pub fn grid(mut self, x: u32, y: u32) -> Self {
        self.blocks = (x, y, self.blocks.2);
        self
    }

    /// Blocks in z.
    pub fn layers(mut self, z: u32) -> Self {
        self.blocks.2 = z;
        self
    }

    /// Warps of a block.
    pub fn warps(&self) -> usize {
        self.threads as usize / 32
    }

    /// Threads of a block.
    pub fn threads(mut self, threads: u32) -> Self {
        self.threads = threads;
        self
    }

    /// Bytes of shared memory that the launch gives each block.
    #[allow(dead_code, reason = "not every test that takes this in has such kernels")]
    pub fn shared(mut self, bytes: u32) -> Self {
        self.shared = bytes;
        self
    }

    /// Which order threads and blocks are run in.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// As a launch that begins while those in front of it still run.
    pub fn overlapping(mut self, yes: bool) -> Self {
        self.overlaps = yes;
        self
    }

    /// The next argument. Panics if the parameter has another size or kind.
    pub fn arg<A: Argument>(self, value: A) -> Self {
        self.push(&value.bytes(), A::KINDS)
    }

    /// A null pointer.
    pub fn null(self) -> Self {
        self.push(&0usize.to_ne_bytes(), "pc")
    }

    /// A struct, as the device reads it.
    pub fn structure(self, bytes: &[u8]) -> Self {
        self.push(bytes, "s")
    }

    fn push(mut self, bytes: &[u8], fitting: &str) -> Self {
        let index = self.arguments.len();
        // SAFETY: the tables hold as many entries as there are parameters, and a zero.
        let (kinds, size) = unsafe {
            let kinds = CStr::from_ptr(self.info.kinds).to_str().expect("letters");
            (kinds, *self.info.sizes.add(index.min(kinds.len())))
        };
        let kind = kinds.chars().nth(index).unwrap_or_else(|| panic!("{} parameters only", kinds.len()));
        assert!(
            fitting.contains(kind) && bytes.len() == size as usize,
            "argument {index} has {} bytes and fits `{fitting}`; the parameter has {size} bytes and is `{kind}`",
            bytes.len(),
        );
        let word =
            |bytes: &[u8]| u64::from_ne_bytes(std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0)));
        self.arguments.push(bytes.chunks(8).map(word).collect());
        self
    }

    /// Runs it.
    ///
    /// # Errors
    /// The emulator's report on the kernel's first mistake.
    pub fn run(mut self) -> Result<(), String> {
        assert_eq!(self.arguments.len(), self.info.parameters as usize, "the kernel's parameters");
        let mut pointers: Vec<*mut c_void> =
            self.arguments.iter_mut().map(|words| words.as_mut_ptr().cast()).collect();
        let mut report: Vec<c_char> = vec![0; 4096];
        // SAFETY: as many pointers as the kernel has parameters, each to a value of its size; memory that the kernel
        // reaches through them is checked by the emulator.
        let result = unsafe {
            (loaded().launch)(
                self.info,
                self.blocks.0,
                self.blocks.1,
                self.blocks.2,
                self.threads,
                self.shared,
                pointers.as_mut_ptr(),
                self.overlaps,
                self.seed,
                report.as_mut_ptr(),
                report.len(),
            )
        };
        if result == 0 {
            return Ok(());
        }
        // SAFETY: the emulator ends the text with a zero.
        Err(unsafe { CStr::from_ptr(report.as_ptr()) }.to_string_lossy().into_owned())
    }
}

/// Bytes on either side of a buffer that belong to no buffer, so that an access beyond one is reported as that, and
/// not, where the allocator put another behind it, as one of the other. More than the rows of tokens that a block
/// handles have in any test.
pub const GAP: usize = 256 << 10;

/// Device memory: exactly its elements, aligned as CUDA aligns, and known to the emulator while it lives.
pub struct Buffer<T> {
    data: *mut T,
    len: usize,
}

/// A buffer of `len` elements between two gaps.
fn layout<T>(len: usize) -> Layout {
    Layout::from_size_align(GAP + len * size_of::<T>() + GAP, 256).expect("a size that fits")
}

impl<T: Copy> Buffer<T> {
    /// Memory that kernels may only read.
    pub fn input(name: &str, values: &[T]) -> Buffer<T> {
        Buffer::new(name, values.len(), Some(values), true)
    }

    /// Memory that kernels may read and write, with these values at first.
    pub fn output(name: &str, values: &[T]) -> Buffer<T> {
        Buffer::new(name, values.len(), Some(values), false)
    }

    /// Memory that kernels may write, and read only after that.
    pub fn unset(name: &str, len: usize) -> Buffer<T> {
        Buffer::new(name, len, None, false)
    }

    /// Memory that starts with these values, behind which kernels may write `more`, and read it only after that.
    pub fn starting(name: &str, values: &[T], more: usize) -> Buffer<T> {
        let buffer: Buffer<T> = Buffer::unset(name, values.len() + more);
        // SAFETY: the memory is as long as the values at least, and known to the emulator.
        unsafe {
            buffer.data.copy_from_nonoverlapping(values.as_ptr(), values.len());
            (loaded().written)(buffer.data.cast(), size_of_val(values));
        }
        buffer
    }

    /// Its first values, which were written.
    pub fn read_first(&self, len: usize) -> Vec<T> {
        assert!(len <= self.len, "{len} of {} values", self.len);
        // SAFETY: the memory holds as many values, and any bits are one.
        unsafe { std::slice::from_raw_parts(self.data, len) }.to_vec()
    }

    /// Memory that the launch in front may still be writing when one that overlaps with it begins.
    pub fn fresh(self) -> Buffer<T> {
        // SAFETY: the memory is known to the emulator.
        unsafe { (loaded().fresh)(self.data.cast()) };
        self
    }

    fn new(name: &str, len: usize, values: Option<&[T]>, read_only: bool) -> Buffer<T> {
        let name = CString::new(name).expect("a name without zeros");
        // SAFETY: the layout has a size and begins with a gap; the memory behind that is as long as `values`, if there
        // are any, and new.
        unsafe {
            let start = alloc(layout::<T>(len));
            assert!(!start.is_null(), "no memory");
            let data = start.add(GAP).cast::<T>();
            match values {
                Some(values) => data.copy_from_nonoverlapping(values.as_ptr(), len),
                // Neither zero nor a usual number.
                None => data.write_bytes(0xa5, len),
            }
            (loaded().allocate)(
                data.cast(),
                len * size_of::<T>(),
                name.as_ptr(),
                read_only,
                values.is_none(),
            );
            Buffer { data, len }
        }
    }

    /// What is there now. Panics if some of it was never written.
    pub fn read(&self) -> Vec<T> {
        self.try_read().unwrap_or_else(|report| panic!("{report}"))
    }

    /// What is there now.
    ///
    /// # Errors
    /// Some of it was never written.
    pub fn try_read(&self) -> Result<Vec<T>, String> {
        let bytes = self.len * size_of::<T>();
        // SAFETY: the memory is known to the emulator.
        let unset = unsafe { (loaded().unset)(self.data.cast(), bytes) };
        if unset > 0 {
            return Err(format!("{unset} of {bytes} bytes of a result were never written"));
        }
        // SAFETY: the memory holds `len` values; every bit pattern that a kernel leaves is one of the numbers used here.
        Ok(unsafe { std::slice::from_raw_parts(self.data, self.len) }.to_vec())
    }

    /// Its address, for structs.
    pub fn address(&self) -> u64 {
        self.data as u64
    }

    /// An address `bytes` after the start.
    pub fn at(&self, bytes: isize) -> Address {
        Address(self.data.cast::<u8>().wrapping_offset(bytes) as usize)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout and this gap, and known to the emulator until now.
        unsafe {
            (loaded().free)(self.data.cast());
            dealloc(self.data.cast::<u8>().sub(GAP), layout::<T>(self.len));
        }
    }
}
