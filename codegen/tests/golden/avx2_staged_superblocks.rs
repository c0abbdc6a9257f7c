pub mod matmul_avx2_batch_r16k4_6bit_by16x16_q8_k_scales_centred_f16_staged {
    use ::gristmill::runtime::abi::MatmulArgs;
    use ::gristmill::runtime::simd::avx2::{self as simd, LANES};
    use std::mem::MaybeUninit;
    /// Rows of a panel.
    const ROWS: usize = 16;
    /// Elements of a row in a tile of codes.
    const CODES_K: usize = 16;
    /// Elements of a row in a tile of operands.
    const TILE_K: usize = 16;
    /// Bytes of a tile of operands: all rows of a panel.
    const TILE: usize = TILE_K * ROWS;
    /// Elements of k that are never apart.
    const STEP_K: usize = 256;
    /// Steps that are decoded at once.
    const STEPS: usize = 2;
    /// Tokens whose sums wait at once.
    const TOKENS: usize = 192;
    /// Runs of a super-block.
    const RUNS: usize = 16;
    /// Words that its terms take in a panel.
    const WORDS: usize = 72;
    /// At an address that vectors want.
    #[repr(align(64))]
    struct Aligned<T>(T);
    /// What stays in the caches while tokens pass by.
    struct Buffer {
        /// Operands, tile by tile.
        operands: Aligned<[u8; 512 * ROWS]>,
        /// The integers of their runs, run by run.
        integers: Aligned<[u8; STEPS * RUNS * ROWS * 4]>,
        /// The sums of a token in the order of its rows.
        sums: Aligned<[u32; TOKENS * ROWS]>,
    }
    /// The part of a row that is in the buffer: steps `first..last`.
    #[derive(Clone, Copy)]
    struct Part {
        buffer: *mut Buffer,
        first: usize,
        last: usize,
    }
    /// The operands of `V` vectors of rows from `row` in a part, and the integers of their runs.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels, the part within them and the buffer.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn stage<const V: usize>(a: &MatmulArgs, part: Part, row: usize) {
        /// Bytes of a tile of codes.
        const TILE_OF_CODES: usize = 192;
        /// Tiles of codes of a run.
        const TILES: usize = STEP_K / RUNS / CODES_K;
        /// The prefetch distance in bytes: weights are read once and perhaps from memory.
        const PREFETCH_DISTANCE: usize = 4096;
        /// Rows to a cache line of codes.
        const LINE: usize = 16;
        // SAFETY: of the whole function: the caller answers for the codes, the integers and the buffer.
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
            // From the end of these rows' panels to the rows that come next.
            let after = row + V * LANES;
            let next = (after / ROWS * a.stride + after % ROWS * 4)
                .wrapping_sub(row / ROWS * a.stride + row % ROWS * 4 + a.stride);
            let mut scale_integers = [a.scales.cast::<i8>(); V];
            for i in 0..V {
                let row = row + i * LANES;
                let panel = a.scales.add(row / ROWS * (a.units / RUNS * WORDS));
                scale_integers[i] = panel.add(8).cast::<i8>().add(row % ROWS);
            }
            let mut integers = (&raw mut (*part.buffer).integers.0).cast::<u8>();
            let mut to = (&raw mut (*part.buffer).operands.0).cast::<u8>();
            for block in part.first..part.last {
                for run in 0..RUNS {
                    let mut factors = [simd::zero(); V];
                    for i in 0..V {
                        factors[i] = simd::factor(
                            simd::integers(
                                scale_integers[i].add(block * WORDS * 4 + run * ROWS),
                            ),
                        );
                    }
                    for i in 0..V {
                        integers.add(i * LANES * 4).cast::<simd::I>().write(factors[i]);
                    }
                    integers = integers.add(4 * ROWS);
                    for tile in 0..TILES {
                        let at = ((block * RUNS + run) * TILES + tile) * TILE_OF_CODES;
                        let mut upper0 = [simd::zero(); V];
                        for i in 0..V {
                            upper0[i] = simd::load(codes[i].add(at));
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
                        let mut packed0 = [simd::zero(); V];
                        for i in 0..V {
                            packed0[i] = simd::load(codes[i].add(at + 64));
                        }
                        let mut w0 = [simd::zero(); V];
                        for i in 0..V {
                            w0[i] = simd::or(
                                simd::and(packed0[i], simd::bytes(0xf)),
                                simd::and(
                                    simd::shift_left::<4>(upper0[i]),
                                    simd::bytes(0x30),
                                ),
                            );
                        }
                        for i in 0..V {
                            to.add(i * LANES * 4).cast::<simd::I>().write(w0[i]);
                        }
                        let mut w1 = [simd::zero(); V];
                        for i in 0..V {
                            w1[i] = simd::or(
                                simd::and(simd::shift::<4>(packed0[i]), simd::bytes(0xf)),
                                simd::and(
                                    simd::shift_left::<2>(upper0[i]),
                                    simd::bytes(0x30),
                                ),
                            );
                        }
                        for i in 0..V {
                            to.add(4 * ROWS + i * LANES * 4)
                                .cast::<simd::I>()
                                .write(w1[i]);
                        }
                        let mut packed1 = [simd::zero(); V];
                        for i in 0..V {
                            packed1[i] = simd::load(codes[i].add(at + 128));
                        }
                        let mut w2 = [simd::zero(); V];
                        for i in 0..V {
                            w2[i] = simd::or(
                                simd::and(packed1[i], simd::bytes(0xf)),
                                simd::and(upper0[i], simd::bytes(0x30)),
                            );
                        }
                        for i in 0..V {
                            to.add(8 * ROWS + i * LANES * 4)
                                .cast::<simd::I>()
                                .write(w2[i]);
                        }
                        let mut w3 = [simd::zero(); V];
                        for i in 0..V {
                            w3[i] = simd::or(
                                simd::and(simd::shift::<4>(packed1[i]), simd::bytes(0xf)),
                                simd::and(simd::shift::<2>(upper0[i]), simd::bytes(0x30)),
                            );
                        }
                        for i in 0..V {
                            to.add(12 * ROWS + i * LANES * 4)
                                .cast::<simd::I>()
                                .write(w3[i]);
                        }
                        to = to.add(CODES_K * ROWS);
                    }
                }
            }
        }
    }
    /// `V` vectors of rows from `row` by `T` tokens from `token`, whose sums wait at token `at` of the buffer.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels and are staged, the tokens are below `m`, and those from `at` on
    /// within the buffer.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn tile<const V: usize, const T: usize>(
        a: &MatmulArgs,
        part: Part,
        row: usize,
        token: usize,
        at: usize,
    ) {
        // SAFETY: of the whole function: the caller answers for the buffers of `a`, see `MatmulArgs`, and for the part.
        unsafe {
            let mut codes = [(&raw const (*part.buffer).operands.0).cast::<u8>(); V];
            for i in 1..V {
                codes[i] = codes[0].add(i * LANES * 4);
            }
            let integers = (&raw const (*part.buffer).integers.0).cast::<u8>();
            let waiting = (&raw mut (*part.buffer).sums.0)
                .cast::<u32>()
                .add(at * ROWS)
                .cast::<[[simd::F; V]; T]>();
            let mut x = [a.x; T];
            for t in 0..T {
                x[t] = a.x.add((token + t) * a.x_stride + part.first * STEP_K);
            }
            let mut scales = [a.scales.cast::<u16>(); V];
            for i in 0..V {
                let row = row + i * LANES;
                let panel = a.scales.add(row / ROWS * (a.units / RUNS * WORDS));
                scales[i] = panel.cast::<u16>().add(row % ROWS);
            }
            let mut y = if part.first == 0 {
                [[simd::splat_f32(0.0); V]; T]
            } else {
                waiting.read()
            };
            for block in part.first..part.last {
                // Two by two as i16, from where loads broadcast them.
                let mut of_pairs = [[0; RUNS / 2]; T];
                for t in 0..T {
                    of_pairs[t] = simd::sum_pairs(
                        a.x_sums.add((token + t) * a.units + block * RUNS),
                    );
                }
                let of_pairs = std::hint::black_box(&of_pairs);
                let mut total = [[simd::zero(); V]; T];
                for pair in 0..RUNS / 2 {
                    let mut both = [simd::zero(); V];
                    for i in 0..V {
                        both[i] = simd::both(
                            simd::load(
                                integers
                                    .add(
                                        ((block - part.first) * RUNS + 2 * pair) * ROWS * 4
                                            + i * LANES * 4,
                                    ),
                            ),
                            simd::load(
                                integers
                                    .add(
                                        ((block - part.first) * RUNS + 2 * pair + 1) * ROWS * 4
                                            + i * LANES * 4,
                                    ),
                            ),
                        );
                    }
                    for t in 0..T {
                        let x = simd::splat(of_pairs[t][pair]);
                        for i in 0..V {
                            total[t][i] = simd::add_products(total[t][i], both[i], x);
                        }
                    }
                }
                let min = simd::splat(a.min);
                for t in 0..T {
                    for i in 0..V {
                        total[t][i] = simd::add_product(simd::zero(), total[t][i], min);
                    }
                }
                for run in 0..RUNS {
                    let mut factors = [simd::zero(); V];
                    for i in 0..V {
                        factors[i] = simd::load(
                            integers
                                .add(
                                    ((block - part.first) * RUNS + run) * ROWS * 4
                                        + i * LANES * 4,
                                ),
                        );
                    }
                    for tile in ((block - part.first) * RUNS
                        + run)..((block - part.first) * RUNS + run) + 1
                    {
                        let (at, k) = (tile * TILE, tile * TILE_K);
                        let mut sum = [[simd::zero_pairs(); V]; T];
                        let mut packed0 = [simd::zero(); V];
                        for i in 0..V {
                            packed0[i] = simd::load(codes[i].add(at));
                        }
                        let w0 = packed0;
                        for t in 0..T {
                            let x = simd::broadcast(x[t].add(k));
                            for i in 0..V {
                                sum[t][i] = simd::pairs(simd::zero_pairs(), w0[i], x);
                            }
                        }
                        let mut packed1 = [simd::zero(); V];
                        for i in 0..V {
                            packed1[i] = simd::load(codes[i].add(at + 64));
                        }
                        let w1 = packed1;
                        for t in 0..T {
                            let x = simd::broadcast(x[t].add(k + 4));
                            for i in 0..V {
                                total[t][i] = simd::add_products(
                                    total[t][i],
                                    simd::pairs(sum[t][i], w1[i], x),
                                    factors[i],
                                );
                            }
                        }
                        let mut packed2 = [simd::zero(); V];
                        for i in 0..V {
                            packed2[i] = simd::load(codes[i].add(at + 128));
                        }
                        let w2 = packed2;
                        for t in 0..T {
                            let x = simd::broadcast(x[t].add(k + 8));
                            for i in 0..V {
                                sum[t][i] = simd::pairs(simd::zero_pairs(), w2[i], x);
                            }
                        }
                        let mut packed3 = [simd::zero(); V];
                        for i in 0..V {
                            packed3[i] = simd::load(codes[i].add(at + 192));
                        }
                        let w3 = packed3;
                        for t in 0..T {
                            let x = simd::broadcast(x[t].add(k + 12));
                            for i in 0..V {
                                total[t][i] = simd::add_products(
                                    total[t][i],
                                    simd::pairs(sum[t][i], w3[i], x),
                                    factors[i],
                                );
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
            if part.last < steps(a) {
                waiting.write(y);
                return;
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
    /// Steps of a row.
    fn steps(a: &MatmulArgs) -> usize {
        a.units / 16
    }
    /// `V` vectors of rows from `row` by tokens `first..last`.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels and the tokens below `m`.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn panel<const V: usize>(
        a: &MatmulArgs,
        buffer: *mut Buffer,
        row: usize,
        first: usize,
        last: usize,
    ) {
        // Turns of equal length.
        let turns = (last - first).div_ceil(TOKENS).max(1);
        let turn = (last - first).div_ceil(turns).next_multiple_of(4);
        // SAFETY: parts end with the row, and a turn has no more than `TOKENS` tokens; the rest is passed on.
        unsafe {
            let mut begin = first;
            while begin < last {
                let end = last.min(begin + turn);
                let mut part = Part {
                    buffer,
                    first: 0,
                    last: STEPS.min(steps(a)),
                };
                loop {
                    stage::<V>(a, part, row);
                    let mut token = begin;
                    while token + 4 <= end {
                        tile::<V, 4>(a, part, row, token, token - begin);
                        token += 4;
                    }
                    while token + 2 <= end {
                        tile::<V, 2>(a, part, row, token, token - begin);
                        token += 2;
                    }
                    while token < end {
                        tile::<V, 1>(a, part, row, token, token - begin);
                        token += 1;
                    }
                    if part.last == steps(a) {
                        break;
                    }
                    part = Part {
                        buffer,
                        first: part.last,
                        last: (part.last + STEPS).min(steps(a)),
                    };
                }
                begin = end;
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
        let mut buffer = MaybeUninit::<Buffer>::uninit();
        let buffer = buffer.as_mut_ptr();
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
                    panel::<2>(a, buffer, row, first, last);
                    row += 2 * LANES;
                }
            }
            first = last;
        }
    }
}
