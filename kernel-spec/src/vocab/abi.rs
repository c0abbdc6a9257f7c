//! The tables of calls: what functions of the processor and kernels of a GPU take, in which order, and what stops them.
//!
//! Each table is a macro that hands its rows to another one, so that types and descriptions are made of the same words: the
//! constants below, which the compiler and the pages print, and the runtime's function pointers and `repr(C)` structs.

/// The signature of the functions of a kernel on a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abi {
    /// Name of the function pointer type among the runtime's, which says what is passed.
    pub alias: &'static str,
    /// Names and types of the parameters; the tokens of a type may stand apart.
    pub parameters: &'static [(&'static str, &'static str)],
    /// What is returned.
    pub output: Option<&'static str>,
    /// What is passed, in the lines of the type's documentation.
    pub doc: &'static [&'static str],
}

/// A struct that functions of the processor take, laid out as in C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbiStruct {
    /// Its name among the runtime's types.
    pub name: &'static str,
    /// What it is, in the lines of its documentation.
    pub doc: &'static [&'static str],
    /// Names, types and documentation of its fields.
    pub fields: &'static [(&'static str, &'static str, &'static [&'static str])],
}

/// Functions of the processor, one type for each op and one for the step of a quantizer.
#[macro_export]
macro_rules! cpu_abi {
    ($with:ident) => {
        $with! {
            /// `blocks` blocks at `src` to `blocks * elements` values at `dst`; `outer` is the row's or tensor's scale.
            DEQUANTIZE DequantizeFn(src: *const u8, dst: *mut f32, blocks: usize, outer: f32) -> Result<(), Fault>;

            /// `blocks` blocks of a row at `src` to `blocks * elements` values of type `to` at `dst`, aligned for that type;
            /// `outer` is the row's or tensor's scale. `to` is f32, f16 or bf16: values are those of a [`DequantizeFn`], rounded
            /// to nearest even; what is too large for an f16 becomes an infinity.
            EMBED EmbedFn(src: *const u8, dst: *mut u8, blocks: usize, outer: f32, to: DType) -> Result<(), Fault>;

            /// The step for `len` values (a row or a tensor) at `src`.
            STEP StepFn(src: *const f32, len: usize) -> Result<Step, Fault>;

            /// `blocks * elements` values at `src` to `blocks` blocks at `dst`. `step` is read only by formats
            /// whose scale covers more than a block. `importance`: null, or for each value what a squared error of it costs,
            /// finite and not negative; read only by what says so.
            QUANTIZE QuantizeFn(
                src: *const f32,
                dst: *mut u8,
                blocks: usize,
                step: Step,
                importance: *const f32
            ) -> Result<(), Fault>;

            /// One row of `k` activations to int8; whole blocks, where the activation format has blocks.
            ///
            /// * `q`: `k.div_ceil(unit) * unit_padded` bytes; units of `unit` values start every `unit_padded`
            ///   bytes, what is between is set to zero;
            /// * `scales`: one for each block of the activation format;
            /// * `sums`: the sum of q over each unit.
            QUANTIZE_ACTIVATIONS QuantizeActivationsFn(
                x: *const f32,
                k: usize,
                unit: usize,
                unit_padded: usize,
                q: *mut i8,
                scales: *mut f32,
                sums: *mut i32
            ) -> Result<(), Fault>;

            /// One row of activations through the steps of its format's prologue, as far as the arguments name their operands,
            /// then to int8 as by a [`QuantizeActivationsFn`].
            PROLOGUE PrologueFn(args: &PrologueArgs) -> Result<(), Fault>;

            /// `y[t, r] = sum_k x[t, k] * w[r, k] (+ bias[r])` for tokens `0..m` and rows `row_begin..row_end`.
            MATMUL MatmulFn(args: &MatmulArgs);
        }
    };
}

