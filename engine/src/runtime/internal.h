/* Internal to engine/src: the structs behind the handles, error messages, the thread pool, and the tables of kernels.
 */
#ifndef VME_INTERNAL_H
#define VME_INTERNAL_H

#include <stdatomic.h>

#include "vme.h"

/* ---- status.c */
enum { VME_MESSAGE_SIZE = 320 };
/* Stores the message for vme_message() and returns `status`, so that `return vme_fail(...)` is one line. */
vme_status vme_fail(vme_status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

/* ---- context.c: an account outlives its context until the last buffer charged to it is freed */
struct vme_context {
    atomic_int refs; /* one of the caller, and one for each live buffer charged to it */
    atomic_bool stopped;
    unsigned flags;
    vme_account account;
    atomic_llong live, peak, buffers, operators, stops, refused;
    atomic_ullong helper_ns;
    _Atomic(const char *) doing; /* what vme_context_doing reports, for the thread `doer` */
    _Atomic uintptr_t doer;
    atomic_uint events;  /* counts stops and ends of foreign work; threads that wait for either sleep on it (foreign.c)
                          */
    bool ended;          /* this field and the next one: under the lock of buffer.c */
    vme_buffer *crossed; /* buffers charged to it that were passed to other contexts, so may outlive it */
};
/* Counts one event and wakes the waiting threads. Async-signal-safe. */
void vme_context_event(vme_context *context);
/* The caller calls vme_context_note_peak once it has the memory, or releases the charge if it does not get it. */
vme_status vme_context_charge(vme_context *context, size_t bytes);
void vme_context_note_peak(vme_context *context);
void vme_context_release(vme_context *context, size_t bytes);
/* Charges memory that another context has paid for; see vme_account. */
bool vme_context_inherit(vme_context *context, size_t bytes, bool forced);
/* Scratch memory of one operator, charged like a buffer, 64-byte aligned. NULL, with the message stored: refused. */
void *vme_scratch_new(vme_context *context, size_t bytes);
void vme_scratch_free(vme_context *context, void *scratch, size_t bytes);

static inline bool vme_stopping(const vme_context *context)
{
    return __builtin_expect(atomic_load_explicit(&context->stopped, memory_order_relaxed), 0);
}
/* Counts the stop and returns VME_STOPPED. */
vme_status vme_stopped_here(vme_context *context);

/* ---- subnormals: a context may want them flushed to zero while it computes. VME_FLUSHING(context) at the start of a
 * block sets the thread's mode until the block ends. */
#ifdef __x86_64__
#define VME_FLUSH_BITS 0x8040u /* FTZ and DAZ */
static inline unsigned vme_flush_begin(unsigned flags)
{
    if (__builtin_expect(!(flags & VME_FLUSH_SUBNORMALS), 1))
        return 0;
    unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before | VME_FLUSH_BITS);
    return VME_FLUSH_BITS & ~before;
}
static inline void vme_flush_end(const unsigned *changed)
{
    if (__builtin_expect(*changed != 0, 0))
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() & ~*changed);
}
#define VME_FLUSHING_IF(flags) \
    __attribute__((cleanup(vme_flush_end), unused)) const unsigned vme_flush_changed = vme_flush_begin(flags)
#else
#define VME_FLUSHING_IF(flags) (void)(flags)
#endif
#define VME_FLUSHING(context) VME_FLUSHING_IF((context)->flags)

/* ---- pool.c */
/* Runs body(argument, begin, end) over [0, count) in pieces of at most `grain`, on this thread and, while cores are
 * free, on helpers. A failed piece stops the rest, and the caller gets the status and message of the lowest piece that
 * failed. The stop flag is checked between pieces, so a piece should take well under a millisecond. Results must not
 * depend on which pieces run at the same time. The body may use 16 KiB of stack and must not call this function. */
typedef vme_status vme_body(void *argument, int64_t begin, int64_t end);
vme_status vme_parallel(vme_context *context, int64_t count, int64_t grain, vme_body *body, void *argument);
/* The same in any order. Each thread starts with its own part of the range, so that in consecutive jobs it finds its
 * results in its own cache. If several pieces fail, the caller gets one of their errors. */
