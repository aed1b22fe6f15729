/* Windows over images: shapes are checked, then each plane is one call of a backend's kernel. */
#include "operators/image_kernels.h"
#include "runtime/internal.h"

#include "vme_images.h"

#include <string.h>

enum { PIECE = 1 << 16 }; /* elements of a piece of work */

typedef struct planes_job {
    vme_context *context;
    image_plane plane;
    void (*one)(const image_plane *of, const void *in, void *out);
    void (*gradient)(const image_plane *of, const void *plane, const void *pooled, const void *gradient, void *out);
    const char *in, *pooled, *over; /* over: the gradient of `pooled` */
    char *out;
    size_t in_bytes, pooled_bytes, out_bytes; /* of a plane */
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

/* Of the images, whose windows these are, and what they gave, [examples, channels, ...] or patches. */
static vme_status look_at(const vme_windows *w, const vme_tensor *images, const vme_tensor *given, bool patches,
                          image_plane *of)
{
    if ((images->dtype != VME_FLOAT32 && images->dtype != VME_FLOAT64) || !plain(images, images, 4)
        || !plain(given, images, patches ? 3 : 4))
        return vme_fail(VME_BAD_SHAPE, "windows over images take contiguous float32 or float64, [examples, channels, "
                                       "height, width], and what belongs to it");
    int64_t count[2], covered[2];
    for (int i = 0; i < 2; i++) {
        const int64_t size = images->shape[2 + i];
        const int64_t limit = INT64_C(1) << 30;
        if (w->kernel[i] < 1 || w->stride[i] < 1 || w->dilation[i] < 1 || w->padding[i] < 0 || w->kernel[i] > limit
            || w->stride[i] > limit || w->dilation[i] > limit || w->padding[i] > limit || size > limit)
            return vme_fail(VME_BAD_SHAPE,
                            "windows: expected kernel, stride and dilation from 1 on, padding from 0 on");
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
        return vme_fail(VME_BAD_SHAPE, "windows: expected what %lld x %lld windows of each image give",
                        (long long)count[0], (long long)count[1]);
    *of = (image_plane){*w, images->shape[2], images->shape[3], count[0], count[1]};
    return VME_OK;
}

static int64_t pixels(const image_plane *of) { return of->height * of->width; }
static int64_t windows_of(const image_plane *of) { return of->rows * of->columns; }
static int64_t places(const image_plane *of) { return of->windows.kernel[0] * of->windows.kernel[1]; }

/* A kernel for each plane: `in` and `out`, elements of one. */
static vme_status run(planes_job *job, const vme_tensor *images, int64_t in, int64_t out)
{
    const image_plane *of = &job->plane;
    const size_t item = (size_t)vme_dtype_size((vme_dtype)images->dtype);
    job->in_bytes = (size_t)in * item;
    job->out_bytes = (size_t)out * item;
    job->pooled_bytes = (size_t)windows_of(of) * item;
    atomic_fetch_add_explicit(&job->context->operators, 1, memory_order_relaxed);
    const int64_t work = pixels(of) + windows_of(of) * places(of);
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
        return vme_fail(VME_BAD_VALUE, "out: it lies over the images");
    const vme_kernels *kernels = vme_kernels_current();
    job.one = kernels->images->patches[number_of(images)];
    return run(&job, images, pixels(&job.plane), windows_of(&job.plane) * places(&job.plane));
}

vme_status vme_patches_sum(vme_context *context, const vme_windows *windows, const vme_tensor *patches,
                           const vme_tensor *out)
{
    planes_job job = {.context = context, .in = patches->data, .out = out->data};
    vme_status status = vme_check_output(out);
    if (status != VME_OK || (status = look_at(windows, out, patches, true, &job.plane)) != VME_OK)
        return status;
    if (vme_overlap(patches, out))
        return vme_fail(VME_BAD_VALUE, "out: it lies over the patches");
    const vme_kernels *kernels = vme_kernels_current();
    job.one = kernels->images->patches_sum[number_of(out)];
    return run(&job, out, windows_of(&job.plane) * places(&job.plane), pixels(&job.plane));
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
        return vme_fail(VME_BAD_VALUE, "out: it lies over the images");
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
        return vme_fail(VME_BAD_VALUE, "out: it lies over what is read");
    const vme_kernels *kernels = vme_kernels_current();
    job.gradient = kernels->images->max_pool_gradient[number_of(images)];
    return run(&job, images, pixels(&job.plane), pixels(&job.plane));
}
