/* Windows over images: checks shapes, then calls a backend's kernel for each plane. */
#include "operators/image_kernels.h"
#include "runtime/internal.h"

#include "vme_images.h"

#include <string.h>

enum { PIECE = 1 << 16 }; /* elements between two checks of the stop flag */

/* A power of two, less 1: after so many steps of this work the stop flag is checked. */
static int64_t mask_of(int64_t work)
{
    const int64_t steps = work < 1 ? PIECE : PIECE / work;
    return steps <= 1 ? 0 : (INT64_C(1) << (63 - __builtin_clzll((unsigned long long)steps))) - 1;
}

typedef struct planes_job {
    vme_context *context;
    image_plane plane;
    /* one of these; the other is NULL */
    void (*kernel)(const image_plane *geometry, const void *in, void *out);
    void (*gradient_kernel)(const image_plane *geometry, const void *plane, const void *pooled, const void *gradient,
                            void *out);
    const char *in, *pooled, *pooled_gradient;
    char *out;
    size_t in_bytes, pooled_bytes, out_bytes; /* bytes of one plane */
} planes_job;

static vme_status run_planes(void *argument, int64_t begin, int64_t end)
{
    const planes_job *job = argument;
    VME_FLUSHING(job->context);
    for (size_t i = (size_t)begin; i < (size_t)end; i++) {
        const char *in = job->in + i * job->in_bytes;
        char *out = job->out + i * job->out_bytes;
        if (job->kernel != NULL)
            job->kernel(&job->plane, in, out);
        else
            job->gradient_kernel(&job->plane, in, job->pooled + i * job->pooled_bytes,
                                 job->pooled_gradient + i * job->pooled_bytes, out);
        if (vme_stopping(job->context))
            return vme_stopped_here(job->context);
    }
    return VME_OK;
}

static bool has_layout(const vme_tensor *tensor, const vme_tensor *images, int rank)
{
    return tensor->dtype == images->dtype && tensor->rank == rank && vme_is_contiguous(tensor);
}

/* Checks images, windows and `result`: [examples, channels, rows, columns], or patches. Fills in `geometry`. */
static vme_status check_windows(const vme_context *context, const vme_windows *w, const vme_tensor *images,
                                const vme_tensor *result, bool patches, image_plane *geometry)
{
    if ((images->dtype != VME_FLOAT32 && images->dtype != VME_FLOAT64) || !has_layout(images, images, 4)
        || !has_layout(result, images, patches ? 3 : 4))
        return vme_fail(VME_BAD_SHAPE, "windows over images take contiguous float32 or float64, [examples, channels, "
                                       "height, width], and matching operands");
    int64_t count[2], span[2];
    for (int i = 0; i < 2; i++) {
        const int64_t size = images->shape[2 + i];
        const int64_t limit = INT64_C(1) << 30;
        if (w->kernel[i] < 1 || w->stride[i] < 1 || w->dilation[i] < 1 || w->padding[i] < 0 || w->kernel[i] > limit
            || w->stride[i] > limit || w->dilation[i] > limit || w->padding[i] > limit || size > limit)
            return vme_fail(VME_BAD_SHAPE,
                            "windows: expected kernel, stride and dilation of at least 1, padding of at least 0");
        span[i] = size + 2 * w->padding[i] - w->dilation[i] * (w->kernel[i] - 1) - 1;
        if (span[i] < 0)
            return vme_fail(VME_BAD_SHAPE, "images of %lld x %lld are smaller than the kernel %lld x %lld",
                            (long long)images->shape[2], (long long)images->shape[3], (long long)w->kernel[0],
                            (long long)w->kernel[1]);
        count[i] = span[i] / w->stride[i] + 1;
    }
    const int64_t *shape = result->shape;
    int64_t rows, columns;
    const bool fits = patches ? !__builtin_mul_overflow(images->shape[1], w->kernel[0] * w->kernel[1], &rows)
                                    && !__builtin_mul_overflow(count[0], count[1], &columns) && shape[1] == rows
                                    && shape[2] == columns
                              : shape[1] == images->shape[1] && shape[2] == count[0] && shape[3] == count[1];
    if (!fits || shape[0] != images->shape[0])
        return vme_fail(VME_BAD_SHAPE, "windows: expected the result of %lld x %lld windows of each image",
                        (long long)count[0], (long long)count[1]);
    *geometry = (image_plane){.windows = *w,
                              .height = images->shape[2],
                              .width = images->shape[3],
                              .rows = count[0],
                              .columns = count[1],
                              .context = context,
                              .rows_mask = mask_of(count[1]),
                              .windows_mask = mask_of(w->kernel[0] * w->kernel[1])};
    return VME_OK;
}