vme_status vme_parallel_apart(vme_context *context, int64_t count, int64_t grain, vme_body *body, void *argument);
/* The maximum number of threads of a job of the calling thread. */
int vme_parallel_threads(void);
/* The calling thread's options for the operators that it calls, in addition to those of their contexts. */
typedef struct vme_thread_options {
    int threads;                       /* maximum threads of an operator; 0: all */
    unsigned flags;                    /* as a context's: VME_FLUSH_SUBNORMALS */
    const struct vme_kernels *kernels; /* NULL: those of the process's backend */
} vme_thread_options;
vme_thread_options vme_thread_options_set(vme_thread_options options); /* returns the previous options */
/* The options of the calling thread. Every operator reads them: initial-exec saves a call, for a few bytes of the
 * static TLS that the system reserves for libraries opened late. */
extern _Thread_local vme_thread_options vme_thread_options_now __attribute__((tls_model("initial-exec")));

/* Pause instruction for spin loops. */
static inline void vme_relax(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* ---- tensor.c */
static inline int64_t vme_elements(const vme_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->rank; i++)
        count *= tensor->shape[i];
    return count;
}
bool vme_is_contiguous(const vme_tensor *tensor);
/* First and one past the last byte that the view touches; equal when it has no elements. */
void vme_extent(const vme_tensor *tensor, const char **begin, const char **end);
bool vme_overlap(const vme_tensor *a, const vme_tensor *b);
/* Whether both views have exactly the same elements at the same addresses. */
bool vme_same_view(const vme_tensor *a, const vme_tensor *b);
/* VME_READ_ONLY, with a message, unless the tensor may be written. */
vme_status vme_check_output(const vme_tensor *out);
/* VME_BAD_SHAPE unless `in` broadcasts to the shape of `out`; writes the strides for that (0 in repeated dimensions).
 */
vme_status vme_broadcast_strides(const vme_tensor *in, const vme_tensor *out, int64_t strides[VME_RANK_MAX]);

/* ---- types.c: the dtype of an operator's result when it computes in `loop` */
vme_dtype vme_unary_result(vme_unary_op op, vme_dtype loop);
vme_dtype vme_binary_result(vme_binary_op op, vme_dtype loop);

/* ---- backends: one table of kernels each. Kernels know nothing of contexts, threads or shapes: they walk n elements.
 * A kernel that is NULL in a faster backend is taken from the portable one at process start. */
typedef void vme_loop1(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step);
typedef void vme_loop2(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out,
                       int64_t out_step);
typedef void vme_loop3(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, const char *c,
                       int64_t c_step, char *out, int64_t out_step);
/* Folds n elements into *accumulator (its type: reduce.h). */
typedef void vme_fold(int64_t n, const char *in, int64_t in_step, void *accumulator);
/* accumulators[i] = accumulators[i] op in[row][i] for each row: the reduction over an outer dimension. */
typedef void vme_fold_rows(int64_t rows, int64_t n, const char *in, int64_t in_row, int64_t in_step,
                           void *accumulators);
/* One tile of a matrix product: c[i][j] (+)= sum over p of a[i][p] * b[p][j] for i < rows, j < columns. All steps are
 * in bytes; the columns of b and of c are contiguous. No alignment is required. */
typedef struct vme_gemm_tile {
    int64_t k;
    const char *a, *b;
    char *c;
    int64_t a_row, a_column, b_row, c_row;
    int64_t ahead;     /* distance in bytes to the part of b that is read soon */
    int rows, columns; /* 1 to the kernel's maximum */
    bool accumulate;   /* add to c; otherwise c is overwritten and may be uninitialized */
    bool far;          /* c is not in L1 or L2 */
} vme_gemm_tile;
typedef struct vme_bounds {
    float low, high;
} vme_bounds; /* values are clamped to them; NaN stays */
/* Options of a tile of a model's layer; its a has contiguous columns, its b is a packed sliver. The weights are read
 * once, from distant memory, so the next tiles' weights are prefetched. */
