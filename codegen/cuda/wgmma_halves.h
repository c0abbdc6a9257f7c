// Products of halves by warpgroups, behind hopper.h: two consumer warpgroups multiply, 64 rows each; a producer warpgroup brings their operands.
//
// A producer warp has 32 rows. It copies their blocks to shared memory as they are, rounds a stage of k to halves and stores that as
// operand A; its share of the tokens goes straight to operand B. A is core matrices without swizzle, eight rows of sixteen bytes. A lane
// rounds 32 neighbours of one row, so that what a run has in common is computed once, and eight lanes store what are neighbouring rows
// of a core matrix. B is lines: a token's stage is 128 bytes in both memories. For a copy moves 32 bytes at a time, of one place in
// either: to core matrices each sixteen bytes were a trip of their own, which took a kernel twice the time on an H200. Stages are a ring
// in shared memory, each with a full and an empty barrier.
//
// `Tile` is what a kernel says of itself: ROWS and TOKENS of a CUDA block, k of a STAGE and its X_BYTES and W_BYTES, the number of
// STAGES and how many are copied AHEAD; registers of a thread that multiplies (MORE) and of one that brings (FEWER), or 0; `round`, which
// makes halves of 32 weights, and `multiply`. Where blocks are copied to shared memory, RAW_ELEMENTS at a time, they are RAW_BYTES in
// RAW_PIECES of sixteen bytes, a row RAW_STRIDE bytes from the next, in RAW_PLACES places; else RAW_ELEMENTS is 0. ENDS_WITHIN: rows may
// end within a stage, behind eights, and `round` doesn't look where.

// Warps that multiply, and those that bring.
enum : u32 { MULTIPLYING = 8, BRINGING = 4 };

// Where blocks are not copied.
struct NoBlocks {};

// Starts the products of the stage at `place`, once it is there.
template <class Tile, class X, class W, class B>
GM_DEVICE void multiply_stage(X &xs, W &ws, B &full, u32 place, u32 phase, u32 group, f32 (&sums)[Tile::TOKENS / 2]) {
    gm_barrier_wait(full, place, phase);
    gm_fence_proxy();
    gm_wgmma_fence();
    GM_UNROLL for (u32 step = 0; step < Tile::STAGE / 16; step++) {
        const u64 w = gm_wgmma_operand(ws, place * Tile::W_BYTES + step * (2 * Tile::ROWS * 16) + group * 1024, Tile::ROWS * 16, 128);
        const u64 x = gm_wgmma_lines(xs, place * Tile::X_BYTES, step * 32);
        Tile::multiply(sums, w, x);
    }
    gm_wgmma_commit();
}

// Which of the RAW_ELEMENTS of a row stage `stage` is in.
template <class Tile> GM_DEVICE u32 raw_unit(u32 stage) { return stage / (Tile::RAW_ELEMENTS / Tile::STAGE); }

// Starts copies of stage `stage` of the tokens to `place`, once that is empty, and of blocks that begin with the stage.
template <class Tile, class X, class R, class B, class Arguments>
GM_DEVICE void copy_stage(
    X &xs, R &blocks, B &empty, const Arguments &a, const u16 *(&x)[Tile::TOKENS / 4 / BRINGING], u32 first_row,
    u32 stage, u32 stages, u32 place, u32 phase
) {
    if (stage < stages) {
        gm_barrier_wait(empty, place, phase);
        // A token's stage is a line of memory. Activations have room for half a stage; where that is all, weights are zeros.
        const u32 back = gm_lane() % 8 >= 4 && stage * Tile::STAGE + 32 >= a.x_stride ? 32 : 0;
        const u32 token = (gm_warp() - MULTIPLYING) * 4 + gm_lane() / 8;
        const u32 to = place * Tile::X_BYTES + token * 128 + (gm_lane() % 8 ^ token % 8) * 16;
        GM_UNROLL for (u32 i = 0; i < Tile::TOKENS / 4 / BRINGING; i++) {
            gm_copy(xs, to + i * BRINGING * 512, (const u32x4 *)(x[i] - back));
            x[i] += Tile::STAGE;
        }
    }
    if constexpr (Tile::RAW_ELEMENTS > 0) {
        if (stage < stages && stage % (Tile::RAW_ELEMENTS / Tile::STAGE) == 0) {
            const u32 unit = raw_unit<Tile>(stage), from = unit * Tile::RAW_BYTES / 16 * 16;
            GM_UNROLL for (u32 i = 0; i < Tile::RAW_PIECES; i++) {
                // Neighbouring lanes have a row's neighbouring pieces.
                const u32 at = i * 32 + gm_lane(), row = (gm_warp() - MULTIPLYING) * 32 + at / Tile::RAW_PIECES, piece = at % Tile::RAW_PIECES;
                // No row is longer than its bytes.
                const u32 byte = gm_min(from + piece * 16, (u32)a.row_bytes - 16);
                const u32 to = (unit % Tile::RAW_PLACES * Tile::ROWS + row) * Tile::RAW_STRIDE + piece * 16;
                gm_copy(blocks, to, (const u32x4 *)(a.blocks + gm_min(first_row + row, a.n - 1) * a.row_bytes + byte));
            }
        }
    }
    gm_copy_commit();
}

