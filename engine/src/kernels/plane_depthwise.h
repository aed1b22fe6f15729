/* Depthwise convolutions of one plane, and their gradients, for elements PLANE_TYPE; names begin with PLANE_NAME.
 * Included once for each type.
 *
 * Windows at stride 1 are sums over a zero-padded plane treated as one line. Rows of results are as far apart as the
 * plane's rows, so one loop computes the sums of all rows, whatever their length; the sums between rows are unused.
 *
 * `room`: see operators/image_kernels.h. */
typedef PLANE_TYPE PLANE(line) __attribute__((vector_size(PLANE_BYTES), aligned(sizeof(PLANE_TYPE)), may_alias));
typedef PLANE_TYPE PLANE(part) __attribute__((vector_size(16), aligned(sizeof(PLANE_TYPE)), may_alias));

static inline void PLANE(copy)(int64_t n, const PLANE_TYPE *from, PLANE_TYPE *to)
{
    enum { LANES = 16 / sizeof(PLANE_TYPE) };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        *(PLANE(part) *)(uintptr_t)(to + i) = *(const PLANE(part) *)(uintptr_t)(from + i);
    switch (n - i) {                 /* the compiler would turn a loop into a call of memcpy */
    case 3: to[i + 2] = from[i + 2]; /* fall through */
    case 2: to[i + 1] = from[i + 1]; /* fall through */
    case 1: to[i] = from[i];
    }
}

/* Copies rows of `n` elements between rows that are `pitch` and `other` elements apart. */
static inline void PLANE(copy_rows)(int64_t rows, int64_t n, const PLANE_TYPE *from, int64_t pitch, PLANE_TYPE *to,
                                    int64_t other)
{
    for (int64_t r = 0; r < rows; r++)
        PLANE(copy)(n, from + r * pitch, to + r * other);
}

/* out[i] = sum of weights[y, x] * in[i + y * down + x * right], for i up to a multiple of IMAGE_BLOCK. */
static inline void PLANE(sums)(const vme_windows *w, int64_t n, const PLANE_TYPE *in, int64_t down, int64_t right,
                               const PLANE_TYPE *weights, PLANE_TYPE *out)
{
    enum { LANES = PLANE_BYTES / sizeof(PLANE_TYPE), LINES = 4 };
    for (int64_t i = 0; i < n; i += (int64_t)LANES * LINES) {
        PLANE(line) all[LINES];
        for (int l = 0; l < LINES; l++)
            all[l] = (PLANE(line)){0};
        const PLANE_TYPE *weight = weights;
        for (int64_t y = 0; y < w->kernel[0]; y++)
            for (int64_t x = 0; x < w->kernel[1]; x++, weight++)
                for (int l = 0; l < LINES; l++)
                    all[l] += *weight * *(const PLANE(line) *)(uintptr_t)(in + i + y * down + x * right + l * LANES);
        for (int l = 0; l < LINES; l++)
            *(PLANE(line) *)(uintptr_t)(out + i + l * LANES) = all[l];
    }
}

/* A zero-padded plane: its size, where its image begins, and the distance from the first to the last element of a
 * window. */
typedef struct PLANE(padded) {
    int64_t size, pitch, begin, reach;
} PLANE(padded);

static inline PLANE(padded) PLANE(padded_of)(const image_plane *of)
{
    const vme_windows *w = &of->windows;
    const int64_t pitch = of->width + 2 * w->padding[1];
    return (PLANE(padded)){(of->height + 2 * w->padding[0]) * pitch, pitch, w->padding[0] * pitch + w->padding[1],
                           w->dilation[0] * (w->kernel[0] - 1) * pitch + w->dilation[1] * (w->kernel[1] - 1)};
}

static inline bool PLANE(in_lines)(const image_plane *of)
{
    return of->windows.stride[0] == 1 && of->windows.stride[1] == 1;
}

/* For element (y, x) of the windows of row r: the windows first..end that meet the image, and the index of the first
 * one's element; false: none does. */
static inline bool PLANE(met)(const image_plane *of, int64_t y, int64_t x, int64_t r, int64_t *first, int64_t *end,
                              int64_t *at)
{
    const vme_windows *w = &of->windows;
    const int64_t row = r * w->stride[0] + y * w->dilation[0] - w->padding[0];
    images_inside(of, x, first, end);
    *at = row * of->width + *first * w->stride[1] + x * w->dilation[1] - w->padding[1];
    return row >= 0 && row < of->height;
}