typedef struct vme_gemm_layer {
    int64_t runs,
        a_run;  /* the sum consists of `runs` runs of k elements; runs are a_run apart in a and consecutive in b */
    bool apart; /* each run is summed separately and then added to c, which is more exact for long sums */
    const char *coming;  /* prefetched into L2 while this tile runs: coming_step bytes for each step of k */
    int64_t coming_step; /* 0: no prefetch, and `coming` is any address */
    const float *bias;  /* one for each column of a whole tile; added like the addend, then bounds apply. NULL: no bias,
                         * addend or bounds */
    const char *addend; /* NULL: none */
    int64_t addend_row;
    vme_bounds bounds;
} vme_gemm_layer;
typedef struct vme_gemm_kernel {
    void (*tile)(const vme_gemm_tile *tile);
    void (*layer_tile)(const vme_gemm_tile *tile, const vme_gemm_layer *layer); /* float32 only; else NULL */
    int rows, columns;                                                          /* maximum of a tile */
    int64_t work;    /* multiply-adds between two checks of the stop flag: well under a millisecond */
    int packed_rows; /* elements between steps of a packed a, whose rows are contiguous */
    /* Packing, or NULL: packed_rows (16 or 8) rows of a with contiguous columns; `count` slivers of `columns` of b with
     * contiguous rows. */
    void (*pack_a)(int64_t k, const char *a, int64_t a_row, char *out);
    void (*pack_b)(int64_t k, int64_t count, const char *b, int64_t b_row, char *out, int64_t out_sliver);
    /* A matrix times up to 4 vectors, or NULL: out[i * out_row + v * out_vector] = sum over p of a[i][p] * x[v][p]; the
     * rows of a and of x are contiguous. */
    void (*dots)(int64_t rows, int vectors, int64_t k, const char *a, int64_t a_row, const char *x, int64_t x_row,
                 char *out, int64_t out_row, int64_t out_vector);
    /* A vector times a matrix, NULL if dots is NULL: out[j] (+)= sum over p of x[p * x_step] * b[p][j]. */
    void (*sums)(int64_t k, int64_t columns, const char *x, int64_t x_step, const char *b, int64_t b_row, char *out,
                 bool accumulate);
} vme_gemm_kernel;
/* Copies a rows x columns block of elements of one size; steps in bytes. */
typedef void vme_move2(int64_t rows, int64_t columns, const char *in, int64_t in_row, int64_t in_column, char *out,
                       int64_t out_row, int64_t out_column);

typedef struct vme_elementwise_kernels {
    vme_loop1 *unary[VME_UNARY_COUNT][VME_DTYPE_COUNT]; /* by the dtype it computes in; the result's dtype: types.c */
    vme_loop2 *binary[VME_BINARY_COUNT][VME_DTYPE_COUNT];
    vme_loop1 *cast[VME_DTYPE_COUNT][VME_DTYPE_COUNT]; /* [from][to] */
    vme_loop2 *compare_mixed[6];                       /* int64 with uint64: from VME_EQUAL to VME_GREATER_EQUAL */
    vme_loop3 *choose[5];                              /* out = a ? b : c, by log2 of the element's size; a is bool */
} vme_elementwise_kernels;
typedef struct vme_reduce_kernels {
    vme_fold *fold[VME_REDUCE_COUNT][VME_DTYPE_COUNT];
    vme_fold_rows *rows[VME_REDUCE_COUNT][VME_DTYPE_COUNT];
} vme_reduce_kernels;
typedef struct vme_gemm_kernels {
    vme_gemm_kernel of[VME_DTYPE_COUNT]; /* bool, integers, float32, float64; other dtypes are converted to the last two
                                          */
} vme_gemm_kernels;
typedef struct vme_move_kernels {
    /* both indexed by log2 of the element size: 1, 2, 4, 8, 16 bytes */
    vme_move2 *transpose[5]; /* the input is contiguous along rows (in_row is the element size), the output along
                              * columns */
    vme_loop1 *strided[5];
    /* memcpy that bypasses the caches, for copies too large for them. */
    void (*stream)(int64_t bytes, const char *in, char *out);
} vme_move_kernels;

/* Sorting; NULL: sort.c has portable loops. Elements become signed keys in NumPy's order, NaN as the largest
 * (`zeros_equal`: -0.0 and 0.0 get the same key), also in place: [0] 32-bit keys, for 16- and 32-bit elements; [1]
 * 64-bit keys. */
