// gristmill for C and C++: low-bit matrix products. Made by cbindgen of bindings/c/src; do not edit.
//
// Handles are made and freed by this library. A handle that was freed must not be used again. Unless a function says
// otherwise, handles may be shared by threads, and a NULL pointer or a wrong length is an error, never a crash. Layers are
// strict: without a kernel they are an error that says why, and nothing else runs instead. No environment variable is read but
// GRISTMILL_QUARANTINE, the folder of kernels that a program ended in before.

#ifndef GRISTMILL_H
#define GRISTMILL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Version of this interface: raised whenever a function, a type or a status of an existing program would change. A program
// compares it with `gm_abi_version()` of the library that it runs with.
#define GM_ABI_VERSION 1

// What a function says of its success.
typedef enum gm_status {
  // It did what was asked.
  GM_OK = 0,
  // A pointer is null, misaligned or overlaps another, a text is not UTF-8, or something was asked for that can't be.
  GM_INVALID_ARGUMENT = 1,
  // No format, device, quantizer or tensor is called that.
  GM_UNKNOWN_NAME = 2,
  // No kernel of this build does it here; the message has the reason for each.
  GM_NO_KERNEL = 3,
  // Lengths and shapes contradict each other, or a shape is impossible.
  GM_SHAPE = 4,
  // The values are the error: not finite, too large for the format, or codes that mean nothing.
  GM_DATA = 5,
  // The system has no more memory.
  GM_MEMORY = 6,
  // Threads could not be started.
  GM_THREADS = 7,
  // A file can't be read, or what stands in it is wrong.
  GM_FILE = 8,
  // The device reports an error.
  GM_DEVICE = 9,
  // The workspace is in use by another call.
  GM_BUSY = 10,
  // An error in gristmill: please report the message.
  GM_INTERNAL = 11,
} gm_status;

// How layers go on where a kernel or their device fails, and which kernels are not to be used any more: one for all layers of a program. May be
// used by several threads at a time.
typedef struct gm_guard gm_guard;

// A layer: `y = x w^T + bias` with quantized weights `w`, `n` rows of `k`. May be used by several threads at a time, each with
// a workspace of its own.
typedef struct gm_linear gm_linear;

// A GGUF file. Its header is in memory; a tensor is read when a layer is made of it.
typedef struct gm_model gm_model;

// Threads that products are divided among. May be shared by all threads of a program; a child of fork() works alone with them.
typedef struct gm_threads gm_threads;

// Memory that products need besides their operands; it grows as they need it. One call at a time may use it.
typedef struct gm_workspace gm_workspace;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the interface that the library was built with.
uint32_t gm_abi_version(void);

// The version of gristmill, such as "0.1.0". The library owns the text.
const char *gm_version(void);

// Quantizes `n` rows of `k` values, row after row: `values_len` is n * k, `blocks_len` what `gm_format_bytes` says.
// `quantizer` is one of the format's, its first where NULL. After an error `blocks` holds nothing of use. One thread.
//
// # Safety
// Texts are NULL or texts; the buffers have the lengths that are said.
enum gm_status gm_quantize(const char *format,
                           const char *quantizer,
                           size_t n,
                           size_t k,
                           const float *values,
                           size_t values_len,
                           uint8_t *blocks,
                           size_t blocks_len);

// Quantizes `n` rows of `k` values, row after row: `values_len` is n * k, `blocks_len` what `gm_format_bytes` says.
// `quantizer` is one of the format's, its first where NULL. After an error `blocks` holds nothing of use. The bytes are the same
// for any `threads`; NULL is the calling one alone.
//
// # Safety
// Texts are NULL or texts, `threads` is NULL or a handle; the buffers have the lengths that are said.
enum gm_status gm_quantize_on(const char *format,
                              const char *quantizer,
                              size_t n,
                              size_t k,
                              const float *values,
                              size_t values_len,
                              uint8_t *blocks,
                              size_t blocks_len,
                              const struct gm_threads *threads);

// The values of `rows` rows from `first_row` on of a tensor of `n` rows of `k` weights: `values_len` is rows * k. One thread.
//
// # Safety
// `format` is NULL or a text; the buffers have the lengths that are said.
enum gm_status gm_dequantize(const char *format,
                             size_t n,
                             size_t k,
                             const uint8_t *blocks,
                             size_t blocks_len,
                             size_t first_row,
                             size_t rows,
                             float *values,
                             size_t values_len);

// The values of `rows` rows from `first_row` on of a tensor of `n` rows of `k` weights: `values_len` is rows * k.
// They are the same for any `threads`; NULL is the calling one alone.
//
// # Safety
// `format` is NULL or a text, `threads` NULL or a handle; the buffers have the lengths that are said.
enum gm_status gm_dequantize_on(const char *format,
                                size_t n,
                                size_t k,
                                const uint8_t *blocks,
                                size_t blocks_len,
                                size_t first_row,
                                size_t rows,
                                float *values,
                                size_t values_len,
                                const struct gm_threads *threads);

