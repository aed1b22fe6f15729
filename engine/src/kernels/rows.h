/* Models' kernels on rows: softmax, normalization and activations, as loops that the compiler vectorizes, except for
 * the functions in AVX-512. The including file defines VME_TARGET. */
#include "models/file.h"
#include "models/row_kernels.h"

#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)

/* Sums and maxima have this many accumulators, so that the compiler can vectorize them. */
enum { LANES = 32 };

/* The body of weigh, with and without an addend. */
#define NO_ADDEND(index)
#define WITH_ADDEND(index) +addend[index]
#define WEIGH_LOOP(IN, ADDEND) \
    for (; i + LANES <= n; i += LANES) \
        for (int j = 0; j < LANES; j++) { \
            const float value = IN[i + j] * factor ADDEND(i + j); \
            out[i + j] = value; \
            largest[j] = value > largest[j] ? value : largest[j]; \
        } \
    for (; i < n; i++) { \
        const float value = IN[i] * factor ADDEND(i); \
        out[i] = value; \
        largest[0] = value > largest[0] ? value : largest[0]; \
    }
#define WEIGH(IN) \
    float largest[LANES]; \
    for (int j = 0; j < LANES; j++) \
        largest[j] = -__builtin_inff(); \
    int64_t i = 0; \
    if (addend == NULL) { \
        WEIGH_LOOP(IN, NO_ADDEND) \
    } else { \
        WEIGH_LOOP(IN, WITH_ADDEND) \
    } \
    _Pragma("GCC unroll 8") \
    for (int half = LANES / 2; half > 0; half /= 2) \
        _Pragma("GCC unroll 16") \
    for (int j = 0; j < half; j++) \
        largest[j] = largest[j + half] > largest[j] ? largest[j + half] : largest[j]; \
    return largest[0];
static float weigh(int64_t n, const float *restrict in, float factor, const float *restrict addend, float *restrict out)
{
    WEIGH(in)
}
static float weigh_here(int64_t n, float factor, const float *restrict addend, float *restrict out) { WEIGH(out) }
#undef WEIGH
#undef WEIGH_LOOP
#undef WITH_ADDEND
#undef NO_ADDEND

static void shift(int64_t n, float addend, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] += addend;
}

static void scale(int64_t n, float factor, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] *= factor;
}

