//! The peer: products by its own graph executor, as its users run them.

#[cfg(all(feature = "ik", feature = "ggml"))]
compile_error!("both peers define the same symbols: build with one of the features");

pub mod library;
#[cfg(feature = "ggml")]
pub mod repacked;

pub use library::PACKAGE;

use crate::error::Error;
#[cfg(feature = "ik")]
use gristmill::{CpuProfile, vocab::Feature};
#[cfg(feature = "ggml")]
use library::error_of;
use library::{Context, graph_size, sys};
#[cfg(feature = "ggml")]
use std::ffi::c_char;
use std::ffi::c_void;

/// A format of the peer and ours that it is compared with.
pub struct Pair {
    pub theirs: &'static str,
    pub id: sys::ggml_type,
    pub ours: &'static str,
    /// Where ours reads bytes that the peer's quantizer made: of which of its types. Otherwise both quantize the same values.
    pub bytes: Option<sys::ggml_type>,
    /// Weights are -1, 0 and 1 times a scale.
    pub ternary: bool,
    /// Normalized error by which results may differ.
    pub bound: f64,
}

/// Most that two ways of quantizing activations to int8 make results differ: for values distributed normally, a scale a row of 2560
/// gives each about 5e-5.
const BOUND: f64 = 3e-4;

/// A pair of which the peer computes a few tokens more coarsely than more tokens of the same bytes, with which, as with the interleaved
/// form and with llama.cpp's, ours agrees.
#[cfg(feature = "ik")]
const fn coarse(bound: f64, pair: Pair) -> Pair {
    Pair { bound, ..pair }
}

const fn pair(theirs: &'static str, id: sys::ggml_type, ours: &'static str) -> Pair {
    Pair { theirs, id, ours, bytes: Some(id), ternary: false, bound: BOUND }
}

const fn ternary(theirs: &'static str, id: sys::ggml_type, ours: &'static str) -> Pair {
    Pair { ternary: true, ..pair(theirs, id, ours) }
}

/// A type in which the peer keeps the rows of `plain` interleaved, as it makes them at load where asked to.
#[cfg(feature = "ik")]
const fn interleaved(
    theirs: &'static str,
    id: sys::ggml_type,
    plain: sys::ggml_type,
    ours: &'static str,
) -> Pair {
    Pair { bytes: Some(plain), ..pair(theirs, id, ours) }
}

