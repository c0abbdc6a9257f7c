// Bad input from C: each gets its status and a message, and nothing crashes or leaks (the test builds this with the address and
// undefined-behaviour sanitizers where the compiler has them). Prints how many calls it made.
#include <gristmill.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int calls, wrong;

static void expect(int line, gm_status status, gm_status wanted, const char *word) {
    calls++;
    if (status == wanted && (wanted == GM_OK || strstr(gm_last_error(), word))) return;
    wrong++;
    fprintf(stderr, "line %d: status %d, expected %d with `%s`; message: %s\n", line, status, wanted, word, gm_last_error());
}
#define EXPECT(wanted, word, call) expect(__LINE__, call, wanted, word)

enum { N = 4, K = 256, BYTES = N * K / 4 + 32 };
static float w[N * K], x[2 * K], y[2 * N];
static uint8_t blocks[BYTES];
static gm_linear *layer;

static void *elsewhere(void *said) {
    strcpy(said, gm_last_error());
    gm_workspace *own;
    if (gm_workspace_new(&own) != GM_OK) return NULL;
    float z[N];
    for (int i = 0; i < 50; i++)
        if (gm_linear_forward(layer, x, K, 1, NULL, z, N, own, NULL) != GM_OK || memcmp(z, y, sizeof z)) said = NULL;
    gm_workspace_free(own);
    return said;
}

