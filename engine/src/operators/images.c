/* Windows over images: checks shapes, then calls a backend's kernel for each plane. */
#include "operators/image_kernels.h"
#include "runtime/internal.h"

#include "vme_images.h"

#include <string.h>

enum { PIECE = 1 << 16 }; /* elements of a piece */

typedef struct planes_job {
    vme_context *context;
    image_plane plane;
    void (*one)(const image_plane *of, const void *in, void *out);
    void (*gradient)(const image_plane *of, const void *plane, const void *pooled, const void *gradient, void *out);
    const char *in, *pooled, *over; /* over: the gradient of `pooled` */
    char *out;
    size_t in_bytes, pooled_bytes, out_bytes; /* bytes of one plane */
} planes_job;

static vme_status planes(void *argument, int64_t begin, int64_t end)
{
    const planes_job *job = argument;
    VME_FLUSHING(job->context);
    for (size_t i = (size_t)begin; i < (size_t)end; i++) {
        const char *in = job->in + i * job->in_bytes;
        char *out = job->out + i * job->out_bytes;
        if (job->one != NULL)
            job->one(&job->plane, in, out);
        else
            job->gradient(&job->plane, in, job->pooled + i * job->pooled_bytes, job->over + i * job->pooled_bytes, out);
    }
    return VME_OK;
}

static bool plain(const vme_tensor *tensor, const vme_tensor *images, int rank)
{
    return tensor->dtype == images->dtype && tensor->rank == rank && vme_is_contiguous(tensor);
}

/* Checks the images with these windows, and the windows' results `given`, [examples, channels, ...] or patches; fills
 * in `of`. */
static vme_status look_at(const vme_windows *w, const vme_tensor *images, const vme_tensor *given, bool patches,
                          image_plane *of)
{
    if ((images->dtype != VME_FLOAT32 && images->dtype != VME_FLOAT64) || !plain(images, images, 4)
        || !plain(given, images, patches ? 3 : 4))
        return vme_fail(VME_BAD_SHAPE, "windows over images take contiguous float32 or float64, [examples, channels, "
                                       "height, width], and matching operands");
    int64_t count[2], covered[2];
    for (int i = 0; i < 2; i++) {
        const int64_t size = images->shape[2 + i];
        const int64_t limit = INT64_C(1) << 30;
        if (w->kernel[i] < 1 || w->stride[i] < 1 || w->dilation[i] < 1 || w->padding[i] < 0 || w->kernel[i] > limit
            || w->stride[i] > limit || w->dilation[i] > limit || w->padding[i] > limit || size > limit)
            return vme_fail(VME_BAD_SHAPE,
                            "windows: expected kernel, stride and dilation of at least 1, padding of at least 0");
        covered[i] = size + 2 * w->padding[i] - w->dilation[i] * (w->kernel[i] - 1) - 1;
        if (covered[i] < 0)
            return vme_fail(VME_BAD_SHAPE, "images of %lld x %lld are smaller than the kernel %lld x %lld",
                            (long long)images->shape[2], (long long)images->shape[3], (long long)w->kernel[0],
                            (long long)w->kernel[1]);
        count[i] = covered[i] / w->stride[i] + 1;
    }
    const int64_t *shape = given->shape;
    const bool fits =
        patches ? shape[1] == images->shape[1] * w->kernel[0] * w->kernel[1] && shape[2] == count[0] * count[1]
                : shape[1] == images->shape[1] && shape[2] == count[0] && shape[3] == count[1];
    if (!fits || shape[0] != images->shape[0])
        return vme_fail(VME_BAD_SHAPE, "windows: expected the result of %lld x %lld windows of each image",
                        (long long)count[0], (long long)count[1]);
    *of = (image_plane){*w, images->shape[2], images->shape[3], count[0], count[1]};
    return VME_OK;
}

static int64_t pixels(const image_plane *of) { return of->height * of->width; }
static int64_t windows_of(const image_plane *of) { return of->rows * of->columns; }
static int64_t taps_of_window(const image_plane *of) { return of->windows.kernel[0] * of->windows.kernel[1]; }

/* Calls the kernel for each plane; `in` and `out`: elements of one plane. */
static vme_status run(planes_job *job, const vme_tensor *images, int64_t in, int64_t out)
{
    const image_plane *of = &job->plane;
    const size_t item = (size_t)vme_dtype_size((vme_dtype)images->dtype);
    job->in_bytes = (size_t)in * item;
    job->out_bytes = (size_t)out * item;
    job->pooled_bytes = (size_t)windows_of(of) * item;
    atomic_fetch_add_explicit(&job->context->operators, 1, memory_order_relaxed);
    const int64_t work = pixels(of) + windows_of(of) * taps_of_window(of);
    return vme_parallel(job->context, images->shape[0] * images->shape[1], 1 + PIECE / (work + 1), planes, job);
}

static int number_of(const vme_tensor *images) { return images->dtype == VME_FLOAT64; }