// Says what went wrong in the last call of this thread that returned another status than GM_OK; empty if none did. The
// library owns the text, which stays until the next such call of this thread. It may have several lines.
const char *gm_last_error(void);

// A guard: one run of `check_every` of a layer is compared with the portable kernel, in one output; where a device fails its layers move to the
// processor if `to_processor`, and one run of `return_every` tries the device again. 0 is never. Without `to_processor` the errors of a device
// for which no other step helps are the caller's. GRISTMILL_QUARANTINE in the environment names a folder that keeps the kernels.
//
// # Safety
// `guard` is NULL or writable.
enum gm_status gm_guard_new(uint64_t check_every,
                            bool to_processor,
                            uint64_t return_every,
                            struct gm_guard **guard);

// Frees a guard; its layers stay guarded. NULL is left alone.
//
// # Safety
// A handle of `gm_guard_new` that no other call uses, now or later.
void gm_guard_free(struct gm_guard *guard);

// Puts the kernel of this name into quarantine, for the reason `why`: layers under the guard do without it from their next run on.
//
// # Safety
// `guard` is NULL or a handle, `kernel` and `why` NULL or texts.
enum gm_status gm_guard_forbid(const struct gm_guard *guard,
                               const char *kernel,
                               const char *why);

// The kernels in quarantine, as a JSON array of objects with "id", "kernel" (null where its name is not known) and "why".
//
// # Safety
// `guard` is NULL or a handle; `text` is NULL or writable.
enum gm_status gm_guard_quarantined_json(const struct gm_guard *guard, char **text);

// Makes a layer of the bytes of a format: `n` rows of `k` weights. The bytes are packed for the kernels that were chosen
// and not needed afterwards. `device` is "cpu" (where NULL), "cuda:0" and so on; `threads` pack (the calling one where
// NULL). Strict: without a kernel it is an error, and nothing else runs instead.
//
// # Safety
// Texts are NULL or texts; `blocks` has the length that is said; `threads` is NULL or a handle; `layer` is NULL or writable.
enum gm_status gm_linear_new(const char *format,
                             size_t n,
                             size_t k,
                             const uint8_t *blocks,
                             size_t blocks_len,
                             const char *device,
                             const struct gm_threads *threads,
                             struct gm_linear **layer);

// As `gm_linear_new`, of a layer that goes on as `guard` says where a kernel or its device fails. It keeps a copy of the bytes.
//
// # Safety
// As for `gm_linear_new`; `guard` is NULL or a handle.
enum gm_status gm_linear_new_guarded(const char *format,
                                     size_t n,
                                     size_t k,
                                     const uint8_t *blocks,
                                     size_t blocks_len,
                                     const char *device,
                                     const struct gm_guard *guard,
                                     const struct gm_threads *threads,
                                     struct gm_linear **layer);

// Frees a layer. NULL is left alone.
//
// # Safety
// A handle of a layer that no other call uses, now or later.
void gm_linear_free(struct gm_linear *layer);

// Outputs of a layer; 0 for NULL.
//
// # Safety
// NULL or a handle.
size_t gm_linear_n(const struct gm_linear *layer);

// Inputs of a layer; 0 for NULL.
//
// # Safety
// NULL or a handle.
size_t gm_linear_k(const struct gm_linear *layer);

// Bytes that a layer holds for its weights; 0 for NULL.
//
// # Safety
// NULL or a handle.
size_t gm_linear_weight_bytes(const struct gm_linear *layer);

// Bytes that a guard keeps for a layer besides; 0 without a guard and for NULL.
//
// # Safety
// NULL or a handle.
size_t gm_linear_kept_bytes(const struct gm_linear *layer);

// Computes `m` rows of `n` outputs from `m` rows of `k` inputs: `x_len` is m * k, `y_len` is m * n. `bias` is NULL or has
// `n` values. The workspace grows to what this layer and `m` need; `threads` is NULL for the calling thread alone. After an
// error `y` holds nothing of use.
//
// # Safety
// Handles are NULL or handles; the buffers have the lengths that are said, and `y` is used by nobody else.
enum gm_status gm_linear_forward(const struct gm_linear *layer,
                                 const float *x,
                                 size_t x_len,
                                 size_t m,
                                 const float *bias,
                                 float *y,
                                 size_t y_len,
                                 const struct gm_workspace *workspace,
                                 const struct gm_threads *threads);

// Which kernels ran for a layer since it was made, as JSON (a receipt of gristmill: "kernels" with "id", "name", "launches"), and
// what was done, if one failed ("recoveries").
//
// # Safety
// `layer` is NULL or a handle; `text` is NULL or writable.
enum gm_status gm_linear_receipt(const struct gm_linear *layer,
                                 char **text);

