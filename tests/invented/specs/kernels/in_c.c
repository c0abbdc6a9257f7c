/* seq3: blocks of forty signed codes of three bits, eight to three bytes; one f32 scale for the row. */
#include "gristmill.h"
#include "in_c.h"

static gm_fault dequantize(const uint8_t *src, float *dst, size_t blocks, float outer) {
    for (size_t group = 0; group < blocks * (GM_ELEMENTS / 8); ++group)
        store_scaled(dst + 8 * group, codes(src + 3 * group), outer);
    return GM_DONE;
}

/* The row is one integer sum. Then, in this order: over the activations' multiplier, times the row's scale, plus the bias. */
static void multiply(const gm_matmul_args *a) {
    for (size_t row = a->row_begin; row < a->row_end; ++row) {
        const uint8_t *w = a->codes + row * a->stride;
        for (size_t token = 0; token < a->m; ++token) {
            const int8_t *x = a->x + token * a->x_stride;
            eight sums = zeros();
            for (size_t group = 0; group < a->k / 8; ++group)
                sums = add_products(sums, codes(w + 3 * group), x + 8 * group);
            float y = (float)sum(sums) / a->x_scales[token] * a->outer[row];
            a->y[token * a->n + row] = a->bias ? y + a->bias[row] : y;
        }
    }
}
