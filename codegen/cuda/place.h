// Where block b starts in a tensor, in bytes. Behind the sizes of a block and HEADER, the bytes in front of a row's blocks.
GM_DEVICE u64 place(u64 b, u32 k, u64 row_bytes) {
    return HEADER == 0 ? b * BYTES : b / (k / ELEMENTS) * row_bytes + HEADER + b % (k / ELEMENTS) * BYTES;
}

