//! The kernels of a C++ library, called through the functions that ggml offers for it.

use super::error::CompareError;
use gristmill_probe::backend::{Backend, Function, Validated};
use gristmill_runtime::registry::{FormatInfo, OuterType};
use gristmill_runtime::room::zeros;
use gristmill_runtime::{Error, QuantizedMatrix};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::sync::Arc;

/// The type of bitnet.cpp's and ggml's dot products: n, result, stride, weights, stride, activations, stride, rows.
type Dot = unsafe extern "C" fn(c_int, *mut f32, usize, *const c_void, usize, *const c_void, usize, c_int);
/// f32 to blocks: values, blocks, number of values.
type FromFloat = unsafe extern "C" fn(*const f32, *mut c_void, i64);

/// What ggml says about a type, as in `ggml.h` since November 2024.
#[repr(C)]
struct Traits {
    name: *const c_char,
    elements: i64,
    interleave: i64,
    bytes: usize,
}

/// What ggml's CPU backend says about it, as in `ggml-cpu.h` since December 2024.
#[repr(C)]
struct CpuTraits {
    from_float: Option<FromFloat>,
    dot: Option<Dot>,
    dot_type: c_int,
    rows: i64,
}

type GetTraits = unsafe extern "C" fn(c_int) -> *const Traits;
type GetCpuTraits = unsafe extern "C" fn(c_int) -> *const CpuTraits;

/// The highest type number that every library with `ggml_get_type_traits_cpu` knows (TQ2_0). ggml does not check
/// the number that it is asked for.
const LAST_TYPE: u32 = 35;

/// Features that ggml can be asked for.
const FEATURES: [&str; 10] = [
    "ssse3",
    "avx2",
    "avx_vnni",
    "avx512",
    "avx512_vnni",
    "amx_int8",
    "neon",
    "dotprod",
    "matmul_int8",
    "sve",
];

/// A loaded library that computes products.
#[derive(Debug)]
pub struct CppKernels {
    backend: Arc<Backend>,
    traits: Option<(Function<GetTraits>, Function<GetCpuTraits>)>,
    i2_s: Option<Function<Dot>>,
}

/// The product of one format.
#[derive(Debug)]
pub struct CppProduct<'a> {
    kernels: &'a CppKernels,
    format: &'static FormatInfo,
    function: String,
    way: Way,
}

/// How activations are given.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Quantized by the library to blocks of so many elements and bytes.
    Blocks { dot: Dot, from_float: FromFloat, elements: usize, bytes: usize },
    /// int8 with one scale a row, as bitnet.cpp has it: the sum of code times value, from which the sum of values
    /// is taken off, because codes are one higher than weights.
    Codes { dot: Dot },
}

impl CppKernels {
    /// Loads a library and prepares its tables.
    ///
    /// # Errors
    /// As [`Validated::load`].
    ///
    /// # Safety
    /// As [`Validated::load`]; and the functions of ggml that it defines (`ggml_cpu_init`, `ggml_get_type_traits`,
    /// `ggml_get_type_traits_cpu`, `ggml_vec_dot_i2_i8_s`) must be what those names stand for in llama.cpp and
    /// bitnet.cpp.
    pub unsafe fn load(validated: &Validated) -> Result<CppKernels, CompareError> {
        // SAFETY: handed on to the caller.
        let backend = unsafe { validated.load() }?;
        // SAFETY: the caller says that the function is ggml's, which takes and returns nothing.
        if let Ok(init) = unsafe { backend.function::<unsafe extern "C" fn()>("ggml_cpu_init") } {
            // SAFETY: it may be called at any time.
            unsafe { init() };
        }
        // SAFETY: the caller says that these are ggml's functions, whose types these are.
        let traits = unsafe {
            let base = backend.function::<GetTraits>("ggml_get_type_traits");
            base.and_then(|base| Ok((base, backend.function::<GetCpuTraits>("ggml_get_type_traits_cpu")?)))
                .ok()
        };
        // SAFETY: the caller says that it is bitnet.cpp's function, whose type this is.
        let i2_s = unsafe { backend.function::<Dot>("ggml_vec_dot_i2_i8_s") }.ok();
        Ok(CppKernels { backend, traits, i2_s })
    }

    /// The library's file.
    pub fn path(&self) -> &Path {
        self.backend.path()
    }

