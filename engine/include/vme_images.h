/* Windows over images, for convolutions and pooling of vmhost.engine.nn and their gradients; used by the engine's
 * arrays only. See vme.h for contexts, tensors and statuses.
 *
 * Images are float32 or float64 [examples, channels, height, width]. All tensors are contiguous and of one dtype, and
 * results do not overlap operands. In each dimension windows start every `stride` elements, the first one at -padding,
 * and cover `kernel` elements that are `dilation` apart. Elements outside the image are 0. There are
 * (size + 2 padding - dilation (kernel - 1) - 1) / stride + 1 windows, at least one. Other shapes: VME_BAD_SHAPE. */
#ifndef VME_IMAGES_H
#define VME_IMAGES_H

#include "vme.h"

typedef struct vme_windows {
    int64_t kernel[2], stride[2], dilation[2], padding[2]; /* for height and width; padding is at least 0, the others at
                                                            * least 1 */
} vme_windows;

/* The elements under each window: out [examples, channels * kernel elements, rows of windows * windows of a row]. */
VME_API vme_status vme_patches(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                               const vme_tensor *out);
/* The adjoint: each element of the images `out` is the sum of the patches' elements at its position. */
VME_API vme_status vme_patches_sum(vme_context *context, const vme_windows *windows, const vme_tensor *patches,
                                   const vme_tensor *out);
/* The maximum of each window; NaN if it contains one. Padding and dilation are ignored. */
VME_API vme_status vme_max_pool(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                                const vme_tensor *out);
/* The gradient of the images. `pooled` is vme_max_pool's result for `images`, and `gradient` is its gradient. Equal
 * maxima of a window get equal shares. */
VME_API vme_status vme_max_pool_gradient(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                                         const vme_tensor *pooled, const vme_tensor *gradient, const vme_tensor *out);

/* Convolutions of each channel with its own weights, [channels, 1, kernel height, kernel width]; out [examples,
 * channels, rows of windows, windows of a row]. */
VME_API vme_status vme_depthwise_forward(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                                         const vme_tensor *weights, const vme_tensor *out);
/* The gradients of the images and of the weights; `gradient` is that of vme_depthwise_forward's result. */
VME_API vme_status vme_depthwise_images(vme_context *context, const vme_windows *windows, const vme_tensor *gradient,
                                        const vme_tensor *weights, const vme_tensor *out);
VME_API vme_status vme_depthwise_weights(vme_context *context, const vme_windows *windows, const vme_tensor *images,
                                         const vme_tensor *gradient, const vme_tensor *out);

/* Batch normalization of images, or of any [examples, channels, ...], over all dimensions but the second. `out` is x
 * normalized to mean 0 and variance 1 in each channel, times weight, plus bias. `mean` and `var` receive the mean and
 * the variance. weight, bias, mean and var have one element for each channel. No elements: VME_BAD_SHAPE. */
VME_API vme_status vme_normalize(vme_context *context, const vme_tensor *x, const vme_tensor *weight,
                                 const vme_tensor *bias, double eps, const vme_tensor *out, const vme_tensor *mean,
                                 const vme_tensor *var);
/* The gradients of x (`out`), weight and bias; `gradient` is that of vme_normalize's result. */
VME_API vme_status vme_normalize_gradient(vme_context *context, const vme_tensor *x, const vme_tensor *gradient,
                                          const vme_tensor *mean, const vme_tensor *var, const vme_tensor *weight,
                                          double eps, const vme_tensor *out, const vme_tensor *of_weight,
                                          const vme_tensor *of_bias);

#endif
