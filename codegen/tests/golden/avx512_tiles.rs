pub mod matmul_avx512_avx512vnni_amxint8_tiles_r32k4_2bit_rows_int8_row_centred_outer_tiles {
    use ::gristmill::runtime::abi::MatmulArgs;
    use ::gristmill::runtime::simd::amx;
    use ::gristmill::runtime::simd::avx512vnni::{self as simd, LANES};
    use std::mem::MaybeUninit;
    /// Rows of a panel.
    const ROWS: usize = 32;
    /// Elements of a row in a tile of codes.
    const CODES_K: usize = 16;
    /// Elements of k that are never apart.
    const STEP_K: usize = 16;
    /// Steps that are decoded at once.
    const STEPS: usize = 32;
    /// Elements of k in a tile.
    const TILE_K: usize = 64;
    /// Tokens whose sums wait at once.
    const TOKENS: usize = 192;
    /// At an address that vectors and tiles want.
    #[repr(align(64))]
    struct Aligned<T>(T);
    /// What stays in the caches while tokens pass by.
    struct Buffer {
        /// Operands, four k of all rows of a panel side by side.
        operands: Aligned<[u8; 512 * ROWS]>,
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
                    w0[i] = simd::and(packed0[i], simd::bytes(0x3));
                }
                for i in 0..V {
                    to.add(i * LANES * 4)
                        .cast::<simd::I>()
                        .write(amx::values(w0[i], a.min));
                }
                let mut w1 = [simd::zero(); V];
                for i in 0..V {
                    w1[i] = simd::and(simd::shift::<2>(packed0[i]), simd::bytes(0x3));
                }
                for i in 0..V {
                    to.add(4 * ROWS + i * LANES * 4)
                        .cast::<simd::I>()
                        .write(amx::values(w1[i], a.min));
                }
                let mut w2 = [simd::zero(); V];
                for i in 0..V {
                    w2[i] = simd::and(simd::shift::<4>(packed0[i]), simd::bytes(0x3));
                }
                for i in 0..V {
                    to.add(8 * ROWS + i * LANES * 4)
                        .cast::<simd::I>()
                        .write(amx::values(w2[i], a.min));
                }
                let mut w3 = [simd::zero(); V];
                for i in 0..V {
                    w3[i] = simd::and(simd::shift::<6>(packed0[i]), simd::bytes(0x3));
                }
                for i in 0..V {
                    to.add(12 * ROWS + i * LANES * 4)
                        .cast::<simd::I>()
                        .write(amx::values(w3[i], a.min));
                }
                to = to.add(CODES_K * ROWS);
            }
        }
    }
    /// `V` vectors of rows from `row` by `count` tokens from `token`, which are `X` tiles, and whose sums wait at token `at` of the
    /// buffer.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels and are staged, the tokens are below `m`, and those from `at` on
    /// within the buffer; tiles are configured for `count` tokens.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn tile<const V: usize, const X: usize>(
        a: &MatmulArgs,
        part: Part,
        row: usize,
        token: usize,
        at: usize,
        count: usize,
    ) {
        // SAFETY: of the whole function: the caller answers for the buffers of `a`, see `MatmulArgs`, for the part and the tiles.
        unsafe {
            let operands = (&raw const (*part.buffer).operands.0).cast::<u8>();
            let sums = (&raw mut (*part.buffer).sums.0).cast::<i32>().add(at * ROWS);
            let x = a.x.add(token * a.x_stride + part.first * STEP_K);
            let k = (part.last - part.first) * STEP_K;
            // The last tile of a row may be a shorter one.
            let (whole, rest) = (k / TILE_K, k % TILE_K);
            if part.first > 0 {
                amx::load::<V, X>(sums);
            } else {
                amx::clear();
            }
            for tile in 0..whole {
                amx::signed::<
                    V,
                    X,
                >(amx::Operands {
                    x: x.add(tile * TILE_K),
                    x_stride: a.x_stride,
                    w: operands.add(tile * TILE_K * ROWS),
                    w_stride: 4 * ROWS,
                });
            }
            amx::store::<V, X>(sums);
            if rest > 0 {
                amx::configure(count, rest, false);
                amx::load::<V, X>(sums);
                amx::signed::<
                    V,
                    X,
                >(amx::Operands {
                    x: x.add(whole * TILE_K),
                    x_stride: a.x_stride,
                    w: operands.add(whole * TILE_K * ROWS),
                    w_stride: 4 * ROWS,
                });
                amx::store::<V, X>(sums);
                amx::configure(count, TILE_K, false);
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
                    let y = simd::mul_f32(
                        simd::div_f32(
                            simd::to_f32(
                                simd::load(sums.add((t * V + i) * LANES).cast()),
                            ),
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
    /// Steps of a row.
    fn steps(a: &MatmulArgs) -> usize {
        a.stride / 128
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
                        let count = (end - token).min(2 * amx::TOKENS);
                        if count != configured {
                            amx::configure(count, TILE_K, false);
                            configured = count;
                        }
                        if count > amx::TOKENS {
                            tile::<V, 2>(a, part, row, token, token - begin, count);
                        } else {
                            tile::<V, 1>(a, part, row, token, token - begin, count);
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
