// Nanoseconds of a call: with no tokens, which is what the call itself takes, and with one token of a small layer. Build it
// against an optimized library:
//
//     bindings/c/install PREFIX
//     cc -O2 -I PREFIX/include bindings/c/examples/overhead.c PREFIX/lib/libgristmill.so -Wl,-rpath,PREFIX/lib
#define _POSIX_C_SOURCE 199309L
#include <gristmill.h>
#include <stdio.h>
#include <time.h>
#define TRY(call) do { if ((call) != GM_OK) { fprintf(stderr, "%s\n", gm_last_error()); return 1; } } while (0)

enum { N = 16, K = 256, BYTES = N * K / 4 + 32, CALLS = 20000, TURNS = 50 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

int main(void) {
    static float w[N * K], x[K], y[N];
    static uint8_t blocks[BYTES];
    gm_workspace *workspace;
    gm_linear *layer;
    for (int i = 0; i < K; i++) x[i] = w[i] = 1;
    TRY(gm_quantize("i2_s", NULL, N, K, w, N * K, blocks, BYTES));
    TRY(gm_linear_new("i2_s", N, K, blocks, BYTES, NULL, NULL, &layer));
    TRY(gm_workspace_new(&workspace));
    for (size_t m = 0; m < 2; m++) {
        // The fastest of the turns: what else the machine does makes the others longer.
        double best = 1e18;
        for (int turn = 0; turn < TURNS; turn++) {
            double start = now();
            for (int i = 0; i < CALLS; i++) TRY(gm_linear_forward(layer, x, m * K, m, NULL, y, m * N, workspace, NULL));
            double each = (now() - start) / CALLS;
            if (each < best) best = each;
        }
        printf("%zu tokens: %.0f ns\n", m, best);
    }
    gm_linear_free(layer), gm_workspace_free(workspace);
    return 0;
}
