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
mod tests {
    use super::*;
    use crate::CpuProfile;
    use crate::simd::avx512::factor;
    use crate::vocab::Feature;
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_storeu_si512};

    fn here() -> bool {
        let features = CpuProfile::detect().features;
        let all = [Feature::Avx512f, Feature::Avx512bw, Feature::AmxInt8].iter().all(|&f| features.has(f));
        if !all {
            eprintln!("skipped: this processor lacks AMX");
        }
        all
    }

    /// Bytes that look random and take both ends of their range.
    fn bytes(count: usize, salt: u32) -> Vec<u8> {
        (0..count as u32)
            .map(|i| match i % 7 {
                0 => 255,
                1 => 128,
                _ => ((i + salt).wrapping_mul(2654435761) >> 13) as u8,
            })
            .collect()
    }

    /// Sums one by one, of operands as `value` takes them.
    fn expected(
        x: &[i8],
        x_stride: usize,
        tokens: usize,
        w: &[u8],
        rows: usize,
        k: usize,
        value: fn(u8) -> i32,
    ) -> Vec<i32> {
        let mut all = Vec::new();
        for t in 0..tokens {
            for row in 0..rows {
                let products = (0..k)
                    .map(|at| i32::from(x[t * x_stride + at]) * value(w[at / 4 * 32 * 4 + row * 4 + at % 4]));
                all.push(products.sum());
            }
        }
        all
    }

    /// One kind of products.
    type Products = unsafe fn(Operands);
    /// What a byte of operands stands for.
    type Value = fn(u8) -> i32;

    /// Whether sums of `tokens` tokens and `V` vectors of rows are the right ones, for tiles of every length.
    fn check<const V: usize, const X: usize>(tokens: usize) {
        for (tile, tiles) in [(64, 1), (64, 5), (32, 3), (16, 2), (4, 9), (60, 2)] {
            let k = tile * tiles;
            // Exactly as long as it must be: what is read beyond the end is not ours.
            let x_stride = k + 12;
            let x: Vec<i8> = bytes((tokens - 1) * x_stride + k, 1).iter().map(|b| b.cast_signed()).collect();
            let w = bytes(k / 4 * 32 * 4, 2);
            let mut sums = vec![i32::MIN; 16 * X * TOKENS * V];
            let kinds: [(Products, Value); 2] =
                [(unsigned::<V, X>, |b| i32::from(b)), (signed::<V, X>, |b| i32::from(b.cast_signed()))];
            for (multiply, value) in kinds {
                // SAFETY: the processor has tiles, and the vectors are as long as it says.
                unsafe {
                    let found = found();
                    configure(tokens, tile, false);
                    clear();
                    for at in (0..k).step_by(tile) {
                        multiply(Operands {
                            x: x.as_ptr().add(at),
                            x_stride,
                            w: w.as_ptr().add(at * 32),
                            w_stride: 32 * 4,
                        });
                    }
                    store::<V, X>(sums.as_mut_ptr());
                    give_back(&found);
                }
                let right = expected(&x, x_stride, tokens, &w, 16 * V, k, value);
                assert_eq!(
                    sums[..right.len()],
                    right[..],
                    "{tokens} tokens, {tiles} tiles of {tile}, V = {V}"
                );
            }
        }
    }

    /// Another library's tiles, of a shape that none of ours has, are as it left them after our products.
    #[test]
    fn tiles_are_given_back_as_they_were_found() {
        if !here() {
            return;
        }
        let mut theirs = Configuration { palette: 1, ..NONE };
        theirs.bytes_per_row[..8].copy_from_slice(&[64, 64, 32, 28, 24, 20, 16, 12]);
        theirs.rows[..8].copy_from_slice(&[3, 5, 7, 9, 11, 13, 15, 16]);
        for before in [NONE, theirs] {
            // SAFETY: the processor has tiles.
            unsafe {
                match before.palette {
                    0 => asm!("tilerelease", options(nostack, nomem)),
                    _ => asm!("ldtilecfg [{}]", in(reg) &raw const before, options(nostack, readonly)),
                }
                check::<2, 2>(32);
                assert!(peak(1, 1, 1) > 0);
                assert_eq!(found().0, before);
                give_back(&Found(NONE));
            }
        }
    }

    #[test]
    fn sums_are_those_of_single_products() {
        if !here() {
            return;
        }
        for tokens in [1, 2, 15, 16] {
            check::<1, 1>(tokens);
            check::<2, 1>(tokens);
        }
        for tokens in [17, 31, 32] {
            check::<1, 2>(tokens);
            check::<2, 2>(tokens);
        }
    }

    #[test]
    fn digits_are_products_of_sixteen_bits() {
        if !here() {
            return;
        }
        for (tokens, min, factors) in
            [(16, -32, [-128, 127]), (1, 0, [63, 1]), (5, -127, [-128, -1]), (16, 0, [0, 128 - 1])]
        {
            let x: Vec<i8> = bytes(tokens * K, 3).iter().map(|b| b.cast_signed()).collect();
            let codes: Vec<u8> = bytes(PLANE, 4).iter().map(|b| b & 0x7f).collect();
            let integer = |row: usize| factors[row % 2];
            let mut planes = vec![0u8; 2 * PLANE];
            // SAFETY: the processor has the instructions, and the vectors are as long as it says.
            let sums = unsafe {
                fill(
                    &codes,
                    &mut planes,
                    |codes, integers| times_in_digits(codes, factor(integers), min),
                    integer,
                );
                of_digits(&x, tokens, &planes, digits::<2>)
            };
            check_digits(&sums, 8, tokens, |t, row, k| {
                let value = i32::from(codes[k / 4 * 128 + row * 4 + k % 4]) + min;
                i32::from(x[t * K + k]) * value * integer(row)
            });
        }
    }

    #[test]
    fn digits_of_integers_are_multiplied_apart() {
        if !here() {
            return;
        }
        // The largest values and integers of q4_k and q5_k.
        check_split::<2>(15);
        check_split::<3>(31);
    }

    fn check_split<const BITS: u32>(most: u8) {
        for tokens in [1, 7, 16] {
            let x: Vec<i8> = bytes(tokens * K, 5).iter().map(|b| b.cast_signed()).collect();
            let codes: Vec<u8> = bytes(PLANE, 6).iter().map(|b| b & most).collect();
            let integer = |row: usize| [63, 0, 47, 1, 16][row % 5];
            let mut planes = vec![0u8; 2 * PLANE];
            // SAFETY: the processor has the instructions, and the vectors are as long as it says.
            let sums = unsafe {
                let split = |codes, integers| times_split::<BITS>(codes, factor(integers));
                fill(&codes, &mut planes, split, integer);
                of_digits(&x, tokens, &planes, unsigned_digits::<2>)
            };
            check_digits(&sums, BITS, tokens, |t, row, k| {
                i32::from(x[t * K + k]) * i32::from(codes[k / 4 * 128 + row * 4 + k % 4]) * integer(row)
            });
        }
    }

    /// k of the tests of digits, and bytes of the operands of one digit.
    const K: usize = 64;
    const PLANE: usize = K / 4 * 32 * 4;

    /// The sums of both digits of `planes` and `tokens` tokens.
    unsafe fn of_digits(x: &[i8], tokens: usize, planes: &[u8], add: unsafe fn(Operands, usize)) -> Vec<i32> {
        let mut sums = vec![i32::MIN; 32 * TOKENS * 2];
        // SAFETY: the caller answers for the instructions; activations, operands and sums are as long as they have to be.
        unsafe {
            configure(tokens, K, true);
            clear();
            add(Operands { x: x.as_ptr(), x_stride: K, w: planes.as_ptr(), w_stride: 32 * 4 }, PLANE);
            store::<2, 2>(sums.as_mut_ptr());
            give_back(&Found(NONE));
        }
        sums
    }

    fn check_digits(sums: &[i32], bits: u32, tokens: usize, product: impl Fn(usize, usize, usize) -> i32) {
        for t in 0..tokens {
            for row in 0..32 {
                let right: i32 = (0..K).map(|k| product(t, row, k)).sum();
                let (low, high) = (sums[t * 32 + row], sums[16 * 32 + t * 32 + row]);
                assert_eq!(low + (high << bits), right, "token {t}, row {row}");
            }
        }
    }

    #[test]
    fn pairs_are_multiplied_with_integers() {
        let features = CpuProfile::detect().features;
        if ![Feature::Avx512f, Feature::Avx512bw, Feature::Avx512vnni].iter().all(|&f| features.has(f)) {
            eprintln!("skipped: this processor lacks AVX-512 VNNI");
            return;
        }
        check_pairs::<8>();
        check_pairs::<16>();
        // Eight and four more, and fewer than eight.
        check_pairs::<12>();
        check_pairs::<2>();
    }

    fn check_pairs<const RUNS: usize>() {
        let x_sums: [i32; RUNS] = std::array::from_fn(|run| [i32::from(i16::MIN), 32767, -1, 1250][run % 4]);
        let integer = |lane: usize, run: usize| (lane * 37 + run * 11) as i16 % 128 - 64;
        let mut two_by_two = [0i32; 8];
        let mut sums = [0i32; LANES];
        // SAFETY: the processor has the instructions, and the vectors are as long as they say.
        unsafe {
            pairs::<RUNS>(x_sums.as_ptr(), two_by_two.as_mut_ptr());
            let mut sum = _mm512_loadu_si512([7i32; LANES].as_ptr().cast());
            for pair in 0..RUNS / 2 {
                let integers: [i16; 2 * LANES] = std::array::from_fn(|at| integer(at / 2, 2 * pair + at % 2));
                let integers = _mm512_loadu_si512(integers.as_ptr().cast());
                sum = add_products(sum, integers, two_by_two.as_ptr().add(pair));
            }
            _mm512_storeu_si512(sums.as_mut_ptr().cast(), sum);
        }
        for (lane, sum) in sums.into_iter().enumerate() {
            let right: i32 = (0..RUNS).map(|run| i32::from(integer(lane, run)) * x_sums[run]).sum();
            assert_eq!(sum, 7 + right, "{RUNS} runs, row {lane}");
        }
        assert_eq!(two_by_two[RUNS / 2..], [0; 8][RUNS / 2..], "{RUNS} runs: no more is written");
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn fill(
        codes: &[u8],
        planes: &mut [u8],
        digits: impl Fn(I, I) -> (I, I),
        integer: impl Fn(usize) -> i32,
    ) {
        let (low, high) = planes.split_at_mut(codes.len());
        for (at, codes) in codes.chunks(64).enumerate() {
            let integers: [i32; 16] = std::array::from_fn(|lane| integer(at % 2 * 16 + lane));
            // SAFETY: of both arrays and of each chunk 64 bytes are touched.
            unsafe {
                let integers = _mm512_loadu_si512(integers.as_ptr().cast());
                let (l, h) = digits(_mm512_loadu_si512(codes.as_ptr().cast()), integers);
                _mm512_storeu_si512(low[at * 64..][..64].as_mut_ptr().cast(), l);
                _mm512_storeu_si512(high[at * 64..][..64].as_mut_ptr().cast(), h);
            }
        }
    }
}
