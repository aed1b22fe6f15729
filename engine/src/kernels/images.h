/* Windows over one plane of an image, for float32 and float64: loops that the compiler vectorizes. */
#include "operators/image_kernels.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The windows of a row whose element in this column of the kernel is within the image: first..end. */
static inline void images_inside(const image_plane *of, int64_t column, int64_t *first, int64_t *end)
{
    const int64_t at = column * of->windows.dilation[1] - of->windows.padding[1], step = of->windows.stride[1];
    const int64_t before = at < 0 ? (-at + step - 1) / step : 0;
    const int64_t until = of->width > at ? (of->width - at + step - 1) / step : 0;
    *end = until < of->columns ? until : of->columns;
    *first = before < *end ? before : *end;
}

static inline bool images_of_2(const image_plane *of)
{
    const vme_windows *w = &of->windows;
    return w->kernel[0] == 2 && w->kernel[1] == 2 && w->stride[0] == 2 && w->stride[1] == 2;
}

#define IMAGE_INLINE static inline __attribute__((always_inline))

#define IMAGE_KERNELS_OF(TYPE, NAME, MASK, EVEN, ODD, LOW, HIGH) \
    IMAGE_INLINE void NAME##_gather(int64_t n, int64_t step, const TYPE *restrict in, TYPE *restrict out) \
    { \
        for (int64_t i = 0; i < n; i++) \
            out[i] = in[i * step]; \
    } \
    static void NAME##_patches(const image_plane *of, const void *plane, void *result) \
    { \
        const vme_windows *w = &of->windows; \
        TYPE *restrict out = result; \
        for (int64_t y = 0; y < w->kernel[0]; y++) \
            for (int64_t x = 0; x < w->kernel[1]; x++) { \
                int64_t first, end; \
                images_inside(of, x, &first, &end); \
                for (int64_t r = 0; r < of->rows; r++, out += of->columns) { \
                    const int64_t row = r * w->stride[0] + y * w->dilation[0] - w->padding[0]; \
                    if (row < 0 || row >= of->height) { \
                        for (int64_t i = 0; i < of->columns; i++) \
                            out[i] = 0; \
                        continue; \
                    } \
                    const int64_t at = row * of->width + first * w->stride[1] + x * w->dilation[1] - w->padding[1]; \
                    const TYPE *in = (const TYPE *)plane + at; \
                    for (int64_t i = 0; i < first; i++) \
                        out[i] = 0; \
                    if (w->stride[1] == 1) \
                        NAME##_gather(end - first, 1, in, out + first); \
                    else if (w->stride[1] == 2) \
                        NAME##_gather(end - first, 2, in, out + first); \
                    else \
                        NAME##_gather(end - first, w->stride[1], in, out + first); \
                    for (int64_t i = end; i < of->columns; i++) \
                        out[i] = 0; \
                } \
            } \
    } \
    static void NAME##_patches_sum(const image_plane *of, const void *patches, void *result) \
    { \
        const vme_windows *w = &of->windows; \
        const TYPE *restrict in = patches; \
        TYPE *restrict out = result; \
        memset(out, 0, (size_t)(of->height * of->width) * sizeof *out); \
        for (int64_t y = 0; y < w->kernel[0]; y++) \
            for (int64_t x = 0; x < w->kernel[1]; x++) { \
                int64_t first, end; \
                images_inside(of, x, &first, &end); \
                for (int64_t r = 0; r < of->rows; r++, in += of->columns) { \
                    const int64_t row = r * w->stride[0] + y * w->dilation[0] - w->padding[0]; \
                    if (row < 0 || row >= of->height) \
                        continue; \
                    TYPE *restrict to = out + row * of->width + x * w->dilation[1] - w->padding[1]; \
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
    IMAGE_INLINE void NAME##_max_row_of_2(const TYPE *restrict in, int64_t width, int64_t columns, TYPE *restrict out) \
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
    IMAGE_INLINE void NAME##_max_gradient_row_of_2(const TYPE *restrict in, const TYPE *restrict pooled, \
                                                   const TYPE *restrict gradient, int64_t width, int64_t columns, \
                                                   TYPE *restrict out) \
    { \
        enum { LANES = 16 / sizeof(TYPE) }; \
        const NAME##_vector one = (NAME##_vector){0} + 1; \
        for (int64_t i = 0; i < columns; i += LANES) { \
            if (i + LANES > columns) \
                i = columns - LANES; \
            const NAME##_vector top = NAME##_at(pooled + i); \
            const NAME##_vector twice[2] = {__builtin_shuffle(top, (NAME##_mask)LOW), \
                                            __builtin_shuffle(top, (NAME##_mask)HIGH)}; \
            NAME##_mask chosen[2][2]; \
            NAME##_vector count[2]; \
            for (int k = 0; k < 2; k++) { \
                for (int y = 0; y < 2; y++) \
                    chosen[y][k] = NAME##_at(in + y * width + 2 * i + k * LANES) == twice[k]; \
                count[k] = (NAME##_vector)(chosen[0][k] & (NAME##_mask)one) \
                           + (NAME##_vector)(chosen[1][k] & (NAME##_mask)one); \
            } \
            const NAME##_vector share = NAME##_at(gradient + i) \
                                        / (__builtin_shuffle(count[0], count[1], (NAME##_mask)EVEN) \
                                           + __builtin_shuffle(count[0], count[1], (NAME##_mask)ODD)); \
            const NAME##_vector shares[2] = {__builtin_shuffle(share, (NAME##_mask)LOW), \
                                             __builtin_shuffle(share, (NAME##_mask)HIGH)}; \
            for (int k = 0; k < 2; k++) \
                for (int y = 0; y < 2; y++) \
                    *(NAME##_vector *)(uintptr_t)(out + y * width + 2 * i + k * LANES) = \
                        (NAME##_vector)(chosen[y][k] & (NAME##_mask)shares[k]); \
        } \
    } \
    IMAGE_INLINE void NAME##_max_of(const image_plane *of, const TYPE *restrict plane, TYPE *restrict out, \
                                    const int64_t height, const int64_t width, const int64_t down, const int64_t step) \
    { \
        for (int64_t r = 0; r < of->rows; r++, out += of->columns) { \
            const TYPE *restrict in = plane + r * down * of->width; \
            for (int64_t i = 0; i < of->columns; i++) { \
                TYPE largest = in[i * step]; \
                for (int64_t y = 0; y < height; y++) \
                    for (int64_t x = 0; x < width; x++) { \
                        const TYPE seen = in[y * of->width + i * step + x]; \
                        largest = largest >= seen || largest != largest ? largest : seen; \
                    } \
                out[i] = largest; \
            } \
        } \
    } \
    static void NAME##_max_pool(const image_plane *of, const void *plane, void *out) \
    { \
        const vme_windows *w = &of->windows; \
        if (images_of_2(of) && of->columns >= (int64_t)(16 / sizeof(TYPE))) \
            for (int64_t r = 0; r < of->rows; r++) \
                NAME##_max_row_of_2((const TYPE *)plane + 2 * r * of->width, of->width, of->columns, \
                                    (TYPE *)out + r * of->columns); \
        else if (images_of_2(of)) \
            NAME##_max_of(of, plane, out, 2, 2, 2, 2); \
        else \
            NAME##_max_of(of, plane, out, w->kernel[0], w->kernel[1], w->stride[0], w->stride[1]); \
    } \
    static void NAME##_max_pool_gradient(const image_plane *of, const void *plane, const void *pooled, \
                                         const void *gradient, void *result) \
    { \
        const vme_windows *w = &of->windows; \
        const TYPE *in = plane, *top = pooled, *g = gradient; \
        TYPE *out = result; \
        const bool of_2 = images_of_2(of) && of->columns >= (int64_t)(16 / sizeof(TYPE)); \
        if (!of_2 || of->height != 2 * of->rows || of->width != 2 * of->columns) /* otherwise all are written */ \
            memset(out, 0, (size_t)(of->height * of->width) * sizeof *out); \
        for (int64_t r = 0; of_2 && r < of->rows; r++) \
            NAME##_max_gradient_row_of_2(in + 2 * r * of->width, top + r * of->columns, g + r * of->columns, \
                                         of->width, of->columns, out + 2 * r * of->width); \
        if (of_2) \
            return; \
        for (int64_t r = 0; r < of->rows; r++) \
            for (int64_t i = 0; i < of->columns; i++, top++, g++) { \
                const int64_t at = r * w->stride[0] * of->width + i * w->stride[1]; \
                TYPE count = 0; \
                for (int64_t y = 0; y < w->kernel[0]; y++) \
                    for (int64_t x = 0; x < w->kernel[1]; x++) \
                        count += in[at + y * of->width + x] == *top; \
                const TYPE share = *g / count; \
                for (int64_t y = 0; y < w->kernel[0]; y++) \
                    for (int64_t x = 0; x < w->kernel[1]; x++) \
                        if (in[at + y * of->width + x] == *top) \
                            out[at + y * of->width + x] += share; \
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