typedef struct vme_order_kernels {
    void (*keys[2])(vme_dtype dtype, int64_t n, const char *in, int64_t step, bool descending, bool zeros_equal,
                    void *keys);
    void (*elements[2])(vme_dtype dtype, int64_t n, void *keys, bool descending, char *out,
                        int64_t step); /* overwrites the keys */
    /* False: the context was stopped. */
    bool (*sort[2])(const vme_context *context, int64_t n, void *keys);
    bool (*select[2])(const vme_context *context, int64_t n, void *keys,
                      int64_t kth); /* afterwards the kth key is at its sorted position, all lower ones before it */
    /* For argsort: 64-bit keys of any but complex elements, -0.0 equal to 0.0. range[0] is the minimum, [1] the
     * maximum, [2] the bits in which any key differs from *first. */
    void (*index_keys)(vme_dtype dtype, int64_t n, const char *in, int64_t step, bool descending, const int64_t *first,
                       int64_t *keys, int64_t range[3]);
    /* words[i] = (keys[i] - lowest) >> lost, followed by index_bits bits of the index begin + i; as a signed number */
    void (*index_words)(int64_t n, const int64_t *keys, int64_t lowest, int lost, int index_bits, int64_t begin,
                        int64_t *words);
    void (*indices)(int64_t n, const int64_t *words, int index_bits, int64_t *indices);
    /* For each value the number of the `count` (at least 1) ascending keys that are below it (`right`: not above it).
     */
    void (*search)(int64_t n, const int64_t *values, int64_t count, const int64_t *keys, bool right, int64_t *indices);
    /* Partitions more than VME_PART_MIN keys: the first *low keys are not above the others; *alike: those are all
     * equal. False: stopped. */
    bool (*part[2])(const vme_context *context, int64_t n, void *keys, int64_t *low, bool *alike);
} vme_order_kernels;
enum { VME_PART_MIN = 256 };

typedef struct vme_bits_kernels {
    void (*split[2])(int64_t n, const char *in, char *mantissas, char *exponents); /* of float32, of float64 */
    void (*parts[2])(int64_t n, const char *in, char *fractions, char *wholes);
    /* Whole bytes: eight booleans each, the first one in the highest bit (`big`) or the lowest; and back. */
    void (*pack)(int64_t bytes, bool big, const uint8_t *truths, uint8_t *out);
    void (*unpack)(int64_t bytes, bool big, const uint8_t *in, uint8_t *truths);
} vme_bits_kernels;

/* Philox; NULL: random.c has a portable loop. Computes the words of the 16 blocks after `counter` (whose first word is
 * at most 2^64 - 17). */
typedef struct vme_random_kernels {
    void (*blocks)(const uint64_t key[2], const uint64_t counter[4], uint64_t words[64]);
} vme_random_kernels;

/* Rows of models' values: float32, with contiguous channels. Distances are in elements. */
/* A row of outputs, where each channel is a sum over a window of the same channel. */
typedef struct vme_depthwise {
    int64_t channels, outputs, kernel_h, kernel_w;
    const float *in;                      /* the first element under the first output's window */
    int64_t in_row, in_column, in_stride; /* between rows and columns of a window, and between windows */
    const float *weights, *bias;          /* [kernel_h][kernel_w][channels], [channels] */
    const float *addend;                  /* NULL: none */
    float *out;
    int64_t addend_pixel, out_pixel;
    vme_bounds bounds;
} vme_depthwise;

/* Pools the pixels of a window, at least one, into one pixel. */
typedef struct vme_pooling {
    int64_t channels, rows, columns, row_step, column_step;
    const float *in;
    float *out;
    float factor; /* of sums */
    bool more;    /* sums: adds to the contents of `out` */
} vme_pooling;

typedef struct vme_model_kernels {
    void (*add)(int64_t n, const float *a, const float *b, float *out, vme_bounds bounds);
    void (*clip)(int64_t n, const float *in, float *out, vme_bounds bounds);
    void (*depthwise)(const vme_depthwise *row);
    void (*largest)(const vme_pooling *window);
    void (*sum)(const vme_pooling *window);                                    /* times `factor` */
    void (*interleave)(int64_t n, const float *a, const float *b, float *out); /* a[0], b[0], a[1], b[1] ... */
    /* out[i] = sum over taps of weights[t] * rows[t][i] */
    void (*blend_rows)(int taps, int64_t n, const float *const *rows, const float *weights, float *out);
    /* out[i] = sum over taps of weights[t][i] * in[places[t][i]]; the n places and weights of consecutive taps are
     * `next` apart */
    void (*blend_places)(int taps, int64_t n, const float *in, const int32_t *places, const float *weights,
                         int64_t next, float *out);
} vme_model_kernels;

/* Winograd's algorithm for 3x3 windows at stride 1: a square of m x m outputs by (m + 2)^2 products. See
 * kernels/winograd.h. */