static void PLANE(depthwise)(const image_plane *of, const void *plane, const void *weights, void *result, void *room)
{
    const PLANE_TYPE *in = plane, *weight = weights;
    PLANE_TYPE *out = result;
    const vme_windows *w = &of->windows;
    if (PLANE(in_lines)(of)) {
        const PLANE(padded) padded = PLANE(padded_of)(of);
        PLANE_TYPE *around = room, *sums = around + 2 * padded.size + IMAGE_BLOCK;
        PLANE(copy_rows)(of->height, of->width, in, of->width, around + padded.begin, padded.pitch);
        PLANE(sums)(w, padded.size - padded.reach, around, w->dilation[0] * padded.pitch, w->dilation[1], weight, sums);
        PLANE(copy_rows)(of->rows, of->columns, sums, padded.pitch, out, of->columns);
        return;
    }
    memset(out, 0, (size_t)(of->rows * of->columns) * sizeof *out);
    for (int64_t y = 0; y < w->kernel[0]; y++)
        for (int64_t x = 0; x < w->kernel[1]; x++, weight++)
            for (int64_t r = 0, first, end, at; r < of->rows; r++)
                if (PLANE(met)(of, y, x, r, &first, &end, &at))
                    for (int64_t i = first; i < end; i++)
                        out[r * of->columns + i] += *weight * in[at + (i - first) * w->stride[1]];
}

/* The gradient with respect to the plane. */
static void PLANE(depthwise_images)(const image_plane *of, const void *gradient, const void *weights, void *result,
                                    void *room)
{
    const PLANE_TYPE *g = gradient, *weight = weights;
    PLANE_TYPE *out = result;
    const vme_windows *w = &of->windows;
    if (PLANE(in_lines)(of)) {
        const PLANE(padded) padded = PLANE(padded_of)(of);
        PLANE_TYPE *around = room, *sums = around + 2 * padded.size + IMAGE_BLOCK;
        PLANE(copy_rows)(of->rows, of->columns, g, of->columns, around + padded.reach, padded.pitch);
        PLANE(sums)(w, (of->height - 1) * padded.pitch + of->width, around + padded.reach + padded.begin,
                    -w->dilation[0] * padded.pitch, -w->dilation[1], weight, sums);
        PLANE(copy_rows)(of->height, of->width, sums, padded.pitch, out, of->width);
        return;
    }
    memset(out, 0, (size_t)(of->height * of->width) * sizeof *out);
    for (int64_t y = 0; y < w->kernel[0]; y++)
        for (int64_t x = 0; x < w->kernel[1]; x++, weight++)
            for (int64_t r = 0, first, end, at; r < of->rows; r++)
                if (PLANE(met)(of, y, x, r, &first, &end, &at))
                    for (int64_t i = first; i < end; i++)
                        out[at + (i - first) * w->stride[1]] += *weight * g[r * of->columns + i];
}

/* Adds the gradient with respect to the weights to `result`: of `count` planes that are `step` elements apart, with
 * result gradients `gradient_step` apart. */
static void PLANE(depthwise_weights)(const image_plane *of, int64_t count, const void *planes, int64_t step,
                                     const void *gradients, int64_t gradient_step, void *result, void *room)
{
    enum { LANES = PLANE_BYTES / sizeof(PLANE_TYPE) };
    const PLANE_TYPE *in = planes, *g = gradients;
    PLANE_TYPE *sums = result;
    const vme_windows *w = &of->windows;
    if (!PLANE(in_lines)(of)) {
        for (; count > 0; count--, in += step, g += gradient_step) {
            PLANE_TYPE *sum = sums;
            for (int64_t y = 0; y < w->kernel[0]; y++)
                for (int64_t x = 0; x < w->kernel[1]; x++, sum++)
                    for (int64_t r = 0, first, end, at; r < of->rows; r++)
                        if (PLANE(met)(of, y, x, r, &first, &end, &at))
                            for (int64_t i = first; i < end; i++)
                                *sum += in[at + (i - first) * w->stride[1]] * g[r * of->columns + i];
        }
        return;
    }
    const PLANE(padded) padded = PLANE(padded_of)(of);
    const int64_t n = padded.size - padded.reach, places = w->kernel[0] * w->kernel[1];
    PLANE_TYPE *around = room, *apart = around + 2 * padded.size + IMAGE_BLOCK;
    PLANE(line) *lines = (PLANE(line) *)(uintptr_t)(apart + 2 * padded.size + IMAGE_BLOCK);
    for (int64_t k = 0; k < places; k++)
        lines[k] = (PLANE(line)){0};
    for (; count > 0; count--, in += step, g += gradient_step) {
        PLANE(copy_rows)(of->height, of->width, in, of->width, around + padded.begin, padded.pitch);
        PLANE(copy_rows)(of->rows, of->columns, g, of->columns, apart, padded.pitch);
        for (int64_t y = 0, k = 0; y < w->kernel[0]; y++)
            for (int64_t x = 0; x < w->kernel[1]; x++, k++) {
                const PLANE_TYPE *seen = around + y * w->dilation[0] * padded.pitch + x * w->dilation[1];
                PLANE(line) all = lines[k];
                for (int64_t i = 0; i < n; i += LANES)
                    all += *(const PLANE(line) *)(uintptr_t)(seen + i) * *(const PLANE(line) *)(uintptr_t)(apart + i);
                lines[k] = all;
            }
    }
    for (int64_t k = 0; k < places; k++)
        for (int l = 0; l < LANES; l++)
            sums[k] += lines[k][l];
}
