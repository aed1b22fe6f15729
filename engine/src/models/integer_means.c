/* Reductions of integers whose sums do not fit their dtype: means, Euclidean norms and logarithms of sums. Sums have
 * 128 bits; results are rounded toward zero, and saturate at the limits of the dtype.
 *
 * Operand: x [any …, n], dense. The result is [any …, 1], dense, of the same dtype. Of no elements the mean and the
 * norm are 0, and logarithms the lowest number. */
#include <math.h>
#include <string.h>

#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"

enum { PIECE = 1 << 14 }; /* elements between two checks of the stop flag */

typedef __int128 wide;
typedef unsigned __int128 natural;

typedef struct integer_means {
    vme_context *context;
    const char *in;
    char *out;
    int64_t length;
    vme_dtype dtype;
    int kind;
} integer_means;

static wide element(const char *data, int64_t i, vme_dtype dtype)
{
    switch (dtype) {
    case VME_INT8: return ((const int8_t *)data)[i];
    case VME_INT16: return ((const int16_t *)(const void *)data)[i];
    case VME_INT32: return ((const int32_t *)(const void *)data)[i];
    case VME_INT64: return ((const int64_t *)(const void *)data)[i];
    case VME_UINT8: return ((const uint8_t *)data)[i];
    case VME_UINT16: return ((const uint16_t *)(const void *)data)[i];
    case VME_UINT32: return ((const uint32_t *)(const void *)data)[i];
    default: return ((const uint64_t *)(const void *)data)[i];
    }
}

static void write_limits(vme_dtype dtype, wide *low, wide *high)
{
    const bool is_signed = dtype <= VME_INT64;
    *high = ((wide)1 << (8 * vme_dtype_size(dtype) - is_signed)) - 1;
    *low = is_signed ? -*high - 1 : 0;
}

static wide root(natural square)
{
    natural found = 0;
    for (natural bit = (natural)1 << 126; bit != 0; bit >>= 2) {
        const bool fits = square >= found + bit;
        square -= fits ? found + bit : 0;
        found = (found >> 1) + (fits ? bit : 0);
    }
    return (wide)found;
}

/* The number rounded toward zero; `low` if it is none. */
static wide truncated(double number, wide low) { return number > -0x1p100 ? (wide)number : low; }

/* log(sum(exp(x))): the maximum plus the logarithm of what the differences from it add. */
static wide log_of_powers(const integer_means *job, const char *row, wide low)
{
    wide largest = low;
    for (int64_t i = 0; i < job->length; i++)
        if (element(row, i, job->dtype) > largest)
            largest = element(row, i, job->dtype);
    double sum = 0;
    for (int64_t i = 0; i < job->length; i++) {
        sum += exp((double)(element(row, i, job->dtype) - largest));
        if (i % PIECE == 0 && vme_stopping(job->context))
            break;
    }
    if (job->length == 0)
        return low;
    const wide found = largest + truncated(floor(log(sum)), 0); /* 0: a stop left no sum */
    return found >= 0 ? found : largest + truncated(ceil(log(sum)), 0);
}

static wide reduced(const integer_means *job, const char *row, wide low)
{
    wide sum = 0;
    natural squares = 0;
    if (job->kind == INTEGER_LOG_SUM_EXP)
        return log_of_powers(job, row, low);
    for (int64_t i = 0; i < job->length; i++) {
        const wide x = element(row, i, job->dtype);
        sum += x;
        if (job->kind == INTEGER_NORM && __builtin_add_overflow(squares, (natural)x * (natural)x, &squares))
            return (wide)1 << 64; /* more than any dtype holds */
        if (i % PIECE == 0 && vme_stopping(job->context))
            break;
    }
    switch (job->kind) {
    case INTEGER_MEAN: return job->length == 0 ? 0 : sum / job->length;
    case INTEGER_NORM: return root(squares);
    default: return truncated(log((double)sum), low);
    }
}

static vme_status reduce_rows(void *argument, int64_t begin, int64_t end)
{
    const integer_means *job = argument;
    const int64_t bytes = vme_dtype_size(job->dtype);
    wide low, high;
    write_limits(job->dtype, &low, &high);
    for (int64_t row = begin; row < end; row++) {
        const wide found = reduced(job, job->in + row * job->length * bytes, low);
        const uint64_t result = (uint64_t)(found < low ? low : found > high ? high : found);
        memcpy(job->out + row * bytes, &result, (size_t)bytes); /* little-endian, like every supported machine */
    }
    return VME_OK;
}

static vme_status integer_means_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const vme_tensor in = model_tensor(model, step->operand[0], arena), out = model_tensor(model, step->out, arena);
    integer_means job = {
        .context = context,
        .in = in.data,
        .out = out.data,
        .length = in.shape[in.rank - 1],
        .dtype = (vme_dtype)in.dtype,
        .kind = step->p[INTEGER_KIND],
    };
    return vme_parallel_apart(context, vme_elements(&out), PIECE / (job.length + 1) + 1, reduce_rows, &job);
}

vme_status model_make_integer_means(model_preparation *preparation, uint32_t number, const model_node_record *node,
                                    const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    const vme_model *model = preparation->model;
    step->run = integer_means_run;
    const model_value *in = &model->value[step->operand[0]], *out = &model->value[step->out];
    bool fits = node->inputs == 1 && in->rank >= 1 && out->rank == in->rank && in->dtype > VME_BOOL
                && in->dtype <= VME_UINT64 && step->p[INTEGER_KIND] >= 0 && step->p[INTEGER_KIND] < INTEGER_KINDS;
    for (int d = 0; fits && d < in->rank; d++)
        fits = out->shape[d] == (d == in->rank - 1 ? 1 : in->shape[d]);
    fits = fits && model_require_dense(preparation, step->operand[0], in->dtype)
           && model_require_dense(preparation, step->out, in->dtype);
    if (!fits)
        return MODEL_WRONG(number, "does not reduce rows of integers to its result");
    return model_check_no_overlap(preparation, number, step);
}
