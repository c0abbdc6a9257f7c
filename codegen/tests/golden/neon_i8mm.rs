pub mod matmul_neon_dotprod_i8mm_prefill_r16k4_2bit_rows_int8_row_centred_outer {
    use ::gristmill::runtime::abi::MatmulArgs;
    use ::gristmill::runtime::simd::neoni8mm::{self as simd, LANES};
    /// Rows of a panel.
    const ROWS: usize = 16;
    /// Bytes of a tile of codes: all rows of a panel, 16 elements each.
    const TILE: usize = 64;
    /// Elements of a row in a tile.
    const TILE_K: usize = 16;
    /// `V` vectors of rows from `row` by `T` tokens from `token`.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels and the tokens below `m`.
    #[target_feature(enable = "neon,dotprod,i8mm")]
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
            let dot = if T == 1 {
                let mut dot = [[simd::zero(); V]; T];
                for tile in 0..a.stride / TILE {
                    let (at, k) = (tile * TILE, tile * TILE_K);
                    let mut packed0 = [simd::zero(); V];
                    for i in 0..V {
                        packed0[i] = simd::load(codes[i].add(at));
                    }
                    let mut group = [simd::zero(); T];
                    for t in 0..T {
                        group[t] = simd::activations::<16>(x[t].add(k));
                    }
                    let mut w0 = [simd::zero(); V];
                    for i in 0..V {
                        w0[i] = simd::and(packed0[i], simd::bytes(0x3));
                    }
                    for t in 0..T {
                        let x = group[t];
                        for i in 0..V {
                            dot[t][i] = simd::dot_group::<0>(dot[t][i], w0[i], x);
                        }
                    }
                    let mut w1 = [simd::zero(); V];
                    for i in 0..V {
                        w1[i] = simd::and(
                            simd::shift::<2>(packed0[i]),
                            simd::bytes(0x3),
                        );
                    }
                    for t in 0..T {
                        let x = group[t];
                        for i in 0..V {
                            dot[t][i] = simd::dot_group::<1>(dot[t][i], w1[i], x);
                        }
                    }
                    let mut w2 = [simd::zero(); V];
                    for i in 0..V {
                        w2[i] = simd::and(
                            simd::shift::<4>(packed0[i]),
                            simd::bytes(0x3),
                        );
                    }
                    for t in 0..T {
                        let x = group[t];
                        for i in 0..V {
                            dot[t][i] = simd::dot_group::<2>(dot[t][i], w2[i], x);
                        }
                    }
                    let mut w3 = [simd::zero(); V];
                    for i in 0..V {
                        w3[i] = simd::shift::<6>(packed0[i]);
                    }
                    for t in 0..T {
                        let x = group[t];
                        for i in 0..V {
                            dot[t][i] = simd::dot_group::<3>(dot[t][i], w3[i], x);
                        }
                    }
                }
                dot
            } else {
                let mut sum = [[simd::zero(); V]; T];
                for tile in 0..a.stride / TILE {
                    let (at, k) = (tile * TILE, tile * TILE_K);
                    let mut packed0 = [simd::zero(); V];
                    for i in 0..V {
                        packed0[i] = simd::load(codes[i].add(at));
                    }
                    let mut rows0 = [[simd::zero(); 2]; V];
                    for i in 0..V {
                        let (a, b) = (packed0[i], simd::shift::<2>(packed0[i]));
                        rows0[i] = [simd::in_turn::<0>(a, b), simd::in_turn::<1>(a, b)];
                    }
                    let mut w0 = [[simd::zero(); 2]; V];
                    for i in 0..V {
                        w0[i] = [
                            simd::and(rows0[i][0], simd::bytes(0x3)),
                            simd::and(rows0[i][1], simd::bytes(0x3)),
                        ];
                    }
                    let mut w1 = [[simd::zero(); 2]; V];
                    for i in 0..V {
                        w1[i] = [
                            simd::and(simd::shift::<4>(rows0[i][0]), simd::bytes(0x3)),
                            simd::and(simd::shift::<4>(rows0[i][1]), simd::bytes(0x3)),
                        ];
                    }
                    for p in 0..T / 2 {
                        let (x0, x1) = (
                            simd::activations::<16>(x[2 * p].add(k)),
                            simd::activations::<16>(x[2 * p + 1].add(k)),
                        );
                        let x = simd::halves::<0>(x0, x1);
                        for i in 0..V {
                            sum[2 * p][i] = simd::matrix(sum[2 * p][i], w0[i][0], x);
                            sum[2 * p + 1][i] = simd::matrix(
                                sum[2 * p + 1][i],
                                w0[i][1],
                                x,
                            );
                        }
                        let x = simd::halves::<1>(x0, x1);
                        for i in 0..V {
                            sum[2 * p][i] = simd::matrix(sum[2 * p][i], w1[i][0], x);
                            sum[2 * p + 1][i] = simd::matrix(
                                sum[2 * p + 1][i],
                                w1[i][1],
                                x,
                            );
                        }
                    }
                }
                let mut dot = [[simd::zero(); V]; T];
                for p in 0..T / 2 {
                    for i in 0..V {
                        dot[2 * p][i] = simd::every_second::<
                            0,
                        >(sum[2 * p][i], sum[2 * p + 1][i]);
                        dot[2 * p + 1][i] = simd::every_second::<
                            1,
                        >(sum[2 * p][i], sum[2 * p + 1][i]);
                    }
                }
                dot
            };
            let mut y = [[simd::splat_f32(0.0); V]; T];
            for t in 0..T {
                let x_sum = *a.x_sums.add(token + t);
                for i in 0..V {
                    y[t][i] = simd::to_f32(
                        simd::add(dot[t][i], simd::splat(x_sum * a.min)),
                    );
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
                    let y = simd::mul_f32(
                        simd::div_f32(
                            y[t][i],
                            simd::splat_f32(*a.x_scales.add(token + t)),
                        ),
                        simd::load_f32(a.outer.add(row)),
                    );
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
    #[target_feature(enable = "neon,dotprod,i8mm")]
    pub unsafe fn matmul(a: &MatmulArgs) {
        let end = a.row_end.next_multiple_of(2 * LANES);
        // All rows go through some tokens, whose activations stay in the caches, then through the next.
        let shares = a.m.div_ceil((a.x_share / a.x_stride.max(1)).max(1));
        let share = a.m.div_ceil(shares.max(1)).next_multiple_of(8);
        let mut first = 0;
        while first < a.m {
            let last = a.m.min(first + share);
            // SAFETY: panels are whole, so `end` lies within them; tokens stay below `m`.
            unsafe {
                let mut row = a.row_begin;
                while row + 2 * LANES <= end {
                    let mut token = first;
                    while token + 8 <= last {
                        tile::<2, 8>(a, row, token);
                        token += 8;
                    }
                    while token + 4 <= last {
                        tile::<2, 4>(a, row, token);
                        token += 4;
                    }
                    while token + 2 <= last {
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
