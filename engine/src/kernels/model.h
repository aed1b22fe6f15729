/* Models' kernels on rows of channels, except products: sums, windows and interpolation. The including file defines
 * VME_TARGET. */
#include "depthwise.h"
#include "pooling.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)

VME_INLINE float clamp_value(float value, vme_bounds bounds) /* NaN stays NaN */
{
    value = value < bounds.low ? bounds.low : value;
    return value > bounds.high ? bounds.high : value;
}

static void add(int64_t n, const float *a, const float *b, float *out, vme_bounds bounds)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = clamp_value(a[i] + b[i], bounds);
}

static void clip(int64_t n, const float *in, float *out, vme_bounds bounds)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = clamp_value(in[i], bounds);
}

static void interleave(int64_t n, const float *restrict a, const float *restrict b, float *restrict out)
{
    for (int64_t i = 0; i < n; i++) {
        out[2 * i] = a[i];
        out[2 * i + 1] = b[i];
    }
}

static void blend_rows(int taps, int64_t n, const float *const *rows, const float *weights, float *restrict out)
{
    const float first = weights[0], second = taps > 1 ? weights[1] : 0;
    const float *restrict a = rows[0], *restrict b = rows[taps > 1];
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] * first + b[i] * second;
    for (int t = 2; t < taps; t++) {
        const float weight = weights[t];
        const float *restrict row = rows[t];
        for (int64_t i = 0; i < n; i++)
            out[i] += row[i] * weight;
    }
}

static void blend_places(int taps, int64_t n, const float *restrict in, const int32_t *restrict indices,
                         const float *restrict weights, int64_t next, float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = in[indices[i]] * weights[i];
    for (int t = 1; t < taps; t++) {
        const int32_t *restrict index = indices + t * next;
        const float *restrict weight = weights + t * next;
        for (int64_t i = 0; i < n; i++)
            out[i] += in[index[i]] * weight[i];
    }
}

const vme_model_kernels JOIN(vme_model_, VME_TARGET) = {
    .add = add,
    .clip = clip,
    .depthwise = depthwise,
    .largest = largest,
    .sum = sum,
    .interleave = interleave,
    .blend_rows = blend_rows,
    .blend_places = blend_places,
};