static int64_t count_pixels(const image_plane *geometry) { return geometry->height * geometry->width; }
static int64_t count_windows(const image_plane *geometry) { return geometry->rows * geometry->columns; }
static int64_t count_taps(const image_plane *geometry)
{
    return geometry->windows.kernel[0] * geometry->windows.kernel[1];
}

/* Calls the kernel for each plane. `in_elements`, `out_elements`: those of one plane. */
static vme_status run(planes_job *job, const vme_tensor *images, int64_t in_elements, int64_t out_elements)
{
    const image_plane *geometry = &job->plane;
    const int64_t planes = images->shape[0] * images->shape[1];
    if (planes == 0) /* the sizes of a plane that does not exist may overflow */
        return VME_OK;
    const size_t element_size = (size_t)vme_dtype_size((vme_dtype)images->dtype);
    job->in_bytes = (size_t)in_elements * element_size;
    job->out_bytes = (size_t)out_elements * element_size;
    job->pooled_bytes = (size_t)count_windows(geometry) * element_size;
    atomic_fetch_add_explicit(&job->context->operators, 1, memory_order_relaxed);
    const int64_t work = count_pixels(geometry) + count_windows(geometry) * count_taps(geometry);
    return vme_parallel(job->context, planes, 1 + PIECE / (work + 1), run_planes, job);
}

static int dtype_index(const vme_tensor *images) { return images->dtype == VME_FLOAT64; }

vme_status vme_patches(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                       const vme_tensor *out)
{
    planes_job job = {.context = context, .in = images->data, .out = out->data};
    vme_status status = vme_check_output(out);
    if (status != VME_OK || (status = check_windows(context, windows, images, out, true, &job.plane)) != VME_OK)
        return status;
    if (vme_overlap(images, out))
        return vme_fail(VME_BAD_VALUE, "out: it overlaps the images");
    const vme_kernels *kernels = vme_kernels_current();
    job.kernel = kernels->images->patches[dtype_index(images)];
    return run(&job, images, count_pixels(&job.plane), count_windows(&job.plane) * count_taps(&job.plane));
}

vme_status vme_patches_sum(vme_context *context, const vme_windows *windows, const vme_tensor *patches,
                           const vme_tensor *out)
{
    planes_job job = {.context = context, .in = patches->data, .out = out->data};
    vme_status status = vme_check_output(out);
    if (status != VME_OK || (status = check_windows(context, windows, out, patches, true, &job.plane)) != VME_OK)
        return status;
    if (vme_overlap(patches, out))
        return vme_fail(VME_BAD_VALUE, "out: it overlaps the patches");
    const vme_kernels *kernels = vme_kernels_current();
    job.kernel = kernels->images->patches_sum[dtype_index(out)];
    return run(&job, out, count_windows(&job.plane) * count_taps(&job.plane), count_pixels(&job.plane));
}

/* The windows of a pooling, which has no padding and no dilation. */
static vme_windows pool_windows(const vme_windows *windows)
{
    return (vme_windows){.kernel = {windows->kernel[0], windows->kernel[1]},
                         .stride = {windows->stride[0], windows->stride[1]},
                         .dilation = {1, 1}};
}

vme_status vme_max_pool(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                        const vme_tensor *out)
{
    planes_job job = {.context = context, .in = images->data, .out = out->data};
    const vme_windows pool = pool_windows(windows);
    vme_status status = vme_check_output(out);
    if (status != VME_OK || (status = check_windows(context, &pool, images, out, false, &job.plane)) != VME_OK)
        return status;
    if (vme_overlap(images, out))
        return vme_fail(VME_BAD_VALUE, "out: it overlaps the images");
    const vme_kernels *kernels = vme_kernels_current();
    job.kernel = kernels->images->max_pool[dtype_index(images)];
    return run(&job, images, count_pixels(&job.plane), count_windows(&job.plane));
}

