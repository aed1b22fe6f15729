/* Depthwise convolutions of one plane, and their gradients, for elements PLANE_TYPE; names begin with PLANE_NAME.
 * Included once for each type.
 *
 * Windows at stride 1 are sums over a zero-padded plane that is treated as one line. Rows of results are as far apart
 * as the padded plane's rows, so one loop computes the sums of all rows, whatever their length. Sums between rows are
 * unused.
 *
 * `room`: see operators/image_kernels.h. So is when they look at the stop flag. */
typedef PLANE_TYPE PLANE(wide_vector) __attribute__((vector_size(PLANE_BYTES), aligned(sizeof(PLANE_TYPE)), may_alias));
typedef PLANE_TYPE PLANE(narrow_vector) __attribute__((vector_size(16), aligned(sizeof(PLANE_TYPE)), may_alias));

static inline void PLANE(copy)(int64_t n, const PLANE_TYPE *from, PLANE_TYPE *to)
{
    enum { LANES = 16 / sizeof(PLANE_TYPE) };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        *(PLANE(narrow_vector) *)(uintptr_t)(to + i) = *(const PLANE(narrow_vector) *)(uintptr_t)(from + i);
    switch (n - i) {                 /* the compiler would turn a loop into a call of memcpy */
    case 3: to[i + 2] = from[i + 2]; /* fall through */
    case 2: to[i + 1] = from[i + 1]; /* fall through */
    case 1: to[i] = from[i];
    }
}

/* Copies rows of `n` elements; input rows are `pitch` and output rows `to_pitch` elements apart. */
static inline void PLANE(copy_rows)(int64_t rows, int64_t n, const PLANE_TYPE *from, int64_t pitch, PLANE_TYPE *to,
                                    int64_t to_pitch)
{
    for (int64_t r = 0; r < rows; r++)
        PLANE(copy)(n, from + r * pitch, to + r * to_pitch);
}

/* out[i] = sum of weights[y, x] * in[i + y * down + x * right], for i up to a multiple of IMAGE_BLOCK. */
static inline void PLANE(sums)(const image_plane *shape, int64_t n, const PLANE_TYPE *in, int64_t down, int64_t right,
                               const PLANE_TYPE *weights, PLANE_TYPE *out)
{
    enum { LANES = PLANE_BYTES / sizeof(PLANE_TYPE), VECTORS = 4 };
    const vme_windows *w = &shape->windows;
    for (int64_t i = 0; i < n; i += (int64_t)LANES * VECTORS) {
        if (image_stops(shape, i, shape->windows_mask))
            return;
        PLANE(wide_vector) sum[VECTORS];
        for (int l = 0; l < VECTORS; l++)
            sum[l] = (PLANE(wide_vector)){0};
        const PLANE_TYPE *weight = weights;
        for (int64_t y = 0; y < w->kernel[0]; y++)
            for (int64_t x = 0; x < w->kernel[1]; x++, weight++)
                for (int l = 0; l < VECTORS; l++)
                    sum[l] +=
                        *weight * *(const PLANE(wide_vector) *)(uintptr_t)(in + i + y * down + x * right + l * LANES);
        for (int l = 0; l < VECTORS; l++)
            *(PLANE(wide_vector) *)(uintptr_t)(out + i + l * LANES) = sum[l];
    }
}

/* A zero-padded plane: its size, where its image begins, and the distance from the first to the last element of a
 * window. */
typedef struct PLANE(padded) {
    int64_t size, pitch, begin, reach;
} PLANE(padded);

static inline PLANE(padded) PLANE(padded_of)(const image_plane *shape)
{
    const vme_windows *w = &shape->windows;
    const int64_t pitch = shape->width + 2 * w->padding[1];
    return (PLANE(padded)){(shape->height + 2 * w->padding[0]) * pitch, pitch, w->padding[0] * pitch + w->padding[1],
                           w->dilation[0] * (w->kernel[0] - 1) * pitch + w->dilation[1] * (w->kernel[1] - 1)};
}

static inline bool PLANE(unit_stride)(const image_plane *shape)
{
    return shape->windows.stride[0] == 1 && shape->windows.stride[1] == 1;
}

/* For element (y, x) of the windows of row r: the windows for which it is inside the image, *first up to, not
 * including, *end, and *offset, the index of the first of these elements. False: there are none. */
static inline bool PLANE(windows_inside)(const image_plane *shape, int64_t y, int64_t x, int64_t r, int64_t *first,
                                         int64_t *end, int64_t *offset)
{
    const vme_windows *w = &shape->windows;
    const int64_t row = r * w->stride[0] + y * w->dilation[0] - w->padding[0];
    images_windows_inside(shape, x, first, end);
    *offset = row * shape->width + *first * w->stride[1] + x * w->dilation[1] - w->padding[1];
    return row >= 0 && row < shape->height;
}

