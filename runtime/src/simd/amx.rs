//! Products of tiles by x86's matrix unit (AMX-INT8), for loops that are otherwise written in AVX-512.
//!
//! A tile of activations is up to sixteen tokens by `k` bytes, as rows of activations lie; a tile of operands is sixteen rows of a panel by
//! as many k, four k of a row side by side, as packings have them. Their product is sixteen i32 sums for each token.
//!
//! Stable Rust has no intrinsics for tiles, so what is done with them is assembly. Their shape ([`configure`]) and the sums outlive a block of
//! it, from [`clear`] to [`store`], so that vectors work on the last sums between products for the next ones. No code that rustc makes
//! touches either, since it is not told of the instructions, and kernels call nothing in between; a system saves both with a thread's other
//! registers.
//! (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: LDTILECFG, TDPBUSD.)

use super::avx2::sum_pairs;
use super::avx512::{I, times_words};
use std::arch::asm;
use std::arch::x86_64::{
    _mm512_add_epi8, _mm512_add_epi32, _mm512_and_si512, _mm512_mullo_epi16, _mm512_or_si512,
    _mm512_set1_epi8, _mm512_set1_epi16, _mm512_slli_epi16, _mm512_slli_epi32, _mm512_srli_epi16,
};

/// Tokens of a tile of activations, at most.
pub const TOKENS: usize = 16;

/// i32 sums of a token in a tile.
const LANES: usize = 16;

/// What `ldtilecfg` reads and `sttilecfg` writes.
#[derive(Clone, Debug, PartialEq)]
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

/// Tiles that are not configured.
const NONE: Configuration =
    Configuration { palette: 0, start_row: 0, reserved: [0; 14], bytes_per_row: [0; 16], rows: [0; 16] };

/// Where a tile of activations and one of operands are read.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// The first k of the first token.
    pub x: *const i8,
    /// From token to token.
    pub x_stride: usize,
    /// The first four k of the first row.
    pub w: *const u8,
    /// From four k to the next four of the same row: four bytes for each row of a panel.
    pub w_stride: usize,
}

/// Sets the shape of tiles: `tokens` in one tile of activations, or in two where there are more than [`TOKENS`], and `k` elements of
/// k, for the loops that follow on this thread, until [`give_back`].
///
/// `digits`: for [`digits`] and [`unsigned_digits`], whose four sums have the same tokens.
///
/// # Safety
///
/// The processor has AMX-INT8 and the system lets this process use it (`Feature::AmxInt8`). `tokens` is in `1..=2 * TOKENS`, with
/// `digits` in `1..=TOKENS`; `k` is a multiple of 4 in `4..=64`.
pub unsafe fn configure(tokens: usize, k: usize, digits: bool) {
    debug_assert!(k.is_multiple_of(4) && (4..=64).contains(&k) && (1..=2 * TOKENS).contains(&tokens));
    let first = tokens.min(TOKENS) as u8;
    // A second tile that no loop uses has a shape, too.
    let second = if digits || tokens <= TOKENS { first } else { (tokens - TOKENS) as u8 };
    let (sums, x, w) = (64, k as u16, 64);
    let mut configuration = Configuration { palette: 1, ..NONE };
    let k = (k / 4) as u8;
    // Digits take a third tile of operands where others have a second one of activations.
    let (bytes_of_fifth, rows_of_fifth) = if digits { (w, k) } else { (x, second) };
    configuration.bytes_per_row[..8].copy_from_slice(&[sums, sums, sums, sums, x, bytes_of_fifth, w, w]);
    configuration.rows[..8].copy_from_slice(&[first, first, second, second, first, rows_of_fifth, k, k]);
    // SAFETY: 64 bytes are read; the caller answers for the instruction.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) }
}

/// How a thread had its tiles configured before a kernel.
#[derive(Debug)]
pub struct Found(Configuration);

/// How tiles are configured on this thread, for [`give_back`].
///
/// # Safety
///
/// The processor has AMX-INT8 and the system lets this process use it.
pub unsafe fn found() -> Found {
    let mut found = NONE;
    // SAFETY: 64 bytes are written; the caller answers for the instruction.
    unsafe { asm!("sttilecfg [{}]", in(reg) &raw mut found, options(nostack)) }
    Found(found)
}

/// Gives the tiles back as they were found. By the calling convention what they hold and how they are configured is lost in a call, but
/// libraries are about that configure a thread's tiles once and take them to stay so (candle 0.11's products of `q4_k`): they would get an
/// illegal instruction, or sums of another shape. A thread without tiles is switched faster, so that is what others get back.
///
/// # Safety
///
/// As [`found`], which gave `found` on this thread.
pub unsafe fn give_back(found: &Found) {
    // SAFETY: the caller answers for the instructions; 64 bytes are read, which the processor has written.
    unsafe {
        match found.0.palette {
            0 => asm!("tilerelease", options(nostack, nomem)),
            _ => asm!("ldtilecfg [{}]", in(reg) &raw const found.0, options(nostack, readonly)),
        }
    }
}

