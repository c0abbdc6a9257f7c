//! The peer: products by its own graph executor, as its users run them.

#[cfg(all(feature = "ik", feature = "ggml"))]
compile_error!("both peers define the same symbols: build with one of the features");

use crate::error::Error;
#[cfg(feature = "ik")]
use ik_llama_cpp_sys as sys;
#[cfg(feature = "ggml")]
use llama_cpp_sys_2 as sys;
use std::ffi::c_void;

/// A format of the peer and ours that it is compared with.
pub struct Pair {
    pub theirs: &'static str,
    pub id: sys::ggml_type,
    pub ours: &'static str,
    /// Ours reads the bytes that the peer's quantizer made; otherwise both quantize the same values.
    pub same_bytes: bool,
    /// Weights are -1, 0 and 1 times a scale.
    pub ternary: bool,
}

const fn pair(theirs: &'static str, id: sys::ggml_type, ours: &'static str) -> Pair {
    Pair { theirs, id, ours, same_bytes: true, ternary: false }
}

/// Package and version.
#[cfg(feature = "ik")]
pub const PACKAGE: &str = "ik-llama-cpp-sys";
#[cfg(feature = "ik")]
pub const PAIRS: &[Pair] = &[
    Pair { ternary: true, same_bytes: false, ..pair("IQ2_BN_R4", sys::GGML_TYPE_IQ2_BN_R4, "i2_s") },
    Pair { ternary: true, same_bytes: false, ..pair("IQ2_BN", sys::GGML_TYPE_IQ2_BN, "i2_s") },
    Pair { ternary: true, ..pair("IQ2_BN", sys::GGML_TYPE_IQ2_BN, "iq2_bn") },
    Pair { ternary: true, ..pair("IQ1_BN", sys::GGML_TYPE_IQ1_BN, "iq1_bn") },
    pair("Q4_K", sys::GGML_TYPE_Q4_K, "q4_k"),
    pair("Q8_0", sys::GGML_TYPE_Q8_0, "q8_0"),
    pair("IQ4_NL", sys::GGML_TYPE_IQ4_NL, "iq4_nl"),
];
#[cfg(feature = "ggml")]
pub const PACKAGE: &str = "llama-cpp-sys-2";
#[cfg(feature = "ggml")]
pub const PAIRS: &[Pair] = &[
    Pair { ternary: true, ..pair("TQ2_0", sys::GGML_TYPE_TQ2_0, "tq2_0") },
    Pair { ternary: true, ..pair("TQ1_0", sys::GGML_TYPE_TQ1_0, "tq1_0") },
    pair("Q4_0", sys::GGML_TYPE_Q4_0, "q4_0"),
    pair("Q4_K", sys::GGML_TYPE_Q4_K, "q4_k"),
    pair("Q8_0", sys::GGML_TYPE_Q8_0, "q8_0"),
];

/// Makes the peer ready. Without it, its tables are empty and every product is zero.
pub fn prepare() -> Result<(), Error> {
    #[cfg(feature = "ggml")]
    // SAFETY: it takes nothing and may be called at any time.
    unsafe {
        sys::ggml_cpu_init();
    }
    // Both fill further tables when a first context is made.
    Context::new(1)?;
    Ok(())
}

/// A context, for descriptions of tensors and graphs; their data lie in buffers of ours.
struct Context(*mut sys::ggml_context);

