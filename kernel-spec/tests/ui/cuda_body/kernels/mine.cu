GM_KERNEL(256) dequantize_theirs(const u8 *src, f32 *dst, u32 rows, u32 k, u64 row_bytes, u64 *fault) {}
GM_EXPORT(dequantize_theirs)
// GM_EXPORT(dequantize_thiers)