/// Sets the sums to zero.
///
/// # Safety
///
/// [`configure`] was called on this thread.
#[inline]
pub unsafe fn clear() {
    // SAFETY: the caller answers for the instructions.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            options(nostack, nomem, preserves_flags)
        );
    }
}

/// The instruction that moves tile `tmm` between the unit and memory.
macro_rules! moved {
    (tilestored, $tmm:literal, $place:literal) => {
        concat!("tilestored [", $place, "], ", $tmm)
    };
    (tileloadd, $tmm:literal, $place:literal) => {
        concat!("tileloadd ", $tmm, ", [", $place, "]")
    };
}

/// Moves all sums between the unit and memory.
macro_rules! move_sums {
    ($(#[$meta:meta])* $name:ident, $instruction:ident, $sums:ty) => {
        $(#[$meta])*
        ///
        /// In memory, those of `X` tiles of activations with `V` vectors of rows lie token by token, the `V` vectors of one side by side. With
        /// `X` = 2 the sums of the second tile lie [`TOKENS`] tokens further on; those of [`digits`] are two tiles, of low digits and of
        /// high ones.
        ///
        /// # Safety
        ///
        /// As for the products; `sums` has room for `16 * X * TOKENS * V` numbers.
        #[inline]
        pub unsafe fn $name<const V: usize, const X: usize>(sums: $sums) {
            const { assert!(1 <= V && V <= 2 && 1 <= X && X <= 2) };
            let stride = V * LANES * 4;
            let second = sums.wrapping_add(TOKENS * V * LANES);
            // SAFETY: the caller answers for the instructions and for what is read or written.
            unsafe {
                asm!(moved!($instruction, "tmm0", "{sums} + {stride}*1"), sums = in(reg) sums, stride = in(reg) stride,
                     out("tmm0") _, options(nostack, preserves_flags));
                if V == 2 {
                    asm!(moved!($instruction, "tmm1", "{sums} + {stride}*1 + 64"), sums = in(reg) sums, stride = in(reg) stride,
                         out("tmm1") _, options(nostack, preserves_flags));
                }
                if X == 2 {
                    asm!(moved!($instruction, "tmm2", "{sums} + {stride}*1"), sums = in(reg) second, stride = in(reg) stride,
                         out("tmm2") _, options(nostack, preserves_flags));
                }
                if X == 2 && V == 2 {
                    asm!(moved!($instruction, "tmm3", "{sums} + {stride}*1 + 64"), sums = in(reg) second, stride = in(reg) stride,
                         out("tmm3") _, options(nostack, preserves_flags));
                }
            }
        }
    };
}

move_sums! {
    /// Writes the sums.
    store, tilestored, *mut i32
}
move_sums! {
    /// Reads sums that [`store`] wrote, in place of those that the unit has.
    load, tileloadd, *const i32
}

/// A block of assembly that loads tiles and adds products to sums.
macro_rules! add {
    ($operands:ident, [$($instruction:expr),*] $(, $second:ident)?) => {
        asm!(
            $($instruction,)*
            x = in(reg) $operands.x,
            x_stride = in(reg) $operands.x_stride,
            w = in(reg) $operands.w,
            w_stride = in(reg) $operands.w_stride,
            $($second = in(reg) $second,)?
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly, preserves_flags)
        )
    };
}

/// One kind of products: of `X` tiles of activations with `V` vectors of rows, by one instruction.
macro_rules! products {
    ($(#[$meta:meta])* $name:ident, $dot:literal) => {
        $(#[$meta])*
        ///
        /// `X` is 1 or 2: tiles of activations, the second one [`TOKENS`] tokens further on. `V` is 1 or 2.
        ///
        /// # Safety
        ///
        /// [`configure`] was called on this thread, for as many tokens as `X` tiles have and for as many k as there are, without
        /// digits; what `operands` say can be read.
        #[inline]
        pub unsafe fn $name<const V: usize, const X: usize>(operands: Operands) {
            const { assert!(1 <= V && V <= 2 && 1 <= X && X <= 2) };
            let second = operands.x.wrapping_add(TOKENS * operands.x_stride);
            // SAFETY: the caller answers for the instructions and for what is read.
            unsafe {
                match (V, X) {
                    (1, 1) => add!(
                        operands,
                        [
                            "tileloadd tmm4, [{x} + {x_stride}*1]",
                            "tileloadd tmm6, [{w} + {w_stride}*1]",
                            concat!($dot, " tmm0, tmm4, tmm6")
                        ]
                    ),
                    (2, 1) => add!(
                        operands,
                        [
                            "tileloadd tmm4, [{x} + {x_stride}*1]",
                            "tileloadd tmm6, [{w} + {w_stride}*1]",
                            concat!($dot, " tmm0, tmm4, tmm6"),
                            "tileloadd tmm7, [{w} + {w_stride}*1 + 64]",
                            concat!($dot, " tmm1, tmm4, tmm7")
                        ]
                    ),
                    (1, 2) => add!(
                        operands,
                        [
                            "tileloadd tmm4, [{x} + {x_stride}*1]",
                            "tileloadd tmm6, [{w} + {w_stride}*1]",
                            concat!($dot, " tmm0, tmm4, tmm6"),
                            "tileloadd tmm5, [{second} + {x_stride}*1]",
                            concat!($dot, " tmm2, tmm5, tmm6")
                        ],
                        second
                    ),
                    _ => add!(
                        operands,
                        [
                            "tileloadd tmm4, [{x} + {x_stride}*1]",
                            "tileloadd tmm6, [{w} + {w_stride}*1]",
                            concat!($dot, " tmm0, tmm4, tmm6"),
                            "tileloadd tmm7, [{w} + {w_stride}*1 + 64]",
                            concat!($dot, " tmm1, tmm4, tmm7"),
                            "tileloadd tmm5, [{second} + {x_stride}*1]",
                            concat!($dot, " tmm2, tmm5, tmm6"),
                            concat!($dot, " tmm3, tmm5, tmm7")
                        ],
                        second
                    ),
                }
            }
        }
    };
}

products! {
    /// Adds products of unsigned operands and activations to the sums.
    unsigned, "tdpbsud"
}
products! {
    /// Adds products of signed operands and activations to the sums.
    signed, "tdpbssd"
}

/// One kind of operands in two digits.
macro_rules! digits {
    ($(#[$meta:meta])* $name:ident, $high:literal) => {
        $(#[$meta])*
        ///
        /// Operands' low digits, unsigned bytes, are where `operands.w` says, their high digits `high` bytes behind. `V` is 1 or 2. [`store`]
        /// with `X` = 2 writes the sums of low digits and behind them those of high ones.
        ///
        /// # Safety
        ///
        /// [`configure`] was called on this thread, for one tile of activations and for as many k as there are, with digits; what
        /// `operands` say can be read in both places.
        #[inline]
        pub unsafe fn $name<const V: usize>(operands: Operands, high: usize) {
            const { assert!(1 <= V && V <= 2) };
            let high = operands.w.wrapping_add(high);
            // SAFETY: the caller answers for the instructions and for what is read.
            unsafe {
                match V {
                    1 => add!(
                        operands,
                        [
                            "tileloadd tmm4, [{x} + {x_stride}*1]",
                            "tileloadd tmm6, [{w} + {w_stride}*1]",
                            "tdpbsud tmm0, tmm4, tmm6",
                            "tileloadd tmm7, [{high} + {w_stride}*1]",
                            concat!($high, " tmm2, tmm4, tmm7")
                        ],
                        high
                    ),
                    _ => add!(
                        operands,
                        [
                            "tileloadd tmm4, [{x} + {x_stride}*1]",
                            "tileloadd tmm6, [{w} + {w_stride}*1]",
                            "tdpbsud tmm0, tmm4, tmm6",
                            "tileloadd tmm7, [{w} + {w_stride}*1 + 64]",
                            "tdpbsud tmm1, tmm4, tmm7",
                            "tileloadd tmm5, [{high} + {w_stride}*1]",
                            concat!($high, " tmm2, tmm4, tmm5"),
                            "tileloadd tmm6, [{high} + {w_stride}*1 + 64]",
                            concat!($high, " tmm3, tmm4, tmm6")
                        ],
                        high
                    ),
                }
            }
        }
    };
}

digits! {
    /// Adds products of signed operands of sixteen bits and activations to the sums: a low byte and a high one.
    digits, "tdpbssd"
}
digits! {
    /// Adds products of operands and activations to the sums, where both digits of an operand are unsigned bytes.
    unsigned_digits, "tdpbsud"
}

/// `iterations` times four products of whole tiles that hold `a` and `b`, without touching memory in between: what the unit can do at
/// most. Returns the wrapping sum of the four sums of one row and token.
///
/// # Safety
///
/// The processor has AMX-INT8 and the system lets this process use it; `iterations` is not 0.
pub(crate) unsafe fn peak(a: u8, b: i8, iterations: u32) -> i32 {
    #[repr(align(64))]
    struct Tile<T>([T; 1024]);
    let (a, b) = (Tile([a; 1024]), Tile([b; 1024]));
    let mut sums = [[0i32; 16 * LANES]; 4];
    // SAFETY: the caller answers for the instructions; the tiles and the sums are 1024 bytes each.
    unsafe {
        let found = found();
        configure(2 * TOKENS, 64, false);
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "tileloadd tmm4, [{a} + {stride}*1]",
            "tileloadd tmm6, [{b} + {stride}*1]",
            "2:",
            "tdpbusd tmm0, tmm4, tmm6",
            "tdpbusd tmm1, tmm4, tmm6",
            "tdpbusd tmm2, tmm4, tmm6",
            "tdpbusd tmm3, tmm4, tmm6",
            "dec {iterations:e}",
            "jnz 2b",
            "tilestored [{sums} + {stride}*1], tmm0",
            "tilestored [{sums} + {stride}*1 + 1024], tmm1",
            "tilestored [{sums} + {stride}*1 + 2048], tmm2",
            "tilestored [{sums} + {stride}*1 + 3072], tmm3",
            a = in(reg) a.0.as_ptr(),
            b = in(reg) b.0.as_ptr(),
            stride = in(reg) 64usize,
            iterations = inout(reg) iterations => _,
            sums = in(reg) sums.as_mut_ptr(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm6") _,
            options(nostack)
        );
        give_back(&found);
    }
    sums.iter().fold(0, |sum, tile| sum.wrapping_add(tile[0]))
}

/// Sums of operands from those of their digits, of which the low ones have so many bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn joined<const BITS: u32>(low: I, high: I) -> I {
    _mm512_add_epi32(low, _mm512_slli_epi32::<BITS>(high))
}

/// Sums of activations of `RUNS` runs, which fit in sixteen bits, two by two: for [`add_products`].
///
/// # Safety
///
/// `x_sums` can be read, and of `pairs` half as many written.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub unsafe fn pairs<const RUNS: usize>(x_sums: *const i32, pairs: *mut i32) {
    // SAFETY: the caller answers for both.
    unsafe {
        let mut first = 0;
        // What is written in smaller pieces than it is read in is not there at once.
        while first + 8 <= RUNS {
            pairs.add(first / 2).cast::<[i32; 4]>().write(sum_pairs::<4>(x_sums.add(first)));
            first += 8;
        }
        while first < RUNS {
            pairs.add(first / 2).write(*x_sums.add(first) & 0xffff | *x_sums.add(first + 1) << 16);
            first += 2;
        }
    }
}

/// Adds the products of both i16 halves of lanes with those of the number at `x`.
///
/// # Safety
///
/// The processor has AVX-512 VNNI; `x` can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub unsafe fn add_products(mut sum: I, a: I, x: *const i32) -> I {
    // SAFETY: the caller answers for the instruction and for what is read.
    unsafe {
        asm!(
            "vpdpwssd {sum}, {a}, dword ptr [{x}]{{1to16}}",
            sum = inout(zmm_reg) sum,
            a = in(zmm_reg) a,
            x = in(reg) x,
            options(nostack, pure, readonly, preserves_flags)
        );
    }
    sum
}

/// Operands, which are values less `min`, as signed bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn values(operands: I, min: i32) -> I {
    _mm512_add_epi8(operands, _mm512_set1_epi8(min as i8))
}

/// Operands times the low bits of the [`factor`](super::avx512::factor) of their row, so many, and times the bits above them, for
/// [`unsigned_digits`]. Each product fits in a byte, so nothing is carried from the first of two bytes into the second.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn times_split<const BITS: u32>(operands: I, factor: I) -> (I, I) {
    let low = _mm512_and_si512(factor, _mm512_set1_epi16((1 << BITS) - 1));
    let high = _mm512_srli_epi16::<BITS>(factor);
    (_mm512_mullo_epi16(operands, low), _mm512_mullo_epi16(operands, high))
}

/// Operands plus `min`, times the [`factor`](super::avx512::factor) of their row, which fits in sixteen bits: low bytes, and high ones, for [`digits`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn times_in_digits(operands: I, factor: I, min: i32) -> (I, I) {
    let (even, odd) = times_words(operands, factor, min, 0);
    let low = _mm512_or_si512(_mm512_and_si512(even, _mm512_set1_epi16(0xff)), _mm512_slli_epi16::<8>(odd));
    let high = _mm512_or_si512(
        _mm512_srli_epi16::<8>(even),
        _mm512_and_si512(odd, _mm512_set1_epi16(0xff00u16.cast_signed())),
    );
    (low, high)
}

#[cfg(test)]
mod tests;