vme_status vme_max_pool_gradient(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                                 const vme_tensor *pooled, const vme_tensor *gradient, const vme_tensor *out)
{
    planes_job job = {.context = context,
                      .in = images->data,
                      .pooled = pooled->data,
                      .pooled_gradient = gradient->data,
                      .out = out->data};
    const vme_windows pool = pool_windows(windows);
    image_plane unused;
    vme_status status = vme_check_output(out);
    if (status != VME_OK || (status = check_windows(context, &pool, images, pooled, false, &job.plane)) != VME_OK
        || (status = check_windows(context, &pool, images, gradient, false, &unused)) != VME_OK)
        return status;
    if (!has_layout(out, images, 4) || memcmp(out->shape, images->shape, 4 * sizeof *out->shape) != 0)
        return vme_fail(VME_BAD_SHAPE, "out: expected the images' shape and dtype");
    if (vme_overlap(images, out) || vme_overlap(pooled, out) || vme_overlap(gradient, out))
        return vme_fail(VME_BAD_VALUE, "out: it overlaps an operand");
    const vme_kernels *kernels = vme_kernels_current();
    job.gradient_kernel = kernels->images->max_pool_gradient[dtype_index(images)];
    return run(&job, images, count_pixels(&job.plane), count_pixels(&job.plane));
}

/* ---- depthwise convolutions */
typedef struct depthwise_job {
    vme_context *context;
    image_plane plane;
    void (*kernel)(const image_plane *geometry, const void *in, const void *weights, void *out, void *workspace);
    void (*weights_kernel)(const image_plane *geometry, int64_t count, const void *planes, int64_t step,
                           const void *gradients, int64_t gradient_step, void *sums, void *workspace);
    const char *in, *second; /* second: the weights, or for `weights_kernel` the gradient */
    char *out;
    int64_t examples, channels;
    int64_t in_size, out_size; /* elements of a plane; out_size is that of the gradient for `weights_kernel` */
    int64_t element_size;      /* bytes */
    int64_t planes_per_check;  /* planes between two checks of the stop flag */
    size_t workspace;          /* bytes */
} depthwise_job;

static void *workspace_new(const depthwise_job *job)
{
    void *workspace = vme_scratch_new(job->context, job->workspace);
    if (workspace != NULL)
        memset(workspace, 0, job->workspace);
    return workspace;
}

static vme_status depthwise_planes(void *argument, int64_t begin, int64_t end)
{
    const depthwise_job *job = argument;
    VME_FLUSHING(job->context);
    void *workspace = workspace_new(job);
    if (workspace == NULL)
        return VME_NO_MEMORY;
    vme_status status = VME_OK;
    for (int64_t i = begin; i < end && status == VME_OK; i++) {
        job->kernel(&job->plane, job->in + i * job->in_size * job->element_size,
                    job->second + i % job->channels * count_taps(&job->plane) * job->element_size,
                    job->out + i * job->out_size * job->element_size, workspace);
        if (vme_stopping(job->context))
            status = vme_stopped_here(job->context);
    }
    vme_scratch_free(job->context, workspace, job->workspace);
    return status;
}

static vme_status depthwise_sums(void *argument, int64_t begin, int64_t end)
{
    const depthwise_job *job = argument;
    VME_FLUSHING(job->context);
    void *workspace = workspace_new(job);
    if (workspace == NULL)
        return VME_NO_MEMORY;
    vme_status status = VME_OK;
    for (int64_t c = begin; c < end && status == VME_OK; c++) {
        const int64_t step = count_taps(&job->plane) * job->element_size;
        memset(job->out + c * step, 0, (size_t)step);
        for (int64_t first = 0; first < job->examples; first += job->planes_per_check) {
            if (vme_stopping(job->context)) {
                status = vme_stopped_here(job->context);
                break;
            }
            const int64_t count =
                job->examples - first < job->planes_per_check ? job->examples - first : job->planes_per_check;
            const int64_t at = first * job->channels + c;
            job->weights_kernel(&job->plane, count, job->in + at * job->in_size * job->element_size,
                                job->channels * job->in_size, job->second + at * job->out_size * job->element_size,
                                job->channels * job->out_size, job->out + c * step, workspace);
        }
        if (status == VME_OK && vme_stopping(job->context))
            status = vme_stopped_here(job->context);
    }
    vme_scratch_free(job->context, workspace, job->workspace);
    return status;
}

