/* Linear algebra. Native loops solve small systems, and all systems if there is no LAPACK, on the caller's thread and
 * the pool. LAPACK does the rest.
 *
 * Handing work to another thread costs 10 to 100 us; solving 4 equations takes less than 1 us, and filters solve such
 * systems in loops. The native loops choose pivots as LAPACK does, so that results agree up to rounding. */
#include <complex.h>
#include <math.h>
#include <string.h>

#include "operators/lapack.h"

enum { NATIVE_ROWS_MAX = 64 }; /* rows up to which native loops are faster than handing the work to another thread */

#define TYPE                  double
#define NAME(x)               x##_d
#define SIZE(x)               fabs(x)
#define MODULUS(x)            fabs(x)
#define CONJ(x)               (x)
#define RE(x)                 (x)
#define ROOT(x)               sqrt(x)
#define DIRECTION(x, modulus) ((x) < 0 ? -1.0 : 1.0) /* 1 for NaN, as in NumPy */
#include "operators/linear_loops.h"

#define TYPE                  double complex
#define NAME(x)               x##_z
#define SIZE(x)               (fabs(creal(x)) + fabs(cimag(x)))
#define MODULUS(x)            cabs(x)
#define CONJ(x)               conj(x)
#define RE(x)                 creal(x)
#define ROOT(x)               sqrt(x)
#define DIRECTION(x, modulus) ((x) / (modulus))
#include "operators/linear_loops.h"

typedef struct native_batch {
    vme_context *context;
    const vme_linear_job *job;
    size_t scratch_bytes;
    atomic_llong failed;
} native_batch;

static vme_status solve_items(void *argument, int64_t begin, int64_t end)
{
    native_batch *batch = argument;
    const vme_linear_job *job = batch->job;
    char *scratch = vme_scratch_new(batch->context, batch->scratch_bytes);
    vme_status status = scratch == NULL ? VME_NO_MEMORY : VME_OK;
    for (int64_t i = begin; status == VME_OK && i < end; i++) {
        const char *in[2] = {job->in[0] + (size_t)i * job->in_bytes[0],
                             job->in_bytes[1] == 0 ? NULL : job->in[1] + (size_t)i * job->in_bytes[1]};
        char *out[3] = {job->out[0] + (size_t)i * job->out_bytes[0],
                        job->out_bytes[1] == 0 ? NULL : job->out[1] + (size_t)i * job->out_bytes[1], NULL};
        int rc = job->dtype == VME_FLOAT64 ? solve_item_d(batch->context, job, in, out, scratch)
                                           : solve_item_z(batch->context, job, in, out, scratch);
        if (rc < 0)
            status = vme_stopped_here(batch->context);
        else if (rc > 0)
            atomic_fetch_add_explicit(&batch->failed, 1, memory_order_relaxed);
    }
    vme_scratch_free(batch->context, scratch, batch->scratch_bytes);
    return status;
}

static vme_status solve_natively(vme_context *context, vme_linear_job *job)
{
    native_batch batch = {.context = context, .job = job};
    size_t n = (size_t)job->n;
    batch.scratch_bytes = n * n * (size_t)vme_dtype_size((vme_dtype)job->dtype) + n * sizeof(int32_t) + 1;
    int64_t work = job->n * job->n * (job->n + job->columns) + 100, grain = 400000 / work;
    vme_status status = vme_parallel(context, job->batch, grain < 1 ? 1 : grain, solve_items, &batch);
    job->failed = atomic_load(&batch.failed);
    return status;
}

/* A matrix of `rows` by `columns`; a vector has one column. */
typedef struct extent {
    int64_t rows, columns;
    bool required;
} extent;

/* Sets the bytes of one item of an operand; checks them against the tensor that holds all items. */
static vme_status set_operand(const char *name, const vme_tensor *tensor, int64_t batch, extent item, int dtype,
                              size_t *bytes)
{
    int64_t elements, all;
    *bytes = 0;
    if (tensor == NULL)
        return item.required ? vme_fail(VME_BAD_VALUE, "linear algebra: this operation needs its %s", name) : VME_OK;
    if (__builtin_mul_overflow(item.rows, item.columns, &elements) || __builtin_mul_overflow(batch, elements, &all))
        return vme_fail(VME_BAD_SHAPE, "linear algebra: %lld items of %lld x %lld elements are too large",
                        (long long)batch, (long long)item.rows, (long long)item.columns);
    if (tensor->dtype != dtype || !vme_is_contiguous(tensor) || vme_elements(tensor) != all)
        return vme_fail(VME_BAD_VALUE, "linear algebra: expected %lld contiguous elements of %s, got %lld of %s",
                        (long long)all, vme_dtype_name((vme_dtype)dtype), (long long)vme_elements(tensor),
                        vme_dtype_name((vme_dtype)tensor->dtype));
    /* no item of an empty batch is read, so its bytes are of no use and may overflow */
    *bytes = batch == 0 ? 0 : (size_t)elements * (size_t)vme_dtype_size((vme_dtype)dtype);
    return VME_OK;
}