#define VME_WINOGRAD_A 0.75f
#define VME_WINOGRAD_B 1.5f
enum { VME_WINOGRAD_2, VME_WINOGRAD_4, VME_WINOGRADS };
/* Distances are in elements. Channels are contiguous; the rows of `points` for one square are `point` apart. */
typedef struct vme_winograd_square {
    int rows, columns; /* the pixels of the window or square that exist: others are read as 0, and not written */
    bool relu;
    int64_t channels;
    float *image; /* its first pixel */
    int64_t image_row, image_pixel;
    float *points;
    int64_t point;
    const float *bias, *addend; /* added to outputs; addend may be NULL */
    int64_t addend_row, addend_pixel;
} vme_winograd_square;
typedef struct vme_winograd_kernels {
    struct vme_winograd_kernel {
        void (*in)(const vme_winograd_square *square);  /* image to points */
        void (*out)(const vme_winograd_square *square); /* points to image */
    } of[VME_WINOGRADS];
} vme_winograd_kernels;

typedef struct vme_backend {
    const char *name;
    bool (*available)(void);
    const vme_elementwise_kernels *const *elementwise; /* in groups, one for each file, ended by NULL */
    const vme_reduce_kernels *reduce;
    const vme_gemm_kernels *gemm;
    const vme_move_kernels *move;
    const vme_order_kernels *order;
    const vme_bits_kernels *bits;
    const vme_random_kernels *random;
    const vme_model_kernels *model;
    const vme_winograd_kernels *winograd;
    const struct model_row_kernels *rows;            /* models/row_kernels.h */
    const struct embedding_row_kernels *embedding;   /* embedding/row_kernels.h */
    const struct model_quantized_kernels *quantized; /* models/quantized_kernels.h */
    const struct model_narrow_kernels *narrow;       /* models/narrow_kernels.h */
    const struct image_kernels *images;              /* operators/image_kernels.h */
} vme_backend;

/* The kernels in use: those of the current backend, with missing ones from slower backends. Read once in each operator.
 */
typedef struct vme_kernels {
    vme_elementwise_kernels elementwise;
    vme_reduce_kernels reduce;
    vme_gemm_kernels gemm;
    vme_move_kernels move;
    vme_order_kernels order;
    vme_bits_kernels bits;
    vme_random_kernels random;
    vme_model_kernels model;
    vme_winograd_kernels winograd;
    const struct model_row_kernels *rows;
    const struct embedding_row_kernels *embedding;
    const struct model_quantized_kernels *quantized;
    const struct model_narrow_kernels *narrow;
    const struct image_kernels *images;
} vme_kernels;
const vme_kernels *vme_kernels_current(void); /* or those of the calling thread's options */
enum { VME_BACKENDS_MAX = 4 };
const vme_kernels *vme_kernels_of(int backend);
bool vme_backend_forced(void); /* false: the fastest one was chosen */

/* Defined in the backends' folders: src/portable, src/avx2, src/avx512, generated from src/kernels/. */
/* clang-format off */
extern const vme_elementwise_kernels *const vme_elementwise_portable[], *const vme_elementwise_avx2[],
    *const vme_elementwise_avx512[];
/* clang-format on */
extern const vme_reduce_kernels vme_reduce_portable, vme_reduce_avx2, vme_reduce_avx512;
extern const vme_gemm_kernels vme_gemm_portable, vme_gemm_avx2, vme_gemm_avx512;
extern const vme_move_kernels vme_move_portable, vme_move_avx2, vme_move_avx512;
extern const vme_order_kernels vme_order_avx2, vme_order_avx512;
extern const vme_bits_kernels vme_bits_portable, vme_bits_avx2, vme_bits_avx512;
extern const vme_random_kernels vme_random_avx512;
extern const vme_model_kernels vme_model_portable, vme_model_avx2, vme_model_avx512;
extern const vme_winograd_kernels vme_winograd_portable, vme_winograd_avx2, vme_winograd_avx512;
extern const struct model_row_kernels model_rows_portable, model_rows_avx2, model_rows_avx512;
extern const struct embedding_row_kernels embedding_rows_portable, embedding_rows_avx2, embedding_rows_avx512;
extern const struct model_quantized_kernels model_quantized_portable, model_quantized_avx2, model_quantized_avx512;
extern const struct model_narrow_kernels model_narrow_portable, model_narrow_avx2, model_narrow_avx512;
extern const struct image_kernels images_portable, images_avx2, images_avx512;

#endif