/// What is compared.
#[cfg(feature = "ik")]
pub const PAIRS: &[Pair] = &[
    Pair { bytes: None, ..ternary("IQ2_BN_R4", sys::GGML_TYPE_IQ2_BN_R4, "i2_s") },
    Pair { bytes: None, ..ternary("IQ2_BN", sys::GGML_TYPE_IQ2_BN, "i2_s") },
    ternary("IQ2_BN", sys::GGML_TYPE_IQ2_BN, "iq2_bn"),
    ternary("IQ1_BN", sys::GGML_TYPE_IQ1_BN, "iq1_bn"),
    pair("Q4_0", sys::GGML_TYPE_Q4_0, "q4_0"),
    interleaved("Q4_0_R8", sys::GGML_TYPE_Q4_0_R8, sys::GGML_TYPE_Q4_0, "q4_0"),
    pair("Q4_1", sys::GGML_TYPE_Q4_1, "q4_1"),
    pair("Q5_0", sys::GGML_TYPE_Q5_0, "q5_0"),
    interleaved("Q5_0_R4", sys::GGML_TYPE_Q5_0_R4, sys::GGML_TYPE_Q5_0, "q5_0"),
    pair("Q5_1", sys::GGML_TYPE_Q5_1, "q5_1"),
    pair("Q8_0", sys::GGML_TYPE_Q8_0, "q8_0"),
    interleaved("Q8_0_R8", sys::GGML_TYPE_Q8_0_R8, sys::GGML_TYPE_Q8_0, "q8_0"),
    pair("Q2_K", sys::GGML_TYPE_Q2_K, "q2_k"),
    interleaved("Q2_K_R4", sys::GGML_TYPE_Q2_K_R4, sys::GGML_TYPE_Q2_K, "q2_k"),
    pair("Q3_K", sys::GGML_TYPE_Q3_K, "q3_k"),
    interleaved("Q3_K_R4", sys::GGML_TYPE_Q3_K_R4, sys::GGML_TYPE_Q3_K, "q3_k"),
    pair("Q4_K", sys::GGML_TYPE_Q4_K, "q4_k"),
    interleaved("Q4_K_R4", sys::GGML_TYPE_Q4_K_R4, sys::GGML_TYPE_Q4_K, "q4_k"),
    pair("Q5_K", sys::GGML_TYPE_Q5_K, "q5_k"),
    interleaved("Q5_K_R4", sys::GGML_TYPE_Q5_K_R4, sys::GGML_TYPE_Q5_K, "q5_k"),
    pair("Q6_K", sys::GGML_TYPE_Q6_K, "q6_k"),
    interleaved("Q6_K_R4", sys::GGML_TYPE_Q6_K_R4, sys::GGML_TYPE_Q6_K, "q6_k"),
    pair("IQ4_NL", sys::GGML_TYPE_IQ4_NL, "iq4_nl"),
    interleaved("IQ4_NL_R4", sys::GGML_TYPE_IQ4_NL_R4, sys::GGML_TYPE_IQ4_NL, "iq4_nl"),
    coarse(3e-3, pair("IQ4_XS", sys::GGML_TYPE_IQ4_XS, "iq4_xs")),
    interleaved("IQ4_XS_R8", sys::GGML_TYPE_IQ4_XS_R8, sys::GGML_TYPE_IQ4_XS, "iq4_xs"),
    coarse(1e-3, pair("IQ3_XXS", sys::GGML_TYPE_IQ3_XXS, "iq3_xxs")),
    interleaved("IQ3_XXS_R4", sys::GGML_TYPE_IQ3_XXS_R4, sys::GGML_TYPE_IQ3_XXS, "iq3_xxs"),
    pair("IQ3_S", sys::GGML_TYPE_IQ3_S, "iq3_s"),
    interleaved("IQ3_S_R4", sys::GGML_TYPE_IQ3_S_R4, sys::GGML_TYPE_IQ3_S, "iq3_s"),
    pair("IQ2_XXS", sys::GGML_TYPE_IQ2_XXS, "iq2_xxs"),
    interleaved("IQ2_XXS_R4", sys::GGML_TYPE_IQ2_XXS_R4, sys::GGML_TYPE_IQ2_XXS, "iq2_xxs"),
    pair("IQ2_XS", sys::GGML_TYPE_IQ2_XS, "iq2_xs"),
    interleaved("IQ2_XS_R4", sys::GGML_TYPE_IQ2_XS_R4, sys::GGML_TYPE_IQ2_XS, "iq2_xs"),
    pair("IQ2_S", sys::GGML_TYPE_IQ2_S, "iq2_s"),
    interleaved("IQ2_S_R4", sys::GGML_TYPE_IQ2_S_R4, sys::GGML_TYPE_IQ2_S, "iq2_s"),
    pair("IQ1_S", sys::GGML_TYPE_IQ1_S, "iq1_s"),
    pair("IQ1_M", sys::GGML_TYPE_IQ1_M, "iq1_m"),
];
/// What is compared.
#[cfg(feature = "ggml")]
pub const PAIRS: &[Pair] = &[
    ternary("TQ2_0", sys::GGML_TYPE_TQ2_0, "tq2_0"),
    ternary("TQ1_0", sys::GGML_TYPE_TQ1_0, "tq1_0"),
    pair("Q4_0", sys::GGML_TYPE_Q4_0, "q4_0"),
    pair("Q4_1", sys::GGML_TYPE_Q4_1, "q4_1"),
    pair("Q5_0", sys::GGML_TYPE_Q5_0, "q5_0"),
    pair("Q5_1", sys::GGML_TYPE_Q5_1, "q5_1"),
    pair("Q8_0", sys::GGML_TYPE_Q8_0, "q8_0"),
    pair("Q2_K", sys::GGML_TYPE_Q2_K, "q2_k"),
    pair("Q3_K", sys::GGML_TYPE_Q3_K, "q3_k"),
    pair("Q4_K", sys::GGML_TYPE_Q4_K, "q4_k"),
    pair("Q5_K", sys::GGML_TYPE_Q5_K, "q5_k"),
    pair("Q6_K", sys::GGML_TYPE_Q6_K, "q6_k"),
    pair("MXFP4", sys::GGML_TYPE_MXFP4, "mxfp4"),
    pair("IQ4_NL", sys::GGML_TYPE_IQ4_NL, "iq4_nl"),
    pair("IQ4_XS", sys::GGML_TYPE_IQ4_XS, "iq4_xs"),
    pair("IQ3_XXS", sys::GGML_TYPE_IQ3_XXS, "iq3_xxs"),
    pair("IQ3_S", sys::GGML_TYPE_IQ3_S, "iq3_s"),
    pair("IQ2_XXS", sys::GGML_TYPE_IQ2_XXS, "iq2_xxs"),
    pair("IQ2_XS", sys::GGML_TYPE_IQ2_XS, "iq2_xs"),
    pair("IQ2_S", sys::GGML_TYPE_IQ2_S, "iq2_s"),
    pair("IQ1_S", sys::GGML_TYPE_IQ1_S, "iq1_s"),
    pair("IQ1_M", sys::GGML_TYPE_IQ1_M, "iq1_m"),
];

