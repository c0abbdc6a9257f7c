// The product of the tokens of one expert that the CUDA block has: addresses of the expert's weights, and of the first token.
GM_DEVICE Matmul of_expert(const Matmul &all, const Groups &stack) {
    const u32x4 tile = gm_load(stack.tiles + gm_block_y());
    const u64 *const weights = stack.experts + tile.x * 4;
    Matmul a = all;
    a.codes = (const u8 *)gm_load(weights);
    a.scales = (const f32 *)gm_load(weights + 1);
    a.mins = (const f32 *)gm_load(weights + 2);
    a.outer = (const f32 *)gm_load(weights + 3);
    a.x = all.x + tile.y * all.x_stride;
    a.x_scales = all.x_scales + (u64)tile.y * all.x_blocks;
    a.x_sums = all.x_sums + (u64)tile.y * all.units;
    a.y = all.y + (u64)tile.z * all.n;
    a.m = tile.w;
    return a;
}

