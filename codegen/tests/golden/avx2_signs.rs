pub mod matmul_avx2_prefill_r16k4_4bit_lookup_by32x8_q8_k_scales_centred_f16_signs {
    use ::gristmill::runtime::abi::MatmulArgs;
    use ::gristmill::runtime::simd::avx2::{self as simd, LANES};
    /// Rows of a panel.
    const ROWS: usize = 16;
    /// Bytes of a tile of codes: all rows of a panel, 8 elements each.
    const TILE: usize = 64;
    /// Elements of a row in a tile.
    const TILE_K: usize = 8;
    /// The prefetch distance in bytes: weights are read once and perhaps from memory.
    const PREFETCH_DISTANCE: usize = 4096;
    /// Rows to a cache line of codes.
    const LINE: usize = 16;
    /// `V` vectors of rows from `row` by `T` tokens from `token`.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels and the tokens below `m`.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn tile<const V: usize, const T: usize>(
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
            /// Runs of a super-block.
            const RUNS: usize = 8;
            /// Words that its terms take in a panel.
            const WORDS: usize = 40;
            let mut scales = [a.scales.cast::<u16>(); V];
            let mut scale_integers = [a.scales.cast::<i8>(); V];
            for i in 0..V {
                let row = row + i * LANES;
                let panel = a.scales.add(row / ROWS * (a.units / RUNS * WORDS));
                scales[i] = panel.cast::<u16>().add(row % ROWS);
                scale_integers[i] = panel.add(8).cast::<i8>().add(row % ROWS);
            }
            let mut y = [[simd::splat_f32(0.0); V]; T];
            for block in 0..a.units / RUNS {
                for line in 0..WORDS.div_ceil(LINE) {
                    simd::prefetch(
                        scales[0]
                            .wrapping_add(((block + 2) * WORDS + line * LINE) * 2)
                            .cast(),
                    );
                }
                let mut total = [[simd::zero(); V]; T];
                for pair in 0..RUNS / 2 {
                    let mut integers = [[simd::zero(); V]; 2];
                    for of_pair in 0..2 {
                        let run = 2 * pair + of_pair;
                        let unit = block * RUNS + run;
                        let table = simd::values(simd::table(&*a.table), a.min);
                        let mut factors = [simd::zero(); V];
                        for i in 0..V {
                            integers[of_pair][i] = simd::integers(
                                scale_integers[i].add(block * WORDS * 4 + run * ROWS),
                            );
                            factors[i] = simd::factor(integers[of_pair][i]);
                        }
                        for tile in unit * 4..unit * 4 + 4 {
                            let (at, k) = (tile * TILE, tile * TILE_K);
                            let mut packed0 = [simd::zero(); V];
                            for i in 0..V {
                                packed0[i] = simd::load(codes[i].add(at));
                            }
                            let ahead = if V * LANES == ROWS
                                || at + PREFETCH_DISTANCE < a.stride
                            {
                                at + PREFETCH_DISTANCE
                            } else {
                                (at + PREFETCH_DISTANCE).wrapping_add(next)
                            };
                            for i in 0..V {
                                if (i * LANES).is_multiple_of(LINE) {
                                    simd::prefetch(codes[i].wrapping_add(ahead));
                                }
                            }
                            let mut w0 = [simd::zero(); V];
                            for i in 0..V {
                                w0[i] = simd::lookup(
                                    table,
                                    simd::and(packed0[i], simd::bytes(0xf)),
                                );
                            }
                            for t in 0..T {
                                let x = simd::broadcast(x[t].add(k));
                                for i in 0..V {
                                    total[t][i] = simd::add_products(
                                        total[t][i],
                                        simd::signed_pairs(simd::zero_pairs(), w0[i], x),
                                        factors[i],
                                    );
                                }
                            }
                            let mut w1 = [simd::zero(); V];
                            for i in 0..V {
                                w1[i] = simd::lookup(
                                    table,
                                    simd::and(simd::shift::<4>(packed0[i]), simd::bytes(0xf)),
                                );
                            }
                            for t in 0..T {
                                let x = simd::broadcast(x[t].add(k + 4));
                                for i in 0..V {
                                    total[t][i] = simd::add_products(
                                        total[t][i],
                                        simd::signed_pairs(simd::zero_pairs(), w1[i], x),
                                        factors[i],
                                    );
                                }
                            }
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
        let end = a.row_end.next_multiple_of(2 * LANES);
        // All rows go through some tokens, whose activations stay in the caches, then through the next.
        let shares = a.m.div_ceil((a.x_share / a.x_stride.max(1)).max(1));
        let share = a.m.div_ceil(shares.max(1)).next_multiple_of(4);
        let mut first = 0;
        while first < a.m {
            let last = a.m.min(first + share);
            // SAFETY: panels are whole, so `end` lies within them; tokens stay below `m`.
            unsafe {
                let mut row = a.row_begin;
                while row + 2 * LANES <= end {
                    let mut token = first;
                    while token + 2 < last && last >= 4 {
                        token = token.min(last - 4);
                        tile::<2, 4>(a, row, token);
                        token += 4;
                    }
                    while token + 1 < last && last >= 2 {
                        token = token.min(last - 2);
                        tile::<2, 2>(a, row, token);
                        token += 2;
                    }
                    while token < last {
                        tile::<2, 1>(a, row, token);
                        token += 1;
                    }
                    row += 2 * LANES;
                }
            }
            first = last;
        }
    }
}