/// What the peer was compiled for.
pub fn compiled_for() -> Vec<&'static str> {
    // SAFETY: they take nothing and tell what the compiler was told.
    let has = unsafe {
        [
            ("avx2", sys::ggml_cpu_has_avx2()),
            ("avx512f", sys::ggml_cpu_has_avx512()),
            ("avx512vbmi", sys::ggml_cpu_has_avx512_vbmi()),
            ("avx512vnni", sys::ggml_cpu_has_avx512_vnni()),
            #[cfg(feature = "ggml")]
            ("avxvnni", sys::ggml_cpu_has_avx_vnni()),
            // It does not say; by itself it is compiled for what this processor has.
            #[cfg(feature = "ik")]
            (
                "avxvnni",
                (cfg!(feature = "native") && CpuProfile::detect().features.has(Feature::AvxVnni)).into(),
            ),
            #[cfg(feature = "ggml")]
            ("amx-int8", sys::ggml_cpu_has_amx_int8()),
        ]
    };
    has.into_iter().filter(|(_, has)| *has != 0).map(|(name, _)| name).collect()
}

/// Errors alone: it tells of each tensor that it lays out anew.
#[cfg(feature = "ggml")]
unsafe extern "C" fn listen(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    // SAFETY: the peer passes such a string.
    if let Some(error) = unsafe { error_of(level, text) } {
        eprint!("{error}");
    }
}

/// Makes the peer ready. Without it, its tables are empty and every product is zero.
pub fn prepare() -> Result<(), Error> {
    #[cfg(feature = "ggml")]
    // SAFETY: it takes nothing and may be called at any time; the function that is passed lives as long as the program.
    unsafe {
        sys::ggml_cpu_init();
        sys::ggml_log_set(Some(listen), std::ptr::null_mut());
    }
    // Both fill further tables when a first context is made.
    Context::new(1)?;
    Ok(())
}

/// A buffer that starts on a cache line.
pub struct Buffer(Vec<Line>);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Buffer {
    /// Of at least `bytes` bytes, zero, and some more that kernels may read behind the end.
    pub fn zeroed(bytes: usize) -> Buffer {
        Buffer(vec![Line([0; 64]); bytes.div_ceil(64) + 1])
    }

    fn pointer(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    /// The first `len` bytes.
    pub fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= 64 * self.0.len(), "a buffer is as large as it was made");
        // SAFETY: the lines hold so many initialized bytes.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), len) }
    }
}