/// Structs that functions of the processor take. A field is a Rust name and type.
#[macro_export]
macro_rules! cpu_structs {
    ($with:ident) => {
        $with! {
            /// The step of a quantizer whose scale covers more than a block.
            #[derive(Clone, Copy, Debug, PartialEq)]
            Step {
                /// What an element is multiplied by (or divided by, as the format says) before rounding.
                apply: f32,
                /// What is stored.
                stored: f32,
            }

            /// Arguments of a [`MatmulFn`].
            #[derive(Clone, Copy, Debug)]
            MatmulArgs {
                /// Packed codes (panel after panel), or the blocks of each row, without its header, where the
                /// variant has no packing.
                codes: *const u8,
                /// Bytes from one panel (or row) to the next.
                stride: usize,
                /// Packed scales, panel after panel as [`PackInfo::scale_words`](crate::registry::PackInfo::scale_words) says: an
                /// address of words, which hold f32 or narrower numbers; null where the format has none in its blocks.
                scales: *const f32,
                /// Packed minimum terms, like `scales`; null where there are none.
                mins: *const f32,
                /// Integer value of operand 0: what a packed code counts as is its operand plus this.
                min: i32,
                /// Operand of each code where packed codes are looked up, else null; sixteen bytes.
                table: *const [u8; 16],
                /// One scale a row (row header or tensor tail; 1 where the format has neither).
                outer: *const f32,
                /// Inner dimension.
                k: usize,
                /// Units along k (1 where nothing divides the row).
                units: usize,
                /// int8 activations, `[token][units * unit_padded]`.
                x: *const i8,
                /// Bytes from one token's activations to the next.
                x_stride: usize,
                /// Bytes of activations that all rows go through before the next tokens do, so that they stay in the second
                /// cache while weights pass by. Changes no result; kernels of single tokens need not heed it.
                x_share: usize,
                /// Bytes between the weights that kernels of single tokens read and those that they prefetch; 0 if they leave it to the
                /// hardware's prefetchers. Changes no result; kernels of several tokens need not heed it.
                prefetch: u32,
                /// Activation scales, `[token][blocks]`.
                x_scales: *const f32,
                /// Blocks of activations in a row.
                x_blocks: usize,
                /// Activation sums, `[token][units]`.
                x_sums: *const i32,
                /// Bias of `row_end` values, or null.
                bias: *const f32,
                /// Output, `[token][n]`, of which the rows to compute are written.
                y: *mut f32,
                /// Tokens.
                m: usize,
                /// The row stride of `y`, in values; at least `row_end`. (Rows of the weights may be more, and fewer.)
                n: usize,
                /// First row to compute, counted from the one that `codes` begins with; a multiple of the packing's rows.
                row_begin: usize,
                /// End of the rows to compute.
                row_end: usize,
            }

            /// Arguments of a [`PrologueFn`]. A step without its operand is left out.
            #[derive(Clone, Copy, Debug)]
            PrologueArgs {
                /// The row, of `k` values.
                x: *const f32,
                /// Elements of a row.
                k: usize,
                /// Of the gate: the row that `x`, through the function, is multiplied with; or null.
                up: *const f32,
                /// Of the gate: the number of its function among the vocabulary's.
                function: u32,
                /// Of the addition: the row that is added, or null.
                residual: *const f32,
                /// Of the addition: room for the sum, `k` values, which are written only if all of them are finite.
                sum: *mut f32,
                /// Of the norm: its weight, `k` values, or null.
                weight: *const f32,
                /// Of the norm: what is added to the mean of squares.
                epsilon: f32,
                /// Of the transform: elements of its blocks, a power of two that divides `k`; 0 for none.
                block: usize,
                /// Of the transform: 1 or -1 for each of `k` elements, or null.
                signs: *const f32,
                /// Room for `k` values, which nobody else has meanwhile.
                row: *mut f32,
                /// As a [`QuantizeActivationsFn`] takes it, as are the four that follow.
                unit: usize,
                /// Bytes from one unit to the next.
                unit_padded: usize,
                /// int8 values.
                q: *mut i8,
                /// Scales.
                scales: *mut f32,
                /// Sums of units.
                sums: *mut i32,
            }
        }
    };
}

