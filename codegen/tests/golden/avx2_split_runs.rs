pub mod matmul_avx2_decode_r16k4_8bit_by32_q8_0_scales_centred_f16 {
    use ::gristmill::runtime::abi::MatmulArgs;
    use ::gristmill::runtime::simd::avx2::{self as simd, LANES};
    /// Rows of a panel.
    const ROWS: usize = 16;
    /// Bytes of a tile of codes: all rows of a panel, 4 elements each.
    const TILE: usize = 64;
    /// Elements of a row in a tile.
    const TILE_K: usize = 4;
    /// Rows to a cache line of codes.
    const LINE: usize = 16;
    /// Runs whose activations are split together.
    const SPLIT_RUNS: usize = 8;
    /// `V` vectors of rows from `row` by `T` tokens from `token`.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels and the tokens below `m`.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn tile<const V: usize, const T: usize, const PREFETCH: bool>(
        a: &MatmulArgs,
        row: usize,
        token: usize,
    ) {
        // SAFETY: of the whole function: the caller answers for the buffers of `a`, see `MatmulArgs`.
        unsafe {
            let mut codes = [a.codes.add(row / ROWS * a.stride + row % ROWS * 4); V];
            for i in 1..V {
                let row = row + i * LANES;
                codes[i] = if ROWS.is_multiple_of(V * LANES) {
                    // In the same panel.
                    codes[0].add(i * LANES * 4)
                } else {
                    a.codes.add(row / ROWS * a.stride + row % ROWS * 4)
                };
            }
            let mut x = [a.x; T];
            for t in 0..T {
                x[t] = a.x.add((token + t) * a.x_stride);
            }
            // From the end of these rows' panels to the rows that come next.
            let after = row + V * LANES;
            let next = (after / ROWS * a.stride + after % ROWS * 4)
                .wrapping_sub(row / ROWS * a.stride + row % ROWS * 4 + a.stride);
            // The prefetch distance: weights are read once and perhaps from memory.
            let distance = a.prefetch as usize;
            let next_terms = (after / ROWS * ROWS * a.units + after % ROWS)
                .wrapping_sub(row / ROWS * ROWS * a.units + row % ROWS + ROWS * a.units);
            let mut scales = [a
                .scales
                .cast::<u16>()
                .add(row / ROWS * ROWS * a.units + row % ROWS); V];
            for i in 1..V {
                let row = row + i * LANES;
                scales[i] = if ROWS.is_multiple_of(V * LANES) {
                    scales[0].add(i * LANES)
                } else {
                    a.scales.cast::<u16>().add(row / ROWS * ROWS * a.units + row % ROWS)
                };
            }
            let mut y = [[simd::splat_f32(0.0); V]; T];
            for first in (0..a.units).step_by(SPLIT_RUNS) {
                let last = a.units.min(first + SPLIT_RUNS);
                // Activations as 16 * upper + lower, for a whole while ahead of the loads that broadcast them.
                let mut halves = [[[[0; 32]; 2]; T]; SPLIT_RUNS];
                for run in 0..last - first {
                    for t in 0..T {
                        halves[run][t] = simd::split(x[t].add((first + run) * 32));
                    }
                }
                let halves = std::hint::black_box(&halves);
                for unit in first..last {
                    let halves = &halves[unit - first];
                    let mut start = [simd::zero(); T];
                    for t in 0..T {
                        let x_sum = *a.x_sums.add((token + t) * a.units + unit);
                        start[t] = simd::splat(x_sum * a.min);
                    }
                    // Of the lower halves of activations, and of the upper ones.
                    let mut sum = [[[simd::zero_pairs(); V]; T]; 2];
                    for turn in 0..8 {
                        let tile = unit * 8 + turn;
                        let (at, k) = (tile * TILE, turn * TILE_K);
                        let mut packed0 = [simd::zero(); V];
                        for i in 0..V {
                            packed0[i] = simd::load(codes[i].add(at));
                        }
                        if PREFETCH {
                            let ahead = if V * LANES == ROWS || at + distance < a.stride
                            {
                                at + distance
                            } else {
                                (at + distance).wrapping_add(next)
                            };
                            for i in 0..V {
                                if (i * LANES).is_multiple_of(LINE) {
                                    simd::prefetch(codes[i].wrapping_add(ahead));
                                }
                            }
                        }
                        let w0 = packed0;
                        for t in 0..T {
                            let [lower, upper] = &halves[t];
                            let lower = simd::broadcast(lower.as_ptr().add(k));
                            let upper = simd::broadcast(upper.as_ptr().add(k));
                            for i in 0..V {
                                sum[0][t][i] = simd::pairs(sum[0][t][i], w0[i], lower);
                                sum[1][t][i] = simd::pairs(sum[1][t][i], w0[i], upper);
                            }
                        }
                    }
                    let mut dot = [[simd::zero(); V]; T];
                    for t in 0..T {
                        for i in 0..V {
                            dot[t][i] = start[t];
                        }
                    }
                    for t in 0..T {
                        for i in 0..V {
                            let upper = simd::widen_upper(dot[t][i], sum[1][t][i]);
                            dot[t][i] = simd::widen(upper, sum[0][t][i]);
                        }
                    }
                    if PREFETCH {
                        let ahead = if V * LANES == ROWS || unit + 8 < a.units {
                            (unit + 8) * 16
                        } else {
                            ((unit + 8) * 16).wrapping_add(next_terms)
                        };
                        for i in 0..V {
                            if (i * LANES).is_multiple_of(32) {
                                simd::prefetch(scales[i].wrapping_add(ahead).cast());
                            }
                        }
                    }
                    for t in 0..T {
                        let x_scale = simd::splat_f32(
                            *a.x_scales.add((token + t) * a.x_blocks + unit),
                        );
                        for i in 0..V {
                            y[t][i] = simd::add_f32(
                                y[t][i],
                                simd::mul_f32(
                                    simd::mul_f32(
                                        simd::load_f16(scales[i].add(unit * 16)),
                                        x_scale,
                                    ),
                                    simd::to_f32(dot[t][i]),
                                ),
                            );
                        }
                    }
                }
            }
            for i in 0..V {
                let row = row + i * LANES;
                if row >= a.row_end {
                    break;
                }
                let whole = row + LANES <= a.row_end;
                let bias = if a.bias.is_null() {
                    None
                } else if whole {
                    Some(simd::load_f32(a.bias.add(row)))
                } else {
                    let mut lanes = [0f32; LANES];
                    lanes
                        .as_mut_ptr()
                        .copy_from_nonoverlapping(a.bias.add(row), a.row_end - row);
                    Some(simd::load_f32(lanes.as_ptr()))
                };
                for t in 0..T {
                    let y = y[t][i];
                    let y = match bias {
                        Some(bias) => simd::add_f32(y, bias),
                        None => y,
                    };
                    let out = a.y.add((token + t) * a.n + row);
                    if whole {
                        simd::store_f32(out, y);
                    } else {
                        let mut lanes = [0f32; LANES];
                        simd::store_f32(lanes.as_mut_ptr(), y);
                        out.copy_from_nonoverlapping(lanes.as_ptr(), a.row_end - row);
                    }
                }
            }
        }
    }
    /// `y = x * w^T (+ bias)`.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says.
    #[target_feature(enable = "avx2,f16c")]
    pub unsafe fn matmul(a: &MatmulArgs) {
        // SAFETY: the caller's promise is passed on.
        unsafe { if a.prefetch == 0 { rows::<false>(a) } else { rows::<true>(a) } }
    }
    /// As [`matmul`], with prefetches of weights or without.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn rows<const PREFETCH: bool>(a: &MatmulArgs) {
        let end = a.row_end.next_multiple_of(2 * LANES);
        let (first, last) = (0, a.m);
        // SAFETY: panels are whole, so `end` lies within them; tokens stay below `m`.
        unsafe {
            let mut row = a.row_begin;
            while row + 2 * LANES <= end {
                let mut token = first;
                while token < last {
                    tile::<2, 1, PREFETCH>(a, row, token);
                    token += 1;
                }
                row += 2 * LANES;
            }
        }
    }
}
