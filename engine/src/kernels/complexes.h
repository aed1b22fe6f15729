/* Kernels of complex64 and complex128: arithmetic and order.
 *
 * Formulas are NumPy's (umath/loops.c.src), so that infinities and NaNs match: division scales by the larger part of
 * the divisor (Smith 1962); the order is lexicographic, real parts first. */
#include "loops.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define COMPLEXES(T, R, S) \
    static inline T make_##T(R re, R im) { return (T){re, im}; } \
    static inline T product_##T(T x, T y) { return make_##T(x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re); } \
    static inline T quotient_##T(T x, T y) \
    { \
        R re = fabs##S(y.re), im = fabs##S(y.im); \
        if (re >= im) { \
            if (re == 0 && im == 0) \
                return make_##T(x.re / re, x.im / re); \
            R ratio = y.im / y.re, scale = 1 / (y.re + y.im * ratio); \
            return make_##T((x.re + x.im * ratio) * scale, (x.im - x.re * ratio) * scale); \
        } \
        R ratio = y.re / y.im, scale = 1 / (y.im + y.re * ratio); \
        return make_##T((x.re * ratio + x.im) * scale, (x.im * ratio - x.re) * scale); \
    } \
    static inline T reciprocal_of_##T(T x) \
    { \
        if (fabs##S(x.im) <= fabs##S(x.re)) { \
            R ratio = x.im / x.re, divisor = x.re + x.im * ratio; \
            return make_##T(1 / divisor, -ratio / divisor); \
        } \
        R ratio = x.re / x.im, divisor = x.re * ratio + x.im; \
        return make_##T(ratio / divisor, -1 / divisor); \
    } \
    /* x / |x|: the axis of a single infinite part; NaN if both parts are infinite */ \
    static inline T sign_of_##T(T x) \
    { \
        R magnitude = hypot##S(x.re, x.im); \
        if (magnitude == 0 || magnitude != magnitude) \
            return make_##T(magnitude, magnitude == 0 ? 0 : magnitude); \
        if (isinf(magnitude)) { \
            if (!isinf(x.re)) \
                return make_##T(0, x.im > 0 ? 1 : -1); \
            if (!isinf(x.im)) \
                return make_##T(x.re > 0 ? 1 : -1, 0); \
            return make_##T(NAN, NAN); \
        } \
        return make_##T(x.re / magnitude, x.im / magnitude); \
    } \
    static inline bool is_nan_##T(T x) { return x.re != x.re || x.im != x.im; } \
    static inline bool greater_equal_##T(T x, T y) \
    { \
        return (x.re > y.re && x.im == x.im && y.im == y.im) || (x.re == y.re && x.im >= y.im); \
    } \
    LOOP2(add_##T, T, T, make_##T(x.re + y.re, x.im + y.im)) \
    LOOP2(subtract_##T, T, T, make_##T(x.re - y.re, x.im - y.im)) \
    LOOP2(multiply_##T, T, T, product_##T(x, y)) \
    LOOP2(divide_##T, T, T, quotient_##T(x, y)) \
    LOOP2(maximum_##T, T, T, is_nan_##T(x) || greater_equal_##T(x, y) ? x : y) \
    LOOP2(minimum_##T, T, T, is_nan_##T(x) || greater_equal_##T(y, x) ? x : y) \
    LOOP2(fmax_##T, T, T, is_nan_##T(y) || greater_equal_##T(x, y) ? x : y) \
    LOOP2(fmin_##T, T, T, is_nan_##T(y) || greater_equal_##T(y, x) ? x : y) \
    LOOP1(negative_##T, T, T, make_##T(-x.re, -x.im)) \
    LOOP1(positive_##T, T, T, x) \
    LOOP1(sign_##T, T, T, sign_of_##T(x)) \
    LOOP1(square_##T, T, T, make_##T(x.re *x.re - x.im * x.im, x.re * x.im + x.im * x.re)) \
    LOOP1(reciprocal_##T, T, T, reciprocal_of_##T(x)) \
    LOOP1(conjugate_##T, T, T, make_##T(x.re, -x.im)) \
    LOOP1(rint_##T, T, T, make_##T(rint##S(x.re), rint##S(x.im))) \
    LOOP1(real_##T, T, R, x.re) \
    LOOP1(imag_##T, T, R, x.im)
COMPLEXES(c64, f32, f)
COMPLEXES(c128, f64, )

/* Absolute value: for complex64 in float64, which holds the sum of squares; for complex128 scaled by the larger part.
 * An infinite part takes precedence over NaN. */
static inline f32 absolute_of_c64(c64 x)
{
    f64 re = x.re, im = x.im;
    f32 magnitude = (f32)sqrt(re * re + im * im);
    return fabsf(x.re) == INFINITY || fabsf(x.im) == INFINITY ? INFINITY : magnitude;
}
static inline f64 absolute_of_c128(c128 x)
{
    f64 re = fabs(x.re), im = fabs(x.im), larger = re > im ? re : im, smaller = re > im ? im : re;
    f64 ratio = smaller / (larger == 0 ? 1 : larger);
    f64 magnitude = larger * sqrt(1 + ratio * ratio) + 0 * (re + im);
    return re == INFINITY || im == INFINITY ? INFINITY : magnitude;
}
#ifdef __AVX512F__
/* Absolute values of the 16 numbers in `low` and `high`. Scales by the exponent of the larger part, so that squares
 * neither overflow nor underflow. */
static inline __m512 absolutes_of(__m512 low, __m512 high)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512 re = _mm512_abs_ps(_mm512_permutex2var_ps(low, even, high));
    __m512 im = _mm512_abs_ps(_mm512_permutex2var_ps(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high));
    __mmask16 infinite = _mm512_cmp_ps_mask(re, _mm512_set1_ps(INFINITY), _CMP_EQ_OQ)
                         | _mm512_cmp_ps_mask(im, _mm512_set1_ps(INFINITY), _CMP_EQ_OQ);
    __m512 exponent = _mm512_max_ps(_mm512_getexp_ps(_mm512_max_ps(re, im)), _mm512_set1_ps(-126)),
           negated = _mm512_sub_ps(_mm512_setzero_ps(), exponent);
    re = _mm512_scalef_ps(re, negated);
    im = _mm512_scalef_ps(im, negated);
    __m512 magnitude = _mm512_scalef_ps(_mm512_sqrt_ps(_mm512_fmadd_ps(re, re, _mm512_mul_ps(im, im))), exponent);
    return _mm512_mask_mov_ps(magnitude, infinite, _mm512_set1_ps(INFINITY));
}

static void absolute_c64(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step)
{
    enum { LANES = 16 };
    if (in_step == sizeof(c64) && out_step == sizeof(f32))
        for (; n >= LANES; n -= LANES, in += LANES * sizeof(c64), out += LANES * sizeof(f32))
            _mm512_storeu_ps(out, absolutes_of(_mm512_loadu_ps(in), _mm512_loadu_ps(in + 64)));
    while (n > 0) {
        int64_t count = n < LANES ? n : LANES;
        f32 parts[2 * LANES] = {0}, magnitudes[LANES];
        for (int64_t i = 0; i < count; i++)
            memcpy(parts + 2 * i, in + i * in_step, sizeof(c64));
        _mm512_storeu_ps(magnitudes, absolutes_of(_mm512_loadu_ps(parts), _mm512_loadu_ps(parts + LANES)));
        for (int64_t i = 0; i < count; i++)
            *(f32_at *)(out + i * out_step) = magnitudes[i];
        n -= count;
        in += count * in_step;
        out += count * out_step;
    }
}
#else
LOOP1(absolute_c64, c64, f32, absolute_of_c64(x))
#endif
LOOP1(absolute_c128, c128, f64, absolute_of_c128(x))

#define BOTH(k) [VME_COMPLEX64] = k##_c64, [VME_COMPLEX128] = k##_c128

/* clang-format off */
const vme_elementwise_kernels VME_TABLE(complexes) = {
    .unary = {
        [VME_NEGATIVE] = {BOTH(negative)},
        [VME_POSITIVE] = {BOTH(positive)},
        [VME_ABSOLUTE] = {BOTH(absolute)},
        [VME_SIGN] = {BOTH(sign)},
        [VME_SQUARE] = {BOTH(square)},
        [VME_RECIPROCAL] = {BOTH(reciprocal)},
        [VME_RINT] = {BOTH(rint)},
        [VME_REAL] = {BOTH(real)},
        [VME_IMAG] = {BOTH(imag)},
        [VME_CONJUGATE] = {BOTH(conjugate)},
    },
    .binary = {
        [VME_ADD] = {BOTH(add)},
        [VME_SUBTRACT] = {BOTH(subtract)},
        [VME_MULTIPLY] = {BOTH(multiply)},
        [VME_DIVIDE] = {BOTH(divide)},
        [VME_MAXIMUM] = {BOTH(maximum)},
        [VME_MINIMUM] = {BOTH(minimum)},
        [VME_FMAX] = {BOTH(fmax)},
        [VME_FMIN] = {BOTH(fmin)},
    },
};
/* clang-format on */