/* Checks the operands and runs the job. `out` is one of images, weights and result. */
static vme_status depthwise(depthwise_job *job, const vme_windows *windows, const vme_tensor *images,
                            const vme_tensor *weights, const vme_tensor *result, const vme_tensor *out)
{
    vme_status status = vme_check_output(out);
    if (status != VME_OK
        || (status = check_windows(job->context, windows, images, result, false, &job->plane)) != VME_OK)
        return status;
    const image_plane *geometry = &job->plane;
    const int64_t *shape = weights->shape, channels = images->shape[1];
    if (!has_layout(weights, images, 4) || shape[0] != channels || shape[1] != 1 || shape[2] != windows->kernel[0]
        || shape[3] != windows->kernel[1])
        return vme_fail(VME_BAD_SHAPE, "weights: expected %lld of 1 x %lld x %lld", (long long)channels,
                        (long long)windows->kernel[0], (long long)windows->kernel[1]);
    for (const vme_tensor *const *operand = (const vme_tensor *const[]){images, weights, result, NULL};
         *operand != NULL; operand++)
        if (*operand != out && vme_overlap(*operand, out))
            return vme_fail(VME_BAD_VALUE, "out: it overlaps an operand");
    if (channels == 0 || images->shape[0] == 0) {
        if (out == weights)
            memset(out->data, 0, (size_t)(vme_elements(out) * vme_dtype_size((vme_dtype)out->dtype)));
        return VME_OK;
    }
    job->element_size = vme_dtype_size((vme_dtype)images->dtype);
    job->examples = images->shape[0];
    job->channels = channels;
    job->in_size = job->kernel != NULL && out == images ? count_windows(geometry) : count_pixels(geometry);
    job->out_size = job->kernel != NULL && out == images ? count_pixels(geometry) : count_windows(geometry);
    job->workspace = 64;
    if (windows->stride[0] == 1 && windows->stride[1] == 1) {
        const int64_t padded_height = geometry->height + 2 * windows->padding[0],
                      padded_width = geometry->width + 2 * windows->padding[1];
        int64_t size;
        if (__builtin_mul_overflow(padded_height, padded_width, &size) || size > INT64_C(1) << 40)
            return vme_fail(VME_NO_MEMORY, "images of %lld x %lld with their padding are too large",
                            (long long)padded_height, (long long)padded_width);
        job->plane.taps_mask = mask_of(size);
        job->workspace = (size_t)(2 * (2 * size + IMAGE_BLOCK) * job->element_size + 64 * count_taps(geometry));
    }
    atomic_fetch_add_explicit(&job->context->operators, 1, memory_order_relaxed);
    const int64_t work = count_pixels(geometry) + count_windows(geometry) * count_taps(geometry);
    job->planes_per_check = 1 + PIECE / (work + 1);
    return job->kernel != NULL
               ? vme_parallel(job->context, job->examples * channels, job->planes_per_check, depthwise_planes, job)
               : vme_parallel(job->context, channels, 1 + job->planes_per_check / job->examples, depthwise_sums, job);
}

vme_status vme_depthwise_forward(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                                 const vme_tensor *weights, const vme_tensor *out)
{
    depthwise_job job = {.context = context, .in = images->data, .second = weights->data, .out = out->data};
    job.kernel = vme_kernels_current()->images->depthwise[dtype_index(images)];
    return depthwise(&job, windows, images, weights, out, out);
}

vme_status vme_depthwise_images(vme_context *context, const vme_windows *windows, const vme_tensor *gradient,
                                const vme_tensor *weights, const vme_tensor *out)
{
    depthwise_job job = {.context = context, .in = gradient->data, .second = weights->data, .out = out->data};
    job.kernel = vme_kernels_current()->images->depthwise_images[dtype_index(gradient)];
    return depthwise(&job, windows, out, weights, gradient, out);
}

vme_status vme_depthwise_weights(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                                 const vme_tensor *gradient, const vme_tensor *out)
{
    depthwise_job job = {.context = context, .in = images->data, .second = gradient->data, .out = out->data};
    job.weights_kernel = vme_kernels_current()->images->depthwise_weights[dtype_index(images)];
    return depthwise(&job, windows, images, out, gradient, out);
}
