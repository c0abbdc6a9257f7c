// Quantizes a matrix, makes a layer of it and prints a product. Ends with 1 and the library's message if something is wrong.
#include <gristmill.h>
#include <stdio.h>
#define TRY(call) do { if ((call) != GM_OK) { fprintf(stderr, "%s\n", gm_last_error()); return 1; } } while (0)

enum { N = 16, K = 256 };

int main(void) {
    static float w[N * K], x[K], y[N];
    static uint8_t blocks[N * K * 4];
    size_t bytes;
    gm_threads *threads;
    gm_workspace *workspace;
    gm_linear *layer;
    for (int i = 0; i < N * K; i++) w[i] = (float)(i * 7 % 3 - 1) / 2;
    for (int i = 0; i < K; i++) x[i] = (float)(i % 11 - 5);

    TRY(gm_format_bytes("i2_s", N, K, &bytes));
    TRY(gm_quantize("i2_s", NULL, N, K, w, N * K, blocks, bytes));
    TRY(gm_threads_new(2, &threads));
    TRY(gm_workspace_new(&workspace));
    TRY(gm_linear_new("i2_s", N, K, blocks, bytes, "cpu", threads, &layer));
    TRY(gm_linear_forward(layer, x, K, 1, NULL, y, N, workspace, threads));
    for (int i = 0; i < N; i++) printf("%.9g\n", y[i]);

    gm_linear_free(layer), gm_workspace_free(workspace), gm_threads_free(threads);
    return gm_abi_version() != GM_ABI_VERSION;
}
