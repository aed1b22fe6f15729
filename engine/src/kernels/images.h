/* Kernels on the windows of one plane of an image, for float32 and float64: loops that the compiler vectorizes. */
#include "operators/image_kernels.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The windows of a row whose element in column `column` of the kernel is inside the image: *first up to, not including,
 * *end. */
static inline void images_windows_inside(const image_plane *shape, int64_t column, int64_t *first, int64_t *end)
{
    const int64_t position = column * shape->windows.dilation[1] - shape->windows.padding[1],
                  step = shape->windows.stride[1];
    const int64_t before = position < 0 ? (-position + step - 1) / step : 0;
    const int64_t until = shape->width > position ? (shape->width - position + step - 1) / step : 0;
    *end = until < shape->columns ? until : shape->columns;
    *first = before < *end ? before : *end;
}

static inline bool images_is_2x2(const image_plane *shape)
{
    const vme_windows *w = &shape->windows;
    return w->kernel[0] == 2 && w->kernel[1] == 2 && w->stride[0] == 2 && w->stride[1] == 2;
}

#define IMAGE_INLINE static inline __attribute__((always_inline))

#define IMAGE_KERNELS_OF(TYPE, NAME, MASK, EVEN, ODD, LOW, HIGH) \
    IMAGE_INLINE void NAME##_gather(int64_t n, int64_t stride_x, const TYPE *restrict in, TYPE *restrict out) \
    { \
        for (int64_t i = 0; i < n; i++) \
            out[i] = in[i * stride_x]; \
    } \
    static void NAME##_patches(const image_plane *shape, const void *plane, void *result) \
    { \
        const vme_windows *w = &shape->windows; \
        TYPE *restrict out = result; \
        for (int64_t y = 0; y < w->kernel[0]; y++) \
            for (int64_t x = 0; x < w->kernel[1]; x++) { \
                int64_t first, end; \
                images_windows_inside(shape, x, &first, &end); \
                for (int64_t r = 0; r < shape->rows; r++, out += shape->columns) { \
                    if (image_stops(shape, r, shape->rows_mask)) \
                        return; \
                    const int64_t row = r * w->stride[0] + y * w->dilation[0] - w->padding[0]; \
                    if (row < 0 || row >= shape->height) { \
                        for (int64_t i = 0; i < shape->columns; i++) \
                            out[i] = 0; \
                        continue; \
                    } \
                    const int64_t offset = \
                        row * shape->width + first * w->stride[1] + x * w->dilation[1] - w->padding[1]; \
                    const TYPE *in = (const TYPE *)plane + offset; \
                    for (int64_t i = 0; i < first; i++) \
                        out[i] = 0; \
                    if (w->stride[1] == 1) \
                        NAME##_gather(end - first, 1, in, out + first); \
                    else if (w->stride[1] == 2) \
                        NAME##_gather(end - first, 2, in, out + first); \
                    else \
                        NAME##_gather(end - first, w->stride[1], in, out + first); \
                    for (int64_t i = end; i < shape->columns; i++) \
                        out[i] = 0; \
                } \
            } \
    } \
    static void NAME##_patches_sum(const image_plane *shape, const void *patches, void *result) \
    { \
        const vme_windows *w = &shape->windows; \
        const TYPE *restrict in = patches; \
        TYPE *restrict out = result; \
        memset(out, 0, (size_t)(shape->height * shape->width) * sizeof *out); \
        for (int64_t y = 0; y < w->kernel[0]; y++) \
            for (int64_t x = 0; x < w->kernel[1]; x++) { \
                int64_t first, end; \
                images_windows_inside(shape, x, &first, &end); \
                for (int64_t r = 0; r < shape->rows; r++, in += shape->columns) { \
                    if (image_stops(shape, r, shape->rows_mask)) \
                        return; \
                    const int64_t row = r * w->stride[0] + y * w->dilation[0] - w->padding[0]; \
                    if (row < 0 || row >= shape->height) \
                        continue; \
                    TYPE *restrict to = out + row * shape->width + x * w->dilation[1] - w->padding[1]; \
                    if (w->stride[1] == 1) \
                        for (int64_t i = first; i < end; i++) \
                            to[i] += in[i]; \
                    else \
                        for (int64_t i = first; i < end; i++) \
                            to[i * w->stride[1]] += in[i]; \
                } \
            } \
    } \
    typedef TYPE NAME##_vector __attribute__((vector_size(16), aligned(sizeof(TYPE)), may_alias)); \
    typedef MASK NAME##_mask __attribute__((vector_size(16), may_alias)); \
    IMAGE_INLINE NAME##_vector NAME##_at(const TYPE *from) { return *(const NAME##_vector *)(uintptr_t)from; } \
    IMAGE_INLINE NAME##_vector NAME##_larger(NAME##_vector a, NAME##_vector b) \
    { \
        const NAME##_mask first = (a >= b) | (a != a); \
        return (NAME##_vector)((first & (NAME##_mask)a) | (~first & (NAME##_mask)b)); \
    } \
    /* Row of non-overlapping 2 x 2 windows: whole vectors, the last of which overlaps the one before it. */ \
    IMAGE_INLINE void NAME##_max_row_2x2(const TYPE *restrict in, int64_t width, int64_t columns, TYPE *restrict out) \
    { \
        enum { LANES = 16 / sizeof(TYPE) }; \
        for (int64_t i = 0; i < columns; i += LANES) { \
            if (i + LANES > columns) \
                i = columns - LANES; \
            NAME##_vector half[2]; \
            for (int k = 0; k < 2; k++) \
                half[k] = NAME##_larger(NAME##_at(in + 2 * i + k * LANES), NAME##_at(in + width + 2 * i + k * LANES)); \
            *(NAME##_vector *)(uintptr_t)(out + i) = \
                NAME##_larger(__builtin_shuffle(half[0], half[1], (NAME##_mask)EVEN), \
                              __builtin_shuffle(half[0], half[1], (NAME##_mask)ODD)); \
        } \
    } \
    IMAGE_INLINE void NAME##_max_gradient_row_2x2(const TYPE *restrict in, const TYPE *restrict pooled, \
                                                  const TYPE *restrict gradient, int64_t width, int64_t columns, \
                                                  TYPE *restrict out) \
    { \
        enum { LANES = 16 / sizeof(TYPE) }; \
        const NAME##_vector one = (NAME##_vector){0} + 1; \
        for (int64_t i = 0; i < columns; i += LANES) { \
            if (i + LANES > columns) \
                i = columns - LANES; \
            const NAME##_vector maxima = NAME##_at(pooled + i); \
            const NAME##_vector maxima_twice[2] = {__builtin_shuffle(maxima, (NAME##_mask)LOW), \
                                                   __builtin_shuffle(maxima, (NAME##_mask)HIGH)}; \
            NAME##_mask is_maximum[2][2]; \
            NAME##_vector count[2]; \
            for (int k = 0; k < 2; k++) { \
                for (int y = 0; y < 2; y++) \
                    is_maximum[y][k] = NAME##_at(in + y * width + 2 * i + k * LANES) == maxima_twice[k]; \
                count[k] = (NAME##_vector)(is_maximum[0][k] & (NAME##_mask)one) \
                           + (NAME##_vector)(is_maximum[1][k] & (NAME##_mask)one); \
            } \
            const NAME##_vector share = NAME##_at(gradient + i) \
                                        / (__builtin_shuffle(count[0], count[1], (NAME##_mask)EVEN) \
                                           + __builtin_shuffle(count[0], count[1], (NAME##_mask)ODD)); \
            const NAME##_vector shares[2] = {__builtin_shuffle(share, (NAME##_mask)LOW), \
                                             __builtin_shuffle(share, (NAME##_mask)HIGH)}; \
            for (int k = 0; k < 2; k++) \
                for (int y = 0; y < 2; y++) \
                    *(NAME##_vector *)(uintptr_t)(out + y * width + 2 * i + k * LANES) = \
                        (NAME##_vector)(is_maximum[y][k] & (NAME##_mask)shares[k]); \
        } \
    } \
    IMAGE_INLINE void NAME##_max_windows(const image_plane *shape, const TYPE *restrict plane, TYPE *restrict out, \
                                         const int64_t height, const int64_t width, const int64_t stride_y, \
                                         const int64_t stride_x) \
    { \
        for (int64_t r = 0; r < shape->rows; r++, out += shape->columns) { \
            const TYPE *restrict in = plane + r * stride_y * shape->width; \
            if (height * width == 4 && image_stops(shape, r, shape->rows_mask)) \
                return; \
            for (int64_t i = 0; i < shape->columns; i++) { \
                if (height * width != 4 && image_stops(shape, i, shape->windows_mask)) \
                    return; \
                TYPE largest = in[i * stride_x]; \
                for (int64_t y = 0; y < height; y++) \
                    for (int64_t x = 0; x < width; x++) { \
                        const TYPE element = in[y * shape->width + i * stride_x + x]; \
                        largest = largest >= element || largest != largest ? largest : element; \
                    } \
                out[i] = largest; \
            } \
        } \
    } \
    static void NAME##_max_pool(const image_plane *shape, const void *plane, void *out) \
    { \
        const vme_windows *w = &shape->windows; \
        if (images_is_2x2(shape) && shape->columns >= (int64_t)(16 / sizeof(TYPE))) \
            for (int64_t r = 0; r < shape->rows && !image_stops(shape, r, shape->rows_mask); r++) \
                NAME##_max_row_2x2((const TYPE *)plane + 2 * r * shape->width, shape->width, shape->columns, \
                                   (TYPE *)out + r * shape->columns); \
        else if (images_is_2x2(shape)) \
            NAME##_max_windows(shape, plane, out, 2, 2, 2, 2); \
        else \
            NAME##_max_windows(shape, plane, out, w->kernel[0], w->kernel[1], w->stride[0], w->stride[1]); \
    } \
    static void NAME##_max_pool_gradient(const image_plane *shape, const void *plane, const void *pooled, \
                                         const void *gradient, void *result) \
    { \
        const vme_windows *w = &shape->windows; \
        const TYPE *in = plane, *maxima = pooled, *g = gradient; \
        TYPE *out = result; \
        const bool is_2x2 = images_is_2x2(shape) && shape->columns >= (int64_t)(16 / sizeof(TYPE)); \
        if (!is_2x2 || shape->height != 2 * shape->rows \
            || shape->width != 2 * shape->columns) /* otherwise every element is written */ \
            memset(out, 0, (size_t)(shape->height * shape->width) * sizeof *out); \
        for (int64_t r = 0; is_2x2 && r < shape->rows && !image_stops(shape, r, shape->rows_mask); r++) \
            NAME##_max_gradient_row_2x2(in + 2 * r * shape->width, maxima + r * shape->columns, \
                                        g + r * shape->columns, shape->width, shape->columns, \
                                        out + 2 * r * shape->width); \
        if (is_2x2) \
            return; \
        for (int64_t r = 0; r < shape->rows; r++) \
            for (int64_t i = 0; i < shape->columns; i++, maxima++, g++) { \
                if (image_stops(shape, i, shape->windows_mask)) \
                    return; \
                const int64_t offset = r * w->stride[0] * shape->width + i * w->stride[1]; \
                TYPE count = 0; \
                for (int64_t y = 0; y < w->kernel[0]; y++) \
                    for (int64_t x = 0; x < w->kernel[1]; x++) \
                        count += in[offset + y * shape->width + x] == *maxima; \
                const TYPE share = *g / count; \
                for (int64_t y = 0; y < w->kernel[0]; y++) \
                    for (int64_t x = 0; x < w->kernel[1]; x++) \
                        if (in[offset + y * shape->width + x] == *maxima) \
                            out[offset + y * shape->width + x] += share; \
            } \
    }

#define IMAGE_LIST(...) {__VA_ARGS__}
IMAGE_KERNELS_OF(float, images_f32, int32_t, IMAGE_LIST(0, 2, 4, 6), IMAGE_LIST(1, 3, 5, 7), IMAGE_LIST(0, 0, 1, 1),
                 IMAGE_LIST(2, 2, 3, 3))
IMAGE_KERNELS_OF(double, images_f64, int64_t, IMAGE_LIST(0, 2), IMAGE_LIST(1, 3), IMAGE_LIST(0, 0), IMAGE_LIST(1, 1))

#if defined __AVX512F__
#define PLANE_BYTES 64
#elif defined __AVX__
#define PLANE_BYTES 32
#else
#define PLANE_BYTES 16
#endif
#define PLANE_JOIN_(a, b) a##_##b
#define PLANE_JOIN(a, b)  PLANE_JOIN_(a, b)
#define PLANE(function)   PLANE_JOIN(PLANE_NAME, function)
#define PLANE_TYPE        float
#define PLANE_NAME        images_f32
#include "plane_depthwise.h"
#include "plane_normalization.h"
#undef PLANE_TYPE
#undef PLANE_NAME
#define PLANE_TYPE double
#define PLANE_NAME images_f64
#include "plane_depthwise.h"
#include "plane_normalization.h"
#undef PLANE_TYPE
#undef PLANE_NAME
#undef PLANE
#undef PLANE_JOIN
#undef PLANE_JOIN_

#define IMAGE_KERNELS \
    { \
        {images_f32_patches, images_f64_patches}, {images_f32_patches_sum, images_f64_patches_sum}, \
            {images_f32_max_pool, images_f64_max_pool}, {images_f32_max_pool_gradient, images_f64_max_pool_gradient}, \
            {images_f32_depthwise, images_f64_depthwise}, {images_f32_depthwise_images, images_f64_depthwise_images}, \
            {images_f32_depthwise_weights, images_f64_depthwise_weights}, \
            {images_f32_normalize, images_f64_normalize}, \
        { \
            images_f32_normalize_gradient, images_f64_normalize_gradient \
        } \
    }