/// Kernels of a GPU: parameters of those that take several, and the structs of those that take one. A parameter is a Rust name
/// and type, and its declaration in CUDA C++; a pointer is an address of the device.
#[macro_export]
macro_rules! cuda_abi {
    ($kernels:ident, $structs:ident) => {
        $kernels! {
            /// Values of all blocks of a tensor.
            DEQUANTIZE Dequantize "dequantize" {
                src: u64 = "const u8 *src", dst: u64 = "f32 *dst", rows: u32 = "u32 rows", k: u32 = "u32 k",
                row_bytes: u64 = "u64 row_bytes", fault: u64 = "u64 *fault",
            }
            /// Rows of a tensor by index.
            EMBED Embed "embed" {
                src: u64 = "const u8 *src", indices: u64 = "const u32 *indices", dst: u64 = "void *dst", to: u32 = "u32 to",
                count: u32 = "u32 count", rows: u32 = "u32 rows", k: u32 = "u32 k", row_bytes: u64 = "u64 row_bytes",
                fault: u64 = "u64 *fault",
            }
            /// Values to all blocks of a tensor.
            QUANTIZE Quantize "quantize" {
                src: u64 = "const f32 *src", dst: u64 = "u8 *dst", rows: u32 = "u32 rows", k: u32 = "u32 k",
                row_bytes: u64 = "u64 row_bytes", steps: u64 = "const f32x2 *steps", fault: u64 = "u64 *fault",
            }
            /// The first half of the steps of rows or a tensor.
            CHUNKS Chunks "chunks" {
                src: u64 = "const f32 *src", rows: u32 = "u32 rows", len: u64 = "u64 len", partial: u64 = "u64 *partial",
                fault: u64 = "u64 *fault",
            }
            /// The second half.
            FINISH Finish "finish" {
                src: u64 = "const f32 *src", rows: u32 = "u32 rows", len: u64 = "u64 len",
                partial: u64 = "const u64 *partial", steps: u64 = "f32x2 *steps", fault: u64 = "u64 *fault",
            }
            /// Activations to int8.
            QUANTIZE_ACTIVATIONS QuantizeActivations "quantize_activations" {
                x: u64 = "const void *x", word: u32 = "u32 type", m: u32 = "u32 m", k: u32 = "u32 k", unit: u32 = "u32 unit",
                unit_padded: u32 = "u32 unit_padded", units: u32 = "u32 units", q: u64 = "i8 *q",
                scales: u64 = "f32 *scales", sums: u64 = "i32 *sums", fault: u64 = "u64 *fault",
            }
            /// Activations through the steps of a prologue: those whose operand is null, or 0 for a block, are left out.
            PROLOGUE Prologue "prologue" {
                src: u64 = "const f32 *src", src_stride: u64 = "u64 src_stride", up: u64 = "const f32 *up",
                up_stride: u64 = "u64 up_stride", residual: u64 = "const f32 *residual",
                residual_stride: u64 = "u64 residual_stride", sum: u64 = "f32 *sum", weight: u64 = "const f32 *weight",
                signs: u64 = "const f32 *signs", rows: u64 = "f32 *rows", function: u32 = "u32 function",
                epsilon: f32 = "f32 epsilon", block: u32 = "u32 block", factor: f32 = "f32 factor", m: u32 = "u32 m", k: u32 = "u32 k",
                unit: u32 = "u32 unit", unit_padded: u32 = "u32 unit_padded", units: u32 = "u32 units", q: u64 = "i8 *q",
                scales: u64 = "f32 *scales", sums: u64 = "i32 *sums", fault: u64 = "u64 *fault",
            }
            /// Whether a product of floats can use all weights.
            CHECK Check "check" {
                blocks: u64 = "const u8 *blocks", row_bytes: u64 = "u64 row_bytes", outer: u64 = "const f32 *outer",
                n: u32 = "u32 n", k: u32 = "u32 k", word: u32 = "u32 type", fault: u64 = "u64 *fault",
            }
            /// Numbers of one type to another.
            CONVERT Convert "convert" {
                src: u64 = "const void *src", from: u32 = "u32 from", src_stride: u64 = "u64 src_stride", dst: u64 = "void *dst",
                to: u32 = "u32 to", dst_stride: u64 = "u64 dst_stride", rows: u32 = "u32 rows", k: u64 = "u64 k",
                fault: u64 = "u64 *fault",
            }
            /// Pairs of tokens and experts in the order of experts.
            ROUTE Route "route" {
                list: u64 = "const u32 *list", tokens: u32 = "u32 tokens", each: u32 = "u32 each", experts: u32 = "u32 experts",
                by_pair: u32 = "u32 by_pair", of_a_tile: u32 = "u32 of_a_tile", most_tiles: u32 = "u32 most_tiles",
                counts: u64 = "u32 *counts", starts: u64 = "u32 *starts", tiles: u64 = "u32x4 *tiles", rows: u64 = "u32 *rows",
                places: u64 = "u32 *places", ends: u64 = "u32 *ends", fault: u64 = "u64 *fault",
            }
            /// Rows of quantized activations in another order.
            GATHER Gather "gather" {
                rows: u64 = "const u32 *rows", count: u32 = "u32 count", words: u32 = "u32 words", blocks: u32 = "u32 blocks",
                units: u32 = "u32 units", q: u64 = "const u32 *q", scales: u64 = "const f32 *scales", sums: u64 = "const i32 *sums",
                q_to: u64 = "u32 *q_to", scales_to: u64 = "f32 *scales_to", sums_to: u64 = "i32 *sums_to",
            }
            /// Products of tokens and experts to their places, or the weighted sums of each token's.
            COMBINE Combine "combine" {
                products: u64 = "const f32 *products", places: u64 = "const u32 *places", ends: u64 = "const u32 *ends",
                weights: u64 = "const f32 *weights", count: u32 = "u32 count", n: u32 = "u32 n", y: u64 = "f32 *y",
            }
        }
        $structs! {
            /// Activations that `quantize_activations` made.
            QUANTIZED Quantized {
                x: u64 = "const i8 *x", stride: u64 = "u64 x_stride", scales: u64 = "const f32 *x_scales",
                sums: u64 = "const i32 *x_sums",
            }
            /// Activations as they are, for a product that quantizes them.
            RAW Raw {
                x: u64 = "const void *x", first: u64 = "u64 x_first", fault: u64 = "u64 *fault", word: u32 = "u32 x_type",
                sides: u32 = "u32 sides",
            }
            /// The parameter of a product; `x` is one of the two above.
            MATMUL Parameters<X> {
                codes: u64 = "const u8 *codes", stride: u64 = "u64 stride", scales: u64 = "const f32 *scales",
                mins: u64 = "const f32 *mins", min: i32 = "i32 min", k: u32 = "u32 k", table: u64 = "const u8 *table",
                outer: u64 = "const f32 *outer", units: u32 = "u32 units", x_blocks: u32 = "u32 x_blocks", x: X = "",
                bias: u64 = "const f32 *bias", y: u64 = "f32 *y", m: u32 = "u32 m", n: u32 = "u32 n", parts: u64 = "i32 *parts",
            }
            /// The second parameter of a grouped product.
            GROUPS Groups {
                experts: u64 = "const u64 *experts", tiles: u64 = "const u32x4 *tiles",
            }
            /// The parameter of a product of floats.
            ROWS RowsParameters {
                blocks: u64 = "const u8 *blocks", row_bytes: u64 = "u64 row_bytes", outer: u64 = "const f32 *outer",
                x: u64 = "const void *x", x_stride: u64 = "u64 x_stride", x_first: u64 = "u64 x_first",
                bias: u64 = "const f32 *bias", y: u64 = "f32 *y", fault: u64 = "u64 *fault", x_type: u32 = "u32 x_type",
                k: u32 = "u32 k", m: u32 = "u32 m", n: u32 = "u32 n",
            }
        }
    };
}

