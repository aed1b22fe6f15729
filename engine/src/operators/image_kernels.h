/* Kernels on one plane of an image, of float32 and float64: each backend has a table of them (kernels/images.h). */
#ifndef VME_IMAGE_KERNELS_H
#define VME_IMAGE_KERNELS_H

#include "vme_images.h"

typedef struct image_plane {
    vme_windows windows;
    int64_t height, width;
    int64_t rows, columns; /* numbers of windows */
} image_plane;

/* Maximum elements of a line that are summed together. */
enum { IMAGE_BLOCK = 64 };

/* Indexed by dtype: 0 float32, 1 float64. */
typedef struct image_kernels {
    /* out: [kernel height, kernel width, rows, columns] */
    void (*patches[2])(const image_plane *of, const void *plane, void *out);
    void (*patches_sum[2])(const image_plane *of, const void *patches, void *out);
    void (*max_pool[2])(const image_plane *of, const void *plane, void *out);
    void (*max_pool_gradient[2])(const image_plane *of, const void *plane, const void *pooled, const void *gradient,
                                 void *out);
    /* Depthwise convolutions: `weights` are those of the plane's channel, [kernel height, kernel width]. `room`, for
     * windows at stride 1: 2 * (2 * size + IMAGE_BLOCK) elements plus 64 bytes for each weight, where `size` is that of
     * the zero-padded plane; zeroed at first, then as the last call of the same kind left it. */
    void (*depthwise[2])(const image_plane *of, const void *plane, const void *weights, void *out, void *room);
    void (*depthwise_images[2])(const image_plane *of, const void *gradient, const void *weights, void *out,
                                void *room);
    /* Adds to `sums`, for `count` planes, `step` elements apart. */
    void (*depthwise_weights[2])(const image_plane *of, int64_t count, const void *planes, int64_t step,
                                 const void *gradients, int64_t gradient_step, void *sums, void *room);
    /* Batch normalization of one channel: `examples` pieces of `n` elements, `step` apart. Single elements: weight,
     * bias, mean and variance, and the gradients of weight and bias. */
    void (*normalize[2])(int64_t examples, int64_t step, int64_t n, const void *channel, const void *weight,
                         const void *bias, double eps, void *out, void *mean, void *var);
    void (*normalize_gradient[2])(int64_t examples, int64_t step, int64_t n, const void *channel, const void *gradient,
                                  const void *mean, const void *var, const void *weight, double eps, void *out,
                                  void *of_weight, void *of_bias);
} image_kernels;

#endif