    /// The processor's features that ggml says it was built for, of those that matter for products; none where it
    /// does not say.
    pub fn features(&self) -> Vec<&'static str> {
        let built_for = |name: &&&'static str| {
            let function = format!("ggml_cpu_has_{name}");
            // SAFETY: ggml's questions about the processor take nothing and return an int, by the contract of `load`.
            unsafe { self.backend.function::<unsafe extern "C" fn() -> c_int>(&function) }
                // SAFETY: as above; they may be asked at any time.
                .is_ok_and(|has| unsafe { has() } != 0)
        };
        FEATURES.iter().filter(built_for).copied().collect()
    }

    fn no_product(&self, format: &'static FormatInfo, reason: &str, help: &'static str) -> CompareError {
        CompareError::NoProduct {
            library: self.path().display().to_string(),
            format: format.name,
            reason: reason.to_owned(),
            help,
        }
    }

    /// Its product of a format.
    ///
    /// # Errors
    /// [`CompareError::NoProduct`] if it has none, [`CompareError::OtherFormat`] if it means another format by the
    /// same number.
    pub fn product(&self, format: &'static FormatInfo) -> Result<CppProduct<'_>, CompareError> {
        if format.name == "i2_s" {
            if !is_bitnet_cpp(format) {
                return Err(self.no_product(
                    format,
                    "bitnet.cpp's i2_s has 128 codes in 32 bytes and one f32 behind all rows; this format has not",
                    "compare the `i2_s` that gristmill ships",
                ));
            }
            let Some(dot) = &self.i2_s else {
                return Err(self.no_product(
                    format,
                    "it does not define ggml_vec_dot_i2_i8_s",
                    "name a library of bitnet.cpp; llama.cpp has no I2_S",
                ));
            };
            let function = "ggml_vec_dot_i2_i8_s".to_owned();
            return Ok(CppProduct { kernels: self, format, function, way: Way::Codes { dot: **dot } });
        }
        let Some((traits, cpu_traits)) = &self.traits else {
            return Err(self.no_product(
                format,
                "it does not define ggml_get_type_traits_cpu",
                "name libggml-cpu of llama.cpp, December 2024 or later",
            ));
        };
        let Some(id) = format.gguf.filter(|id| *id <= LAST_TYPE) else {
            return Err(self.no_product(
                format,
                "its number in GGUF is not one that all versions of ggml share",
                "compare a format of ggml up to tq2_0",
            ));
        };
        // SAFETY: the functions are ggml's (by the contract of `load`), which return entries of constant tables; the
        // number is within the tables of all versions that have both functions.
        let (known, cpu) = unsafe { (traits(id as c_int).as_ref(), cpu_traits(id as c_int).as_ref()) };
        let (Some(known), Some(CpuTraits { dot: Some(dot), dot_type, .. })) = (known, cpu) else {
            return Err(self.no_product(
                format,
                "ggml has no dot product for this type",
                "compare another format",
            ));
        };
        if format.row_header.is_some() || format.tensor_tail.is_some() {
            return Err(self.no_product(
                format,
                "ggml's types are blocks alone; this format has a scale outside of them",
                "compare another format",
            ));
        }
        if (known.elements, known.bytes) != (format.elements as i64, format.bytes) {
            return Err(CompareError::OtherFormat {
                library: self.path().display().to_string(),
                id,
                found: name_of(known),
                elements: known.elements,
                bytes: known.bytes,
                format: format.name,
                our_elements: format.elements,
                our_bytes: format.bytes,
            });
        }
        // SAFETY: as above; the library itself names the type of its activations.
        let (blocks, cpu) = unsafe { (traits(*dot_type).as_ref(), cpu_traits(*dot_type).as_ref()) };
        let (Some(blocks), Some(CpuTraits { from_float: Some(from_float), .. })) = (blocks, cpu) else {
            return Err(self.no_product(
                format,
                "ggml can't quantize the activations of this type",
                "compare another format",
            ));
        };
        let elements = usize::try_from(blocks.elements).ok().filter(|elements| *elements > 0);
        let Some(elements) = elements else {
            return Err(self.no_product(
                format,
                "its activations have no block size",
                "compare another format",
            ));
        };
        let function = format!("vec_dot of {} with {}", name_of(known), name_of(blocks));
        let way = Way::Blocks { dot: *dot, from_float: *from_float, elements, bytes: blocks.bytes };
        Ok(CppProduct { kernels: self, format, function, way })
    }
}

