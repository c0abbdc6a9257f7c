pub mod matmul_avx512_avx512vnni_amxint8_tiles_r32k4_4bit_by32_q8_0_scales_centred_f16_tiles {
    use ::gristmill::runtime::abi::MatmulArgs;
    use ::gristmill::runtime::simd::amx;
    use ::gristmill::runtime::simd::avx512vnni::{self as simd, LANES};
    use std::mem::MaybeUninit;
    /// Rows of a panel.
    const ROWS: usize = 32;
    /// Elements of a row in a tile of codes.
    const CODES_K: usize = 8;
    /// Elements of k that are never apart.
    const STEP_K: usize = 32;
    /// Steps that are decoded at once.
    const STEPS: usize = 16;
    /// Elements of k in a tile.
    const TILE_K: usize = 32;
    /// Tokens whose sums wait at once.
    const TOKENS: usize = 192;
    /// Sums of all tiles of a step.
    const SUMS: usize = amx::TOKENS * LANES;
    /// At an address that vectors and tiles want.
    #[repr(align(64))]
    struct Aligned<T>(T);
    /// What stays in the caches while tokens pass by.
    struct Buffer {
        /// Operands, four k of all rows of a panel side by side.
        operands: Aligned<[u8; 512 * ROWS]>,
        /// Sums of tiles, those that are scaled and the next ones.
        of_tiles: Aligned<[[i32; SUMS]; 2]>,
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
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn stage<const V: usize>(a: &MatmulArgs, part: Part, row: usize) {
        /// Bytes of a tile of codes.
        const TILE_OF_CODES: usize = 128;
        /// The prefetch distance in bytes: weights are read once and perhaps from memory.
        const PREFETCH_DISTANCE: usize = 2048;
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
                    w0[i] = simd::and(packed0[i], simd::bytes(0xf));
                }
                for i in 0..V {
                    to.add(i * LANES * 4)
                        .cast::<simd::I>()
                        .write(amx::values(w0[i], a.min));
                }
                let mut w1 = [simd::zero(); V];
                for i in 0..V {
                    w1[i] = simd::and(simd::shift::<4>(packed0[i]), simd::bytes(0xf));
                }
                for i in 0..V {
                    to.add(4 * ROWS + i * LANES * 4)
                        .cast::<simd::I>()
                        .write(amx::values(w1[i], a.min));
                }
                to = to.add(CODES_K * ROWS);
            }
        }
    }
    /// The integer sums of a run whose activations begin at `x`, and its operands of sixteen rows at `operands`.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the run is staged, `sums` has room for a tile, and tiles are configured for as many tokens as there are.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline]
    unsafe fn products(
        a: &MatmulArgs,
        x: *const i8,
        operands: *const u8,
        sums: *mut i32,
    ) {
        // SAFETY: of the whole function: the caller answers for the buffers of `a`, see `MatmulArgs`, for the run and the tiles.
        unsafe {
            amx::clear();
            for tile in 0..STEP_K / TILE_K {
                let k = tile * TILE_K;
                amx::signed::<
                    1,
                    1,
                >(amx::Operands {
                    x: x.add(k),
                    x_stride: a.x_stride,
                    w: operands.add(k * ROWS),
                    w_stride: 4 * ROWS,
                });
            }
            amx::store::<1, 1>(sums);
        }
    }
    /// `V` vectors of rows from `row` by `count` tokens from `token`, whose sums wait at token `at` of the buffer. `ALL`: there are as many
    /// tokens as a tile has.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels and are staged, the tokens are below `m`, and those from `at` on
    /// within the buffer; tiles are configured for `count` tokens.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn multiply<const V: usize, const ALL: bool>(
        a: &MatmulArgs,
        part: Part,
        row: usize,
        token: usize,
        at: usize,
        count: usize,
    ) {
        // SAFETY: of the whole function: the caller answers for the buffers of `a`, see `MatmulArgs`, for the part and the tiles.
        unsafe {
            let count = if ALL { amx::TOKENS } else { count };
            let x = a.x.add(token * a.x_stride);
            let operands = (&raw const (*part.buffer).operands.0).cast::<u8>();
            let waiting = (&raw mut (*part.buffer).sums.0).cast::<f32>().add(at * ROWS);
            let mut of_tiles = (&raw mut (*part.buffer).of_tiles.0).cast::<i32>();
            let mut of_next = of_tiles.add(SUMS);
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
            for i in 0..V {
                let operands = operands.add(i * LANES * 4);
                let mut y = [simd::splat_f32(0.0); amx::TOKENS];
                if part.first > 0 {
                    for t in 0..count {
                        y[t] = simd::load_f32(waiting.add(t * ROWS + i * LANES));
                    }
                }
                products(a, x.add(part.first * STEP_K), operands, of_tiles);
                for unit in part.first..part.last {
                    let next = unit + 1;
                    if next < part.last {
                        let operands = operands.add((next - part.first) * STEP_K * ROWS);
                        products(a, x.add(next * STEP_K), operands, of_next);
                    }
                    let sums = of_tiles.cast_const();
                    let scale = simd::load_f16(scales[i].add(unit * 32));
                    for t in 0..count {
                        let x_scale = simd::splat_f32(
                            *a.x_scales.add((token + t) * a.x_blocks + unit),
                        );
                        y[t] = simd::add_f32(
                            y[t],
                            simd::mul_f32(
                                simd::mul_f32(scale, x_scale),
                                simd::to_f32(simd::load(sums.add(t * LANES).cast())),
                            ),
                        );
                    }
                    (of_tiles, of_next) = (of_next, of_tiles);
                }
                for t in 0..count {
                    simd::store_f32(waiting.add(t * ROWS + i * LANES), y[t]);
                }
            }
            if part.last < steps(a) {
                return;
            }
            for t in 0..count {
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
                    let y = simd::load_f32(waiting.add(t * ROWS + i * LANES));
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
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn panel<const V: usize>(
        a: &MatmulArgs,
        buffer: *mut Buffer,
        row: usize,
        first: usize,
        last: usize,
    ) {
        // Turns of equal length.
        let turns = (last - first).div_ceil(TOKENS).max(1);
        let turn = (last - first).div_ceil(turns).next_multiple_of(32);
        // SAFETY: parts end with the row, and a turn has no more than `TOKENS` tokens; the rest is passed on.
        unsafe {
            let mut begin = first;
            while begin < last {
                let end = last.min(begin + turn);
                let mut configured = 0;
                let mut part = Part {
                    buffer,
                    first: 0,
                    last: STEPS.min(steps(a)),
                };
                loop {
                    stage::<V>(a, part, row);
                    let mut token = begin;
                    while token < end {
                        let count = (end - token).min(amx::TOKENS);
                        if count != configured {
                            amx::configure(count, TILE_K, false);
                            configured = count;
                        }
                        if count == amx::TOKENS {
                            multiply::<
                                V,
                                true,
                            >(a, part, row, token, token - begin, count);
                        } else {
                            multiply::<
                                V,
                                false,
                            >(a, part, row, token, token - begin, count);
                        }
                        token += count;
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
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub unsafe fn matmul(a: &MatmulArgs) {
        // SAFETY: the processor has tiles: the caller answers for the variant's features.
        let found = unsafe { amx::found() };
        let end = a.row_end.next_multiple_of(2 * LANES);
        let mut buffer = MaybeUninit::<Buffer>::uninit();
        let buffer = buffer.as_mut_ptr();
        // All rows go through some tokens, whose activations stay in the caches, then through the next.
        let shares = a.m.div_ceil((a.x_share / a.x_stride.max(1)).max(1));
        let share = a.m.div_ceil(shares.max(1)).next_multiple_of(32);
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
        // SAFETY: the processor has tiles, as above.
        unsafe { amx::give_back(&found) };
    }
}
