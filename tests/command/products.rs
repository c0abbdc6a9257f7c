//! Products of a C++ library, called directly with shapes that no command asks for.
#![cfg(all(feature = "cli", feature = "bitnet", target_os = "linux"))]

use crate::made;
use gristmill::compare::{CompareError, CppKernels};
use gristmill::{Error, QuantizedMatrix, REGISTRY};
use gristmill_probe::backend::{Requirements, validate};

/// bitnet.cpp's product of a row, which no case here gets to with a row that has elements.
const LIBRARY: &str = "
    #include <stddef.h>
    void ggml_vec_dot_i2_i8_s(int n, float *s, size_t bs, const void *x, size_t bx, const void *y, size_t by, int rows) {
        *s = 7;
    }";

#[test]
fn empty_and_huge_shapes_are_results_and_errors() -> Result<(), Box<dyn std::error::Error>> {
    let folder = made::folder();
    let path = made::shared(folder.path(), "libggml-cpu.so", LIBRARY, &[]);
    let validated = validate(&path, &Requirements::new().symbol("ggml_vec_dot_i2_i8_s"))?;
    // SAFETY: it was made here, and its function is of the type that the name stands for.
    let kernels = unsafe { CppKernels::load(&validated) }?;
    let format = REGISTRY.format("i2_s")?.1;
    let product = kernels.product(format)?;
    for (m, n, k) in [(0, 2, 128), (3, 0, 128), (3, 2, 0), (3, 0, 0), (0, 0, 0)] {
        let data = vec![0; format.tensor_bytes(n, k)?];
        let weights = QuantizedMatrix::new(format, n, k, &data)?;
        let mut y = vec![f32::NAN; m * n];
        product.run(&weights, &vec![1.0; m * k], m, &mut y)?;
        assert!(y.iter().all(|y| *y == 0.0), "{m} {n} {k}: {y:?}");
    }
    let data = vec![0; format.tensor_bytes(2, 128)?];
    let weights = QuantizedMatrix::new(format, 2, 128, &data)?;
    for m in [usize::MAX, usize::MAX / 128 + 1] {
        match product.run(&weights, &[], m, &mut []) {
            Err(CompareError::Ours(Error::TooLarge { .. })) => {}
            other => panic!("{m}: {other:?}"),
        }
    }
    Ok(())
}