static void PLANE(depthwise)(const image_plane *shape, const void *plane, const void *weights, void *result, void *room)
{
    const PLANE_TYPE *in = plane, *weight = weights;
    PLANE_TYPE *out = result;
    const vme_windows *w = &shape->windows;
    if (PLANE(unit_stride)(shape)) {
        const PLANE(padded) padded = PLANE(padded_of)(shape);
        PLANE_TYPE *padded_plane = room, *sums = padded_plane + 2 * padded.size + IMAGE_BLOCK;
        PLANE(copy_rows)(shape->height, shape->width, in, shape->width, padded_plane + padded.begin, padded.pitch);
        PLANE(sums)(shape, padded.size - padded.reach, padded_plane, w->dilation[0] * padded.pitch, w->dilation[1],
                    weight, sums);
        PLANE(copy_rows)(shape->rows, shape->columns, sums, padded.pitch, out, shape->columns);
        return;
    }
    memset(out, 0, (size_t)(shape->rows * shape->columns) * sizeof *out);
    for (int64_t y = 0; y < w->kernel[0]; y++)
        for (int64_t x = 0; x < w->kernel[1]; x++, weight++)
            for (int64_t r = 0, first, end, offset; r < shape->rows; r++) {
                if (image_stops(shape, r, shape->rows_mask))
                    return;
                if (PLANE(windows_inside)(shape, y, x, r, &first, &end, &offset))
                    for (int64_t i = first; i < end; i++)
                        out[r * shape->columns + i] += *weight * in[offset + (i - first) * w->stride[1]];
            }
}

/* The gradient with respect to the plane. */
static void PLANE(depthwise_images)(const image_plane *shape, const void *gradient, const void *weights, void *result,
                                    void *room)
{
    const PLANE_TYPE *g = gradient, *weight = weights;
    PLANE_TYPE *out = result;
    const vme_windows *w = &shape->windows;
    if (PLANE(unit_stride)(shape)) {
        const PLANE(padded) padded = PLANE(padded_of)(shape);
        PLANE_TYPE *padded_plane = room, *sums = padded_plane + 2 * padded.size + IMAGE_BLOCK;
        PLANE(copy_rows)(shape->rows, shape->columns, g, shape->columns, padded_plane + padded.reach, padded.pitch);
        PLANE(sums)(shape, (shape->height - 1) * padded.pitch + shape->width,
                    padded_plane + padded.reach + padded.begin, -w->dilation[0] * padded.pitch, -w->dilation[1], weight,
                    sums);
        PLANE(copy_rows)(shape->height, shape->width, sums, padded.pitch, out, shape->width);
        return;
    }
    memset(out, 0, (size_t)(shape->height * shape->width) * sizeof *out);
    for (int64_t y = 0; y < w->kernel[0]; y++)
        for (int64_t x = 0; x < w->kernel[1]; x++, weight++)
            for (int64_t r = 0, first, end, offset; r < shape->rows; r++) {
                if (image_stops(shape, r, shape->rows_mask))
                    return;
                if (PLANE(windows_inside)(shape, y, x, r, &first, &end, &offset))
                    for (int64_t i = first; i < end; i++)
                        out[offset + (i - first) * w->stride[1]] += *weight * g[r * shape->columns + i];
            }
}

/* Adds the gradient with respect to the weights to `result`, for `count` planes that are `step` elements apart. The
 * gradients with respect to their results are `gradient_step` apart. */
static void PLANE(depthwise_weights)(const image_plane *shape, int64_t count, const void *planes, int64_t step,
                                     const void *gradients, int64_t gradient_step, void *result, void *room)
{
    enum { LANES = PLANE_BYTES / sizeof(PLANE_TYPE) };
    const PLANE_TYPE *in = planes, *g = gradients;
    PLANE_TYPE *sums = result;
    const vme_windows *w = &shape->windows;
    if (!PLANE(unit_stride)(shape)) {
        for (; count > 0; count--, in += step, g += gradient_step) {
            PLANE_TYPE *sum = sums;
            for (int64_t y = 0; y < w->kernel[0]; y++)
                for (int64_t x = 0; x < w->kernel[1]; x++, sum++)
                    for (int64_t r = 0, first, end, offset; r < shape->rows; r++) {
                        if (image_stops(shape, r, shape->rows_mask))
                            return;
                        if (PLANE(windows_inside)(shape, y, x, r, &first, &end, &offset))
                            for (int64_t i = first; i < end; i++)
                                *sum += in[offset + (i - first) * w->stride[1]] * g[r * shape->columns + i];
                    }
        }
        return;
    }
    const PLANE(padded) padded = PLANE(padded_of)(shape);
    const int64_t n = padded.size - padded.reach, taps = w->kernel[0] * w->kernel[1];
    PLANE_TYPE *padded_plane = room, *padded_gradient = padded_plane + 2 * padded.size + IMAGE_BLOCK;
    PLANE(wide_vector) *tap_sums = (PLANE(wide_vector) *)(uintptr_t)(padded_gradient + 2 * padded.size + IMAGE_BLOCK);
    for (int64_t k = 0; k < taps; k++)
        tap_sums[k] = (PLANE(wide_vector)){0};
    for (; count > 0; count--, in += step, g += gradient_step) {
        PLANE(copy_rows)(shape->height, shape->width, in, shape->width, padded_plane + padded.begin, padded.pitch);
        PLANE(copy_rows)(shape->rows, shape->columns, g, shape->columns, padded_gradient, padded.pitch);
        for (int64_t y = 0, k = 0; y < w->kernel[0]; y++)
            for (int64_t x = 0; x < w->kernel[1]; x++, k++) {
                if (image_stops(shape, k, shape->taps_mask))
                    return;
                const PLANE_TYPE *shifted = padded_plane + y * w->dilation[0] * padded.pitch + x * w->dilation[1];
                PLANE(wide_vector) total = tap_sums[k];
                for (int64_t i = 0; i < n; i += LANES)
                    total += *(const PLANE(wide_vector) *)(uintptr_t)(shifted + i)
                             * *(const PLANE(wide_vector) *)(uintptr_t)(padded_gradient + i);
                tap_sums[k] = total;
            }
    }
    for (int64_t k = 0; k < taps; k++)
        for (int l = 0; l < LANES; l++)
            sums[k] += tap_sums[k][l];
}
