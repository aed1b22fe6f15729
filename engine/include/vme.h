/* The tensor engine's interface for everything outside engine/src: the cffi binding, the Python array type, the
 * isolation core.
 *
 * Terms: a *buffer* is reference-counted bytes; a *tensor* is a view of one (dtype, shape, strides); a *context*
 * accounts for memory and CPU time and can stop the work; an *operator* writes its result to a tensor that the caller
 * made. The interface does not use Python. The only mutable globals are process-wide settings (threads, backend).
 *
 * Threads: any thread may call with any context; one buffer must not be written by two calls at once. Operators use at
 * most 16 KiB of the calling thread's stack. Every operator polls its context's stop flag at least once in a
 * millisecond of work per thread. If it is set, the operator ends with VME_STOPPED; its output is partly written then,
 * but valid memory.
 *
 * Results: every function that can fail returns a status. Values returned through pointers are valid only if it is
 * VME_OK. The error message is kept for the calling thread until its next failing call (vme_message). */
#ifndef VME_H
#define VME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vme_operators.h"

#ifdef __cplusplus
extern "C" {
#endif

#define VME_API       __attribute__((visibility("default")))
#define VME_ABI       6  /* incremented when a struct or the behavior of a function changes */
#define VME_RANK_MAX  64 /* as in NumPy 2 */
#define VME_ALIGNMENT 64 /* bytes; alignment of every buffer that the engine allocates */

/* ---- status: engine/arrays/errors.c maps statuses to exceptions */
typedef enum vme_status {
    VME_OK = 0,
    VME_NO_MEMORY,   /* refused by the context's account, or by the system: MemoryError */
    VME_BAD_SHAPE,   /* shapes that do not match, sizes that overflow or are negative: ValueError */
    VME_BAD_DTYPE,   /* no loop for the dtype, or no such cast: TypeError */
    VME_BAD_INDEX,   /* out of bounds: IndexError */
    VME_BAD_AXIS,    /* numpy.exceptions.AxisError: both ValueError and IndexError */
    VME_BAD_VALUE,   /* any other bad value: ValueError */
    VME_READ_ONLY,   /* the output's buffer is frozen or read-only: ValueError */
    VME_STOPPED,     /* the context was stopped: the VM's pending exception is raised */
    VME_UNSUPPORTED, /* not supported by this build or machine: NotImplementedError */
    VME_IO_ERROR,    /* a file cannot be read or written: OSError */
} vme_status;

VME_API const char *vme_status_name(vme_status status);
/* The message of the calling thread's last failure; "" if there was none. Valid until its next failing call. */
VME_API const char *vme_message(void);

/* ---- dtypes, in NumPy's order of kinds */
typedef enum vme_dtype {
    VME_BOOL = 0,
    VME_INT8,
    VME_INT16,
    VME_INT32,
    VME_INT64,
    VME_UINT8,
    VME_UINT16,
    VME_UINT32,
    VME_UINT64,
    VME_FLOAT16,
    VME_FLOAT32,
    VME_FLOAT64,
    VME_COMPLEX64,
    VME_COMPLEX128,
    VME_DTYPE_COUNT,
} vme_dtype;

VME_API int vme_dtype_size(vme_dtype dtype);           /* bytes of an element */
VME_API const char *vme_dtype_name(vme_dtype dtype);   /* "float32" */
VME_API const char *vme_dtype_format(vme_dtype dtype); /* "f": the notation of the struct module and the buffer
                                                        * protocol */
VME_API bool vme_dtype_from_format(const char *format, vme_dtype *dtype); /* false: not supported, or not in native byte
                                                                           * order */
/* The smallest dtype to which both can be cast, as numpy.promote_types. Always exists. */
VME_API vme_dtype vme_dtype_promote(vme_dtype a, vme_dtype b);

/* ---- contexts: accounting and stopping. One for each VM, one for the host. */
typedef struct vme_context vme_context;
typedef struct vme_account { /* all functions may be NULL; called from any thread, as long as the context or a buffer
                              * charged to it exists */
    void *owner;
    bool (*charge)(void *owner, size_t bytes); /* false: refused, nothing charged */
    void (*release)(void *owner, size_t bytes);
    /* Charges bytes of a context that has ended (vme_context_end): if `forced` always, otherwise only if they fit the
     * limit. False: nothing charged. Must not call the engine. Contexts without this function come last as heirs, and
     * are not asked. */
    bool (*inherit)(void *owner, size_t bytes, bool forced);
    void (*worked)(void *owner, uint64_t cpu_ns); /* CPU time that other threads spent for this context */
    void (*retain)(void *owner);                  /* called once for each context */
    void (*forget)(void *owner);                  /* called when the context and all buffers charged to it are gone */
    /* For tracking allocations: an array's memory was allocated and charged (made), or is about to be freed (gone). */
    void (*made)(void *owner, const void *buffer, size_t bytes);
    void (*gone)(void *owner, const void *buffer);
} vme_account;
#define VME_FLUSH_SUBNORMALS 1u /* FTZ and DAZ while operators of this context run; without it, results are NumPy's */

/* `account` is copied; NULL: memory is counted, but not charged to an account (the host). */
VME_API vme_status vme_context_new(const vme_account *account, unsigned flags, vme_context **context);
VME_API vme_context *vme_context_ref(vme_context *context);
VME_API void vme_context_unref(vme_context *context);
/* Call when the owner has ended. Each buffer that is charged to the context and still held by others is charged to one
 * of these holders from now on: the first one with room; otherwise the first one with an account, even beyond its
 * limit; otherwise one without an account (the host); otherwise nobody. The context itself lives as long as it is
 * referenced. */
VME_API void vme_context_end(vme_context *context);
/* Sets or clears the stop flag. While it is set, operators of this context end with VME_STOPPED. Callable from any
 * thread and from signal handlers. */
VME_API void vme_context_stop(vme_context *context, bool stop);
VME_API bool vme_context_stopped(const vme_context *context);
/* The name of the operation that `thread` (its pthread_self) is running for this context: the name passed to
 * vme_context_do, or in a model the kind of the step (vme_step). NULL: none, or another thread has begun one since.
 * Callable from any thread. The string is never freed. */
VME_API const char *vme_context_doing(const vme_context *context, uintptr_t thread);
/* Sets the name of the operation that this thread runs for this context; the string must never be freed. Returns the
 * thread's previous name: pass it to another call when the operation ends. */
VME_API const char *vme_context_do(vme_context *context, const char *what);

typedef struct vme_statistics {
    int64_t live_bytes, peak_bytes, buffers; /* bytes of live buffers and scratch memory; their peak; live buffers */
    int64_t operators, stopped, refused;     /* operators begun; ended by a stop; allocations refused */
    uint64_t helper_cpu_ns;                  /* CPU time that other threads spent for this context */
} vme_statistics;
VME_API void vme_context_statistics(const vme_context *context, vme_statistics *statistics);

/* ---- buffers */
typedef struct vme_buffer vme_buffer;
/* `bytes` may be 0. Contents: zeros if `zeroed`, otherwise undefined. */
VME_API vme_status vme_buffer_new(vme_context *context, size_t bytes, bool zeroed, vme_buffer **buffer);
/* A buffer of foreign memory, which is not charged. `drop(owner)` is called once, on the thread that releases the last
 * reference. */
VME_API vme_status vme_buffer_wrap(vme_context *context, void *data, size_t bytes, bool writable, void *owner,
                                   void (*drop)(void *owner), vme_buffer **buffer);
VME_API vme_buffer *vme_buffer_ref(vme_buffer *buffer);
VME_API void vme_buffer_unref(vme_buffer *buffer);
VME_API void *vme_buffer_data(const vme_buffer *buffer);
VME_API size_t vme_buffer_size(const vme_buffer *buffer);
VME_API int vme_buffer_references(const vme_buffer *buffer);
/* Freezes a buffer that is passed to another context: nobody may write it while it has more than one reference. The
 * holder of the only reference may write it again: vme_buffer_writable, which only holders may call, unfreezes it. */
VME_API void vme_buffer_freeze(vme_buffer *buffer);
VME_API bool vme_buffer_writable(vme_buffer *buffer);
/* Makes a share: a buffer with the same bytes, held by the context `holder`. Each receiver of a passed buffer holds a
 * share, so that the engine knows the holders. */
VME_API vme_status vme_buffer_share(vme_context *holder, vme_buffer *buffer, vme_buffer **share);
/* The buffer to pass on instead of `buffer`, borrowed: of a share the buffer that it shares, otherwise itself. */
VME_API vme_buffer *vme_buffer_whole(vme_buffer *buffer);

/* ---- tensors: plain views owned by the caller; `shape` and `strides` are the caller's arrays */
typedef struct vme_tensor {
    vme_buffer *buffer;     /* borrowed; keeps `data` alive */
    char *data;             /* the element at index 0, 0, … */
    const int64_t *shape;   /* `rank` sizes, none negative */
    const int64_t *strides; /* `rank` strides in bytes, of any sign; 0 for a broadcast dimension */
    int32_t rank;           /* 0 to VME_RANK_MAX */
    int32_t dtype;          /* vme_dtype */
} vme_tensor;

/* Computes the bytes of a C-contiguous array of this shape, and its strides if `strides` is not NULL. VME_BAD_SHAPE: a
 * size is negative, the rank is above VME_RANK_MAX, or the number of bytes overflows. */
VME_API vme_status vme_shape_bytes(vme_dtype dtype, int rank, const int64_t *shape, int64_t *strides, size_t *bytes);
/* Broadcasts `count` shapes, as in NumPy. `out_shape` has room for VME_RANK_MAX sizes. */
VME_API vme_status vme_shape_broadcast(int count, const vme_tensor *const *tensors, int *out_rank, int64_t *out_shape);
/* Checks a view from outside the engine: VME_BAD_SHAPE unless every element is inside its buffer. */
VME_API vme_status vme_tensor_check(const vme_tensor *tensor);

/* ---- operators. Inputs are broadcast to the output's shape; an output must be writable. An output may be the same
 * view as an input; other overlaps are resolved with a copy. The dtypes of inputs and output may differ: inputs are
 * cast to `loop`, the dtype given by *_types, and results to the output's dtype (as NumPy's casting="unsafe"; the
 * caller refuses unwanted casts).
 *
 * The enumerators come from vme_operators.h: VME_NEGATIVE, VME_ADD, VME_SUM, VME_CUMSUM and so on. */
#define VME_ENUMERATOR(NAME, ...) VME_##NAME,
typedef enum vme_unary_op { VME_UNARY_OPERATORS(VME_ENUMERATOR) VME_UNARY_COUNT } vme_unary_op;
typedef enum vme_binary_op { VME_BINARY_OPERATORS(VME_ENUMERATOR) VME_BINARY_COUNT } vme_binary_op;
typedef enum vme_reduce_op { VME_REDUCE_OPERATORS(VME_ENUMERATOR) VME_REDUCE_COUNT } vme_reduce_op;
typedef enum vme_scan_op { VME_SCAN_OPERATORS(VME_ENUMERATOR) VME_SCAN_COUNT } vme_scan_op;

VME_API const char *vme_unary_name(vme_unary_op op); /* "negative": NumPy's name */
VME_API const char *vme_binary_name(vme_binary_op op);
VME_API const char *vme_reduce_name(vme_reduce_op op);
VME_API const char *vme_scan_name(vme_scan_op op);

/* The dtype in which NumPy's ufunc of that name computes (`loop`), and the dtype of its result. VME_BAD_DTYPE, with
 * NumPy's message: the ufunc has no loop for these inputs. */
VME_API vme_status vme_unary_types(vme_unary_op op, vme_dtype in, vme_dtype *loop, vme_dtype *result);
VME_API vme_status vme_binary_types(vme_binary_op op, vme_dtype a, vme_dtype b, vme_dtype *loop, vme_dtype *result);
VME_API vme_status vme_reduce_types(vme_reduce_op op, vme_dtype in, vme_dtype *loop, vme_dtype *result);
VME_API vme_status vme_scan_types(vme_scan_op op, vme_dtype in, vme_dtype *loop, vme_dtype *result);

/* `loop`: the dtype to compute in, normally the one from *_types. */
VME_API vme_status vme_unary(vme_context *context, vme_unary_op op, vme_dtype loop, const vme_tensor *in,
                             const vme_tensor *out);
VME_API vme_status vme_binary(vme_context *context, vme_binary_op op, vme_dtype loop, const vme_tensor *a,
                              const vme_tensor *b, const vme_tensor *out);
/* out = condition ? a : b; condition is bool. */
VME_API vme_status vme_where(vme_context *context, const vme_tensor *condition, const vme_tensor *a,
                             const vme_tensor *b, const vme_tensor *out);
/* out = in, broadcast and cast: for copies, transpositions, astype, fill. */
VME_API vme_status vme_copy(vme_context *context, const vme_tensor *in, const vme_tensor *out);
/* out[i] = start + i * step, computed in float64 or int64; `out` has rank 1. */
VME_API vme_status vme_arange(vme_context *context, double start, double step, int64_t int_start, int64_t int_step,
                              const vme_tensor *out);

/* Reduces the dimensions whose bit is set in `axes` (bit i: dimension i). `out` has the rank of `in`, and size 1 in
 * these dimensions. `initial`: the initial value (one element of dtype `loop`), or NULL; without one, max, min, argmax
 * and argmin of no elements fail with VME_BAD_VALUE and NumPy's message. Floating-point sums are pairwise. argmax and
 * argmin take one axis. */
VME_API vme_status vme_reduce(vme_context *context, vme_reduce_op op, vme_dtype loop, const vme_tensor *in,
                              uint64_t axes, const void *initial, const vme_tensor *out);
VME_API vme_status vme_scan(vme_context *context, vme_scan_op op, vme_dtype loop, const vme_tensor *in, int axis,
                            const vme_tensor *out);

/* out[..., i, j] = sum over k of a[..., i, k] * b[..., k, j]; leading dimensions are broadcast. All three have rank >=
 * 2, one dtype (the caller casts), and any strides. For bool, sums are `or` and products are `and`. */
VME_API vme_status vme_matmul(vme_context *context, const vme_tensor *a, const vme_tensor *b, const vme_tensor *out);

/* ---- data movement: the raster primitive. A region copies
 *   dst[dst_offset + sum i*dst_strides] = src[src_offset + sum i*src_strides]   for every index i below `size`.
 * Offsets and strides are in elements of one size; `src` and `dst` are whole buffers. (MNN's Region; Walle, OSDI '22,
 * section 4.1.) */
#define VME_REGION_RANK 8
typedef struct vme_region {
    const char *source; /* first element of the source buffer */
    int64_t source_offset, destination_offset;
    int32_t rank; /* 1 .. VME_REGION_RANK */
    int64_t size[VME_REGION_RANK], source_strides[VME_REGION_RANK], destination_strides[VME_REGION_RANK];
} vme_region;
VME_API vme_status vme_raster(vme_context *context, int element_size, int count, const vme_region *regions,
                              vme_buffer *destination);

/* Transform operators, each lowered to regions in engine/src/operators/transform.c. */
VME_API vme_status vme_concatenate(vme_context *context, int count, const vme_tensor *const *parts, int axis,
                                   const vme_tensor *out);
typedef enum vme_pad_mode {
    VME_PAD_CONSTANT,
    VME_PAD_EDGE,
    VME_PAD_REFLECT,
    VME_PAD_SYMMETRIC,
    VME_PAD_WRAP
} vme_pad_mode;
/* `before`: number of elements before each dimension; the padding behind follows from out's shape. `value`: one element
 * of out's dtype. */
VME_API vme_status vme_pad(vme_context *context, vme_pad_mode mode, const vme_tensor *in, const int64_t *before,
                           const void *value, const vme_tensor *out);
VME_API vme_status vme_tile(vme_context *context, const vme_tensor *in, const vme_tensor *out);
VME_API vme_status vme_roll(vme_context *context, const vme_tensor *in, const int64_t *shifts, const vme_tensor *out);

/* ---- indexing. Indices are int64 tensors; negative ones count from the end. VME_BAD_INDEX: out of bounds. */
/* NumPy's advanced indexing with `count` broadcast index tensors for dimensions `first` to `first`+count-1 of `in`:
 * out[lead..., b..., tail...] = in[lead..., index0[b], index1[b], …, tail...]. */
VME_API vme_status vme_gather(vme_context *context, const vme_tensor *in, int first, int count,
                              const vme_tensor *const *indices, const vme_tensor *out);
/* Writes the elements that vme_gather reads: target[lead..., index0[b], …, tail...] = values[lead..., b..., tail...]
 * (values are broadcast). If an index repeats, the last value wins; with `add`, values are added (numpy.add.at). */
VME_API vme_status vme_scatter(vme_context *context, const vme_tensor *values, int first, int count,
                               const vme_tensor *const *indices, bool add, const vme_tensor *target);
/* The indices of the true elements of a bool tensor. The first call, with `out` NULL, sets `*count`. The second one
 * fills `out`: for each dimension an int64 tensor of rank 1 and that size. */
VME_API vme_status vme_nonzero(vme_context *context, const vme_tensor *mask, int64_t *count,
                               const vme_tensor *const *out);

/* ---- order. NaNs are last. argsort is stable and writes int64. */
VME_API vme_status vme_sort(vme_context *context, const vme_tensor *in, int axis, bool descending,
                            const vme_tensor *out);
VME_API vme_status vme_argsort(vme_context *context, const vme_tensor *in, int axis, bool descending,
                               const vme_tensor *out);
/* Left or right insertion points of `values` in `sorted` (rank 1, same dtype). `out`: int64, shaped like `values`. */
VME_API vme_status vme_searchsorted(vme_context *context, const vme_tensor *sorted, const vme_tensor *values,
                                    bool right, const vme_tensor *out);

/* ---- linear algebra. Operands are C-contiguous matrices, vectors or scalars of float64 or complex128 (NumPy computes
 * in these only), `batch` of each, one after the other; those marked real are float64. solve, inverse, slogdet and
 * cholesky have built-in loops for small matrices, and for all sizes if there is no LAPACK. Everything else is computed
 * by LAPACK, on copies, on an engine thread that a stop abandons. Outputs that are NULL are not computed. An item that
 * is singular, not positive definite, or does not converge is filled with NaN and counted in *failed. */
typedef enum vme_linear_op {
    VME_LINEAR_SOLVE,    /* a[n,n], b[n,columns] -> x[n,columns] */
    VME_LINEAR_INVERSE,  /* a[n,n] -> inverse[n,n] */
    VME_LINEAR_SLOGDET,  /* a[n,n] -> sign, log |det| (real); a singular matrix does not fail: 0, -inf */
    VME_LINEAR_CHOLESKY, /* a[n,n] -> factor[n,n]; reads the triangle that it computes */
    VME_LINEAR_QR,   /* a[m,n] -> q[m,k], r[k,n], k = min(m,n), FULL: m; RAW: a's reflectors transposed [n,m], tau[k] */
    VME_LINEAR_SVD,  /* a[m,n] -> s[k] real, u[m,k], vh[k,n]; FULL: u[m,m], vh[n,n] */
    VME_LINEAR_EIG,  /* a[n,n] -> w[n] complex, v[n,n] complex */
    VME_LINEAR_EIGH, /* a[n,n] -> w[n] real, v[n,n]; reads one triangle */
    VME_LINEAR_LSTSQ, /* a[m,n], b[m,columns] -> x[max(m,n),columns], s[k] real, rank (int64); `cutoff` as LAPACK's
                         rcond */
    VME_LINEAR_COUNT,
} vme_linear_op;
#define VME_LINEAR_UPPER 1u
#define VME_LINEAR_FULL  2u
#define VME_LINEAR_RAW   4u
VME_API vme_status vme_linear(vme_context *context, vme_linear_op op, unsigned flags, double cutoff, int64_t batch,
                              int64_t m, int64_t n, int64_t columns, const vme_tensor *const in[2],
                              const vme_tensor *const out[3], int64_t *failed);
/* Sets the path of the shared library with LAPACK, which is opened when it is first needed. Process-wide. */
VME_API vme_status vme_lapack_at(const char *path);

/* ---- models: files made by tools/compile_cloud.py (docs/model-format.md). A model is prepared once, for the backend
 * in use, and is immutable, so any number of sessions share it. */
typedef struct vme_model vme_model;
typedef struct vme_port { /* an input or output; valid as long as the model */
    const char *name;
    const int64_t *shape;
    int32_t rank, dtype;
    const char *const *open; /* for each dimension the name of its size if each call chooses it, or NULL if it is fixed;
                              * NULL: all sizes are fixed */
} vme_port;
/* A model may have several parts: concatenated files that run one after the other, because results of earlier parts
 * determine sizes of later ones. `model` is the first part, and owns the others. NULL: no part has this number. */
VME_API vme_model *vme_model_part(vme_model *model, int number);
/* Reads and checks a file's bytes, which are not needed afterwards. The packed weights are charged to `context`.
 * VME_BAD_VALUE: damaged, or not for this engine. */
VME_API vme_status vme_model_new(vme_context *context, const void *bytes, size_t size, vme_model **model);
VME_API vme_model *vme_model_ref(vme_model *model);
VME_API void vme_model_unref(vme_model *model);
VME_API int vme_model_count(const vme_model *model, bool outputs);
VME_API void vme_model_port(const vme_model *model, bool outputs, int number, vme_port *port);
/* The number of the input that an output continues (such as a cache of attention keys, to which a run appends those of
 * a new token). A run may pass one array as both; it is updated in place. -1: none. */
VME_API int vme_model_continues(const vme_model *model, int output);
/* The file's notes for callers of the model, as JSON (docs/model-format.md); "": none. Valid as long as the model. */
VME_API const char *vme_model_notes(const vme_model *model);

/* A model and its arena, charged to one context. Runs may be simultaneous: one uses the session's arena, and each other
 * one allocates its own. */
typedef struct vme_session vme_session;
VME_API vme_status vme_session_new(vme_context *context, vme_model *model, vme_session **session);
VME_API void vme_session_free(vme_session *session);
VME_API vme_model *vme_session_model(const vme_session *session); /* borrowed */
/* Sets options of later runs: the maximum number of threads (0, or more than vme_threads(): vme_threads()), and flags
 * (VME_FLUSH_SUBNORMALS) in addition to the context's. Must not be called during a run. VME_BAD_VALUE: negative
 * threads, or unknown flags. */
VME_API vme_status vme_session_options(vme_session *session, int threads, unsigned flags);
/* The model at the sizes of these inputs, as a new reference: the session's model if all sizes are fixed, otherwise a
 * plan for these sizes (a session caches the last ones). Its ports have the shapes of outputs. VME_BAD_SHAPE: the
 * inputs do not match the model's dimensions; VME_BAD_VALUE: the model does not work at these sizes. */
VME_API vme_status vme_session_plan(vme_session *session, const vme_tensor *const *inputs, vme_model **plan);
/* Runs the model. Takes one contiguous tensor for each input and output, of its dtype and shape. Outputs may be partly
 * written if the run fails or is stopped. Outputs must not overlap inputs or each other, except that an output may have
 * the same memory as the input that it continues. */
VME_API vme_status vme_session_run(vme_session *session, const vme_tensor *const *inputs,
                                   const vme_tensor *const *outputs);
/* The same; also writes the time of each of the vme_model_steps() steps to `ns`. */
VME_API vme_status vme_session_profile(vme_session *session, const vme_tensor *const *inputs,
                                       const vme_tensor *const *outputs, uint64_t *ns);

/* The steps of a model, in order: importing the inputs, computing the nodes (zero or more steps each), exporting the
 * outputs. Strings are valid as long as the model. */
typedef struct vme_step {
    const char *name;      /* of the node, the input or the output */
    const char *kind;      /* the operator in docs/model-format.md, "Input" or "Output" */
    const char *algorithm; /* if there are several; "nothing": the step does no work; otherwise "" */
    const int64_t *shape;  /* of its result */
    int32_t rank, dtype;
    int64_t products; /* multiply-adds by definition, for convolutions and matrix products; otherwise 0 */
    int64_t bytes;    /* of the elements that it reads (including weights) and writes */
} vme_step;
VME_API int vme_model_steps(const vme_model *model);
VME_API void vme_model_step(const vme_model *model, int number, vme_step *step);

/* ---- random: Philox 4x64-10 (Salmon et al., SC '11), as numpy.random.Philox(key). Fills `out` (uint64, any shape, C
 * order) with the words `first`, `first`+1, … of the stream, which do not depend on the number of threads. */
VME_API vme_status vme_philox(vme_context *context, const uint64_t key[2], const uint64_t counter[4], uint64_t first,
                              const vme_tensor *out);

/* ---- the process: threads and backends */
VME_API int vme_backend_count(void);
VME_API const char *vme_backend_name(int backend); /* "portable", "avx2", "avx512" */
VME_API bool vme_backend_available(int backend);   /* this CPU can run it */
VME_API int vme_backend_current(void);
/* Forces a backend, for tests and measurements; -1: uses the fastest one again. VME_UNSUPPORTED: this CPU cannot run
 * it. Process-wide. */
VME_API vme_status vme_backend_force(int backend);
VME_API int vme_threads(void);                   /* maximum threads of one operator, including its caller */
VME_API vme_status vme_threads_set(int threads); /* 1 to the number of cores; process-wide */
/* Algorithms of models. For convolutions and products with constant weights: "direct", "winograd2" and "winograd4"
 * (squares of 2 and of 4; 3x3 windows at stride 1), "strassen", "im2col". For attention: "fused", "apart". The
 * algorithm of each step is chosen when a model is prepared. If one is forced, for tests and measurements, models
 * prepared later use it wherever possible, and "direct" and "fused" elsewhere; -1: it is chosen again. Process-wide. */
VME_API int vme_algorithm_count(void);
VME_API const char *vme_algorithm_name(int algorithm);
VME_API vme_status vme_algorithm_force(int algorithm);
/* How operators are implemented, for `vmhost doctor`. An operator is a function of these headers that takes a context
 * and tensors; its name here lacks "vme_". */
typedef enum vme_making {
    VME_BY_KERNELS, /* kernels in the backends' tables */
    VME_BY_LOOPS,   /* loops in C, the same for all backends; may use kernels of other operators */
    VME_LOWERED,    /* calls of other operators: a new backend needs no code for it */
} vme_making;
VME_API int vme_operator_count(void);
VME_API const char *vme_operator_name(int number); /* 0 to vme_operator_count() - 1 */
VME_API vme_making vme_operator_making(int number);
VME_API int vme_backend_kernels(int backend); /* number of its own kernels; others come from the next slower backend */

/* ---- the table of functions for the isolation core, which does not link the engine: the host passes it a pointer */
typedef struct vme_embedding vme_embedding; /* vme_embedding.h */
struct vme_api {
    uint32_t abi;  /* VME_ABI */
    uint32_t size; /* sizeof(struct vme_api) */
    vme_status (*context_new)(const vme_account *, unsigned, vme_context **);
    void (*context_unref)(vme_context *);
    void (*context_end)(vme_context *);
    void (*context_stop)(vme_context *, bool);
    const char *(*context_doing)(const vme_context *, uintptr_t thread);
    void (*context_statistics)(const vme_context *, vme_statistics *);
    vme_status (*buffer_new)(vme_context *, size_t, bool, vme_buffer **);
    vme_status (*buffer_wrap)(vme_context *, void *, size_t, bool, void *, void (*)(void *), vme_buffer **);
    vme_buffer *(*buffer_ref)(vme_buffer *);
    void (*buffer_unref)(vme_buffer *);
    void *(*buffer_data)(const vme_buffer *);
    size_t (*buffer_size)(const vme_buffer *);
    void (*buffer_freeze)(vme_buffer *);
    bool (*buffer_writable)(vme_buffer *);
    vme_status (*buffer_share)(vme_context *, vme_buffer *, vme_buffer **);
    vme_buffer *(*buffer_whole)(vme_buffer *);
    bool (*dtype_from_format)(const char *, vme_dtype *);
    vme_model *(*model_ref)(vme_model *);
    void (*model_unref)(vme_model *);
    vme_embedding *(*embedding_ref)(vme_embedding *);
    void (*embedding_unref)(vme_embedding *);
    const char *(*message)(void);
    void (*runs_observe)(int64_t (*now_ns)(void), void (*ended)(int64_t began_ns));
};
VME_API const struct vme_api *vme_api(void);
/* Registers an observer. `ended` is called after each run of a model, in a VM or in the host, on the thread that ran
 * it, with the value that `now_ns` returned when the run began. Nested runs are not reported. */
VME_API void vme_runs_observe(int64_t (*now_ns)(void), void (*ended)(int64_t began_ns));

#ifdef __cplusplus
}
#endif
#endif