// Opens a file. `path` is UTF-8.
//
// # Safety
// `path` is NULL or a text; `model` is NULL or writable.
enum gm_status gm_model_open(const char *path, struct gm_model **model);

// Closes a file; layers that were made of it stay. NULL is left alone.
//
// # Safety
// A handle of `gm_model_open` that no other call uses, now or later.
void gm_model_free(struct gm_model *model);

// A decision for each tensor of the file and products of `m` tokens, before anything is loaded, as a JSON array of objects
// with "tensor", "type", "dims", "quantized", "kernel" (null where there is none) and "reason".
//
// # Safety
// `model` is NULL or a handle, `device` NULL or a text, `text` NULL or writable.
enum gm_status gm_model_plan(const struct gm_model *model, size_t m, const char *device, char **text);

// Makes the layer of a quantized matrix of the file: reads it, chooses kernels and packs the weights for them. As
// `gm_linear_new` otherwise.
//
// # Safety
// Handles are NULL or handles, texts NULL or texts, `layer` NULL or writable.
enum gm_status gm_model_linear(const struct gm_model *model,
                               const char *tensor,
                               const char *device,
                               const struct gm_threads *threads,
                               struct gm_linear **layer);

// As `gm_model_linear`, of a layer that goes on as `guard` says where a kernel or its device fails. It keeps the bytes of the matrix; the
// model may be freed before it.
//
// # Safety
// As for `gm_model_linear`; `guard` is NULL or a handle.
enum gm_status gm_model_linear_guarded(const struct gm_model *model,
                                       const char *tensor,
                                       const char *device,
                                       const struct gm_guard *guard,
                                       const struct gm_threads *threads,
                                       struct gm_linear **layer);

// Frees a text that a function of this library gave. NULL is left alone.
//
// # Safety
// A text of this library that is not used any more.
void gm_string_free(char *text);

// The formats of this build, as a JSON array of objects with "name", "elements" and "bytes" of a block, "quantizers" and more.
//
// # Safety
// `text` is NULL or writable.
enum gm_status gm_formats_json(char **text);

// The kernels of this build (with NULL), or those of a format, as a JSON array of objects with "name", "op", "format", "isa",
// "runs_here", "shape" and more.
//
// # Safety
// `format` is NULL or a text; `text` is NULL or writable.
enum gm_status gm_kernels_json(const char *format,
                               char **text);

// Bytes of a tensor of `n` rows of `k` weights in a format.
//
// # Safety
// `format` is NULL or a text; `bytes` is NULL or writable.
enum gm_status gm_format_bytes(const char *format, size_t n, size_t k, size_t *bytes);

// The name of the kernel that serves a request. Without one the status is GM_NO_KERNEL and the message says why.
//
// `op` is the name of an op ("matmul"; a wrong one is answered with all of them); `input` the type of the operand that is
// not packed ("f32" where NULL); `device` "cpu" (where NULL), "cuda:0" and so on.
//
// # Safety
// Texts are NULL or texts; `kernel` is NULL or writable.
enum gm_status gm_decide(const char *op,
                         const char *format,
                         const char *input,
                         const char *device,
                         size_t m,
                         size_t n,
                         size_t k,
                         char **kernel);

// Which kernel serves a request and why not the others, as text for people. That there is none is an answer too: GM_OK.
//
// # Safety
// As for `gm_decide`.
enum gm_status gm_explain(const char *op,
                          const char *format,
                          const char *input,
                          const char *device,
                          size_t m,
                          size_t n,
                          size_t k,
                          char **text);

// The same as one JSON object: "chosen" (null where there is none), "plan", "memory", and "rejected" as an array of
// {"kernel", "reason", "help"}.
//
// # Safety
// As for `gm_decide`.
enum gm_status gm_explain_json(const char *op,
                               const char *format,
                               const char *input,
                               const char *device,
                               size_t m,
                               size_t n,
                               size_t k,
                               char **text);

// Starts threads: `count` of them work on a product, the calling one included.
//
// # Safety
// `threads` is NULL or writable.
enum gm_status gm_threads_new(size_t count, struct gm_threads **threads);

// Ends the threads. NULL is left alone.
//
// # Safety
// A handle of `gm_threads_new` that no other call uses, now or later.
void gm_threads_free(struct gm_threads *threads);

// An empty workspace.
//
// # Safety
// `workspace` is NULL or writable.
enum gm_status gm_workspace_new(struct gm_workspace **workspace);

// Frees a workspace. NULL is left alone.
//
// # Safety
// A handle of `gm_workspace_new` that no other call uses, now or later.
void gm_workspace_free(struct gm_workspace *workspace);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GRISTMILL_H */
