/* Kernels on one plane of an image, for float32 and float64. Each backend has a table of them (kernels/images.h). */
#ifndef VME_IMAGE_KERNELS_H
#define VME_IMAGE_KERNELS_H

#include "runtime/internal.h"

#include "vme_images.h"

typedef struct image_plane {
    vme_windows windows;
    int64_t height, width;
    int64_t rows, columns; /* numbers of windows */
    const vme_context *context;
    /* Kernels look at the stop flag after so many rows of windows, windows, and taps on the padded plane: each is a
     * power of two, less 1. A kernel that sees the flag set returns at once, with a result of no use. */
    int64_t rows_mask, windows_mask, taps_mask;
} image_plane;

/* Whether it is time to look at the stop flag, and it is set. */
static inline bool image_stops(const image_plane *plane, int64_t number, int64_t mask)
{
    return (number & mask) == 0 && vme_stopping(plane->context);
}

/* Elements of a line that depthwise kernels sum in one block. */
enum { IMAGE_BLOCK = 64 };

/* Indexed by dtype: 0 float32, 1 float64. */
typedef struct image_kernels {
    /* out: [kernel height, kernel width, rows, columns] */
    void (*patches[2])(const image_plane *geometry, const void *plane, void *out);
    void (*patches_sum[2])(const image_plane *geometry, const void *patches, void *out);
    void (*max_pool[2])(const image_plane *geometry, const void *plane, void *out);
    void (*max_pool_gradient[2])(const image_plane *geometry, const void *plane, const void *pooled,
                                 const void *gradient, void *out);
    /* Depthwise convolutions. `weights`: those of the plane's channel, [kernel height, kernel width]. `workspace`, used
     * at stride 1: 2 * (2 * size + IMAGE_BLOCK) elements plus 64 bytes for each weight, where `size` is that of the
     * zero-padded plane. It is zeroed before the first call and keeps its contents between calls of the same kernel. */
    void (*depthwise[2])(const image_plane *geometry, const void *plane, const void *weights, void *out,
                         void *workspace);
    void (*depthwise_images[2])(const image_plane *geometry, const void *gradient, const void *weights, void *out,
                                void *workspace);
    /* Adds the gradients of the weights to `sums`, for `count` planes that are `step` elements apart. */
    void (*depthwise_weights[2])(const image_plane *geometry, int64_t count, const void *planes, int64_t step,
                                 const void *gradients, int64_t gradient_step, void *sums, void *workspace);
    /* Batch normalization of one channel: `examples` runs of `n` elements, `step` apart. weight, bias, mean and var,
     * and the gradients of weight and bias, are single elements. */
    void (*normalize[2])(int64_t examples, int64_t step, int64_t n, const void *channel, const void *weight,
                         const void *bias, double eps, void *out, void *mean, void *var);
    void (*normalize_gradient[2])(int64_t examples, int64_t step, int64_t n, const void *channel, const void *gradient,
                                  const void *mean, const void *var, const void *weight, double eps, void *out,
                                  void *weight_gradient, void *bias_gradient);
} image_kernels;

#endif