/// Numbers of what stops a function in C, which returns `index * 4 + number`; 0 is nothing.
#[derive(Clone, Copy, Debug)]
pub struct CFault;

impl CFault {
    /// The input holds NaN or an infinity at this element.
    pub const NON_FINITE: u64 = 1;
    /// A code that the format gives no meaning stands at this element.
    pub const INVALID_CODE: u64 = 2;
    /// The scale of this block does not fit its storage type.
    pub const SCALE_OVERFLOW: u64 = 3;
}

macro_rules! functions {
    ($($(#[doc = $doc:literal])* $name:ident $alias:ident($($parameter:ident: $ty:ty),*) $(-> $output:ty)?;)*) => {
        impl Abi {
            $(
                #[doc = concat!("[`", stringify!($alias), "`](https://docs.rs/gristmill-runtime/latest/gristmill_runtime/abi/type.", stringify!($alias), ".html).")]
                pub const $name: Abi = Abi {
                    alias: stringify!($alias),
                    parameters: &[$((stringify!($parameter), stringify!($ty))),*],
                    output: {
                        let output: &[&str] = &[$(stringify!($output))?];
                        if output.is_empty() { None } else { Some(output[0]) }
                    },
                    doc: &[$($doc),*],
                };
            )*
        }
    };
}
cpu_abi!(functions);

macro_rules! c_structs {
    ($(
        $(#[doc = $doc:literal])* #[derive($($derived:ident),*)]
        $ty:ident { $($(#[doc = $about:literal])* $field:ident: $of:ty,)* }
    )*) => {
        impl AbiStruct {
            /// All of them.
            pub const ALL: &[AbiStruct] = &[$(AbiStruct {
                name: stringify!($ty),
                doc: &[$($doc),*],
                fields: &[$((stringify!($field), stringify!($of), &[$($about),*])),*],
            }),*];
        }
    };
}
cpu_structs!(c_structs);

/// What a kernel of a GPU takes, as declarations of CUDA C++ in their order. An empty one is where a struct has the fields of
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaAbi {
    /// What it is, in one line.
    pub doc: &'static str,
    /// Name: of the kernel, or of the runtime's struct.
    pub name: &'static str,
    /// The declarations.
    pub declarations: &'static [&'static str],
}

macro_rules! kernels {
    ($(#[doc = $doc:literal] $name:ident $ty:ident $kernel:literal { $($field:ident: $width:ty = $declaration:literal,)* })*) => {
        impl CudaAbi {
            /// Kernels that take several parameters.
            pub const KERNELS: &[CudaAbi] = &[$(CudaAbi::$name),*];
            $(
                #[doc = $doc]
                pub const $name: CudaAbi =
                    CudaAbi { doc: $doc.trim_ascii(), name: $kernel, declarations: &[$($declaration),*] };
            )*
        }
    };
}
macro_rules! structs {
    ($(#[doc = $doc:literal] $name:ident $ty:ident$(<$x:ident>)? { $($field:ident: $width:ty = $declaration:literal,)* })*) => {
        impl CudaAbi {
            /// Structs: parameters of kernels that take one, and parts of these.
            pub const STRUCTS: &[CudaAbi] = &[$(CudaAbi::$name),*];
            $(
                #[doc = $doc]
                pub const $name: CudaAbi =
                    CudaAbi { doc: $doc.trim_ascii(), name: stringify!($ty), declarations: &[$($declaration),*] };
            )*
        }
    };
}
cuda_abi!(kernels, structs);

/// Bytes of a declaration's type.
const fn width(declaration: &str) -> usize {
    let bytes = declaration.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'*' {
            return 8;
        }
        at += 1;
    }
    match bytes {
        [b'u' | b'i' | b'f', b'3', b'2', b' ', ..] => 4,
        [b'u' | b'i', b'6', b'4', b' ', ..] => 8,
        _ => panic!("a parameter is a number of 32 or 64 bits or a pointer"),
    }
}

impl CudaAbi {
    /// The parameter of a kernel as a struct of `size` bytes whose fields stand at `offsets`, an empty declaration being `inner`
    /// bytes: whether that is how CUDA C++ lays it out.
    pub const fn agrees(&self, offsets: &[usize], inner: usize, size: usize) -> bool {
        if offsets.len() != self.declarations.len() {
            return false;
        }
        let (mut at, mut end) = (0, 0);
        while at < offsets.len() {
            let declaration = self.declarations[at];
            let (bytes, alignment) =
                if declaration.is_empty() { (inner, 8) } else { (width(declaration), width(declaration)) };
            let start = usize::next_multiple_of(end, alignment);
            if offsets[at] != start {
                return false;
            }
            end = start + bytes;
            at += 1;
        }
        usize::next_multiple_of(end, 8) == size
    }
}

words! {
    /// What stops a kernel of a GPU, by number: it leaves `index * 4 + number` of the smallest index.
    CudaFault {
        /// A value that is not finite.
        NonFinite = "a value that is not finite",
        /// A code without a meaning.
        InvalidCode = "a code without a meaning",
        /// A scale that its type can't hold.
        ScaleOverflow = "a scale that its type can't hold",
        /// A finite value that is beyond the type it is rounded to.
        Beyond = "a finite value that is beyond the type it is rounded to",
    }
}
