pub mod activations_int8_row {
    use ::gristmill::runtime::abi::Fault;
    use ::gristmill::runtime::number;
    use ::gristmill::runtime::abi::PrologueArgs;
    use ::gristmill::runtime::prologue::steps;
    /// One row.
    ///
    /// # Safety
    ///
    /// As `abi::QuantizeActivationsFn` of the runtime says.
    #[inline(always)]
    unsafe fn quantize(
        x: *const f32,
        k: usize,
        unit: usize,
        unit_padded: usize,
        q: *mut i8,
        scales: *mut f32,
        sums: *mut i32,
    ) -> Result<(), Fault> {
        let units = k.div_ceil(unit);
        if unit_padded != unit || !k.is_multiple_of(unit) {
            // SAFETY: the caller answers for `units` padded units.
            unsafe { q.write_bytes(0, units * unit_padded) };
        }
        // SAFETY: the caller answers for a sum each.
        unsafe { sums.write_bytes(0, units) };
        if k > 0 {
            // A row is one block.
            let (index, first, end) = (0, 0, k);
            // SAFETY: the caller answers for `k` values.
            let x = unsafe { std::slice::from_raw_parts(x.add(first), end - first) };
            let magnitude = match number::finite_abs_max(x) {
                Ok(magnitude) => magnitude,
                Err(fault) => return Err(number::offset(fault, first)),
            };
            let s = magnitude;
            let multiplier = (127.0f64 / f64::from(s).max(1e-5f64)) as f32;
            let usable = multiplier.is_finite();
            let apply = if usable { multiplier } else { 0.0f32 };
            let kept = apply;
            // SAFETY: the caller answers for one scale a block.
            unsafe { scales.add(index).write(kept) };
            let mut at = first;
            while at < end {
                // The part of the block that lies in one unit.
                let (number, within) = (at / unit, at % unit);
                let len = (unit - within).min(end - at);
                // SAFETY: the part lies in the block and in the unit.
                let (x, to) = unsafe {
                    (
                        std::slice::from_raw_parts(x.as_ptr().add(at - first), len),
                        std::slice::from_raw_parts_mut(
                            q.add(number * unit_padded + within),
                            len,
                        ),
                    )
                };
                let mut sum = 0i32;
                for i in 0..len {
                    let x = x[i];
                    let rounded = (x * apply)
                        .round_ties_even()
                        .max(-128.0f32)
                        .min(127.0f32);
                    // SAFETY: clamped to the range of i8, and `max` leaves no NaN.
                    let value = unsafe { rounded.to_int_unchecked::<i32>() };
                    to[i] = value as i8;
                    sum += value;
                }
                // SAFETY: the caller answers for a sum a unit.
                unsafe { *sums.add(number) += sum };
                at += len;
            }
        }
        Ok(())
    }
    /// A row of f32 to `int8_row` activations, compiled for scalar.
    ///
    /// `@generated` by gristmill from kernel-spec/kernels/quantize_activations.toml:5.
    ///
    /// # Safety
    ///
    /// As `abi::QuantizeActivationsFn` of the runtime says; the CPU has the features named.
    pub unsafe fn quantize_scalar(
        x: *const f32,
        k: usize,
        unit: usize,
        unit_padded: usize,
        q: *mut i8,
        scales: *mut f32,
        sums: *mut i32,
    ) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { quantize(x, k, unit, unit_padded, q, scales, sums) }
    }
    /// A row of f32 to `int8_row` activations, compiled for sse4.1.
    ///
    /// `@generated` by gristmill from kernel-spec/kernels/quantize_activations.toml:8.
    ///
    /// # Safety
    ///
    /// As `abi::QuantizeActivationsFn` of the runtime says; the CPU has the features named.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "ssse3,sse4.1")]
    pub unsafe fn quantize_sse41(
        x: *const f32,
        k: usize,
        unit: usize,
        unit_padded: usize,
        q: *mut i8,
        scales: *mut f32,
        sums: *mut i32,
    ) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { quantize(x, k, unit, unit_padded, q, scales, sums) }
    }
    /// A row of f32 to `int8_row` activations, compiled for avx2.
    ///
    /// `@generated` by gristmill from kernel-spec/kernels/quantize_activations.toml:11.
    ///
    /// # Safety
    ///
    /// As `abi::QuantizeActivationsFn` of the runtime says; the CPU has the features named.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c")]
    pub unsafe fn quantize_avx2(
        x: *const f32,
        k: usize,
        unit: usize,
        unit_padded: usize,
        q: *mut i8,
        scales: *mut f32,
        sums: *mut i32,
    ) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { quantize(x, k, unit, unit_padded, q, scales, sums) }
    }
    /// A row of f32 to `int8_row` activations, compiled for avx512.
    ///
    /// `@generated` by gristmill from kernel-spec/kernels/quantize_activations.toml:14.
    ///
    /// # Safety
    ///
    /// As `abi::QuantizeActivationsFn` of the runtime says; the CPU has the features named.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn quantize_avx512(
        x: *const f32,
        k: usize,
        unit: usize,
        unit_padded: usize,
        q: *mut i8,
        scales: *mut f32,
        sums: *mut i32,
    ) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { quantize(x, k, unit, unit_padded, q, scales, sums) }
    }
    /// A row of f32 to `int8_row` activations, compiled for neon.
    ///
    /// `@generated` by gristmill from kernel-spec/kernels/quantize_activations.toml:17.
    ///
    /// # Safety
    ///
    /// As `abi::QuantizeActivationsFn` of the runtime says; the CPU has the features named.
    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "neon")]
    pub unsafe fn quantize_neon(
        x: *const f32,
        k: usize,
        unit: usize,
        unit_padded: usize,
        q: *mut i8,
        scales: *mut f32,
        sums: *mut i32,
    ) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { quantize(x, k, unit, unit_padded, q, scales, sums) }
    }
    /// One row.
    ///
    /// # Safety
    ///
    /// As `abi::PrologueFn` of the runtime says.
    #[inline(always)]
    unsafe fn prologue(args: &PrologueArgs) -> Result<(), Fault> {
        let k = args.k;
        // SAFETY: the caller answers for `k` values, and for room for as many that nobody else has.
        let (x, row) = unsafe {
            (
                std::slice::from_raw_parts(args.x, k),
                std::slice::from_raw_parts_mut(args.row, k),
            )
        };
        steps::copy(x, row)?;
        if !args.up.is_null() {
            // SAFETY: the caller answers for `k` values.
            let up = unsafe { std::slice::from_raw_parts(args.up, k) };
            steps::gate(row, up, args.function)?;
        }
        if !args.residual.is_null() {
            // SAFETY: the caller answers for `k` values, and for room for as many.
            let (residual, sum) = unsafe {
                (
                    std::slice::from_raw_parts(args.residual, k),
                    std::slice::from_raw_parts_mut(args.sum, k),
                )
            };
            steps::add(row, residual, sum)?;
        }
        if !args.weight.is_null() {
            // SAFETY: the caller answers for `k` values.
            let weight = unsafe { std::slice::from_raw_parts(args.weight, k) };
            steps::rms_norm(row, weight, args.epsilon)?;
        }
        if args.block > 0 {
            let signs = match args.signs.is_null() {
                true => None,
                // SAFETY: the caller answers for `k` values.
                false => Some(unsafe { std::slice::from_raw_parts(args.signs, k) }),
            };
            steps::hadamard(row, signs, args.block)?;
        }
        // SAFETY: the caller answers for what `quantize` takes; `row` holds `k` values.
        unsafe {
            quantize(
                row.as_ptr(),
                k,
                args.unit,
                args.unit_padded,
                args.q,
                args.scales,
                args.sums,
            )
        }
    }
    /// A row of f32 through the prologue of `int8_row` activations, compiled for scalar.
    ///
    /// `@generated` by gristmill from kernel-spec/kernels/prologue.toml:4.
    ///
    /// # Safety
    ///
    /// As `abi::PrologueFn` of the runtime says; the CPU has the features named.
    pub unsafe fn prologue_scalar(args: &PrologueArgs) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { prologue(args) }
    }
    /// A row of f32 through the prologue of `int8_row` activations, compiled for sse4.1.
    ///
    /// `@generated` by gristmill from kernel-spec/kernels/prologue.toml:7.
    ///
    /// # Safety
    ///
    /// As `abi::PrologueFn` of the runtime says; the CPU has the features named.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "ssse3,sse4.1")]
    pub unsafe fn prologue_sse41(args: &PrologueArgs) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { prologue(args) }
    }
    /// A row of f32 through the prologue of `int8_row` activations, compiled for avx2.
    ///
    /// `@generated` by gristmill from kernel-spec/kernels/prologue.toml:10.
    ///
    /// # Safety
    ///
    /// As `abi::PrologueFn` of the runtime says; the CPU has the features named.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c")]
    pub unsafe fn prologue_avx2(args: &PrologueArgs) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { prologue(args) }
    }
    /// A row of f32 through the prologue of `int8_row` activations, compiled for avx512.
    ///
    /// `@generated` by gristmill from kernel-spec/kernels/prologue.toml:13.
    ///
    /// # Safety
    ///
    /// As `abi::PrologueFn` of the runtime says; the CPU has the features named.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn prologue_avx512(args: &PrologueArgs) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { prologue(args) }
    }
    /// A row of f32 through the prologue of `int8_row` activations, compiled for neon.
    ///
    /// `@generated` by gristmill from kernel-spec/kernels/prologue.toml:16.
    ///
    /// # Safety
    ///
    /// As `abi::PrologueFn` of the runtime says; the CPU has the features named.
    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "neon")]
    pub unsafe fn prologue_neon(args: &PrologueArgs) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { prologue(args) }
    }
}