vme_status vme_patches(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                       const vme_tensor *out)
{
    planes_job job = {.context = context, .in = images->data, .out = out->data};
    vme_status status = vme_check_output(out);
    if (status != VME_OK || (status = look_at(windows, images, out, true, &job.plane)) != VME_OK)
        return status;
    if (vme_overlap(images, out))
        return vme_fail(VME_BAD_VALUE, "out: it overlaps the images");
    const vme_kernels *kernels = vme_kernels_current();
    job.one = kernels->images->patches[number_of(images)];
    return run(&job, images, pixels(&job.plane), windows_of(&job.plane) * taps_of_window(&job.plane));
}

vme_status vme_patches_sum(vme_context *context, const vme_windows *windows, const vme_tensor *patches,
                           const vme_tensor *out)
{
    planes_job job = {.context = context, .in = patches->data, .out = out->data};
    vme_status status = vme_check_output(out);
    if (status != VME_OK || (status = look_at(windows, out, patches, true, &job.plane)) != VME_OK)
        return status;
    if (vme_overlap(patches, out))
        return vme_fail(VME_BAD_VALUE, "out: it overlaps the patches");
    const vme_kernels *kernels = vme_kernels_current();
    job.one = kernels->images->patches_sum[number_of(out)];
    return run(&job, out, windows_of(&job.plane) * taps_of_window(&job.plane), pixels(&job.plane));
}

static vme_windows of_pool(const vme_windows *windows)
{
    return (vme_windows){.kernel = {windows->kernel[0], windows->kernel[1]},
                         .stride = {windows->stride[0], windows->stride[1]},
                         .dilation = {1, 1}};
}

vme_status vme_max_pool(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                        const vme_tensor *out)
{
    planes_job job = {.context = context, .in = images->data, .out = out->data};
    const vme_windows plain_ones = of_pool(windows);
    vme_status status = vme_check_output(out);
    if (status != VME_OK || (status = look_at(&plain_ones, images, out, false, &job.plane)) != VME_OK)
        return status;
    if (vme_overlap(images, out))
        return vme_fail(VME_BAD_VALUE, "out: it overlaps the images");
    const vme_kernels *kernels = vme_kernels_current();
    job.one = kernels->images->max_pool[number_of(images)];
    return run(&job, images, pixels(&job.plane), windows_of(&job.plane));
}

vme_status vme_max_pool_gradient(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                                 const vme_tensor *pooled, const vme_tensor *gradient, const vme_tensor *out)
{
    planes_job job = {
        .context = context, .in = images->data, .pooled = pooled->data, .over = gradient->data, .out = out->data};
    const vme_windows plain_ones = of_pool(windows);
    image_plane same;
    vme_status status = vme_check_output(out);
    if (status != VME_OK || (status = look_at(&plain_ones, images, pooled, false, &job.plane)) != VME_OK
        || (status = look_at(&plain_ones, images, gradient, false, &same)) != VME_OK)
        return status;
    if (!plain(out, images, 4) || memcmp(out->shape, images->shape, 4 * sizeof *out->shape) != 0)
        return vme_fail(VME_BAD_SHAPE, "out: expected the images' shape and dtype");
    if (vme_overlap(images, out) || vme_overlap(pooled, out) || vme_overlap(gradient, out))
        return vme_fail(VME_BAD_VALUE, "out: it overlaps an operand");
    const vme_kernels *kernels = vme_kernels_current();
    job.gradient = kernels->images->max_pool_gradient[number_of(images)];
    return run(&job, images, pixels(&job.plane), pixels(&job.plane));
}

/* ---- depthwise convolutions */
typedef struct depthwise_job {
    vme_context *context;
    image_plane plane;
    void (*one)(const image_plane *of, const void *in, const void *weights, void *out, void *room);
    void (*sums)(const image_plane *of, int64_t count, const void *planes, int64_t step, const void *gradients,
                 int64_t gradient_step, void *sums, void *room);
    const char *in, *other; /* other: the weights, or, for `sums`, the gradient */
    char *out;
    int64_t examples, channels, in_size, out_size; /* elements of a plane; for `sums` out_size is that of the gradient
                                                    */
    int64_t item, together;                        /* bytes of an element; planes between two checks of the stop flag */
    size_t room;                                   /* in bytes */
} depthwise_job;

static void *room_of(const depthwise_job *job)
{
    void *room = vme_scratch_new(job->context, job->room);
    if (room != NULL)
        memset(room, 0, job->room);
    return room;
}

static vme_status depthwise_planes(void *argument, int64_t begin, int64_t end)
{
    const depthwise_job *job = argument;
    VME_FLUSHING(job->context);
    void *room = room_of(job);
    if (room == NULL)
        return VME_NO_MEMORY;
    for (int64_t i = begin; i < end; i++)
        job->one(&job->plane, job->in + i * job->in_size * job->item,
                 job->other + i % job->channels * taps_of_window(&job->plane) * job->item,
                 job->out + i * job->out_size * job->item, room);
    vme_scratch_free(job->context, room, job->room);
    return VME_OK;
}

