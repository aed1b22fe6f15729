/* Kernels on one plane of an image, of float32 and float64: each backend has a table of them (kernels/images.h). */
#ifndef VME_IMAGE_KERNELS_H
#define VME_IMAGE_KERNELS_H

#include "vme_images.h"

typedef struct image_plane {
    vme_windows windows;
    int64_t height, width;
    int64_t rows, columns; /* of windows */
} image_plane;

/* By dtype: 0 float32, 1 float64. */
typedef struct image_kernels {
    /* out: [kernel height, kernel width, rows, columns] */
    void (*patches[2])(const image_plane *of, const void *plane, void *out);
    void (*patches_sum[2])(const image_plane *of, const void *patches, void *out);
    void (*max_pool[2])(const image_plane *of, const void *plane, void *out);
    void (*max_pool_gradient[2])(const image_plane *of, const void *plane, const void *pooled, const void *gradient,
                                 void *out);
} image_kernels;

#endif
