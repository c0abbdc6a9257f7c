// What experts need around their products, behind device.h. The unit defines THREADS of a CUDA block, and what the kernels take.

// The lanes whose pair goes to the expert of this lane's, itself among them; no lane where there is no such expert. `there` says
// whether there is, below `experts`.
GM_DEVICE u32 alike(u32 expert, bool there, u32 experts) {
    u32 lanes = gm_ballot(there);
    for (u32 bit = 0; bit < 32 && (experts - 1) >> bit != 0; bit++) {
        const bool set = (expert >> bit & 1) != 0;
        const u32 those = gm_ballot(set);
        lanes &= set ? those : ~those;
    }
    return there ? lanes : 0;
}

// Pairs are sorted by expert and within one by token; a place is a pair's number then. One CUDA block: each warp has a part of the list,
// counts its pairs of each expert, 32 pairs at a time, and brings them to their places from where the warps before it end, so that
// nothing depends on their order. `counts` has room for a number of each warp and expert. `starts` is the first place of
// each expert and the end of all, then the same of tiles. What is wrong is (pair << 32 | expert) * 4, and 1 more where a token
// goes to an expert twice; the place of a pair without an expert is 0.
GM_KERNEL(THREADS) route(ROUTE_PARAMETERS) {
    const u32 pairs = tokens * each, warps = THREADS / 32, before = (1u << gm_lane()) - 1;
    const u32 part = (pairs + THREADS - 1) / THREADS * 32;
    const u32 first = gm_min(gm_warp() * part, pairs), end = gm_min(first + part, pairs);
    u32 *const tile_starts = starts + experts + 1, *const mine = counts + gm_warp() * experts;
    for (u32 pair = gm_thread(); pair < pairs; pair += THREADS) {
        const u32 expert = gm_load(list + pair);
        u32 earlier = pair / each * each;
        while (earlier < pair && gm_load(list + earlier) != expert) earlier++;
        if (expert >= experts) gm_store(places + pair, 0u);
        if (expert >= experts || earlier < pair) gm_atomic_min(fault, ((u64)pair << 32 | expert) * 4 + (expert < experts ? 1 : 0));
    }
    for (u32 token = gm_thread(); token < tokens; token += THREADS) gm_store(ends + token, (token + 1) * each);
    for (u32 expert = gm_lane(); expert < experts; expert += 32) gm_store(mine + expert, 0u);
    gm_sync_warp();
    for (u32 at = first; at < end; at += 32) {
        const u32 pair = at + gm_lane(), expert = pair < end ? gm_load(list + pair) : experts;
        const u32 lanes = alike(expert, expert < experts, experts);
        // The first of them counts for all.
        if (lanes != 0 && (lanes & before) == 0) gm_store(mine + expert, gm_load(mine + expert) + gm_popc(lanes));
        gm_sync_warp();
    }
    gm_sync();
    for (u32 expert = gm_thread(); expert < experts; expert += THREADS) {
        u32 count = 0;
        for (u32 warp = 0; warp < warps; warp++) count += gm_load(counts + warp * experts + expert);
        gm_store(starts + expert, count);
    }
    gm_sync();
    if (gm_thread() == 0) {
        u32 place = 0, tile = 0;
        for (u32 expert = 0; expert < experts; expert++) {
            const u32 count = gm_load(starts + expert);
            gm_store(starts + expert, place);
            gm_store(tile_starts + expert, tile);
            place += count;
            tile += (count + of_a_tile - 1) / of_a_tile;
        }
        gm_store(starts + experts, place);
        gm_store(tile_starts + experts, tile);
    }
    gm_sync();
    // From counts to places.
    for (u32 expert = gm_thread(); expert < experts; expert += THREADS) {
        u32 place = gm_load(starts + expert);
        for (u32 warp = 0; warp < warps; warp++) {
            u32 *const of_warp = counts + warp * experts + expert;
            const u32 count = gm_load(of_warp);
            gm_store(of_warp, place);
            place += count;
        }
        const u32 last = gm_load(starts + expert + 1);
        for (u32 at = gm_load(starts + expert), i = gm_load(tile_starts + expert); at < last; at += of_a_tile, i++)
            gm_store(tiles + i, u32x4{expert, at, at, gm_min(last - at, of_a_tile)});
    }
    gm_sync();
    for (u32 at = first; at < end; at += 32) {
        const u32 pair = at + gm_lane(), expert = pair < end ? gm_load(list + pair) : experts;
        const u32 lanes = alike(expert, expert < experts, experts);
        const u32 place = lanes != 0 ? gm_load(mine + expert) + gm_popc(lanes & before) : 0;
        gm_sync_warp();
        if (lanes != 0) {
            gm_store(rows + place, by_pair != 0 ? pair : pair / each);
            gm_store(places + pair, place);
            if ((lanes & before) == 0) gm_store(mine + expert, place + gm_popc(lanes));
        }
        gm_sync_warp();
    }
    // What is left over: tiles of no tokens, and places of pairs without an expert.
    for (u32 tile = gm_load(tile_starts + experts) + gm_thread(); tile < most_tiles; tile += THREADS) gm_store(tiles + tile, u32x4{0, 0, 0, 0});
    for (u32 place = gm_load(starts + experts) + gm_thread(); place < pairs; place += THREADS) gm_store(rows + place, 0u);
}
GM_EXPORT(route)

// Row i of the result is row rows[i]: int8 values by words of four, scales of blocks, sums of units. A CUDA block has a row at a time.
GM_KERNEL(THREADS) gather(GATHER_PARAMETERS) {
    for (u32 i = gm_block(); i < count; i += gm_blocks()) {
        const u64 from = gm_load(rows + i);
        for (u32 word = gm_thread(); word < words; word += THREADS)
            gm_store(q_to + (u64)i * words + word, gm_load(q + from * words + word));
        for (u32 block = gm_thread(); block < blocks; block += THREADS)
            gm_store(scales_to + (u64)i * blocks + block, gm_load(scales + from * blocks + block));
        for (u32 unit = gm_thread(); unit < units; unit += THREADS)
            gm_store(sums_to + (u64)i * units + unit, gm_load(sums + from * units + unit));
    }
}
GM_EXPORT(gather)

// Row i of y is that of the product places[i]; with weights, the sum of those of pairs ends[i - 1] to ends[i], in this order, each
// step rounded to f32, as the processor does.
GM_KERNEL(THREADS) combine(COMBINE_PARAMETERS) {
    const u64 all = (u64)count * n;
    for (u64 at = (u64)gm_block() * THREADS + gm_thread(); at < all; at += (u64)gm_blocks() * THREADS) {
        const u32 row = (u32)(at / n), column = (u32)(at % n);
        f32 sum = 0.0f;
        if (weights == nullptr) {
            sum = gm_load(products + (u64)gm_load(places + row) * n + column);
        } else {
            const u32 end = gm_load(ends + row);
            for (u32 pair = row == 0 ? 0 : gm_load(ends + row - 1); pair < end; pair++)
                sum = sum + gm_load(weights + pair) * gm_load(products + (u64)gm_load(places + pair) * n + column);
        }
        gm_store(y + at, sum);
    }
}
GM_EXPORT(combine)
