// Handles that are freed in an order of their own, and a process that ends while threads compute and nothing is freed: by the
// end of main, by exit() on another thread, and in a child of fork(). The argument is a GGUF file with a matrix of i2_s.
#include <gristmill.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define TRY(call) do { if ((call) != GM_OK) { fprintf(stderr, "line %d: %s\n", __LINE__, gm_last_error()); exit(2); } } while (0)

enum { K = 256, M = 64, N = 512, BYTES = N * K / 4 + 32 };
static gm_linear *layer;
static gm_threads *threads;
static float x[M * K], w[N * K], y[M * N], expected[M * N];
static uint8_t blocks[BYTES];
static atomic_int running, told;

static void *computes(void *end) {
    gm_workspace *own;
    TRY(gm_workspace_new(&own));
    for (int i = 0; !end || i < 20; i++) {
        TRY(gm_linear_forward(layer, x, M * K, M, NULL, y, M * N, own, threads));
        running = 1;
    }
    gm_workspace_free(own);
    while (!told) usleep(100);
    exit(0);
}

// The model goes before its layer, threads before a layer that they packed, a workspace before a layer that used it.
static void freed_in_another_order(const char *path) {
    gm_model *model;
    gm_workspace *workspace;
    float before[8], after[8];
    TRY(gm_threads_new(3, &threads));
    TRY(gm_model_open(path, &model));
    TRY(gm_model_linear(model, "blk.0.attn_q.weight", NULL, threads, &layer));
    if (gm_linear_n(layer) != 8 || gm_linear_k(layer) != K) exit(3);
    TRY(gm_workspace_new(&workspace));
    TRY(gm_linear_forward(layer, x, K, 1, NULL, before, 8, workspace, threads));
    gm_model_free(model), gm_threads_free(threads), gm_workspace_free(workspace);
    TRY(gm_workspace_new(&workspace));
    TRY(gm_linear_forward(layer, x, K, 1, NULL, after, 8, workspace, NULL));
    if (memcmp(before, after, sizeof before)) exit(4);
    gm_linear_free(layer);

    // The guard and the model go before their layer.
    gm_guard *guard;
    TRY(gm_guard_new(1, true, 10, &guard));
    TRY(gm_model_open(path, &model));
    TRY(gm_model_linear_guarded(model, "blk.0.attn_q.weight", NULL, guard, NULL, &layer));
    gm_model_free(model), gm_guard_free(guard);
    memset(after, 0, sizeof after);
    TRY(gm_linear_forward(layer, x, K, 1, NULL, after, 8, workspace, NULL));
    if (memcmp(before, after, sizeof before)) exit(8);
    gm_workspace_free(workspace), gm_linear_free(layer);
}

int main(int count, char **arguments) {
    if (count != 3) return 1;
    for (int i = 0; i < M * K; i++) x[i] = (float)(i % 7) - 3;
    for (int i = 0; i < N * K; i++) w[i] = (float)(i % 3) - 1;
    freed_in_another_order(arguments[1]);

    int exits = !strcmp(arguments[2], "exit"), forks = !strcmp(arguments[2], "fork");
    TRY(gm_quantize("i2_s", NULL, N, K, w, N * K, blocks, BYTES));
    TRY(gm_threads_new(3, &threads));
    TRY(gm_linear_new("i2_s", N, K, blocks, BYTES, NULL, threads, &layer));
    gm_workspace *workspace;
    TRY(gm_workspace_new(&workspace));
    TRY(gm_linear_forward(layer, x, M * K, M, NULL, expected, M * N, workspace, threads));
    gm_workspace_free(workspace);
    pthread_t thread;
    if (pthread_create(&thread, NULL, computes, exits ? &exits : NULL)) return 5;
    while (!running) usleep(100);
    if (forks) {
        // The child has a copy of whatever the threads were in the middle of, and none of them.
        pid_t child = fork();
        if (child == 0) {
            static float own[M * N];
            TRY(gm_workspace_new(&workspace));
            TRY(gm_linear_forward(layer, x, M * K, M, NULL, own, M * N, workspace, threads));
            _exit(memcmp(own, expected, sizeof own) ? 7 : 0);
        }
        int status = 1;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 6;
    }
    printf("ends\n");
    fflush(stdout);
    told = 1;
    if (exits) pthread_join(thread, NULL);
    return 0;
}
