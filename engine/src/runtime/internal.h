/* Internal to engine/src: the structs behind public handles, error messages, the thread pool, the tables of kernels. */
#ifndef VME_INTERNAL_H
#define VME_INTERNAL_H

#include <stdatomic.h>

#include "vme.h"

/* ---- status.c */
enum { VME_MESSAGE_SIZE = 320 };
/* Stores the message for vme_message() and returns `status`, for `return vme_fail(...)`. */
vme_status vme_fail(vme_status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

/* ---- context.c: an account outlives its context until the last buffer charged to it is freed */
struct vme_context {
    atomic_int refs; /* those of callers, and one for each live buffer charged to it */
    atomic_bool stopped;
    unsigned flags;
    uint64_t number; /* from 1, never used again in this process */
    vme_account account;
    atomic_llong live, peak, buffers, operators, stops, refused;
    atomic_ullong helper_ns;
    _Atomic(const char *) doing; /* the name of the operation of the thread `doer` (vme_context_doing) */
    _Atomic uintptr_t doer;
    atomic_uint events;  /* futex; counts stops and ends of foreign work, for which threads wait (foreign.c) */
    bool ended;          /* vme_context_end was called; this and the next field are guarded by the lock of buffer.c */
    vme_buffer *crossed; /* list of the buffers charged to it that were passed to other contexts, and may outlive it */
};
/* Counts one event and wakes the waiting threads. Async-signal-safe. */
void vme_context_event(vme_context *context);
/* Charge before allocating. Then call vme_context_note_peak, or vme_context_release if the allocation failed. */
vme_status vme_context_charge(vme_context *context, size_t bytes);
void vme_context_note_peak(vme_context *context);
void vme_context_release(vme_context *context, size_t bytes);
/* Charges memory that was charged to another context before; see `inherit` of vme_account. */
bool vme_context_inherit(vme_context *context, size_t bytes, bool forced);
static inline char *vme_align(char *address)
{
    return (char *)(((uintptr_t)address + VME_ALIGNMENT - 1) & ~(uintptr_t)(VME_ALIGNMENT - 1));
}
/* Scratch memory of one operator, 64-byte aligned, charged like a buffer. Contents: zeros or what this context left
 * there (blocks.h, pages.h). NULL: refused, the message is stored. */
void *vme_scratch_new(vme_context *context, size_t bytes);
void vme_scratch_free(vme_context *context, void *scratch, size_t bytes);

static inline bool vme_stopping(const vme_context *context)
{
    return __builtin_expect(atomic_load_explicit(&context->stopped, memory_order_relaxed), 0);
}
/* Counts the stop and returns VME_STOPPED. */
vme_status vme_stopped_here(vme_context *context);

/* ---- subnormals: VME_FLUSHING(context) at the start of a block flushes them to zero until the end of the block, if
 * the context has VME_FLUSH_SUBNORMALS. */
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
 * free, on helpers. After a piece has failed, no further ones begin, and the caller gets the status and message of the
 * lowest failed piece. The stop flag is checked between pieces, so a piece should take well under a millisecond.
 * Results must not depend on which pieces run at the same time. The body may use 16 KiB of stack and must not call this
 * function. */
typedef vme_status vme_body(void *argument, int64_t begin, int64_t end);
vme_status vme_parallel(vme_context *context, int64_t count, int64_t grain, vme_body *body, void *argument);
/* The same, with pieces in any order and work stealing: each thread starts with its own part of the range, so that data
 * of consecutive jobs stays in its cache. If several pieces fail, the caller gets the error of one of them. */
vme_status vme_parallel_apart(vme_context *context, int64_t count, int64_t grain, vme_body *body, void *argument);
/* The maximum number of threads of a job that the calling thread starts. */
int vme_parallel_threads(void);
/* Options of a thread for the operators that it calls, in addition to those of the context. */
typedef struct vme_thread_options {
    int threads;                       /* maximum threads of an operator; 0: vme_threads() */
    unsigned flags;                    /* VME_FLUSH_SUBNORMALS, as in a context */
    const struct vme_kernels *kernels; /* NULL: those of the process's backend */
} vme_thread_options;
vme_thread_options vme_thread_options_set(vme_thread_options options); /* returns the previous options */
/* The options of the calling thread. Every operator reads them, so the TLS model is initial-exec, which needs no call.
 * It uses a few bytes of the static TLS that the system reserves for libraries loaded by dlopen. */
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
/* The first byte that the view accesses, and the one after the last; equal if it has no elements. */
void vme_extent(const vme_tensor *tensor, const char **begin, const char **end);
/* Whether the extents overlap; the views may still have no byte in common. */
bool vme_overlap(const vme_tensor *a, const vme_tensor *b);
/* Whether both views have exactly the same elements at the same addresses. */
bool vme_same_view(const vme_tensor *a, const vme_tensor *b);
/* VME_READ_ONLY, with a message, unless the tensor's buffer may be written. */
vme_status vme_check_output(const vme_tensor *out);
/* Writes the strides with which `in` is broadcast to the shape of `out` (0 in repeated dimensions). VME_BAD_SHAPE: it
 * does not broadcast. */
vme_status vme_broadcast_strides(const vme_tensor *in, const vme_tensor *out, int64_t strides[VME_RANK_MAX]);

/* ---- types.c: the dtype of an operator's result when it computes in `loop` */
vme_dtype vme_unary_result(vme_unary_op op, vme_dtype loop);
vme_dtype vme_binary_result(vme_binary_op op, vme_dtype loop);

/* ---- backends: each has tables of kernels. Most kernels process n elements and know nothing of contexts, threads or
 * shapes. Missing (NULL) elementwise, reduce, move and gemm kernels come from the next slower backend (backend.c). */
typedef void vme_loop1(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step);
typedef void vme_loop2(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out,
                       int64_t out_step);
typedef void vme_loop3(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, const char *c,
                       int64_t c_step, char *out, int64_t out_step);
/* Folds n elements into *accumulator (its type: reduce.h). */
typedef void vme_fold(int64_t n, const char *in, int64_t in_step, void *accumulator);
/* Reduces over an outer dimension: accumulators[i] = accumulators[i] op in[row][i] for each row. */
typedef void vme_fold_rows(int64_t rows, int64_t n, const char *in, int64_t in_row, int64_t in_step,
                           void *accumulators);
/* One tile of a matrix product: c[i][j] (+)= sum over p < k of a[i][p] * b[p][j] for i < rows, j < columns. All strides
 * are in bytes; b and c have contiguous columns. No alignment is required. */
typedef struct vme_gemm_tile {
    int64_t k;
    const char *a, *b;
    char *c;
    int64_t a_row, a_column, b_row, c_row;
    int64_t ahead;     /* prefetch distance in b, in bytes */
    int rows, columns; /* 1 to the kernel's maximum */
    bool accumulate;   /* adds to c; otherwise c is overwritten, and may be uninitialized */
    bool far;          /* c is not in L1 or L2 */
} vme_gemm_tile;
typedef struct vme_bounds {
    float low, high;
} vme_bounds; /* results are clamped to these; NaN stays NaN */
/* Options of a tile of a model's layer, whose a has contiguous columns and whose b is a packed sliver of weights.
 * Weights are read once, from memory, so those of the next tiles are prefetched. */
typedef struct vme_gemm_layer {
    int64_t runs,
        a_run;  /* the sum has `runs` runs of k terms each, which are a_run bytes apart in a and consecutive in b */
    bool apart; /* sums each run separately before adding it to c, which is more accurate for long sums */
    const char *coming;  /* prefetched into L2 while this tile is computed: coming_step bytes in each step of k */
    int64_t coming_step; /* 0: no prefetch; `coming` may be any address */
    const float *bias; /* one for each column of a full tile. Bias and addend are added, then results are clamped. NULL:
                        * no bias, addend or bounds */
    const char *addend; /* NULL: none */
    int64_t addend_row;
    vme_bounds bounds;
} vme_gemm_layer;
typedef struct vme_gemm_kernel {
    void (*tile)(const vme_gemm_tile *tile);
    void (*layer_tile)(const vme_gemm_tile *tile, const vme_gemm_layer *layer); /* float32 only; else NULL */
    int rows, columns;                                                          /* maximum size of a tile */
    int64_t work;    /* multiply-adds between two checks of the stop flag, well under a millisecond */
    int packed_rows; /* rows of a packed panel of a, including padding: elements between two steps of k */
    /* NULL: no packing. pack_a packs packed_rows (16 or 8) rows of an a with contiguous columns; pack_b packs `count`
     * slivers of `columns` columns of a b with contiguous rows. */
    void (*pack_a)(int64_t k, const char *a, int64_t a_row, char *out);
    void (*pack_b)(int64_t k, int64_t count, const char *b, int64_t b_row, char *out, int64_t out_sliver);
    /* A matrix times up to 4 vectors: out[i * out_row + v * out_vector] = sum over p of a[i][p] * x[v][p]. Rows of a
     * and of x are contiguous. May be NULL. */
    void (*dots)(int64_t rows, int vectors, int64_t k, const char *a, int64_t a_row, const char *x, int64_t x_row,
                 char *out, int64_t out_row, int64_t out_vector);
    /* A vector times a matrix: out[j] (+)= sum over p of x[p * x_step] * b[p][j]. NULL if `dots` is NULL. */
    void (*sums)(int64_t k, int64_t columns, const char *x, int64_t x_step, const char *b, int64_t b_row, char *out,
                 bool accumulate);
} vme_gemm_kernel;
/* Copies a block of rows x columns elements of one size. Strides are in bytes. */
typedef void vme_move2(int64_t rows, int64_t columns, const char *in, int64_t in_row, int64_t in_column, char *out,
                       int64_t out_row, int64_t out_column);

typedef struct vme_elementwise_kernels {
    vme_loop1 *unary[VME_UNARY_COUNT][VME_DTYPE_COUNT]; /* by the dtype in which it computes; results: types.c */
    vme_loop2 *binary[VME_BINARY_COUNT][VME_DTYPE_COUNT];
    vme_loop1 *cast[VME_DTYPE_COUNT][VME_DTYPE_COUNT]; /* [from][to] */
    vme_loop2 *compare_mixed[6];                       /* int64 with uint64, from VME_EQUAL to VME_GREATER_EQUAL */
    vme_loop3 *choose[5]; /* out = a ? b : c, where a is bool; by log2 of the element size */
} vme_elementwise_kernels;
typedef struct vme_reduce_kernels {
    vme_fold *fold[VME_REDUCE_COUNT][VME_DTYPE_COUNT];
    vme_fold_rows *rows[VME_REDUCE_COUNT][VME_DTYPE_COUNT];
} vme_reduce_kernels;
typedef struct vme_gemm_kernels {
    vme_gemm_kernel of[VME_DTYPE_COUNT]; /* bool, integers, float32, float64; other dtypes use float32 or float64 */
} vme_gemm_kernels;
typedef struct vme_move_kernels {
    /* both by log2 of the element size: 1, 2, 4, 8, 16 bytes */
    vme_move2 *transpose[5]; /* the input is contiguous along rows (in_row is the element size), the output along
                              * columns */
    vme_loop1 *strided[5];
    /* memcpy that bypasses the caches, for copies that do not fit in them */
    void (*stream)(int64_t bytes, const char *in, char *out);
} vme_move_kernels;

/* Sorting; NULL: sort.c has portable loops. Elements are converted to signed integer keys in NumPy's order, with NaN as
 * the highest (`zeros_equal`: -0.0 and 0.0 get the same key), possibly in place. [0]: 32-bit keys, for 16- and 32-bit
 * elements; [1]: 64-bit keys. */
typedef struct vme_order_kernels {
    void (*keys[2])(vme_dtype dtype, int64_t n, const char *in, int64_t step, bool descending, bool zeros_equal,
                    void *keys);
    void (*elements[2])(vme_dtype dtype, int64_t n, void *keys, bool descending, char *out,
                        int64_t step); /* keys to elements; overwrites the keys */
    /* False: the context was stopped. */
    bool (*sort[2])(const vme_context *context, int64_t n, void *keys);
    bool (*select[2])(const vme_context *context, int64_t n, void *keys,
                      int64_t kth); /* moves the kth key to its sorted position, and lower ones before it */
    /* For argsort: 64-bit keys of all but complex elements; -0.0 and 0.0 get the same key. range[0] receives the
     * minimum, [1] the maximum, [2] the bits in which any key differs from *first. */
    void (*index_keys)(vme_dtype dtype, int64_t n, const char *in, int64_t step, bool descending, const int64_t *first,
                       int64_t *keys, int64_t range[3]);
    /* words[i] = the upper bits (keys[i] - lowest) >> lost, and index_bits lower bits: the index begin + i. Signed. */
    void (*index_words)(int64_t n, const int64_t *keys, int64_t lowest, int lost, int index_bits, int64_t begin,
                        int64_t *words);
    void (*indices)(int64_t n, const int64_t *words, int index_bits, int64_t *indices);
    /* For each value: how many of the `count` (at least 1) ascending keys are less than it (`right`: not greater). */
    void (*search)(int64_t n, const int64_t *values, int64_t count, const int64_t *keys, bool right, int64_t *indices);
    /* Partitions more than VME_PART_MIN keys: afterwards the first *low keys are less than the others, or, with *alike,
     * all equal. False: the context was stopped. */
    bool (*part[2])(const vme_context *context, int64_t n, void *keys, int64_t *low, bool *alike);
} vme_order_kernels;
enum { VME_PART_MIN = 256 };

typedef struct vme_bits_kernels {
    void (*split[2])(int64_t n, const char *in, char *mantissas, char *exponents); /* of float32, of float64 */
    void (*parts[2])(int64_t n, const char *in, char *fractions, char *wholes);
    /* Eight booleans to or from each byte; the first one is the highest bit (`big`) or the lowest. */
    void (*pack)(int64_t bytes, bool big, const uint8_t *truths, uint8_t *out);
    void (*unpack)(int64_t bytes, bool big, const uint8_t *in, uint8_t *truths);
} vme_bits_kernels;

/* Philox; NULL: random.c has a portable loop. Computes the words of the 16 blocks after `counter`, whose first word is
 * at most 2^64 - 17. */
typedef struct vme_random_kernels {
    void (*blocks)(const uint64_t key[2], const uint64_t counter[4], uint64_t words[64]);
} vme_random_kernels;

/* Kernels for rows of models' values: float32, with contiguous channels. Strides are in elements. */
/* Computes a row of outputs of a depthwise convolution: each channel is a sum over a window of the same channel. */
typedef struct vme_depthwise {
    int64_t channels, outputs, kernel_h, kernel_w;
    const float *in;                      /* the first element of the first output's window */
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
    float factor; /* by which sums are multiplied */
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
    /* out[i] = sum over taps of weights[t][i] * in[places[t][i]]; consecutive taps' arrays of places and of weights are
     * `next` elements apart */
    void (*blend_places)(int taps, int64_t n, const float *in, const int32_t *places, const float *weights,
                         int64_t next, float *out);
} vme_model_kernels;

/* Winograd's algorithm for 3x3 windows at stride 1: (m + 2)^2 products for a square of m x m outputs. See
 * kernels/winograd.h. */
#define VME_WINOGRAD_A 0.75f
#define VME_WINOGRAD_B 1.5f
enum { VME_WINOGRAD_2, VME_WINOGRAD_4, VME_WINOGRADS };
/* Strides are in elements. Channels are contiguous; the (m + 2)^2 rows of `points` are `point` apart. */
typedef struct vme_winograd_square {
    int rows, columns; /* pixels of the window or square inside the image; others are read as 0 and not written */
    bool relu;
    int64_t channels;
    float *image; /* the first pixel of the window or square */
    int64_t image_row, image_pixel;
    float *points;
    int64_t point;
    const float *bias, *addend; /* added to the outputs; addend may be NULL */
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
    const vme_elementwise_kernels *const *elementwise; /* groups of kernels, one for each file, then NULL */
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

/* The kernels of one backend, with missing ones from slower backends. An operator gets the table once, at its start. */
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
const vme_kernels *vme_kernels_current(void); /* of the calling thread's options, or of the current backend */
enum { VME_BACKENDS_MAX = 4 };
const vme_kernels *vme_kernels_of(int backend);
bool vme_backend_forced(void); /* false: the fastest backend is in use */

/* Defined in the backends' folders src/portable, src/avx2 and src/avx512, which compile src/kernels. */
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