// Brings stage after stage.
template <class Tile, class X, class W, class R, class B, class Arguments>
GM_DEVICE void bring(X &xs, W &ws, R &blocks, B &full, B &empty, const Arguments &a, u32 first_row, u32 first_token, u32 stages) {
    // A lane has a half of a stage of two rows. Out-of-range rows and tokens are clamped; their results are discarded.
    const u32 own_row = (gm_warp() - MULTIPLYING) * 32 + gm_lane() % 16, half = gm_lane() / 16;
    u32 rows[2];
    f32 outer[2];
    GM_UNROLL for (u32 r = 0; r < 2; r++) {
        rows[r] = gm_min(first_row + own_row + r * 16, a.n - 1);
        outer[r] = gm_load(a.outer + rows[r]);
    }
    const u16 *x[Tile::TOKENS / 4 / BRINGING];
    GM_UNROLL for (u32 i = 0; i < Tile::TOKENS / 4 / BRINGING; i++) {
        const u32 token = first_token + (i * BRINGING + gm_warp() - MULTIPLYING) * 4 + gm_lane() / 8;
        x[i] = (const u16 *)a.x + gm_min(token, a.m - 1) * a.x_stride + gm_lane() % 8 * 8;
    }
    u32 place = 0, to = Tile::AHEAD, phase = 1;
    GM_UNROLL for (u32 i = 0; i < Tile::AHEAD; i++) copy_stage<Tile>(xs, blocks, empty, a, x, first_row, i, stages, i, 1);
    GM_NO_UNROLL for (u32 stage = 0; stage < stages; stage++) {
        copy_stage<Tile>(xs, blocks, empty, a, x, first_row, stage + Tile::AHEAD, stages, to, phase);
        gm_copy_wait<Tile::AHEAD>();
        // The warp's other lanes have copied too.
        gm_sync_warp();
        GM_UNROLL for (u32 r = 0; r < 2; r++) {
            u32x4 pieces[4];
            const u32 e = stage * Tile::STAGE + half * 32;
            if constexpr (Tile::RAW_ELEMENTS > 0) {
                const u32 unit = raw_unit<Tile>(stage), row = unit % Tile::RAW_PLACES * Tile::ROWS + own_row + r * 16;
                Tile::round(blocks, row * Tile::RAW_STRIDE + unit * Tile::RAW_BYTES % 16, e, a.k, outer[r], pieces);
            } else {
                Tile::round(a.blocks + rows[r] * a.row_bytes, 0, e, a.k, outer[r], pieces);
            }
            const u32 at = place * Tile::W_BYTES + (half * 4 * Tile::ROWS + own_row + r * 16) * 16;
            GM_UNROLL for (u32 i = 0; i < 4; i++) gm_shared_put(ws, at + i * Tile::ROWS * 16, pieces[i]);
            // Where rows end within a stage weights are zeros behind that; what was looked at there is forgotten.
            if constexpr (Tile::ENDS_WITHIN)
                GM_UNROLL for (u32 i = 0; i < 4; i++)
                    if (e + i * 8 >= a.k) gm_shared_put(ws, at + i * Tile::ROWS * 16, u32x4{0, 0, 0, 0});
        }
        gm_sync_warp();
        if (gm_lane() == 0) gm_barrier_arrive(full, place);
        place = place + 1 == Tile::STAGES ? 0 : place + 1;
        to = to + 1 == Tile::STAGES ? 0 : to + 1;
        phase ^= to == 0;
    }
}

// The products of a CUDA block.
template <class Tile, class X, class W, class R, class B, class Arguments>
GM_DEVICE void products_of_halves(X &xs, W &ws, R &&blocks, B &full, B &empty, const Arguments &a) {
    const u32 first_row = gm_block() * Tile::ROWS, first_token = gm_block_y() * Tile::TOKENS;
    const u32 stages = (a.k + Tile::STAGE - 1) / Tile::STAGE;
    if (gm_thread() == 0) {
        for (u32 i = 0; i < Tile::STAGES; i++) {
            gm_barrier_init(full, i, BRINGING);
            gm_barrier_init(empty, i, MULTIPLYING);
        }
        gm_fence_proxy();
    }
    gm_sync();
    if (gm_warp() >= MULTIPLYING) {
        if constexpr (Tile::FEWER > 0) gm_fewer_registers<Tile::FEWER>();
        bring<Tile>(xs, ws, blocks, full, empty, a, first_row, first_token, stages);
        return;
    }
    if constexpr (Tile::MORE > 0) gm_more_registers<Tile::MORE>();
    const u32 group = gm_warp() / 4;
    f32 sums[Tile::TOKENS / 2] = {};
    u32 place = 0, phase = 0, before = 0;
    multiply_stage<Tile>(xs, ws, full, place, phase, group, sums);
    GM_NO_UNROLL for (u32 stage = 1; stage < stages; stage++) {
        place = place + 1 == Tile::STAGES ? 0 : place + 1;
        phase ^= place == 0;
        multiply_stage<Tile>(xs, ws, full, place, phase, group, sums);
        // The stage before is done, and its place is free.
        gm_wgmma_wait<1>();
        gm_sync_warp();
        if (gm_lane() == 0) gm_barrier_arrive(empty, before);
        before = place;
    }
    gm_wgmma_wait<0>();
    gm_wgmma_done(sums);
    const u32 row = first_row + gm_warp() * 16 + gm_lane() / 4, token = first_token + gm_lane() % 4 * 2;
    f32 *const y = a.y + (u64)token * a.n + row;
    f32 bias[2];
    GM_UNROLL for (u32 i = 0; i < 2; i++)
        bias[i] = a.bias == nullptr || row + 8 * i >= a.n ? 0.0f : gm_load(a.bias + row + 8 * i);
    GM_UNROLL for (u32 i = 0; i < Tile::TOKENS / 2; i++) {
        const u32 column = i / 4 * 8 + i % 2, down = i % 4 / 2;
        if (row + down * 8 < a.n && token + column < a.m) gm_store(y + (u64)column * a.n + down * 8, sums[i] + bias[down]);
    }
}

