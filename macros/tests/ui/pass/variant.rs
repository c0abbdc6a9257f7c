//! Functions of every op, marked as variants: names, features and cfg come from the arguments.

use gristmill::abi::{Fault, MatmulArgs, Step};
use gristmill::variant;

#[variant(op = dequantize, format = nibble, isa = scalar)]
pub unsafe fn plain(_src: *const u8, _dst: *mut f32, _blocks: usize, _outer: f32) -> Result<(), Fault> {
    Ok(())
}

/// The compiler is told of the features: intrinsics need no further `unsafe`.
#[variant(op = dequantize, kernel = fast, format = nibble, isa = avx2, requires = [ssse3, "sse4.1"], name = tuned)]
unsafe fn wide(_: *const u8, dst: *mut f32, _: usize, _: f32) -> std::result::Result<(), gristmill::abi::Fault> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm256_add_epi32, _mm256_set1_epi32, _mm256_storeu_si256};
        let two = _mm256_add_epi32(_mm256_set1_epi32(1), _mm256_set1_epi32(1));
        // SAFETY: the caller answers for eight values at `dst`.
        unsafe { _mm256_storeu_si256(dst.cast(), two) };
    }
    Ok(())
}

#[variant(op = quantize, format = nibble, quantizer = absmax, isa = "sse4.1")]
unsafe fn quantize(
    _src: *const f32,
    _dst: *mut u8,
    _blocks: usize,
    _step: Step,
    _importance: *const f32,
) -> Result<(), Fault> {
    Ok(())
}

#[variant(op = quantize_activations, format = int8_row, isa = avx512, requires = [avx512vnni])]
unsafe fn activations(
    _x: *const f32,
    _k: usize,
    _unit: usize,
    _unit_padded: usize,
    _q: *mut i8,
    _scales: *mut f32,
    _sums: *mut i32,
) -> Result<(), Fault> {
    Ok(())
}

#[variant(op = matmul, format = nibble, isa = avxvnni)]
unsafe fn product(_args: &MatmulArgs) {}

fn main() {
    assert_eq!(plain::VARIANT, "dequantize.nibble.scalar");
    assert_ne!(plain::BODY, 0);
    #[cfg(target_arch = "x86_64")]
    {
        assert_eq!(wide::VARIANT, "fast.nibble.avx2.ssse3.sse4.1.tuned");
        assert_eq!(quantize::VARIANT, "quantize.nibble.absmax.sse4.1");
        assert_eq!(activations::VARIANT, "quantize_activations.int8_row.avx512.avx512vnni");
        assert_eq!(product::VARIANT, "matmul.nibble.avxvnni");
        if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("sse4.1") {
            let mut dst = [0f32; 8];
            // SAFETY: eight values, and the CPU has the features.
            unsafe { wide(std::ptr::null(), dst.as_mut_ptr(), 0, 0.0) }.expect("it never fails");
            assert!(dst.iter().all(|x| x.to_bits() == 2));
        }
    }
}
