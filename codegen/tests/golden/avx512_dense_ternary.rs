pub mod matmul_avx512_avx512vnni_avx512vbmi_dense_decode_r32t5_trits_rows_int8_row_centred_outer {
    use ::gristmill::runtime::abi::MatmulArgs;
    use ::gristmill::runtime::simd::avx512vbmi::{self as simd, LANES};
    /// Rows of a panel.
    const ROWS: usize = 32;
    /// Bytes of a tile of codes: all rows of a panel, 20 elements each.
    const TILE: usize = 128;
    /// Elements of a row in a tile.
    const TILE_K: usize = 20;
    /// Rows to a cache line of codes.
    const LINE: usize = 16;
    /// What a byte stands for, by its low six bits: four trits in two bits each; the same for bytes with both
    /// upper bits set; and the fifth trit of those, in the upper two bits. Other bytes hold it there themselves.
    static TRITS: [[u8; 64]; 3] = [
        [
            0, 1, 2, 4, 5, 6, 8, 9, 10, 16, 17, 18, 20, 21, 22, 24, 25, 26, 32, 33, 34,
            36, 37, 38, 40, 41, 42, 64, 65, 66, 68, 69, 70, 72, 73, 74, 80, 81, 82, 84,
            85, 86, 88, 89, 90, 96, 97, 98, 100, 101, 102, 104, 105, 106, 128, 129, 130,
            132, 133, 134, 136, 137, 138, 144,
        ],
        [
            145, 145, 145, 146, 146, 146, 148, 148, 148, 149, 149, 149, 150, 150, 150,
            152, 152, 152, 153, 153, 153, 154, 154, 154, 160, 160, 160, 161, 161, 161,
            162, 162, 162, 164, 164, 164, 165, 165, 165, 166, 166, 166, 168, 168, 168,
            169, 169, 169, 170, 170, 170, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
        [
            0, 64, 128, 0, 64, 128, 0, 64, 128, 0, 64, 128, 0, 64, 128, 0, 64, 128, 0,
            64, 128, 0, 64, 128, 0, 64, 128, 0, 64, 128, 0, 64, 128, 0, 64, 128, 0, 64,
            128, 0, 64, 128, 0, 64, 128, 0, 64, 128, 0, 64, 128, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0,
        ],
    ];
    /// `V` vectors of rows from `row` by `T` tokens from `token`.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels and the tokens below `m`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx512vbmi")]
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
            let trits = simd::trit_tables(&TRITS);
            // Fields are multiplied where they stand in the byte; each sum is shifted once, exactly.
            let mut sums = [[[simd::zero(); V]; T]; 5];
            for tile in 0..a.stride / TILE {
                let (at, k) = (tile * TILE, tile * TILE_K);
                let mut packed0 = [simd::zero(); V];
                for i in 0..V {
                    packed0[i] = simd::load(codes[i].add(at));
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
                }
                let mut fifth0 = [simd::zero(); V];
                for i in 0..V {
                    (packed0[i], fifth0[i]) = simd::trits(&trits, packed0[i]);
                }
                let mut w4 = [simd::zero(); V];
                for i in 0..V {
                    w4[i] = simd::and(fifth0[i], simd::bytes(0xc0));
                }
                for t in 0..T {
                    let x = simd::broadcast(x[t].add(k + 16));
                    for i in 0..V {
                        sums[4][t][i] = simd::dot(sums[4][t][i], w4[i], x);
                    }
                }
                let mut w0 = [simd::zero(); V];
                for i in 0..V {
                    w0[i] = simd::and(packed0[i], simd::bytes(0x3));
                }
                for t in 0..T {
                    let x = simd::broadcast(x[t].add(k));
                    for i in 0..V {
                        sums[0][t][i] = simd::dot(sums[0][t][i], w0[i], x);
                    }
                }
                let mut w1 = [simd::zero(); V];
                for i in 0..V {
                    w1[i] = simd::and(packed0[i], simd::bytes(0xc));
                }
                for t in 0..T {
                    let x = simd::broadcast(x[t].add(k + 4));
                    for i in 0..V {
                        sums[1][t][i] = simd::dot(sums[1][t][i], w1[i], x);
                    }
                }
                let mut w2 = [simd::zero(); V];
                for i in 0..V {
                    w2[i] = simd::and(packed0[i], simd::bytes(0x30));
                }
                for t in 0..T {
                    let x = simd::broadcast(x[t].add(k + 8));
                    for i in 0..V {
                        sums[2][t][i] = simd::dot(sums[2][t][i], w2[i], x);
                    }
                }
                let mut w3 = [simd::zero(); V];
                for i in 0..V {
                    w3[i] = simd::and(packed0[i], simd::bytes(0xc0));
                }
                for t in 0..T {
                    let x = simd::broadcast(x[t].add(k + 12));
                    for i in 0..V {
                        sums[3][t][i] = simd::dot(sums[3][t][i], w3[i], x);
                    }
                }
            }
            let mut dot = [[simd::zero(); V]; T];
            for t in 0..T {
                for i in 0..V {
                    dot[t][i] = simd::add(
                        simd::add(
                            simd::add(
                                simd::add(
                                    sums[0][t][i],
                                    simd::shift_lanes::<2>(sums[1][t][i]),
                                ),
                                simd::shift_lanes::<4>(sums[2][t][i]),
                            ),
                            simd::shift_lanes::<6>(sums[3][t][i]),
                        ),
                        simd::shift_lanes::<6>(sums[4][t][i]),
                    );
                }
            }
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
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx512vbmi")]
    pub unsafe fn matmul(a: &MatmulArgs) {
        // SAFETY: the caller's promise is passed on.
        unsafe { if a.prefetch == 0 { rows::<false>(a) } else { rows::<true>(a) } }
    }
    /// As [`matmul`], with prefetches of weights or without.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx512vbmi")]
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