int main(void) {
    for (int i = 0; i < N * K; i++) w[i] = (float)(i % 3 - 1);
    for (int i = 0; i < 2 * K; i++) x[i] = (float)(i % 7) - 3;
    gm_threads *threads = NULL;
    gm_workspace *workspace = NULL;
    gm_linear *none = NULL;
    gm_model *model = NULL;
    char *text = NULL;
    size_t bytes = 0;

    EXPECT(GM_OK, "", gm_format_bytes("i2_s", N, K, &bytes));
    if (bytes != BYTES || strcmp(gm_last_error(), "") != 0) return 2;
    EXPECT(GM_UNKNOWN_NAME, "did you mean `i2_s`", gm_format_bytes("i2_z", N, K, &bytes));
    EXPECT(GM_INVALID_ARGUMENT, "format is NULL", gm_format_bytes(NULL, N, K, &bytes));
    EXPECT(GM_INVALID_ARGUMENT, "not UTF-8", gm_format_bytes("i2\xff", N, K, &bytes));
    EXPECT(GM_INVALID_ARGUMENT, "bytes is NULL", gm_format_bytes("i2_s", N, K, NULL));
    EXPECT(GM_SHAPE, "multiple of 128", gm_format_bytes("i2_s", N, K + 1, &bytes));
    EXPECT(GM_SHAPE, "overflow", gm_format_bytes("i2_s", (size_t)-1, K, &bytes));

    EXPECT(GM_INVALID_ARGUMENT, "count is 0", gm_threads_new(0, &threads));
    EXPECT(GM_SHAPE, "expected 1024", gm_quantize("i2_s", NULL, N, K, w, N * K - 1, blocks, BYTES));
    EXPECT(GM_SHAPE, "expected 288", gm_quantize("i2_s", NULL, N, K, w, N * K, blocks, BYTES - 1));
    EXPECT(GM_INVALID_ARGUMENT, "values is NULL", gm_quantize("i2_s", NULL, N, K, NULL, N * K, blocks, BYTES));
    EXPECT(GM_INVALID_ARGUMENT, "more than memory", gm_quantize("i2_s", NULL, N, K, w, (size_t)-1 / 2, blocks, BYTES));
    EXPECT(GM_INVALID_ARGUMENT, "blocks overlaps", gm_quantize("i2_s", NULL, N, K, w, N * K, (uint8_t *)w, BYTES));
    EXPECT(GM_INVALID_ARGUMENT, "aligned",
           gm_quantize("i2_s", NULL, N, K, (const float *)(const void *)((const char *)w + 1), N * K - 1, blocks, BYTES));
    EXPECT(GM_UNKNOWN_NAME, "no quantizer `best`", gm_quantize("i2_s", "best", N, K, w, N * K, blocks, BYTES));
    w[K + 3] = 1.0f / 0.0f;
    EXPECT(GM_DATA, "row 1, column 3", gm_quantize("i2_s", NULL, N, K, w, N * K, blocks, BYTES));
    w[K + 3] = 1;
    EXPECT(GM_OK, "", gm_quantize("i2_s", NULL, N, K, w, N * K, blocks, BYTES));

    float back[2 * K];
    EXPECT(GM_OK, "", gm_dequantize("i2_s", N, K, blocks, BYTES, 1, 2, back, 2 * K));
    EXPECT(GM_OK, "", gm_dequantize_on("i2_s", N, K, blocks, BYTES, 1, 2, back, 2 * K, NULL));
    EXPECT(GM_SHAPE, "rows 3 to 5 are not a range", gm_dequantize("i2_s", N, K, blocks, BYTES, 3, 2, back, 2 * K));
    EXPECT(GM_SHAPE, "overflow", gm_dequantize("i2_s", N, K, blocks, BYTES, (size_t)-1, 2, back, 2 * K));
    EXPECT(GM_SHAPE, "expected 512", gm_dequantize("i2_s", N, K, blocks, BYTES, 1, 2, back, K));
    blocks[0] |= 0xc0;
    EXPECT(GM_DATA, "row 0, column 0", gm_dequantize("i2_s", N, K, blocks, BYTES, 0, 1, back, K));
    EXPECT(GM_DATA, "row 0, column 0", gm_linear_new("i2_s", N, K, blocks, BYTES, NULL, NULL, &none));
    EXPECT(GM_OK, "", gm_quantize("i2_s", NULL, N, K, w, N * K, blocks, BYTES));

    EXPECT(GM_THREADS, "at most", gm_threads_new((size_t)-1, &threads));
    EXPECT(GM_OK, "", gm_threads_new(3, &threads));
    /* The same bytes and values by three threads. */
    uint8_t others[BYTES] = {0};
    float again[2 * K];
    EXPECT(GM_OK, "", gm_quantize_on("i2_s", NULL, N, K, w, N * K, others, BYTES, threads));
    if (memcmp(blocks, others, BYTES)) return 15;
    EXPECT(GM_DATA, "row 1, column 3", (w[K + 3] = 1.0f / 0.0f, gm_quantize_on("i2_s", NULL, N, K, w, N * K, others, BYTES, threads)));
    w[K + 3] = 1;
    EXPECT(GM_OK, "", gm_dequantize("i2_s", N, K, blocks, BYTES, 1, 2, back, 2 * K));
    EXPECT(GM_OK, "", gm_dequantize_on("i2_s", N, K, blocks, BYTES, 1, 2, again, 2 * K, threads));
    if (memcmp(back, again, sizeof back)) return 16;
    EXPECT(GM_SHAPE, "rows 3 to 5 are not a range", gm_dequantize_on("i2_s", N, K, blocks, BYTES, 3, 2, again, 2 * K, threads));
    EXPECT(GM_OK, "", gm_workspace_new(&workspace));
    EXPECT(GM_INVALID_ARGUMENT, "workspace is NULL", gm_workspace_new(NULL));

    EXPECT(GM_SHAPE, "expected 288", gm_linear_new("i2_s", N, K, blocks, BYTES + 1, NULL, threads, &none));
    EXPECT(GM_INVALID_ARGUMENT, "blocks is NULL", gm_linear_new("i2_s", N, K, NULL, BYTES, NULL, threads, &none));
    EXPECT(GM_UNKNOWN_NAME, "unknown device", gm_linear_new("i2_s", N, K, blocks, BYTES, "gpu", threads, &none));
    EXPECT(GM_NO_KERNEL, "no kernel for matmul", gm_linear_new("i2_s", N, K, blocks, BYTES, "rocm:0", threads, &none));
    EXPECT(GM_INVALID_ARGUMENT, "layer is NULL", gm_linear_new("i2_s", N, K, blocks, BYTES, NULL, threads, NULL));
    if (none) return 3;
    EXPECT(GM_OK, "", gm_linear_new("i2_s", N, K, blocks, BYTES, "cpu", threads, &layer));
    if (gm_linear_n(layer) != N || gm_linear_k(layer) != K || gm_linear_weight_bytes(layer) == 0) return 4;
    if (gm_linear_n(NULL) || gm_linear_k(NULL) || gm_linear_weight_bytes(NULL)) return 5;

    EXPECT(GM_OK, "", gm_linear_forward(layer, x, 2 * K, 2, w, y, 2 * N, workspace, threads));
    EXPECT(GM_SHAPE, "expected 256", gm_linear_forward(layer, x, K - 1, 1, NULL, y, N, workspace, threads));
    EXPECT(GM_SHAPE, "expected 4", gm_linear_forward(layer, x, K, 1, NULL, y, N + 1, workspace, threads));
    EXPECT(GM_SHAPE, "overflow", gm_linear_forward(layer, x, K, (size_t)-1, NULL, y, N, workspace, threads));
    EXPECT(GM_INVALID_ARGUMENT, "x is NULL", gm_linear_forward(layer, NULL, K, 1, NULL, y, N, workspace, threads));
    EXPECT(GM_INVALID_ARGUMENT, "y is NULL", gm_linear_forward(layer, x, K, 1, NULL, NULL, N, workspace, threads));
    EXPECT(GM_INVALID_ARGUMENT, "y overlaps", gm_linear_forward(layer, x, K, 1, NULL, x + K - 1, N, workspace, threads));
    EXPECT(GM_INVALID_ARGUMENT, "y overlaps", gm_linear_forward(layer, x, K, 1, y, y, N, workspace, threads));
    EXPECT(GM_INVALID_ARGUMENT, "workspace is NULL", gm_linear_forward(layer, x, K, 1, NULL, y, N, NULL, threads));
    EXPECT(GM_INVALID_ARGUMENT, "layer is NULL", gm_linear_forward(NULL, x, K, 1, NULL, y, N, workspace, threads));
    EXPECT(GM_OK, "", gm_linear_forward(layer, NULL, 0, 0, NULL, NULL, 0, workspace, threads));
    x[5] = 0.0f / 0.0f;
    EXPECT(GM_DATA, "column 5", gm_linear_forward(layer, x, K, 1, NULL, y, N, workspace, threads));
    x[5] = 2;
    EXPECT(GM_OK, "", gm_linear_forward(layer, x, K, 1, NULL, y, N, workspace, threads));

    EXPECT(GM_FILE, "none.gguf", gm_model_open("none.gguf", &model));
    EXPECT(GM_INVALID_ARGUMENT, "path is NULL", gm_model_open(NULL, &model));
    EXPECT(GM_INVALID_ARGUMENT, "model is NULL", gm_model_linear(NULL, "a", NULL, NULL, &none));
    EXPECT(GM_INVALID_ARGUMENT, "model is NULL", gm_model_plan(NULL, 1, NULL, &text));
    if (model || none || text) return 6;

    EXPECT(GM_UNKNOWN_NAME, "unknown type `f64`", gm_decide("matmul", "i2_s", "f64", NULL, 1, N, K, &text));
    EXPECT(GM_NO_KERNEL, "for metal", gm_decide("matmul", "i2_s", "i8", "metal:0", 1, N, K, &text));
    EXPECT(GM_SHAPE, "multiple of 128", gm_decide("matmul", "i2_s", NULL, NULL, 1, N, K + 1, &text));
    EXPECT(GM_UNKNOWN_NAME, "unknown op `matmull`", gm_decide("matmull", "i2_s", NULL, NULL, 1, N, K, &text));
    EXPECT(GM_OK, "", gm_decide("matmul", "i2_s", NULL, NULL, 1, N, K, &text));
    gm_string_free(text);
    EXPECT(GM_OK, "", gm_explain("matmul", "i2_s", NULL, "cuda:0", 1, N, K, &text));
    if (!strstr(text, "no kernel for matmul of `i2_s`")) return 7;
    gm_string_free(text);
    EXPECT(GM_OK, "", gm_explain_json("matmul", "i2_s", "f32", "cpu", 1, N, K, &text));
    if (!strstr(text, "\"chosen\":\"matmul.i2_s.")) return 8;
    gm_string_free(text);
    EXPECT(GM_OK, "", gm_formats_json(&text));
    if (!strstr(text, "\"name\":\"i2_s\"")) return 9;
    gm_string_free(text);
    EXPECT(GM_OK, "", gm_kernels_json("i2_s", &text));
    if (!strstr(text, "\"name\":\"matmul.i2_s.scalar")) return 10;
    gm_string_free(text);
    EXPECT(GM_OK, "", gm_linear_receipt(layer, &text));
    if (!strstr(text, "\"name\":\"matmul.i2_s.") || !strstr(text, "\"fallbacks\":[]")) return 11;
    gm_string_free(text);

    // A layer that does without a kernel from the moment that it is forbidden computes the same.
    gm_guard *shared = NULL;
    gm_linear *guarded = NULL;
    float z[N];
    char kernel[100] = "";
    EXPECT(GM_INVALID_ARGUMENT, "guard is NULL", gm_guard_new(0, false, 0, NULL));
    EXPECT(GM_OK, "", gm_guard_new(1, false, 0, &shared));
    EXPECT(GM_INVALID_ARGUMENT, "guard is NULL", gm_linear_new_guarded("i2_s", N, K, blocks, BYTES, NULL, NULL, threads, &guarded));
    EXPECT(GM_SHAPE, "expected 288", gm_linear_new_guarded("i2_s", N, K, blocks, BYTES - 1, NULL, shared, threads, &guarded));
    EXPECT(GM_INVALID_ARGUMENT, "model is NULL", gm_model_linear_guarded(NULL, "a", NULL, shared, NULL, &guarded));
    EXPECT(GM_UNKNOWN_NAME, "unknown kernel `matmull`", gm_guard_forbid(shared, "matmull", "a test"));
    EXPECT(GM_INVALID_ARGUMENT, "why is NULL", gm_guard_forbid(shared, "matmul", NULL));
    EXPECT(GM_INVALID_ARGUMENT, "text is NULL", gm_guard_quarantined_json(shared, NULL));
    if (guarded) return 17;
    EXPECT(GM_OK, "", gm_linear_new_guarded("i2_s", N, K, blocks, BYTES, NULL, shared, threads, &guarded));
    if (gm_linear_kept_bytes(guarded) != BYTES || gm_linear_kept_bytes(layer) || gm_linear_kept_bytes(NULL)) return 18;
    EXPECT(GM_OK, "", gm_linear_forward(guarded, x, K, 1, NULL, z, N, workspace, threads));
    if (memcmp(z, y, sizeof z)) return 19;
    EXPECT(GM_OK, "", gm_linear_receipt(guarded, &text));
    const char *name = strstr(text, "matmul.i2_s.");
    if (!name) return 20;
    memcpy(kernel, name, strcspn(name, "\""));
    gm_string_free(text);
    // The portable kernel is the last one.
    if (!strstr(kernel, ".scalar")) {
        EXPECT(GM_OK, "", gm_guard_forbid(shared, kernel, "a test"));
        EXPECT(GM_OK, "", gm_guard_quarantined_json(shared, &text));
        if (!strstr(text, kernel) || !strstr(text, "\"why\":\"a test\"")) return 21;
        gm_string_free(text);
        memset(z, 0, sizeof z);
        EXPECT(GM_OK, "", gm_linear_forward(guarded, x, K, 1, NULL, z, N, workspace, threads));
        if (memcmp(z, y, sizeof z)) return 22;
        EXPECT(GM_OK, "", gm_linear_receipt(guarded, &text));
        if (!strstr(text, "\"step\":\"decided-again\"")) return 23;
        gm_string_free(text);
    } else {
        calls += 4;
    }
    gm_guard_free(shared), gm_guard_free(NULL), gm_linear_free(guarded);

    // A message is of the thread whose call failed; layers are shared.
    EXPECT(GM_INVALID_ARGUMENT, "text is NULL", gm_formats_json(NULL));
    char said[2][200] = {"?", "?"};
    pthread_t thread[2];
    for (int i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, elsewhere, said[i])) return 12;
    for (int i = 0; i < 2; i++) {
        void *result = NULL;
        if (pthread_join(thread[i], &result) || result != said[i] || said[i][0]) return 13;
    }

    // A child of fork() has none of the parent's threads and computes the same alone.
    pid_t child = fork();
    if (child == 0) {
        float z[N];
        gm_status status = gm_linear_forward(layer, x, K, 1, NULL, z, N, workspace, threads);
        gm_threads_free(threads);
        _exit(status == GM_OK && !memcmp(z, y, sizeof z) ? 0 : 1);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 14;

    gm_linear_free(layer), gm_workspace_free(workspace), gm_threads_free(threads);
    gm_linear_free(NULL), gm_workspace_free(NULL), gm_threads_free(NULL), gm_model_free(NULL), gm_string_free(NULL);
    printf("%d calls\n", calls);
    return wrong > 0;
}