/// How the peer keeps weights of a pair in memory.
#[derive(Clone, Copy)]
pub enum Form {
    /// As in the file.
    Plain,
    /// As its loader lays them out anew where nothing else is asked for.
    #[cfg(feature = "ggml")]
    Repacked(repacked::BufferType),
}

impl Form {
    /// All that it has for weights of `n` rows of `k`. (What ik_llama.cpp lays out anew has types of its own, each in a pair.)
    pub fn all(pair: &Pair, n: usize, k: usize) -> Result<Vec<Form>, Error> {
        #[cfg(feature = "ggml")]
        if let Some(kept) = repacked::BufferType::of(pair.id, n, k)? {
            return Ok(vec![Form::Plain, Form::Repacked(kept)]);
        }
        #[cfg(not(feature = "ggml"))]
        let _ = (pair, n, k);
        Ok(vec![Form::Plain])
    }

    /// What a record calls the peer's type in this form.
    pub fn name(self, pair: &Pair) -> String {
        match self {
            Form::Plain => pair.theirs.to_owned(),
            #[cfg(feature = "ggml")]
            Form::Repacked(kept) => format!("{} {}", pair.theirs, kept.name()),
        }
    }
}

/// One copy of weights.
enum Copy {
    Plain(Buffer),
    #[cfg(feature = "ggml")]
    Repacked(repacked::Repacked),
}

/// Rows quantized by the peer.
pub struct Weights {
    /// As in the file.
    rows: Buffer,
    form: Form,
    copies: Vec<Copy>,
    id: sys::ggml_type,
    pub n: usize,
    pub k: usize,
    pub bytes: usize,
}

impl Weights {
    /// Quantizes `n` rows of `k` to a type, as its plain form where it has one. Where the quantizer of that asks for the importance of
    /// columns, they are all alike; the one of an interleaved form does not ask, and would find other weights.
    pub fn quantize(
        id: sys::ggml_type,
        plain: Option<sys::ggml_type>,
        values: &[f32],
        n: usize,
        k: usize,
    ) -> Result<Weights, Error> {
        assert_eq!(values.len(), n * k, "rows are whole");
        // SAFETY: it looks a size up.
        let bytes = unsafe { sys::ggml_row_size(id, k as i64) } * n;
        let mut buffer = Buffer::zeroed(bytes);
        let (rows, columns) = (n as i64, k as i64);
        let importance = vec![1.0; k];
        // SAFETY: it looks at a table.
        let importance = match unsafe { sys::ggml_quantize_requires_imatrix(plain.unwrap_or(id)) } {
            true => importance.as_ptr(),
            false => std::ptr::null(),
        };
        // SAFETY: the source holds n * k values, the destination n rows as large as the library says, the importance k values
        // where it is given.
        let written = unsafe {
            #[cfg(feature = "ik")]
            let written = sys::ggml_quantize_chunk(
                id,
                values.as_ptr(),
                buffer.pointer(),
                0,
                rows,
                columns,
                importance,
                std::ptr::null(),
            );
            #[cfg(feature = "ggml")]
            let written =
                sys::ggml_quantize_chunk(id, values.as_ptr(), buffer.pointer(), 0, rows, columns, importance);
            written
        };
        if written != bytes {
            return Err(Error::Peer(PACKAGE, "quantize the weights"));
        }
        Ok(Weights { rows: buffer, form: Form::Plain, copies: Vec::new(), id, n, k, bytes })
    }

    /// The rows as in the file.
    pub fn rows(&self) -> &[u8] {
        self.rows.bytes(self.bytes)
    }

    /// Lets go of all copies; those made from now on are in another form.
    pub fn take_form(&mut self, form: Form) {
        self.copies.clear();
        self.form = form;
    }

    /// Makes copies until there are `count`.
    pub fn copy(&mut self, count: usize) -> Result<(), Error> {
        while self.copies.len() < count {
            let copy = match self.form {
                Form::Plain => Copy::Plain(Buffer(self.rows.0.clone())),
                #[cfg(feature = "ggml")]
                Form::Repacked(kept) => {
                    Copy::Repacked(repacked::Repacked::new(kept, self.id, [self.n, self.k], self.rows())?)
                }
            };
            self.copies.push(copy);
        }
        Ok(())
    }