static float fold_lanes(float lanes[LANES])
{
#pragma GCC unroll 8
    for (int half = LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 16
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

static float centre(int64_t n, const float *restrict in, float addend, float *restrict out)
{
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const float value = in[i + j] + addend;
            out[i + j] = value;
            lanes[j] += value * value;
        }
    for (; i < n; i++) {
        const float value = in[i] + addend;
        out[i] = value;
        lanes[i % LANES] += value * value;
    }
    return fold_lanes(lanes);
}

static void normalize(int64_t n, float factor, const float *restrict scale_by, const float *restrict bias,
                      float *restrict out)
{
    if (bias == NULL)
        for (int64_t i = 0; i < n; i++)
            out[i] = out[i] * factor * scale_by[i];
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = out[i] * factor * scale_by[i] + bias[i];
}

/* ---- exponentials, within 2 ulp; below -87 they are 0. All loops of a backend use these functions, so that a result
 * never depends on the position in a row. */
/* The integer nearest to x, |x| < 2^22, is in the low bits of x + ROUNDING. */
#define ROUNDING 0x1.8p23f

#ifndef __AVX512F__
#ifdef __FMA__
static inline float add_product(float sum, float a, float b) { return __builtin_fmaf(a, b, sum); }
#else
static inline float add_product(float sum, float a, float b) { return sum + a * b; }
#endif

/* x * 2^n, where n is in the low bits of `rounded`. NaN stays. */
static inline float times_power(float x, float rounded)
{
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    bits = (bits + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return x * power;
}

/* exp(x); log(2) is split in two parts, so that the first part's products with n are exact */
static inline float exponential(float x)
{
    const float clamped = x < -87  ? -87
                          : x > 89 ? 89
                                   : x,
                rounded = add_product(ROUNDING, clamped, 0x1.715476p+0f), n = rounded - ROUNDING;
    const float r = add_product(add_product(clamped, n, -0x1.62e4p-1f), n, -0x1.7f7d1cp-20f);
    float sum = 0x1.6a2316p-10f;
    sum = add_product(0x1.123a8ep-7f, sum, r);
    sum = add_product(0x1.5558f6p-5f, sum, r);
    sum = add_product(0x1.555490p-3f, sum, r);
    sum = add_product(0x1.fffffcp-2f, sum, r);
    sum = add_product(1, sum, r);
    sum = add_product(1, sum, r);
    sum = times_power(sum, rounded);
    return x < -87 ? 0 : sum;
}

/* x * (1 + erf(x / sqrt(2))) / 2. The tail of the normal distribution beyond |x| is 2^(-x^2 / log(4) + Q(|x|)), where Q
 * is smooth: a polynomial fitted for |x| < 6. Beyond 6 the tail is below 1e-9 and any Q will do. */
static inline float gelu(float x)
{
    const float magnitude = x < 0 ? -x : x, u = magnitude > 6 ? 6 : magnitude;
    float q = -0x1.cab4a8p-26f;
    q = add_product(0x1.aefd3ep-21f, q, u);
    q = add_product(-0x1.5adcb8p-17f, q, u);
    q = add_product(0x1.303526p-14f, q, u);
    q = add_product(-0x1.15d5e6p-12f, q, u);
    q = add_product(-0x1.17eff2p-15f, q, u);
    q = add_product(0x1.ca31cep-8f, q, u);
    q = add_product(-0x1.adde10p-5f, q, u);
    q = add_product(0x1.0c6dfep-2f, q, u);
    q = add_product(-0x1.26aedcp+0f, q, u);
    q = add_product(-1, q, u);
    float power = add_product(q, magnitude * -0x1.715476p-1f, magnitude);
    power = power < -126 ? -126 : power;
    const float rounded = power + ROUNDING, r = power - (rounded - ROUNDING);
    float tail = 0x1.5bba0ep-10f;
    tail = add_product(0x1.3cea88p-7f, tail, r);
    tail = add_product(0x1.c6b752p-5f, tail, r);
    tail = add_product(0x1.ebf9bcp-3f, tail, r);
    tail = add_product(0x1.62e42ap-1f, tail, r);
    tail = times_power(add_product(1, tail, r), rounded);
    return x * (x < 0 ? tail : 1 - tail);
}

static float exponentials(int64_t n, float addend, float *out)
{
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const float value = exponential(out[i + j] + addend);
            out[i + j] = value;
            lanes[j] += value;
        }
    for (; i < n; i++)
        lanes[i % LANES] += out[i] = exponential(out[i] + addend);
    return fold_lanes(lanes);
}

static inline float sigmoid(float x) { return 1 / (1 + exponential(-x)); }
/* (1 + tanh(y)) / 2 is 1 / (1 + exp(-2 y)) */
static inline float gelu_tanh(float x) { return x * sigmoid(2 * 0.79788456f * (x + 0.044715f * x * x * x)); }
static inline float silu(float x) { return x * sigmoid(x); }
static inline float mish(float x)
{
    const float exp_x = exponential(x > 20 ? 20 : x), product = exp_x * (exp_x + 2);
    return x * (product / (product + 2));
}
static inline float hard_sigmoid(float x)
{
    const float line = x * (1.0f / 6) + 0.5f;
    return line < 0 ? 0 : line > 1 ? 1 : line;
}
static inline float hard_swish(float x) { return x * hard_sigmoid(x); }

#define CURVE(FUNCTION) \
    _Pragma("GCC ivdep") \
    for (; i < n; i++) \
        out[i] = FUNCTION(in[i]);
#else
/* The same functions in AVX-512, with the instruction that multiplies by a power of 2. Partial vectors at the end of a
 * row use them too. */
static inline __m512 splat(float x) { return _mm512_set1_ps(x); }
static inline __mmask16 first_lanes(int64_t count) { return count < 16 ? (__mmask16)((1u << count) - 1) : 0xffff; }
static inline __m512 exponential16_of(__m512 x, __m512 clamped)
{
    static const float terms[] = {
        0x1.6a2316p-10f, 0x1.123a8ep-7f, 0x1.5558f6p-5f, 0x1.555490p-3f, 0x1.fffffcp-2f, 1, 1};
    /* the result is 0 below -87: a subnormal result would take 100 cycles */
    const __mmask16 nonzero = _mm512_cmp_ps_mask(x, splat(-87), _CMP_NLT_UQ);
    const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(clamped, splat(0x1.715476p+0f), splat(ROUNDING)),
                                   splat(ROUNDING)); /* a rounding instruction is slower */
    const __m512 r = _mm512_fmadd_ps(n, splat(-0x1.7f7d1cp-20f), _mm512_fmadd_ps(n, splat(-0x1.62e4p-1f), clamped));
    __m512 sum = splat(terms[0]);
    for (int i = 1; i < 7; i++)
        sum = _mm512_fmadd_ps(sum, r, splat(terms[i]));
    return _mm512_maskz_scalef_ps(nonzero, sum, n);
}

static inline __m512 exponential16(__m512 x)
{
    return exponential16_of(
        x, _mm512_max_ps(splat(-87), _mm512_min_ps(splat(89), x))); /* NaN is the second operand and stays */
}
/* For x at most 0: results that would underflow are masked. */
static inline __m512 exponential16_below(__m512 x) { return exponential16_of(x, x); }