vme_status vme_linear(vme_context *context, vme_linear_op op, unsigned flags, double cutoff, int64_t batch, int64_t m,
                      int64_t n, int64_t columns, const vme_tensor *const in[2], const vme_tensor *const out[3],
                      int64_t *failed)
{
    if (in[0] == NULL)
        return vme_fail(VME_BAD_VALUE, "linear algebra: this operation needs its first input");
    int dtype = in[0]->dtype;
    if (dtype != VME_FLOAT64 && dtype != VME_COMPLEX128)
        return vme_fail(VME_BAD_DTYPE, "array type %s is unsupported in linalg", vme_dtype_name((vme_dtype)dtype));
    const int real_dtype = VME_FLOAT64, complex_dtype = VME_COMPLEX128;
    int64_t k = m < n ? m : n, longer = m > n ? m : n, full = flags & VME_LINEAR_FULL ? m : k;
    bool square = op != VME_LINEAR_QR && op != VME_LINEAR_SVD && op != VME_LINEAR_LSTSQ;
    bool has_columns = op == VME_LINEAR_SOLVE || op == VME_LINEAR_LSTSQ;
    if (op < 0 || op >= VME_LINEAR_COUNT || batch < 0 || m < 0 || n < 0 || columns < 0 || (square && m != n))
        return vme_fail(VME_BAD_SHAPE, "linear algebra: %lld matrices of %lld rows and %lld columns", (long long)batch,
                        (long long)m, (long long)n);
    columns = has_columns ? columns : 0;
    /* extents and dtypes of the outputs, for each operator */
    extent sizes[3] = {{n, n, true}, {0, 0, false}, {0, 0, false}};
    int types[3] = {dtype, dtype, dtype};
    switch (op) {
    case VME_LINEAR_SOLVE: sizes[0].columns = columns; break;
    case VME_LINEAR_SLOGDET:
        sizes[0] = (extent){1, 1, true};
        sizes[1] = (extent){1, 1, true};
        types[1] = real_dtype;
        break;
    case VME_LINEAR_QR: {
        const bool raw = flags & VME_LINEAR_RAW;
        sizes[0] = raw ? (extent){n, m, true} : (extent){m, full, false};
        sizes[1] = raw ? (extent){k, 1, true} : (extent){full, n, true};
        break;
    }
    case VME_LINEAR_SVD: {
        const bool vectors = out[1] != NULL || out[2] != NULL; /* both or none */
        sizes[0] = (extent){k, 1, true};
        types[0] = real_dtype;
        sizes[1] = (extent){m, flags & VME_LINEAR_FULL ? m : k, vectors};
        sizes[2] = (extent){flags & VME_LINEAR_FULL ? n : k, n, vectors};
        break;
    }
    case VME_LINEAR_EIG:
        sizes[0] = (extent){n, 1, true};
        sizes[1] = (extent){n, n, false};
        types[0] = types[1] = complex_dtype;
        break;
    case VME_LINEAR_EIGH:
        sizes[0] = (extent){n, 1, true};
        sizes[1] = (extent){n, n, false};
        types[0] = real_dtype;
        break;
    case VME_LINEAR_LSTSQ:
        sizes[0] = (extent){longer, columns, true};
        sizes[1] = (extent){k, 1, true};
        sizes[2] = (extent){1, 1, true};
        types[1] = real_dtype;
        types[2] = VME_INT64;
        break;
    default: break;
    }
    vme_linear_job job = {
        .op = op, .dtype = dtype, .batch = batch, .m = m, .n = n, .columns = columns, .flags = flags, .cutoff = cutoff};
    static const char *const output_names[3] = {"first output", "second output", "third output"};
    vme_status status = set_operand("first input", in[0], batch, (extent){m, n, true}, dtype, &job.in_bytes[0]);
    const vme_tensor *second = has_columns ? in[1] : NULL;
    if (status == VME_OK)
        status = set_operand("second input", second, batch, (extent){m, columns, has_columns}, dtype, &job.in_bytes[1]);
    for (int i = 0; status == VME_OK && i < 3; i++) {
        status = set_operand(output_names[i], out[i], batch, sizes[i], types[i], &job.out_bytes[i]);
        if (status == VME_OK && out[i] != NULL) {
            status = vme_check_output(out[i]);
            job.out[i] = out[i]->data;
        }
    }
    if (status != VME_OK)
        return status;
    job.in[0] = in[0]->data;
    job.in[1] = second != NULL ? second->data : NULL;
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    bool has_native_loops = op <= VME_LINEAR_CHOLESKY;
    status = batch == 0                                                            ? VME_OK
             : has_native_loops && (n <= NATIVE_ROWS_MAX || !vme_lapack_present()) ? solve_natively(context, &job)
                                                                                   : vme_lapack(context, &job);
    *failed = job.failed;
    return status;
}
