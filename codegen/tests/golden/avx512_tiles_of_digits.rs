pub mod matmul_avx512_avx512vnni_amxint8_tiles_r32k4_4bit_by32x8_q8_k_scales_mins_f16_split_integer_tiles {
    use ::gristmill::runtime::abi::MatmulArgs;
    use ::gristmill::runtime::simd::amx;
    use ::gristmill::runtime::simd::avx512vnni::{self as simd, LANES};
    use std::mem::MaybeUninit;
    /// Rows of a panel.
    const ROWS: usize = 32;
    /// Elements of a row in a tile of codes.
    const CODES_K: usize = 8;
    /// Elements of k that are never apart.
    const STEP_K: usize = 256;
    /// Steps that are decoded at once.
    const STEPS: usize = 1;
    /// Elements of k in a tile.
    const TILE_K: usize = 64;
    /// Tokens whose sums wait at once.
    const TOKENS: usize = 192;
    /// Sums of all tiles of a step.
    const SUMS: usize = 4 * amx::TOKENS * LANES;
    /// Runs of a super-block.
    const RUNS: usize = 8;
    /// Words that its terms take in a panel.
    const WORDS: usize = 80;
    /// Words that its minima take.
    const MIN_WORDS: usize = 80;
    /// At an address that vectors and tiles want.
    #[repr(align(64))]
    struct Aligned<T>(T);
    /// What stays in the caches while tokens pass by.
    struct Buffer {
        /// Operands, four k of all rows of a panel side by side.
        operands: Aligned<[u8; 512 * ROWS]>,
        /// Sums of tiles, those that are scaled and the next ones.
        of_tiles: Aligned<[[i32; SUMS]; 2]>,
        /// Sums of activations of a super-block's runs, two by two, for each token of a tile.
        x_sums: Aligned<[i32; 2 * amx::TOKENS * RUNS / 2]>,
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
    /// Bytes from the low bytes of operands to the high ones.
    const HIGH: usize = STEPS * STEP_K * ROWS;
    /// The operands of `V` vectors of rows from `row` in a part: values times the integers of their runs.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels, the part within them and the buffer.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn stage<const V: usize>(a: &MatmulArgs, part: Part, row: usize) {
        /// Bytes of a tile of codes.
        const TILE_OF_CODES: usize = 128;
        /// Tiles of codes of a run.
        const TILES: usize = STEP_K / RUNS / CODES_K;
        /// The prefetch distance in bytes: weights are read once and perhaps from memory.
        const PREFETCH_DISTANCE: usize = 2048;
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
                scale_integers[i] = panel.add(16).cast::<i8>().add(row % ROWS);
            }
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
                    for tile in 0..TILES {
                        let at = ((block * RUNS + run) * TILES + tile) * TILE_OF_CODES;
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
                            w0[i] = simd::and(packed0[i], simd::bytes(0xf));
                        }
                        for i in 0..V {
                            let (low, high) = amx::times_split::<2>(w0[i], factors[i]);
                            let to = to.add(i * LANES * 4);
                            to.cast::<simd::I>().write(low);
                            to.add(HIGH).cast::<simd::I>().write(high);
                        }
                        let mut w1 = [simd::zero(); V];
                        for i in 0..V {
                            w1[i] = simd::and(
                                simd::shift::<4>(packed0[i]),
                                simd::bytes(0xf),
                            );
                        }
                        for i in 0..V {
                            let (low, high) = amx::times_split::<2>(w1[i], factors[i]);
                            let to = to.add(4 * ROWS + i * LANES * 4);
                            to.cast::<simd::I>().write(low);
                            to.add(HIGH).cast::<simd::I>().write(high);
                        }
                        to = to.add(CODES_K * ROWS);
                    }
                }
            }
        }
    }
    /// A step of `count` tokens from `token`.
    #[derive(Clone, Copy)]
    struct Step {
        step: usize,
        token: usize,
        count: usize,
        /// Its activations.
        x: *const i8,
        /// Its operands in the buffer.
        operands: *const u8,
        /// The place of its sums of tiles.
        of_tiles: *mut i32,
        /// Where the first token's f32 sums wait.
        at: usize,
    }
    /// Adds the products of tile `tile` of a step's k to the sums of the unit; the last tile writes them.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the step is staged, its tokens are below `m`, and tiles are configured for so many.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline]
    unsafe fn products<const V: usize>(a: &MatmulArgs, of: Step, tile: usize) {
        // SAFETY: of the whole function: the caller answers for the buffers of `a`, see `MatmulArgs`, for the step and the tiles.
        unsafe {
            let k = tile * TILE_K;
            let operands = of.operands;
            amx::unsigned_digits::<
                V,
            >(
                amx::Operands {
                    x: of.x.add(k),
                    x_stride: a.x_stride,
                    w: operands.add(k * ROWS),
                    w_stride: 4 * ROWS,
                },
                HIGH,
            );
            if k + TILE_K == STEP_K {
                amx::store::<V, 2>(of.of_tiles);
            }
        }
    }
    /// Multiplies `V` vectors of rows from `row` with the tokens of step `next`, and scales the sums of step `done` meanwhile.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels, and `next` is staged; the tokens are below `m` and their places within the
    /// buffer; `done` was multiplied for these rows, and tiles are configured for `next`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn multiply<const V: usize>(
        a: &MatmulArgs,
        buffer: *mut Buffer,
        row: usize,
        next: Option<Step>,
        done: Option<Step>,
    ) {
        /// Tiles of k of a step.
        const TILES_OF_STEP: usize = STEP_K / TILE_K;
        /// Tokens whose sums are scaled after each.
        const TURN: usize = amx::TOKENS.div_ceil(TILES_OF_STEP);
        // SAFETY: of the whole function: the caller answers for the buffers of `a`, see `MatmulArgs`, for the steps and the tiles.
        unsafe {
            if next.is_some() {
                amx::clear();
            }
            let Some(Step { step: block, token, count, of_tiles, at, .. }) = done else {
                if let Some(next) = next {
                    for tile in 0..TILES_OF_STEP {
                        products::<V>(a, next, tile);
                    }
                }
                return;
            };
            let sums = of_tiles.cast_const();
            let waiting = (&raw mut (*buffer).sums.0).cast::<f32>().add(at * ROWS);
            let mut scales = [a.scales.cast::<u16>(); V];
            for i in 0..V {
                let row = row + i * LANES;
                let panel = a.scales.add(row / ROWS * (a.units / RUNS * WORDS));
                scales[i] = panel.cast::<u16>().add(row % ROWS);
            }
            let mut mins = [a.mins.cast::<u16>(); V];
            let mut min_integers = [a.mins.cast::<i8>(); V];
            for i in 0..V {
                let row = row + i * LANES;
                let panel = a.mins.add(row / ROWS * (a.units / RUNS * MIN_WORDS));
                mins[i] = panel.cast::<u16>().add(row % ROWS);
                min_integers[i] = panel.add(16).cast::<i8>().add(row % ROWS * 2);
            }
            let mut scale = [simd::splat_f32(0.0); V];
            for i in 0..V {
                scale[i] = simd::load_f16(scales[i].add(block * WORDS * 2));
            }
            let mut min = [simd::splat_f32(0.0); V];
            for i in 0..V {
                min[i] = simd::load_f16(mins[i].add(block * MIN_WORDS * 2));
            }
            let mut minima = [[simd::zero(); V]; RUNS / 2];
            for pair in 0..RUNS / 2 {
                for i in 0..V {
                    minima[pair][i] = simd::integer_pairs(
                        min_integers[i].add(block * MIN_WORDS * 4 + pair * ROWS * 2),
                    );
                }
            }
            let pairs = (&raw mut (*buffer).x_sums.0).cast::<i32>();
            for t in 0..count {
                amx::pairs::<
                    RUNS,
                >(
                    a.x_sums.add((token + t) * a.units + block * RUNS),
                    pairs.add(t * (RUNS / 2)),
                );
            }
            for tile in 0..TILES_OF_STEP {
                if let Some(next) = next {
                    products::<V>(a, next, tile);
                }
                for t in tile * TURN..count.min((tile + 1) * TURN) {
                    let x_scale = simd::splat_f32(
                        *a.x_scales.add((token + t) * a.x_blocks + block),
                    );
                    let mut low = [simd::zero(); V];
                    for pair in 0..RUNS / 2 {
                        let x = pairs.add(t * (RUNS / 2) + pair);
                        for i in 0..V {
                            low[i] = amx::add_products(low[i], minima[pair][i], x);
                        }
                    }
                    for i in 0..V {
                        let waiting = waiting.add(t * ROWS + i * LANES);
                        let mut y = if block == 0 {
                            simd::splat_f32(0.0)
                        } else {
                            simd::load_f32(waiting)
                        };
                        let total = amx::joined::<
                            2,
                        >(
                            simd::load(sums.add((t * V + i) * LANES).cast()),
                            simd::load(
                                sums.add(((amx::TOKENS + t) * V + i) * LANES).cast(),
                            ),
                        );
                        y = simd::add_f32(
                            y,
                            simd::mul_f32(
                                simd::mul_f32(scale[i], x_scale),
                                simd::to_f32(total),
                            ),
                        );
                        y = simd::sub_f32(
                            y,
                            simd::mul_f32(
                                simd::mul_f32(min[i], x_scale),
                                simd::to_f32(low[i]),
                            ),
                        );
                        simd::store_f32(waiting, y);
                    }
                }
            }
            if block + 1 < steps(a) {
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
        a.units / 8
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
                let mut done = None;
                let mut of_tiles = (&raw mut (*buffer).of_tiles.0).cast::<i32>();
                let mut of_next = of_tiles.add(SUMS);
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
                            amx::configure(count, TILE_K, true);
                            configured = count;
                        }
                        for step in part.first..part.last {
                            let x = a.x.add(token * a.x_stride + step * STEP_K);
                            let operands = (&raw const (*buffer).operands.0)
                                .cast::<u8>()
                                .add((step - part.first) * STEP_K * ROWS);
                            let next = Step {
                                step,
                                token,
                                count,
                                x,
                                operands,
                                of_tiles,
                                at: token - begin,
                            };
                            multiply::<V>(a, buffer, row, Some(next), done);
                            done = Some(next);
                            (of_tiles, of_next) = (of_next, of_tiles);
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
                multiply::<V>(a, buffer, row, None, done);
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