static float exponentials(int64_t n, float addend, float *out)
{
    __m512 sums[2] = {splat(0), splat(0)};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            const __m512 value = exponential16_below(_mm512_add_ps(_mm512_loadu_ps(out + i + 16 * v), splat(addend)));
            _mm512_storeu_ps(out + i + 16 * v, value);
            sums[v] = _mm512_add_ps(sums[v], value);
        }
    for (int v = 0; i < n; i += 16, v++) {
        const __mmask16 mask = first_lanes(n - i);
        const __m512 value = exponential16_below(_mm512_add_ps(_mm512_maskz_loadu_ps(mask, out + i), splat(addend)));
        _mm512_mask_storeu_ps(out + i, mask, value);
        sums[v] = _mm512_mask_add_ps(sums[v], mask, sums[v], value);
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1]));
}

/* max(x, 0) - g(|x|), where g(u) = u * (1 - erf(u / sqrt(2))) / 2 is a polynomial in u's distance to the nearest of 16
 * points, 0.4 apart: each lane of the table belongs to one point, and its rows hold the coefficients from the highest
 * power down (least squares at Chebyshev nodes; at the first point of u * (1 / 2 - u * polynomial)). Within 1.3e-8 of
 * the exact value below 0, and 1 ulp above. Beyond 6.2 g is g(6.2), less than 2e-9. */
static const float gelu_terms[7][16] = {
    {-0x1.447c2cp-7f, -0x1.54fcdcp-8f, 0x1.b15004p-9f, 0x1.ba1b52p-8f, 0x1.ed2706p-9f, -0x1.bab7ep-12f, -0x1.021e2cp-9f,
     -0x1.58909cp-10f, -0x1.603084p-12f, 0x1.c856b4p-14f, 0x1.3564dap-13f, 0x1.44f5fcp-14f, 0x1.c87f94p-16f,
     0x1.df7c1ep-18f, 0x1.89ef0cp-20f, 0x1.033754p-22f},
    {0x1.1d03a8p-45f, -0x1.43bae6p-6f, -0x1.64db0ap-6f, -0x1.0db032p-7f, 0x1.55fca6p-8f, 0x1.244e94p-7f, 0x1.6565b6p-8f,
     0x1.4f1eep-10f, -0x1.4acf3cp-11f, -0x1.9f502p-11f, -0x1.cbd38cp-12f, -0x1.5c838cp-13f, -0x1.8f80a6p-15f,
     -0x1.68dd4ap-17f, -0x1.06838ep-19f, -0x1.37b006p-22f},
    {0x1.10571ap-4f, 0x1.6d3c1p-5f, -0x1.bcd31ap-11f, -0x1.098a36p-5f, -0x1.16e5b6p-5f, -0x1.26dfbep-6f,
     -0x1.806552p-9f, 0x1.c9992ap-9f, 0x1.e414f6p-9f, 0x1.0f815ap-9f, 0x1.b0b2bep-11f, 0x1.091e58p-12f, 0x1.029508p-14f,
     0x1.990d0cp-17f, 0x1.096688p-19f, 0x1.1cae16p-22f},
    {-0x1.f4a948p-51f, 0x1.822466p-4f, 0x1.09c93p-3f, 0x1.973d08p-4f, 0x1.5cf216p-5f, 0x1.a2b86ap-20f, -0x1.024e18p-6f,
     -0x1.d0d0aep-7f, -0x1.040066p-7f, -0x1.af2f38p-9f, -0x1.18a7bep-10f, -0x1.26905p-12f, -0x1.fa04b6p-15f,
     -0x1.67058ap-17f, -0x1.a77884p-20f, -0x1.a109dcp-23f},
    {-0x1.988454p-2f, -0x1.5af09ep-2f, -0x1.936fa2p-3f, -0x1.bd6a9p-5f, 0x1.fcdap-6f, 0x1.ba4b46p-5f, 0x1.58e5b4p-5f,
     0x1.7aaf7p-6f, 0x1.41dc9cp-7f, 0x1.b7837p-9f, 0x1.eb28acp-11f, 0x1.c608e6p-13f, 0x1.5d93e4p-15f, 0x1.c26ffp-18f,
     0x1.e745b2p-21f, 0x1.bba224p-24f},
    {0x1p-1f, 0x1.940268p-3f, -0x1.46018cp-6f, -0x1.e3235p-4f, -0x1.f67912p-4f, -0x1.5d1c06p-4f, -0x1.7523ep-5f,
     -0x1.414274p-6f, -0x1.c6f274p-8f, -0x1.0be074p-9f, -0x1.080eb8p-11f, -0x1.b59c4ap-14f, -0x1.31b288p-16f,
     -0x1.68cb14p-19f, -0x1.6841bap-22f, -0x1.30af02p-25f},
    {0, 0x1.1a474cp-3f, 0x1.5b1a98p-3f, 0x1.1acb94p-3f, 0x1.6721f4p-4f, 0x1.74bcf6p-5f, 0x1.425718p-6f, 0x1.d4de5p-8f,
     0x1.2034dcp-9f, 0x1.2c4eaep-11f, 0x1.09ad76p-13f, 0x1.8f8d72p-16f, 0x1.ff18fcp-19f, 0x1.162dfcp-21f,
     0x1.01c702p-24f, 0x1.96c95p-28f},
};
static inline __m512 gelu16(__m512 x)
{
    const __m512 u = _mm512_min_ps(splat(6.2f), _mm512_abs_ps(x)); /* NaN is the second operand and stays */
    const __m512 rounded = _mm512_fmadd_ps(u, splat(2.5f), splat(ROUNDING));
    const __m512i index = _mm512_castps_si512(rounded); /* in its low bits */
    const __m512 distance = _mm512_fnmadd_ps(_mm512_sub_ps(rounded, splat(ROUNDING)), splat(0.4f), u);
    __m512 sum = _mm512_permutexvar_ps(index, _mm512_loadu_ps(gelu_terms[0]));
#pragma GCC unroll 6
    for (int i = 1; i < 7; i++)
        sum = _mm512_fmadd_ps(sum, distance, _mm512_permutexvar_ps(index, _mm512_loadu_ps(gelu_terms[i])));
    return _mm512_sub_ps(_mm512_max_ps(splat(0), x), sum);
}

