// Four codes to four operands by a table of sixteen bytes in registers.
GM_DEVICE u32 lookup(u32x4 table, u32 codes) {
    u32 out = 0;
    GM_UNROLL for (u32 i = 0; i < 32; i += 8) {
        const u32 code = codes >> i & 15;
        const u32 low = code & 4 ? table.y : table.x, high = code & 4 ? table.w : table.z;
        out |= ((code & 8 ? high : low) >> (8 * (code & 3)) & 0xff) << i;
    }
    return out;
}

