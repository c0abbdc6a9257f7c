pub mod matmul_avx2_batch_r16k4_4bit_lookup_by32_q8_0_scales_centred_f16_words {
    use ::gristmill::runtime::abi::MatmulArgs;
    use ::gristmill::runtime::simd::avx2::{self as simd, LANES};
    use std::mem::MaybeUninit;
    /// Rows of a panel.
    const ROWS: usize = 16;
    /// Elements of a row in a tile of codes.
    const CODES_K: usize = 8;
    /// Elements of a row in a tile of operands.
    const TILE_K: usize = 4;
    /// Bytes of a tile of operands: all rows of a panel.
    const TILE: usize = TILE_K * ROWS * 2;
    /// Elements of k that are never apart.
    const STEP_K: usize = 32;
    /// Steps that are decoded at once.
    const STEPS: usize = 8;
    /// Tokens whose sums wait at once.
    const TOKENS: usize = 192;
    /// Fours of k in a run.
    const FOURS: usize = 8;
    /// At an address that vectors want.
    #[repr(align(64))]
    struct Aligned<T>(T);
    /// What stays in the caches while tokens pass by.
    struct Buffer {
        /// Operands, tile by tile.
        operands: Aligned<[u8; 256 * ROWS * 2]>,
        /// Activations of a tile of tokens as i16, run by run.
        words: Aligned<[i32; 8 * 4 * 2 * FOURS]>,
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
    /// The operands of `V` vectors of rows from `row` in a part.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels, the part within them and the buffer.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn stage<const V: usize>(a: &MatmulArgs, part: Part, row: usize) {
        /// Bytes of a tile of codes.
        const TILE_OF_CODES: usize = 64;
        /// The prefetch distance in bytes: weights are read once and perhaps from memory.
        const PREFETCH_DISTANCE: usize = 4096;
        /// Rows to a cache line of codes.
        const LINE: usize = 16;
        // SAFETY: of the whole function: the caller answers for the codes and the buffer.
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
            let table = simd::table(&*a.table);
            let mut to = (&raw mut (*part.buffer).operands.0).cast::<u8>();
            for tile in part.first * STEP_K / CODES_K..part.last * STEP_K / CODES_K {
                let at = tile * TILE_OF_CODES;
                let mut packed0 = [simd::zero(); V];
                for i in 0..V {
                    packed0[i] = simd::load(codes[i].add(at));
                }
                let ahead = if V * LANES == ROWS || at + PREFETCH_DISTANCE < a.stride {
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
                    w0[i] = simd::lookup(table, simd::and(packed0[i], simd::bytes(0xf)));
                }
                for i in 0..V {
                    let (even, odd) = simd::times_words(
                        w0[i],
                        simd::factor(simd::splat(1)),
                        a.min,
                        0,
                    );
                    let to = to.add(i * LANES * 4);
                    to.cast::<simd::I>().write(even);
                    to.add(4 * ROWS).cast::<simd::I>().write(odd);
                }
                let mut w1 = [simd::zero(); V];
                for i in 0..V {
                    w1[i] = simd::lookup(
                        table,
                        simd::and(simd::shift::<4>(packed0[i]), simd::bytes(0xf)),
                    );
                }
                for i in 0..V {
                    let (even, odd) = simd::times_words(
                        w1[i],
                        simd::factor(simd::splat(1)),
                        a.min,
                        0,
                    );
                    let to = to.add(8 * ROWS + i * LANES * 4);
                    to.cast::<simd::I>().write(even);
                    to.add(4 * ROWS).cast::<simd::I>().write(odd);
                }
                to = to.add(CODES_K * ROWS * 2);
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
            let waiting = (&raw mut (*part.buffer).sums.0)
                .cast::<u32>()
                .add(at * ROWS)
                .cast::<[[simd::F; V]; T]>();
            let mut x = [a.x; T];
            for t in 0..T {
                x[t] = a.x.add((token + t) * a.x_stride + part.first * STEP_K);
            }
            // Long before the loads that broadcast them: one that follows the store of its bytes at once waits for it.
            let words = (&raw mut (*part.buffer).words.0)
                .cast::<[[[i32; FOURS]; 2]; T]>();
            for run in 0..(part.last - part.first) {
                for t in 0..T {
                    (*words.add(run))[t] = simd::words(x[t].add(4 * FOURS * run));
                }
            }
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
            let mut y = if part.first == 0 {
                [[simd::splat_f32(0.0); V]; T]
            } else {
                waiting.read()
            };
            for unit in part.first..part.last {
                let mut dot = [[simd::zero(); V]; T];
                let words = &*words.add(unit - part.first);
                for four in 0..FOURS {
                    let at = ((unit - part.first) * FOURS + four) * TILE;
                    let mut w = [[simd::zero(); 2]; V];
                    for i in 0..V {
                        w[i] = [
                            simd::load(codes[i].add(at)),
                            simd::load(codes[i].add(at + 4 * ROWS)),
                        ];
                    }
                    for t in 0..T {
                        let [even, odd] = [
                            simd::splat(words[t][0][four]),
                            simd::splat(words[t][1][four]),
                        ];
                        for i in 0..V {
                            dot[t][i] = simd::add_products(dot[t][i], w[i][0], even);
                            dot[t][i] = simd::add_products(dot[t][i], w[i][1], odd);
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
        a.units
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
