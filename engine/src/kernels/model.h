/* What models do to rows of channels beside products, for each backend. The file that includes this names VME_TARGET.
 */
#include "depthwise.h"
#include "pooling.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)

VME_INLINE float within(float value, vme_bounds bounds) /* NaN stays */
{
    value = value < bounds.low ? bounds.low : value;
    return value > bounds.high ? bounds.high : value;
}

static void add(int64_t n, const float *a, const float *b, float *out, vme_bounds bounds)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = within(a[i] + b[i], bounds);
}

static void clip(int64_t n, const float *in, float *out, vme_bounds bounds)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = within(in[i], bounds);
}

static void interleave(int64_t n, const float *restrict a, const float *restrict b, float *restrict out)
{
    for (int64_t i = 0; i < n; i++) {
        out[2 * i] = a[i];
        out[2 * i + 1] = b[i];
    }
}

const vme_model_kernels JOIN(vme_model_, VME_TARGET) = {
    .add = add,
    .clip = clip,
    .depthwise = depthwise,
    .largest = largest,
    .sum = sum,
    .interleave = interleave,
};
