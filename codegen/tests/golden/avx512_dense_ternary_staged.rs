pub mod matmul_avx512_avx512vnni_avx512vbmi_dense_batch_r32t5_trits_rows_int8_row_centred_outer_staged {
    use ::gristmill::runtime::abi::MatmulArgs;
    use ::gristmill::runtime::simd::avx512vbmi::{self as simd, LANES};
    use std::mem::MaybeUninit;
    /// Rows of a panel.
    const ROWS: usize = 32;
    /// Elements of a row in a tile of codes.
    const CODES_K: usize = 20;
    /// Elements of a row in a tile of operands.
    const TILE_K: usize = 4;
    /// Bytes of a tile of operands: all rows of a panel.
    const TILE: usize = TILE_K * ROWS;
    /// Elements of k that are never apart.
    const STEP_K: usize = 20;
    /// Steps that are decoded at once.
    const STEPS: usize = 25;
    /// Tokens whose sums wait at once.
    const TOKENS: usize = 192;
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
    /// At an address that vectors want.
    #[repr(align(64))]
    struct Aligned<T>(T);
    /// What stays in the caches while tokens pass by.
    struct Buffer {
        /// Operands, tile by tile.
        operands: Aligned<[u8; 500 * ROWS]>,
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
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx512vbmi")]
    unsafe fn stage<const V: usize>(a: &MatmulArgs, part: Part, row: usize) {
        /// Bytes of a tile of codes.
        const TILE_OF_CODES: usize = 128;
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
            let trits = simd::trit_tables(&TRITS);
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
                let mut fifth0 = [simd::zero(); V];
                for i in 0..V {
                    (packed0[i], fifth0[i]) = simd::trits(&trits, packed0[i]);
                }
                let mut w4 = [simd::zero(); V];
                for i in 0..V {
                    w4[i] = simd::and(simd::shift::<6>(fifth0[i]), simd::bytes(0x3));
                }
                for i in 0..V {
                    to.add(16 * ROWS + i * LANES * 4).cast::<simd::I>().write(w4[i]);
                }
                let mut w0 = [simd::zero(); V];
                for i in 0..V {
                    w0[i] = simd::and(packed0[i], simd::bytes(0x3));
                }
                for i in 0..V {
                    to.add(i * LANES * 4).cast::<simd::I>().write(w0[i]);
                }
                let mut w1 = [simd::zero(); V];
                for i in 0..V {
                    w1[i] = simd::and(simd::shift::<2>(packed0[i]), simd::bytes(0x3));
                }
                for i in 0..V {
                    to.add(4 * ROWS + i * LANES * 4).cast::<simd::I>().write(w1[i]);
                }
                let mut w2 = [simd::zero(); V];
                for i in 0..V {
                    w2[i] = simd::and(simd::shift::<4>(packed0[i]), simd::bytes(0x3));
                }
                for i in 0..V {
                    to.add(8 * ROWS + i * LANES * 4).cast::<simd::I>().write(w2[i]);
                }
                let mut w3 = [simd::zero(); V];
                for i in 0..V {
                    w3[i] = simd::and(simd::shift::<6>(packed0[i]), simd::bytes(0x3));
                }
                for i in 0..V {
                    to.add(12 * ROWS + i * LANES * 4).cast::<simd::I>().write(w3[i]);
                }
                to = to.add(CODES_K * ROWS);
            }
        }
    }
    /// `V` vectors of rows from `row` by `T` tokens from `token`, whose sums wait at token `at` of the buffer.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels and are staged, the tokens are below `m`, and those from `at` on
    /// within the buffer.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx512vbmi")]
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
                .cast::<[[simd::I; V]; T]>();
            let mut x = [a.x; T];
            for t in 0..T {
                x[t] = a.x.add((token + t) * a.x_stride + part.first * STEP_K);
            }
            let mut dot = [[simd::zero(); V]; T];
            for tile in 0..((part.last - part.first) * (STEP_K / TILE_K)) {
                let (at, k) = (tile * TILE, tile * TILE_K);
                let mut packed0 = [simd::zero(); V];
                for i in 0..V {
                    packed0[i] = simd::load(codes[i].add(at));
                }
                let w0 = packed0;
                for t in 0..T {
                    let x = simd::broadcast(x[t].add(k));
                    for i in 0..V {
                        dot[t][i] = simd::dot(dot[t][i], w0[i], x);
                    }
                }
            }
            if part.first > 0 {
                let before = waiting.read();
                for t in 0..T {
                    for i in 0..V {
                        dot[t][i] = simd::add(dot[t][i], before[t][i]);
                    }
                }
            }
            if part.last < steps(a) {
                waiting.write(dot);
                return;
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
    /// Steps of a row.
    fn steps(a: &MatmulArgs) -> usize {
        a.stride / 128
    }
    /// `V` vectors of rows from `row` by tokens `first..last`.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels and the tokens below `m`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx512vbmi")]
    unsafe fn panel<const V: usize>(
        a: &MatmulArgs,
        buffer: *mut Buffer,
        row: usize,
        first: usize,
        last: usize,
    ) {
        // Turns of equal length.
        let turns = (last - first).div_ceil(TOKENS).max(1);
        let turn = (last - first).div_ceil(turns).next_multiple_of(12);
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
                    while token + 12 <= end && token + 16 != end {
                        tile::<V, 12>(a, part, row, token, token - begin);
                        token += 12;
                    }
                    while token + 8 <= end {
                        tile::<V, 8>(a, part, row, token, token - begin);
                        token += 8;
                    }
                    while token + 4 <= end {
                        tile::<V, 4>(a, part, row, token, token - begin);
                        token += 4;
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
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx512vbmi")]
    pub unsafe fn matmul(a: &MatmulArgs) {
        let end = a.row_end.next_multiple_of(2 * LANES);
        let mut buffer = MaybeUninit::<Buffer>::uninit();
        let buffer = buffer.as_mut_ptr();
        // All rows go through some tokens, whose activations stay in the caches, then through the next.
        let shares = a.m.div_ceil((a.x_share / a.x_stride.max(1)).max(1));
        let share = a.m.div_ceil(shares.max(1)).next_multiple_of(12);
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
