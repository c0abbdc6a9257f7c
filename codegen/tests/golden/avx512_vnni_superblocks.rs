pub mod matmul_avx512_avx512vnni_decode_r32k4_4bit_by32x8_q8_k_scales_mins_f16 {
    use ::gristmill::runtime::abi::MatmulArgs;
    use ::gristmill::runtime::simd::avx512vnni::{self as simd, LANES};
    /// Rows of a panel.
    const ROWS: usize = 32;
    /// Bytes of a tile of codes: all rows of a panel, 8 elements each.
    const TILE: usize = 128;
    /// Elements of a row in a tile.
    const TILE_K: usize = 8;
    /// Rows to a cache line of codes.
    const LINE: usize = 16;
    /// `V` vectors of rows from `row` by `T` tokens from `token`.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels and the tokens below `m`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
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
            /// Runs of a super-block.
            const RUNS: usize = 8;
            /// Words that its terms take in a panel.
            const WORDS: usize = 80;
            /// Words that its minima take.
            const MIN_WORDS: usize = 80;
            let mut scales = [a.scales.cast::<u16>(); V];
            let mut scale_integers = [a.scales.cast::<i8>(); V];
            for i in 0..V {
                let row = row + i * LANES;
                let panel = a.scales.add(row / ROWS * (a.units / RUNS * WORDS));
                scales[i] = panel.cast::<u16>().add(row % ROWS);
                scale_integers[i] = panel.add(16).cast::<i8>().add(row % ROWS);
            }
            let mut mins = [a.mins.cast::<u16>(); V];
            let mut min_integers = [a.mins.cast::<i8>(); V];
            for i in 0..V {
                let row = row + i * LANES;
                let panel = a.mins.add(row / ROWS * (a.units / RUNS * MIN_WORDS));
                mins[i] = panel.cast::<u16>().add(row % ROWS);
                min_integers[i] = panel.add(16).cast::<i8>().add(row % ROWS * 2);
            }
            let mut y = [[simd::splat_f32(0.0); V]; T];
            for block in 0..a.units / RUNS {
                if PREFETCH {
                    for line in 0..WORDS.div_ceil(LINE) {
                        simd::prefetch(
                            scales[0]
                                .wrapping_add(((block + 1) * WORDS + line * LINE) * 2)
                                .cast(),
                        );
                    }
                    for line in 0..MIN_WORDS.div_ceil(LINE) {
                        simd::prefetch(
                            mins[0]
                                .wrapping_add(((block + 1) * MIN_WORDS + line * LINE) * 2)
                                .cast(),
                        );
                    }
                }
                let mut total = [[simd::zero(); V]; T];
                for run in 0..RUNS {
                    let unit = block * RUNS + run;
                    // Fields are multiplied where they stand in the byte; each sum is shifted once, exactly.
                    let mut sums = [[[simd::zero(); V]; T]; 2];
                    for turn in 0..4 {
                        let tile = unit * 4 + turn;
                        let (at, k) = (tile * TILE, tile * TILE_K);
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
                        let mut w0 = [simd::zero(); V];
                        for i in 0..V {
                            w0[i] = simd::and(packed0[i], simd::bytes(0xf));
                        }
                        for t in 0..T {
                            let x = simd::broadcast(x[t].add(k));
                            for i in 0..V {
                                sums[0][t][i] = simd::dot(sums[0][t][i], w0[i], x);
                            }
                        }
                        let mut w1 = [simd::zero(); V];
                        for i in 0..V {
                            w1[i] = simd::and(packed0[i], simd::bytes(0xf0));
                        }
                        for t in 0..T {
                            let x = simd::broadcast(x[t].add(k + 4));
                            for i in 0..V {
                                sums[1][t][i] = simd::dot(sums[1][t][i], w1[i], x);
                            }
                        }
                    }
                    let mut dot = [[simd::zero(); V]; T];
                    for t in 0..T {
                        for i in 0..V {
                            dot[t][i] = simd::add(
                                sums[0][t][i],
                                simd::shift_lanes::<4>(sums[1][t][i]),
                            );
                        }
                    }
                    for i in 0..V {
                        let integer = simd::integers(
                            scale_integers[i].add(block * WORDS * 4 + run * ROWS),
                        );
                        for t in 0..T {
                            total[t][i] = simd::add_product(
                                total[t][i],
                                dot[t][i],
                                integer,
                            );
                        }
                    }
                }
                let mut lows = [[simd::zero(); V]; T];
                for pair in 0..RUNS / 2 {
                    let mut integers = [simd::zero(); V];
                    for i in 0..V {
                        integers[i] = simd::integer_pairs(
                            min_integers[i].add(block * MIN_WORDS * 4 + pair * ROWS * 2),
                        );
                    }
                    for t in 0..T {
                        let of_two = a
                            .x_sums
                            .add((token + t) * a.units + block * RUNS + 2 * pair);
                        // Both fit in sixteen bits.
                        let x = simd::splat(*of_two & 0xffff | *of_two.add(1) << 16);
                        for i in 0..V {
                            lows[t][i] = simd::add_products(lows[t][i], integers[i], x);
                        }
                    }
                }
                for t in 0..T {
                    let x_scale = simd::splat_f32(
                        *a.x_scales.add((token + t) * a.x_blocks + block),
                    );
                    for i in 0..V {
                        y[t][i] = simd::add_f32(
                            y[t][i],
                            simd::mul_f32(
                                simd::mul_f32(
                                    simd::load_f16(scales[i].add(block * WORDS * 2)),
                                    x_scale,
                                ),
                                simd::to_f32(total[t][i]),
                            ),
                        );
                        y[t][i] = simd::sub_f32(
                            y[t][i],
                            simd::mul_f32(
                                simd::mul_f32(
                                    simd::load_f16(mins[i].add(block * MIN_WORDS * 2)),
                                    x_scale,
                                ),
                                simd::to_f32(lows[t][i]),
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
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub unsafe fn matmul(a: &MatmulArgs) {
        // SAFETY: the caller's promise is passed on.
        unsafe { if a.prefetch == 0 { rows::<false>(a) } else { rows::<true>(a) } }
    }
    /// As [`matmul`], with prefetches of weights or without.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
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