    /// The tensor of a copy, in a context where it has none yet.
    fn tensor(&mut self, context: &Context, at: usize) -> *mut sys::ggml_tensor {
        match &mut self.copies[at] {
            // SAFETY: the context has room for the description; the copy is as large as type and shape ask for.
            Copy::Plain(buffer) => unsafe {
                let tensor = sys::ggml_new_tensor_2d(context.0, self.id, self.k as i64, self.n as i64);
                (*tensor).data = buffer.pointer();
                tensor
            },
            #[cfg(feature = "ggml")]
            Copy::Repacked(copy) => copy.tensor(),
        }
    }
}

/// `y = x w^T` for `m` tokens, several times in one graph: what an executor does once for a graph, as starting threads, is spread
/// over its products, as it is where a graph is a model.
pub struct Products<'w> {
    _context: Context,
    graph: *mut sys::ggml_cgraph,
    plan: sys::ggml_cplan,
    _work: Buffer,
    _x: Buffer,
    y: Buffer,
    len: usize,
    _weights: std::marker::PhantomData<&'w mut Weights>,
}

impl<'w> Products<'w> {
    /// A graph of `count` products on `threads` threads; the first `copies` copies of the weights take turns.
    pub fn new(
        weights: &'w mut Weights,
        copies: usize,
        count: usize,
        x: &[f32],
        m: usize,
        threads: usize,
    ) -> Result<Products<'w>, Error> {
        let (n, k) = (weights.n, weights.k);
        assert_eq!(x.len(), m * k, "tokens are whole");
        let threads =
            std::ffi::c_int::try_from(threads).map_err(|_| Error::Peer(PACKAGE, "take so many threads"))?;
        let context = Context::new(count)?;
        let mut input = Buffer::zeroed(4 * x.len());
        // SAFETY: the buffer has room for so many values.
        unsafe { std::ptr::copy_nonoverlapping(x.as_ptr(), input.pointer().cast(), x.len()) };
        let mut y = Buffer::zeroed(4 * m * n);
        // SAFETY: the context has room for these descriptions; the data they are given have the sizes that type and shape ask for
        // and outlive this value, which owns or borrows them. Tokens are a tensor anew for each product: an executor that sees one
        // tensor twice may quantize it once.
        let graph = unsafe {
            let graph = sys::ggml_new_graph_custom(context.0, graph_size(count), false);
            for at in 0..count {
                let w = weights.tensor(&context, at % copies);
                let x = sys::ggml_new_tensor_2d(context.0, sys::GGML_TYPE_F32, k as i64, m as i64);
                (*x).data = input.pointer();
                let product = sys::ggml_mul_mat(context.0, w, x);
                (*product).data = y.pointer();
                sys::ggml_build_forward_expand(graph, product);
            }
            graph
        };
        // SAFETY: the graph was just made.
        let mut plan = unsafe {
            #[cfg(feature = "ik")]
            let plan = sys::ggml_graph_plan(graph, threads);
            #[cfg(feature = "ggml")]
            let plan = sys::ggml_graph_plan(graph, threads, std::ptr::null_mut());
            plan
        };
        let mut work = Buffer::zeroed(plan.work_size);
        plan.work_data = work.pointer().cast();
        Ok(Products {
            _context: context,
            graph,
            plan,
            _work: work,
            _x: input,
            y,
            len: m * n,
            _weights: std::marker::PhantomData,
        })
    }

    /// Computes all of them.
    pub fn run(&mut self) -> Result<(), Error> {
        // SAFETY: graph, plan and work memory belong together and to this value.
        match unsafe { sys::ggml_graph_compute(self.graph, &raw mut self.plan) } {
            sys::GGML_STATUS_SUCCESS => Ok(()),
            _ => Err(Error::Peer(PACKAGE, "compute a product")),
        }
    }

    /// The result of the last product.
    pub fn y(&self) -> Vec<f32> {
        self.y.bytes(4 * self.len).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}