/// Whether a format has the layout that `ggml_vec_dot_i2_i8_s` reads.
fn is_bitnet_cpp(format: &FormatInfo) -> bool {
    let scale = format.tensor_tail.map(|(scale, _)| scale);
    (format.elements, format.bytes, format.row_header, scale) == (128, 32, None, Some(OuterType::F32))
}

/// The name that ggml gives a type.
fn name_of(traits: &Traits) -> String {
    if traits.name.is_null() {
        return String::from("a type without a name");
    }
    // SAFETY: ggml's names are constant texts that end with a zero.
    unsafe { CStr::from_ptr(traits.name) }.to_string_lossy().into_owned()
}

impl CppProduct<'_> {
    /// The function, in words.
    pub fn function(&self) -> &str {
        &self.function
    }

    /// Computes `y[m, n]`, row by row, with one thread. Quantizing the activations is part of it.
    ///
    /// # Errors
    /// If sizes do not fit, or rows are not whole blocks on both sides; if there is no memory for the activations.
    pub fn run(
        &self,
        weights: &QuantizedMatrix<'_>,
        x: &[f32],
        m: usize,
        y: &mut [f32],
    ) -> Result<(), CompareError> {
        let (n, k) = (weights.n(), weights.k());
        let shape = |what, found, expected| Error::ShapeMismatch { what, found, unit: "values", expected };
        // By sizes too, which the library's function was found to read: another registry may mean another layout by the name.
        if !weights.format().same_as(self.format) {
            return Err(self.kernels.no_product(
                weights.format(),
                "this product is of another format",
                "ask for the product of these weights' format",
            ));
        }
        for (what, found, of) in [("activations", x.len(), k), ("results", y.len(), n)] {
            let expected = m.checked_mul(of).ok_or(Error::TooLarge { what })?;
            if found != expected {
                return Err(shape(what, found, expected).into());
            }
        }
        // Without columns every result is an empty sum, and without rows of either there is none.
        if x.is_empty() || y.is_empty() {
            y.fill(0.0);
            return Ok(());
        }
        let length = c_int::try_from(k).map_err(|_| {
            self.kernels.no_product(self.format, "rows are longer than a C int can say", "use shorter rows")
        })?;
        let row_bytes = weights.row_bytes();
        let rows = || weights.data().chunks_exact(row_bytes).take(n);
        match self.way {
            Way::Blocks { dot, from_float, elements, bytes } => {
                if !k.is_multiple_of(elements) {
                    return Err(Error::KNotMultiple { format: self.format.name, elements, k }.into());
                }
                // In words of 8 bytes: ggml's blocks want no more alignment than that.
                let row = (k / elements).checked_mul(bytes).ok_or(Error::TooLarge { what: "activations" })?;
                let mut blocks = zeros::<u64>(row.div_ceil(8))?;
                for (x, y) in x.chunks_exact(k).zip(y.chunks_exact_mut(n)) {
                    // SAFETY: k values are read, and k / elements blocks of that many bytes written.
                    unsafe { from_float(x.as_ptr(), blocks.as_mut_ptr().cast(), k as i64) };
                    for (row, y) in rows().zip(y) {
                        // SAFETY: a row of k weights in whole blocks, k activations in whole blocks, and one result.
                        unsafe { dot(length, y, 0, row.as_ptr().cast(), 0, blocks.as_ptr().cast(), 0, 1) };
                    }
                }
            }
            Way::Codes { dot } => {
                let scale = weights.outer_scale(0)?;
                let mut q = zeros::<i8>(k)?;
                for (x, y) in x.chunks_exact(k).zip(y.chunks_exact_mut(n)) {
                    let largest = x.iter().fold(1e-5f32, |largest, x| largest.max(x.abs()));
                    let to_int8 = 127.0 / largest;
                    for (q, x) in q.iter_mut().zip(x) {
                        *q = (x * to_int8).round_ties_even().clamp(-128.0, 127.0) as i8;
                    }
                    let sum: i64 = q.iter().map(|q| i64::from(*q)).sum();
                    for (row, y) in rows().zip(y) {
                        let mut codes = 0.0f32;
                        // SAFETY: a row of k codes in whole blocks, k int8 values, and one result.
                        unsafe {
                            dot(length, &mut codes, 0, row.as_ptr().cast(), 0, q.as_ptr().cast(), 0, 1)
                        };
                        *y = (codes - sum as f32) / to_int8 * scale;
                    }
                }
            }
        }
        Ok(())
    }
}