static inline __m512 sigmoid16(__m512 x)
{
    return _mm512_div_ps(splat(1), _mm512_add_ps(splat(1), exponential16(_mm512_sub_ps(splat(0), x))));
}
static inline __m512 gelu_tanh16(__m512 x)
{
    const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(_mm512_mul_ps(x, splat(0.044715f)), x), x);
    return _mm512_mul_ps(x, sigmoid16(_mm512_mul_ps(splat(2 * 0.79788456f), _mm512_add_ps(x, cube))));
}
static inline __m512 silu16(__m512 x) { return _mm512_mul_ps(x, sigmoid16(x)); }
static inline __m512 mish16(__m512 x)
{
    const __m512 exp_x = exponential16(_mm512_min_ps(splat(20), x)),
                 product = _mm512_mul_ps(exp_x, _mm512_add_ps(exp_x, splat(2)));
    return _mm512_mul_ps(x, _mm512_div_ps(product, _mm512_add_ps(product, splat(2))));
}
static inline __m512 hard_sigmoid16(__m512 x)
{
    const __m512 line = _mm512_fmadd_ps(x, splat(1.0f / 6), splat(0.5f));
    return _mm512_max_ps(splat(0), _mm512_min_ps(splat(1), line)); /* NaN is the second operand and stays */
}
static inline __m512 hard_swish16(__m512 x) { return _mm512_mul_ps(x, hard_sigmoid16(x)); }

#define CURVE(FUNCTION) \
    for (; i + 16 <= n; i += 16) \
        _mm512_storeu_ps(out + i, FUNCTION##16(_mm512_loadu_ps(in + i))); \
    if (i < n) { \
        const __mmask16 mask = first_lanes(n - i); \
        _mm512_mask_storeu_ps(out + i, mask, FUNCTION##16(_mm512_maskz_loadu_ps(mask, in + i))); \
    }
#endif

static void curve(int curve_kind, int64_t n, const float *in, float *out)
{
    int64_t i = 0;
    switch (curve_kind) {
    case CURVE_GELU: CURVE(gelu); break;
    case CURVE_GELU_TANH: CURVE(gelu_tanh); break;
    case CURVE_SIGMOID: CURVE(sigmoid); break;
    case CURVE_MISH: CURVE(mish); break;
    case CURVE_HARD_SIGMOID: CURVE(hard_sigmoid); break;
    case CURVE_HARD_SWISH: CURVE(hard_swish); break;
    default: CURVE(silu); break;
    }
}
#undef CURVE

#include "cells.h"

const model_row_kernels JOIN(model_rows_, VME_TARGET) = {
    .weigh = weigh,
    .weigh_here = weigh_here,
    .shift = shift,
    .scale = scale,
    .sum = sum,
    .centre = centre,
    .normalize = normalize,
    .exponentials = exponentials,
    .curve = curve,
    .product = sliver_product,
    .lstm = cell_lstm,
    .gru = cell_gru,
    .gru_reset = cell_gru_reset,
    .tanh = cell_tanh,
    .bend_tanh = cell_tanh_in_place,
};
