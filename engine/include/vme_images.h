/* Windows over images, for convolutions and pools of vmhost.engine.nn and their gradients, a part of the engine that
 * only its arrays call: see vme.h for contexts, tensors and statuses.
 *
 * Images are float32 or float64 [examples, channels, height, width]. All tensors are contiguous and of one dtype, and
 * results share no memory with what is read. In each dimension a window begins every `stride` elements, at -padding
 * first, and meets `kernel` elements that are `dilation` apart; those outside of the image are 0. There are
 * (size + 2 padding - dilation (kernel - 1) - 1) / stride + 1 of them, at least one. Other shapes: VME_BAD_SHAPE. */
#ifndef VME_IMAGES_H
#define VME_IMAGES_H

#include "vme.h"

typedef struct vme_windows {
    int64_t kernel[2], stride[2], dilation[2], padding[2]; /* of height, width; padding from 0 on, the others from 1 */
} vme_windows;

/* What each window meets: out [examples, channels * kernel places, rows of windows * windows of a row]. */
VME_API vme_status vme_patches(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                               const vme_tensor *out);
/* The reverse: out, images, each element of which is the sum of what the windows that meet it have of it. */
VME_API vme_status vme_patches_sum(vme_context *context, const vme_windows *windows, const vme_tensor *patches,
                                   const vme_tensor *out);
/* The largest that each window meets; NaN where there is one. Without padding and dilation (both as if 0 and 1). */
VME_API vme_status vme_max_pool(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                                const vme_tensor *out);
/* Of `gradient`, that of `pooled`, which vme_max_pool made of `images`: the images' gradient. Equals of a window share.
 */
VME_API vme_status vme_max_pool_gradient(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                                         const vme_tensor *pooled, const vme_tensor *gradient, const vme_tensor *out);

/* Convolutions of each channel with weights of its own, [channels, 1, kernel height, kernel width]; out [examples,
 * channels, rows of windows, windows of a row]. */
VME_API vme_status vme_depthwise_forward(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                                         const vme_tensor *weights, const vme_tensor *out);
/* Of `gradient`, that of what vme_depthwise_forward made: the images' gradient, and that of the weights. */
VME_API vme_status vme_depthwise_images(vme_context *context, const vme_windows *windows, const vme_tensor *gradient,
                                        const vme_tensor *weights, const vme_tensor *out);
VME_API vme_status vme_depthwise_weights(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                                         const vme_tensor *gradient, const vme_tensor *out);

/* Batch normalization over all dimensions but the second, of images or of any [examples, channels, ...]; the others are
 * vectors of a number for each channel. `out` is x with mean 0 and variance 1, times weight, plus bias. `mean` and
 * `var` get the mean and the variance. No elements: VME_BAD_SHAPE. */
VME_API vme_status vme_normalize(vme_context *context, const vme_tensor *x, const vme_tensor *weight,
                                 const vme_tensor *bias, double eps, const vme_tensor *out, const vme_tensor *mean,
                                 const vme_tensor *var);
/* Of `gradient`, that of what it gave: the gradients of x, weight and bias. */
VME_API vme_status vme_normalize_gradient(vme_context *context, const vme_tensor *x, const vme_tensor *gradient,
                                          const vme_tensor *mean, const vme_tensor *var, const vme_tensor *weight,
                                          double eps, const vme_tensor *out, const vme_tensor *of_weight,
                                          const vme_tensor *of_bias);

#endif
