pub mod matmul_avx2_lookup_r64b8_1bit_sums_by32_q8_0_scales_f16_for4 {
    use ::gristmill::runtime::abi::MatmulArgs;
    use ::gristmill::runtime::simd::avx2::{self as simd, LANES};
    /// Rows of a panel, a byte each.
    const ROWS: usize = 64;
    /// Bytes of a tile of codes: all rows of a panel, 8 elements each, two indices.
    const TILE: usize = 64;
    /// Elements of a row in a tile.
    const TILE_K: usize = 8;
    /// Rows of a vector.
    const BYTES: usize = 4 * LANES;
    /// Bytes of a table: the low digits of sixteen sums, and the high ones.
    const TABLE: usize = 32;
    /// Tiles of a unit.
    const RUN: usize = 4;
    /// The most units whose tables are made at once.
    const AT_ONCE: usize = 64;
    /// Tokens of a tile.
    const T: usize = 1;
    /// What four activations count for in the sums of each index: one set of sixteen for a table.
    static OPERANDS: [[[u8; 4]; 16]; 1] = [
        [
            [0, 0, 0, 0],
            [1, 0, 0, 0],
            [0, 1, 0, 0],
            [1, 1, 0, 0],
            [0, 0, 1, 0],
            [1, 0, 1, 0],
            [0, 1, 1, 0],
            [1, 1, 1, 0],
            [0, 0, 0, 1],
            [1, 0, 0, 1],
            [0, 1, 0, 1],
            [1, 1, 0, 1],
            [0, 0, 1, 1],
            [1, 0, 1, 1],
            [0, 1, 1, 1],
            [1, 1, 1, 1],
        ],
    ];
    /// Tables of the activations in hand.
    #[repr(C, align(64))]
    struct Tables(std::mem::MaybeUninit<[u8; AT_ONCE * RUN * 2 * TABLE]>);
    /// Tables for `tiles` tiles: each sum plus 512, in a low digit of 5 bits and a high one.
    ///
    /// # Safety
    ///
    /// `x` holds the activations of the tiles, and `tables` has room for two tables each.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn fill(x: *const i8, tiles: usize, tables: *mut u8) {
        for group in 0..tiles * TILE_K / 4 {
            // SAFETY: the caller answers for activations and room; `OPERANDS` has sixteen lanes a set.
            unsafe {
                let x = simd::broadcast(x.add(4 * group));
                for (set, operands) in OPERANDS.iter().enumerate() {
                    let mut sums = [simd::splat(512); 16 / LANES];
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let operands = simd::load(
                            operands.as_ptr().add(i * LANES).cast(),
                        );
                        *sum = simd::widen(
                            *sum,
                            simd::pairs(simd::zero_pairs(), operands, x),
                        );
                    }
                    simd::store_digits::<5>(sums, tables.add((group + set) * TABLE));
                }
            }
        }
    }
    /// `LANES` values, or the first `count` and zeros.
    ///
    /// # Safety
    ///
    /// `count` values, if not more than `LANES`, are readable at `from`.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load_rows(from: *const f32, count: usize) -> simd::F {
        // SAFETY: the caller answers for `count` values.
        unsafe {
            if count >= LANES { simd::load_f32(from) } else { load_some(from, count) }
        }
    }
    /// `count` values, fewer than `LANES`, and zeros: the last rows of the weights.
    ///
    /// # Safety
    ///
    /// `count` values are readable at `from`.
    #[cold]
    #[inline(never)]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load_some(from: *const f32, count: usize) -> simd::F {
        let mut lanes = [0f32; LANES];
        // SAFETY: the caller answers for `count` values, and `lanes` holds a vector.
        unsafe {
            lanes.as_mut_ptr().copy_from_nonoverlapping(from, count);
            simd::load_f32(lanes.as_ptr())
        }
    }
    /// `LANES` values, or the first `count` of them.
    ///
    /// # Safety
    ///
    /// `count` values, if not more than `LANES`, are writable at `to`.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn store_rows(to: *mut f32, count: usize, y: simd::F) {
        // SAFETY: the caller answers for room.
        unsafe {
            if count >= LANES {
                simd::store_f32(to, y)
            } else {
                store_some(to, count, y)
            }
        }
    }
    /// The first `count`, fewer than `LANES`, of a vector's values.
    ///
    /// # Safety
    ///
    /// `count` values are writable at `to`.
    #[cold]
    #[inline(never)]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn store_some(to: *mut f32, count: usize, y: simd::F) {
        let mut lanes = [0f32; LANES];
        // SAFETY: the caller answers for room, and `lanes` holds a vector.
        unsafe {
            simd::store_f32(lanes.as_mut_ptr(), y);
            to.copy_from_nonoverlapping(lanes.as_ptr(), count);
        }
    }
    /// `V` vectors of rows from `row`, over the units `first..last`, whose tables are in hand.
    ///
    /// # Safety
    ///
    /// As [`MatmulArgs`] says; the rows lie within its panels, the token is below `m`, and `tables` are those of
    /// the token.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn tile<const V: usize>(
        a: &MatmulArgs,
        tables: *const u8,
        row: usize,
        token: usize,
        first: usize,
        last: usize,
    ) {
        // SAFETY: of the whole function: the caller answers for the buffers of `a`, see `MatmulArgs`, and for
        // the tables; what waits in the output was put there by this function.
        unsafe {
            let mut codes = [a.codes; V];
            for i in 0..V {
                let row = row + i * BYTES;
                codes[i] = a.codes.add(row / ROWS * a.stride + row % ROWS);
            }
            let mask = simd::bytes(0xf);
            let waiting = a.y.add(token * a.n + row);
            let rows = a.row_end.saturating_sub(row);
            let mut scales = [a.scales.cast::<u16>(); V];
            for i in 0..V {
                let row = row + i * BYTES;
                scales[i] = a
                    .scales
                    .cast::<u16>()
                    .add(row / ROWS * ROWS * (a.units / 4) + row % ROWS);
            }
            let mut y = [[simd::splat_f32(0.0); 4]; V];
            if first > 0 {
                for i in 0..4 * V {
                    if i * LANES < rows {
                        y[i / 4][i % 4] = load_rows(
                            waiting.add(i * LANES),
                            rows - i * LANES,
                        );
                    }
                }
            }
            for unit in first..last {
                let x_scale = simd::splat_f32(
                    *a.x_scales.add(token * a.x_blocks + unit),
                );
                let correction = simd::splat_words(
                    *a.x_sums.add(token * a.units + unit) * a.min - 8192,
                );
                let mut total = [simd::zero_words(); V];
                let mut low = [simd::zero(); V];
                let mut high = [simd::zero(); V];
                for step in 0..4 {
                    let tile = unit * 4 + step;
                    let table = tables.add((tile - first * 4) * 2 * TABLE);
                    let (low0, high0) = (
                        simd::table(&*table.cast()),
                        simd::table(&*table.add(16).cast()),
                    );
                    let (low1, high1) = (
                        simd::table(&*table.add(32).cast()),
                        simd::table(&*table.add(48).cast()),
                    );
                    for i in 0..V {
                        let packed = simd::load(codes[i].add(tile * TILE));
                        let index = simd::and(packed, mask);
                        low[i] = simd::add_bytes(low[i], simd::lookup(low0, index));
                        high[i] = simd::add_bytes(high[i], simd::lookup(high0, index));
                        let index = simd::and(simd::shift::<4>(packed), mask);
                        low[i] = simd::add_bytes(low[i], simd::lookup(low1, index));
                        high[i] = simd::add_bytes(high[i], simd::lookup(high1, index));
                    }
                }
                for i in 0..V {
                    let words = simd::merge::<2, 5>(low[i], high[i]);
                    total[i] = words;
                }
                for i in 0..V {
                    let lanes = simd::lanes(simd::add_words(total[i], correction));
                    for q in 0..4 {
                        let sum = lanes[q];
                        y[i][q] = simd::add_f32(
                            y[i][q],
                            simd::mul_f32(
                                simd::mul_f32(
                                    simd::load_f16(scales[i].add(unit / 4 * 64 + q * LANES)),
                                    x_scale,
                                ),
                                simd::to_f32(sum),
                            ),
                        );
                    }
                }
            }
            if last < a.units {
                for i in 0..4 * V {
                    if i * LANES < rows {
                        store_rows(
                            waiting.add(i * LANES),
                            rows - i * LANES,
                            y[i / 4][i % 4],
                        );
                    }
                }
                return;
            }
            for i in 0..4 * V {
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
                    let y = y[i / 4][i % 4];
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
        let end = a.row_end.next_multiple_of(2 * BYTES);
        let runs = a.units;
        // Shares of the same size, each as large as there is room for.
        let share = runs.div_ceil(runs.div_ceil(AT_ONCE).max(1));
        let mut tables = Tables(std::mem::MaybeUninit::uninit());
        let tables = (&raw mut tables).cast::<u8>();
        for token in 0..a.m {
            let mut first = 0;
            while first < runs {
                let last = runs.min(first + share);
                // SAFETY: a share is within the room for tables and the activations; panels are whole, so
                // `end` lies within them.
                unsafe {
                    fill(
                        a.x.add(token * a.x_stride + first * RUN * TILE_K),
                        (last - first) * RUN,
                        tables,
                    );
                    let mut row = a.row_begin;
                    while row + 2 * BYTES <= end {
                        tile::<2>(a, tables, row, token, first, last);
                        row += 2 * BYTES;
                    }
                }
                first = last;
            }
        }
    }
}
