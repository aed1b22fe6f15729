/* Batch normalization in training: one call of a backend's kernel for each channel, which makes all its passes while
 * the channel is in cache. */
#include "operators/image_kernels.h"
#include "runtime/internal.h"

#include "vme_images.h"

enum { PIECE = 1 << 16 }; /* elements between two checks of the stop flag */

typedef struct normalize_job {
    vme_context *context;
    const image_kernels *kernels;
    const vme_tensor *x, *gradient; /* gradient: NULL in the forward pass */
    const vme_tensor *vectors[5];   /* in the order of the kernel's arguments */
    const vme_tensor *out;
    int64_t channels;
    int64_t step, n; /* elements from one example to the next; elements of a channel in one example */
    double eps;
} normalize_job;

static vme_status normalize_channels(void *argument, int64_t begin, int64_t end)
{
    const normalize_job *job = argument;
    VME_FLUSHING(job->context);
    const int dtype_index = job->x->dtype == VME_FLOAT64;
    const int64_t element_size = vme_dtype_size((vme_dtype)job->x->dtype), examples = job->x->shape[0];
    for (int64_t c = begin; c < end; c++) {
        char *vectors[5];
        for (int i = 0; i < 5; i++)
            vectors[i] = job->vectors[i] == NULL ? NULL : job->vectors[i]->data + c * element_size;
        const int64_t offset = c * job->n * element_size;
        if (job->gradient == NULL)
            job->kernels->normalize[dtype_index](examples, job->step, job->n, job->x->data + offset, vectors[0],
                                                 vectors[1], job->eps, job->out->data + offset, vectors[2], vectors[3]);
        else
            job->kernels->normalize_gradient[dtype_index](
                examples, job->step, job->n, job->x->data + offset, job->gradient->data + offset, vectors[0],
                vectors[1], vectors[2], job->eps, job->out->data + offset, vectors[3], vectors[4]);
    }
    return VME_OK;
}

/* Checks the operands and runs the job. `count` vectors are used; those from index `written` on are results. */
static vme_status normalize(normalize_job *job, int count, int written)
{
    const vme_tensor *x = job->x, *out = job->out;
    vme_status status = vme_check_output(out);
    for (int i = written; i < count && status == VME_OK; i++)
        status = vme_check_output(job->vectors[i]);
    if (status != VME_OK)
        return status;
    const vme_tensor *same_shape[2] = {out, job->gradient == NULL ? out : job->gradient};
    bool fits = (x->dtype == VME_FLOAT32 || x->dtype == VME_FLOAT64) && x->rank >= 2 && vme_is_contiguous(x)
                && vme_elements(x) > 0;
    for (int k = 0; k < 2 && fits; k++) {
        fits = same_shape[k]->dtype == x->dtype && same_shape[k]->rank == x->rank && vme_is_contiguous(same_shape[k]);
        for (int d = 0; d < x->rank && fits; d++)
            fits = same_shape[k]->shape[d] == x->shape[d];
    }
    for (int i = 0; i < count && fits; i++)
        fits = job->vectors[i]->dtype == x->dtype && job->vectors[i]->rank == 1 && vme_is_contiguous(job->vectors[i])
               && job->vectors[i]->shape[0] == x->shape[1];
    if (!fits)
        return vme_fail(VME_BAD_SHAPE, "batch normalization takes contiguous float32 or float64, [examples, channels, "
                                       "...], at least one number, and vectors of a number for each channel");
    for (int i = written - 1; i < count; i++) { /* `out` takes the index before the first result */
        const vme_tensor *result = i < written ? out : job->vectors[i];
        bool overlaps = vme_overlap(x, result) || (job->gradient != NULL && vme_overlap(job->gradient, result))
                        || (result != out && vme_overlap(out, result));
        for (int k = 0; k < count; k++)
            overlaps = overlaps
                       || (job->vectors[k] != result && (k < written || k < i) && vme_overlap(job->vectors[k], result));
        if (overlaps)
            return vme_fail(VME_BAD_VALUE, "out: it overlaps an operand or another result");
    }
    job->channels = x->shape[1];
    job->step = vme_elements(x) / x->shape[0];
    job->n = job->step / job->channels;
    job->kernels = vme_kernels_current()->images;
    atomic_fetch_add_explicit(&job->context->operators, 1, memory_order_relaxed);
    const int64_t work = 3 * x->shape[0] * job->n;
    return vme_parallel(job->context, job->channels, 1 + PIECE / work, normalize_channels, job);
}

vme_status vme_normalize(vme_context *context, const vme_tensor *x, const vme_tensor *weight, const vme_tensor *bias,
                         double eps, const vme_tensor *out, const vme_tensor *mean, const vme_tensor *var)
{
    normalize_job job = {.context = context, .x = x, .vectors = {weight, bias, mean, var}, .out = out, .eps = eps};
    return normalize(&job, 4, 2);
}

vme_status vme_normalize_gradient(vme_context *context, const vme_tensor *x, const vme_tensor *gradient,
                                  const vme_tensor *mean, const vme_tensor *var, const vme_tensor *weight, double eps,
                                  const vme_tensor *out, const vme_tensor *of_weight, const vme_tensor *of_bias)
{
    normalize_job job = {.context = context,
                         .x = x,
                         .gradient = gradient,
                         .vectors = {mean, var, weight, of_weight, of_bias},
                         .out = out,
                         .eps = eps};
    return normalize(&job, 5, 3);
}