impl Context {
    /// With room for `graphs` products.
    fn new(graphs: usize) -> Result<Context, Error> {
        let params = sys::ggml_init_params {
            mem_size: (64 << 10) + graphs * (16 << 10),
            mem_buffer: std::ptr::null_mut(),
            no_alloc: true,
        };
        // SAFETY: the parameters ask for memory of the library's own.
        let context = unsafe { sys::ggml_init(params) };
        if context.is_null() { Err(Error::Peer(PACKAGE, "make a context")) } else { Ok(Context(context)) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `ggml_init` made it, and nothing made in it outlives its owner.
        unsafe { sys::ggml_free(self.0) }
    }
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

/// Rows quantized by the peer.
pub struct Weights {
    pub copies: Vec<Buffer>,
    id: sys::ggml_type,
    pub n: usize,
    pub k: usize,
    pub bytes: usize,
}

impl Weights {
    /// Quantizes `n` rows of `k`.
    pub fn quantize(pair: &Pair, values: &[f32], n: usize, k: usize) -> Result<Weights, Error> {
        assert_eq!(values.len(), n * k, "rows are whole");
        // SAFETY: it looks a size up.
        let bytes = unsafe { sys::ggml_row_size(pair.id, k as i64) } * n;
        let mut buffer = Buffer::zeroed(bytes);
        let (rows, columns) = (n as i64, k as i64);
        // SAFETY: the source holds n * k values, the destination n rows as large as the library says.
        let written = unsafe {
            #[cfg(feature = "ik")]
            let written = sys::ggml_quantize_chunk(
                pair.id,
                values.as_ptr(),
                buffer.pointer(),
                0,
                rows,
                columns,
                std::ptr::null(),
                std::ptr::null(),
            );
            #[cfg(feature = "ggml")]
            let written = sys::ggml_quantize_chunk(
                pair.id,
                values.as_ptr(),
                buffer.pointer(),
                0,
                rows,
                columns,
                std::ptr::null(),
            );
            written
        };
        if written != bytes {
            return Err(Error::Peer(PACKAGE, "quantize the weights"));
        }
        Ok(Weights { copies: vec![buffer], id: pair.id, n, k, bytes })
    }

    /// Makes copies until there are `count`.
    pub fn copy(&mut self, count: usize) {
        while self.copies.len() < count {
            let copy = Buffer(self.copies[0].0.clone());
            self.copies.push(copy);
        }
    }
}

/// `y = x w^T` for `m` tokens, once for each copy of the weights.
pub struct Product<'w> {
    _context: Context,
    graphs: Vec<*mut sys::ggml_cgraph>,
    plan: sys::ggml_cplan,
    _work: Buffer,
    _x: Buffer,
    y: Buffer,
    len: usize,
    _weights: std::marker::PhantomData<&'w mut Weights>,
}

impl<'w> Product<'w> {
    /// Graphs over the first `copies` copies of the weights.
    pub fn new(weights: &'w mut Weights, copies: usize, x: &[f32], m: usize) -> Result<Product<'w>, Error> {
        let (n, k) = (weights.n, weights.k);
        assert_eq!(x.len(), m * k, "tokens are whole");
        let context = Context::new(copies)?;
        let mut input = Buffer::zeroed(4 * x.len());
        // SAFETY: the buffer has room for so many values.
        unsafe { std::ptr::copy_nonoverlapping(x.as_ptr(), input.pointer().cast(), x.len()) };
        let mut y = Buffer::zeroed(4 * m * n);
        let mut graphs = Vec::new();
        for copy in weights.copies.iter_mut().take(copies) {
            // SAFETY: the context has room for these descriptions; the data they are given have the sizes that
            // type and shape ask for and outlive this value, which owns or borrows them.
            let graph = unsafe {
                let w = sys::ggml_new_tensor_2d(context.0, weights.id, k as i64, n as i64);
                (*w).data = copy.pointer();
                let x = sys::ggml_new_tensor_2d(context.0, sys::GGML_TYPE_F32, k as i64, m as i64);
                (*x).data = input.pointer();
                let product = sys::ggml_mul_mat(context.0, w, x);
                (*product).data = y.pointer();
                let graph = sys::ggml_new_graph_custom(context.0, 8, false);
                sys::ggml_build_forward_expand(graph, product);
                graph
            };
            graphs.push(graph);
        }
        let Some(first) = graphs.first() else { return Err(Error::Peer(PACKAGE, "build a graph")) };
        // SAFETY: the graph was just made.
        let mut plan = unsafe {
            #[cfg(feature = "ik")]
            let plan = sys::ggml_graph_plan(*first, 1);
            #[cfg(feature = "ggml")]
            let plan = sys::ggml_graph_plan(*first, 1, std::ptr::null_mut());
            plan
        };
        let mut work = Buffer::zeroed(plan.work_size);
        plan.work_data = work.pointer().cast();
        Ok(Product {
            _context: context,
            graphs,
            plan,
            _work: work,
            _x: input,
            y,
            len: m * n,
            _weights: std::marker::PhantomData,
        })
    }

    /// Computes with copy `copy` (modulo their number), on this thread.
    pub fn run(&mut self, copy: usize) -> Result<(), Error> {
        let graph = self.graphs[copy % self.graphs.len()];
        // SAFETY: graph, plan and work memory belong together and to this value; all graphs have one shape.
        match unsafe { sys::ggml_graph_compute(graph, &raw mut self.plan) } {
            sys::GGML_STATUS_SUCCESS => Ok(()),
            _ => Err(Error::Peer(PACKAGE, "compute a product")),
        }
    }

    /// The result of the last run.
    pub fn y(&self) -> Vec<f32> {
        self.y.bytes(4 * self.len).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}