static vme_status depthwise_sums(void *argument, int64_t begin, int64_t end)
{
    const depthwise_job *job = argument;
    VME_FLUSHING(job->context);
    void *room = room_of(job);
    if (room == NULL)
        return VME_NO_MEMORY;
    vme_status status = VME_OK;
    for (int64_t c = begin; c < end && status == VME_OK; c++) {
        const int64_t step = taps_of_window(&job->plane) * job->item;
        memset(job->out + c * step, 0, (size_t)step);
        for (int64_t first = 0; first < job->examples; first += job->together) {
            if (vme_stopping(job->context)) {
                status = vme_stopped_here(job->context);
                break;
            }
            const int64_t count = job->examples - first < job->together ? job->examples - first : job->together;
            const int64_t at = first * job->channels + c;
            job->sums(&job->plane, count, job->in + at * job->in_size * job->item, job->channels * job->in_size,
                      job->other + at * job->out_size * job->item, job->channels * job->out_size, job->out + c * step,
                      room);
        }
    }
    vme_scratch_free(job->context, room, job->room);
    return status;
}

/* Takes images, weights and the convolution's result, one of which is `out`. */
static vme_status depthwise(depthwise_job *job, const vme_windows *windows, const vme_tensor *images,
                            const vme_tensor *weights, const vme_tensor *given, const vme_tensor *out)
{
    vme_status status = vme_check_output(out);
    if (status != VME_OK || (status = look_at(windows, images, given, false, &job->plane)) != VME_OK)
        return status;
    const image_plane *of = &job->plane;
    const int64_t *shape = weights->shape, channels = images->shape[1];
    if (!plain(weights, images, 4) || shape[0] != channels || shape[1] != 1 || shape[2] != windows->kernel[0]
        || shape[3] != windows->kernel[1])
        return vme_fail(VME_BAD_SHAPE, "weights: expected %lld of 1 x %lld x %lld", (long long)channels,
                        (long long)windows->kernel[0], (long long)windows->kernel[1]);
    for (const vme_tensor *const *one = (const vme_tensor *const[]){images, weights, given, NULL}; *one != NULL; one++)
        if (*one != out && vme_overlap(*one, out))
            return vme_fail(VME_BAD_VALUE, "out: it overlaps an operand");
    if (channels == 0 || images->shape[0] == 0) {
        if (out == weights)
            memset(out->data, 0, (size_t)(vme_elements(out) * vme_dtype_size((vme_dtype)out->dtype)));
        return VME_OK;
    }
    job->item = vme_dtype_size((vme_dtype)images->dtype);
    job->examples = images->shape[0];
    job->channels = channels;
    job->in_size = job->one != NULL && out == images ? windows_of(of) : pixels(of);
    job->out_size = job->one != NULL && out == images ? pixels(of) : windows_of(of);
    job->room = 64;
    if (windows->stride[0] == 1 && windows->stride[1] == 1) {
        const int64_t high = of->height + 2 * windows->padding[0], wide = of->width + 2 * windows->padding[1];
        int64_t size;
        if (__builtin_mul_overflow(high, wide, &size) || size > INT64_C(1) << 40)
            return vme_fail(VME_NO_MEMORY, "images of %lld x %lld with their padding are too large", (long long)high,
                            (long long)wide);
        job->room = (size_t)(2 * (2 * size + IMAGE_BLOCK) * job->item + 64 * taps_of_window(of));
    }
    atomic_fetch_add_explicit(&job->context->operators, 1, memory_order_relaxed);
    const int64_t work = pixels(of) + windows_of(of) * taps_of_window(of);
    job->together = 1 + PIECE / (work + 1);
    return job->one != NULL
               ? vme_parallel(job->context, job->examples * channels, job->together, depthwise_planes, job)
               : vme_parallel(job->context, channels, 1 + job->together / job->examples, depthwise_sums, job);
}

vme_status vme_depthwise_forward(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                                 const vme_tensor *weights, const vme_tensor *out)
{
    depthwise_job job = {.context = context, .in = images->data, .other = weights->data, .out = out->data};
    job.one = vme_kernels_current()->images->depthwise[number_of(images)];
    return depthwise(&job, windows, images, weights, out, out);
}

vme_status vme_depthwise_images(vme_context *context, const vme_windows *windows, const vme_tensor *gradient,
                                const vme_tensor *weights, const vme_tensor *out)
{
    depthwise_job job = {.context = context, .in = gradient->data, .other = weights->data, .out = out->data};
    job.one = vme_kernels_current()->images->depthwise_images[number_of(gradient)];
    return depthwise(&job, windows, out, weights, gradient, out);
}

vme_status vme_depthwise_weights(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                                 const vme_tensor *gradient, const vme_tensor *out)
{
    depthwise_job job = {.context = context, .in = images->data, .other = gradient->data, .out = out->data};
    job.sums = vme_kernels_current()->images->depthwise_weights[number_of(images)];
    return depthwise(&job, windows, images, out, gradient, out);
}
