/* What models do to rows of numbers that are normalized, weighed or bent: plain loops, for each backend. The file that includes this names
 * VME_TARGET. */
#include "../model.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

/* Sums and maxima have so many of their own, so that the compiler may do them side by side. */
enum { LANES = 32 };

static float weigh(int64_t n, const float *restrict in, float factor, const float *restrict addend, float *restrict out)
{
    float most[LANES];
    for (int j = 0; j < LANES; j++)
        most[j] = -__builtin_inff();
    if (addend == NULL)
        for (int64_t i = 0; i < n; i++)
            out[i] = in[i] * factor;
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = in[i] * factor + addend[i];
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            most[j] = out[i + j] > most[j] ? out[i + j] : most[j];
    for (; i < n; i++)
        most[0] = out[i] > most[0] ? out[i] : most[0];
    for (int j = 1; j < LANES; j++)
        most[0] = most[j] > most[0] ? most[j] : most[0];
    return most[0];
}

static void shift(int64_t n, float by, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] += by;
}

static void scale(int64_t n, float by, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] *= by;
}

static float fold_lanes(float lanes[LANES])
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            lanes[j] += lanes[j + half];
    return lanes[0];
}

static float sum(int64_t n, const float *in)
{
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lanes[j] += in[i + j];
    for (; i < n; i++)
        lanes[i % LANES] += in[i];
    return fold_lanes(lanes);
}

static float squares(int64_t n, const float *in)
{
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lanes[j] += in[i + j] * in[i + j];
    for (; i < n; i++)
        lanes[i % LANES] += in[i] * in[i];
    return fold_lanes(lanes);
}

static void normalize(int64_t n, float factor, const float *restrict scale_by, const float *restrict bias, float *restrict out)
{
    if (bias == NULL)
        for (int64_t i = 0; i < n; i++)
            out[i] = out[i] * factor * scale_by[i];
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = out[i] * factor * scale_by[i] + bias[i];
}

static void before(int curve, int64_t n, const float *restrict in, float *restrict part)
{
    switch (curve) {
    case CURVE_GELU:
        for (int64_t i = 0; i < n; i++)
            part[i] = in[i] * 0.70710678f;
        break;
    case CURVE_GELU_TANH:
        for (int64_t i = 0; i < n; i++)
            part[i] = 0.79788456f * (in[i] + 0.044715f * in[i] * in[i] * in[i]);
        break;
    case CURVE_MISH:
        for (int64_t i = 0; i < n; i++)
            part[i] = in[i] > 20 ? 20 : in[i];
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            part[i] = -in[i];
        break;
    }
}

static void after(int curve, int64_t n, const float *in, const float *restrict part, float *out)
{
    switch (curve) {
    case CURVE_GELU:
    case CURVE_GELU_TANH:
        for (int64_t i = 0; i < n; i++)
            out[i] = 0.5f * in[i] * (1 + part[i]);
        break;
    case CURVE_SIGMOID:
        for (int64_t i = 0; i < n; i++)
            out[i] = 1 / (1 + part[i]);
        break;
    case CURVE_MISH:
        for (int64_t i = 0; i < n; i++) {
            float power = part[i] * (part[i] + 2);
            out[i] = in[i] * (power / (power + 2));
        }
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            out[i] = in[i] / (1 + part[i]);
        break;
    }
}

const model_row_kernels JOIN(model_rows_, VME_TARGET) = {
    .weigh = weigh, .shift = shift, .scale = scale, .sum = sum, .squares = squares, .normalize = normalize, .before = before, .after = after,
};
