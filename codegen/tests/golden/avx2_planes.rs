pub mod matmul_avx2_decode_r16k4_5bit_by32_q8_0_scales_centred_f16 {
    use ::gristmill::runtime::abi::MatmulArgs;
    use ::gristmill::runtime::simd::avx2::{self as simd, LANES};
    /// Rows of a panel.
    const ROWS: usize = 16;
    /// Bytes of a tile of codes: all rows of a panel, 32 elements each.
    const TILE: usize = 320;
    /// Elements of a row in a tile.
    const TILE_K: usize = 32;
    /// Rows to a cache line of codes.
    const LINE: usize = 16;
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
            for unit in 0..a.units {
                let mut start = [simd::zero(); T];
                for t in 0..T {
                    let x_sum = *a.x_sums.add((token + t) * a.units + unit);
                    start[t] = simd::splat(x_sum * a.min);
                }
                let mut dot = [[simd::zero(); V]; T];
                for t in 0..T {
                    for i in 0..V {
                        dot[t][i] = start[t];
                    }
                }
                let tile = unit;
                let (at, k) = (tile * TILE, tile * TILE_K);
                let mut sum = [[simd::zero_pairs(); V]; T];
                let mut upper0 = [simd::zero(); V];
                for i in 0..V {
                    upper0[i] = simd::load(codes[i].add(at));
                }
                if PREFETCH {
                    let ahead = if V * LANES == ROWS || at + distance < a.stride {
                        at + distance
                    } else {
                        (at + distance).wrapping_add(next)
                    };
                    for i in 0..V {
                        if (i * LANES).is_multiple_of(LINE) {
                            simd::prefetch(codes[i].wrapping_add(ahead));
                        }
                    }
                    for i in 0..V {
                        if (i * LANES).is_multiple_of(LINE) {
                            simd::prefetch(codes[i].wrapping_add(ahead + 64));
                        }
                    }
                    for i in 0..V {
                        if (i * LANES).is_multiple_of(LINE) {
                            simd::prefetch(codes[i].wrapping_add(ahead + 128));
                        }
                    }
                    for i in 0..V {
                        if (i * LANES).is_multiple_of(LINE) {
                            simd::prefetch(codes[i].wrapping_add(ahead + 192));
                        }
                    }
                    for i in 0..V {
                        if (i * LANES).is_multiple_of(LINE) {
                            simd::prefetch(codes[i].wrapping_add(ahead + 256));
                        }
                    }
                }
                let mut packed0 = [simd::zero(); V];
                for i in 0..V {
                    packed0[i] = simd::load(codes[i].add(at + 64));
                }
                let mut w0 = [simd::zero(); V];
                for i in 0..V {
                    w0[i] = simd::or(
                        simd::and(packed0[i], simd::bytes(0xf)),
                        simd::and(simd::shift_left::<4>(upper0[i]), simd::bytes(0x10)),
                    );
                }
                for t in 0..T {
                    let x = simd::broadcast(x[t].add(k));
                    for i in 0..V {
                        sum[t][i] = simd::pairs(simd::zero_pairs(), w0[i], x);
                    }
                }
                let mut w1 = [simd::zero(); V];
                for i in 0..V {
                    w1[i] = simd::or(
                        simd::and(simd::shift::<4>(packed0[i]), simd::bytes(0xf)),
                        simd::and(simd::shift_left::<3>(upper0[i]), simd::bytes(0x10)),
                    );
                }
                for t in 0..T {
                    let x = simd::broadcast(x[t].add(k + 4));
                    for i in 0..V {
                        sum[t][i] = simd::pairs(sum[t][i], w1[i], x);
                    }
                }
                let mut packed1 = [simd::zero(); V];
                for i in 0..V {
                    packed1[i] = simd::load(codes[i].add(at + 128));
                }
                let mut w2 = [simd::zero(); V];
                for i in 0..V {
                    w2[i] = simd::or(
                        simd::and(packed1[i], simd::bytes(0xf)),
                        simd::and(simd::shift_left::<2>(upper0[i]), simd::bytes(0x10)),
                    );
                }
                for t in 0..T {
                    let x = simd::broadcast(x[t].add(k + 8));
                    for i in 0..V {
                        sum[t][i] = simd::pairs(sum[t][i], w2[i], x);
                    }
                }
                let mut w3 = [simd::zero(); V];
                for i in 0..V {
                    w3[i] = simd::or(
                        simd::and(simd::shift::<4>(packed1[i]), simd::bytes(0xf)),
                        simd::and(simd::shift_left::<1>(upper0[i]), simd::bytes(0x10)),
                    );
                }
                for t in 0..T {
                    let x = simd::broadcast(x[t].add(k + 12));
                    for i in 0..V {
                        dot[t][i] = simd::widen(
                            dot[t][i],
                            simd::pairs(sum[t][i], w3[i], x),
                        );
                    }
                }
                let mut packed2 = [simd::zero(); V];
                for i in 0..V {
                    packed2[i] = simd::load(codes[i].add(at + 192));
                }
                let mut w4 = [simd::zero(); V];
                for i in 0..V {
                    w4[i] = simd::or(
                        simd::and(packed2[i], simd::bytes(0xf)),
                        simd::and(upper0[i], simd::bytes(0x10)),
                    );
                }
                for t in 0..T {
                    let x = simd::broadcast(x[t].add(k + 16));
                    for i in 0..V {
                        sum[t][i] = simd::pairs(simd::zero_pairs(), w4[i], x);
                    }
                }
                let mut w5 = [simd::zero(); V];
                for i in 0..V {
                    w5[i] = simd::or(
                        simd::and(simd::shift::<4>(packed2[i]), simd::bytes(0xf)),
                        simd::and(simd::shift::<1>(upper0[i]), simd::bytes(0x10)),
                    );
                }
                for t in 0..T {
                    let x = simd::broadcast(x[t].add(k + 20));
                    for i in 0..V {
                        sum[t][i] = simd::pairs(sum[t][i], w5[i], x);
                    }
                }
                let mut packed3 = [simd::zero(); V];
                for i in 0..V {
                    packed3[i] = simd::load(codes[i].add(at + 256));
                }
                let mut w6 = [simd::zero(); V];
                for i in 0..V {
                    w6[i] = simd::or(
                        simd::and(packed3[i], simd::bytes(0xf)),
                        simd::and(simd::shift::<2>(upper0[i]), simd::bytes(0x10)),
                    );
                }
                for t in 0..T {
                    let x = simd::broadcast(x[t].add(k + 24));
                    for i in 0..V {
                        sum[t][i] = simd::pairs(sum[t][i], w6[i], x);
                    }
                }
                let mut w7 = [simd::zero(); V];
                for i in 0..V {
                    w7[i] = simd::or(
                        simd::and(simd::shift::<4>(packed3[i]), simd::bytes(0xf)),
                        simd::and(simd::shift::<3>(upper0[i]), simd::bytes(0x10)),
                    );
                }
                for t in 0..T {
                    let x = simd::broadcast(x[t].add(k + 28));
                    for i in 0..V {
                        dot[t][i] = simd::widen(
                            dot[t][i],
                            simd::pairs(sum[t][i], w7[i], x),
                        );
                    }
                }
                if PREFETCH {
                    let ahead = if V * LANES == ROWS || unit + 12 < a.units {
                        (unit + 12) * 16
                    } else {
                        ((unit + 12) * 16).wrapping_add(next_terms)
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
