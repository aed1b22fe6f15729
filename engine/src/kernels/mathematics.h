/* Transcendental kernels that call libm for each element: those of the portable backend, and the complex ones of all
 * backends. Vectorized code is in vector_mathematics.h. */
#include <complex.h>

#include "loops.h"

/* As npy_logaddexp: no overflow, and no NaN for equal infinities. */
#define REALS(T, S, LN2) \
    static inline T log_of_sum_##T(T x, T y) \
    { \
        if (x == y) \
            return x + LN2; \
        T difference = x - y; \
        if (difference > 0) \
            return x + log1p##S(exp##S(-difference)); \
        return difference <= 0 ? y + log1p##S(exp##S(difference)) : difference; \
    } \
    LOOP2(power_##T, T, T, pow##S(x, y)) \
    LOOP2(arctan2_##T, T, T, atan2##S(x, y)) \
    LOOP2(hypot_##T, T, T, hypot##S(x, y)) \
    LOOP2(logaddexp_##T, T, T, log_of_sum_##T(x, y)) \
    LOOP1(cbrt_##T, T, T, cbrt##S(x)) \
    LOOP1(exp_##T, T, T, exp##S(x)) \
    LOOP1(exp2_##T, T, T, exp2##S(x)) \
    LOOP1(expm1_##T, T, T, expm1##S(x)) \
    LOOP1(log_##T, T, T, log##S(x)) \
    LOOP1(log2_##T, T, T, log2##S(x)) \
    LOOP1(log10_##T, T, T, log10##S(x)) \
    LOOP1(log1p_##T, T, T, log1p##S(x)) \
    LOOP1(sin_##T, T, T, sin##S(x)) \
    LOOP1(cos_##T, T, T, cos##S(x)) \
    LOOP1(tan_##T, T, T, tan##S(x)) \
    LOOP1(arcsin_##T, T, T, asin##S(x)) \
    LOOP1(arccos_##T, T, T, acos##S(x)) \
    LOOP1(arctan_##T, T, T, atan##S(x)) \
    LOOP1(sinh_##T, T, T, sinh##S(x)) \
    LOOP1(cosh_##T, T, T, cosh##S(x)) \
    LOOP1(tanh_##T, T, T, tanh##S(x)) \
    LOOP1(arcsinh_##T, T, T, asinh##S(x)) \
    LOOP1(arccosh_##T, T, T, acosh##S(x)) \
    LOOP1(arctanh_##T, T, T, atanh##S(x)) \
    LOOP1(erf_##T, T, T, erf##S(x))
REALS(f32, f, 0.693147180559945309417232121458176568F)
REALS(f64, , 0.693147180559945309417232121458176568)

/* Complex functions are libm's, or NumPy's own (umath/funcs.inc.src) if libm has none. */
#define COMPLEXES(T, R, C, S, MAKE) \
    static inline C to_complex_##T(T x) { return MAKE(x.re, x.im); } \
    static inline T from_complex_##T(C x) { return (T){creal##S(x), cimag##S(x)}; } \
    static inline T scaled_##T(T x, R factor) { return (T){x.re * factor, x.im * factor}; } \
    static inline T expm1_of_##T(T x) \
    { \
        R half = sin##S(x.im / 2); \
        return (T){expm1##S(x.re) * cos##S(x.im) - 2 * half * half, exp##S(x.re) * sin##S(x.im)}; \
    } \
    static inline T log1p_of_##T(T x) { return (T){log##S(hypot##S(x.re + 1, x.im)), atan2##S(x.im, x.re + 1)}; } \
    static inline T product_##T(T x, T y) { return (T){x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re}; } \
    static inline T reciprocal_##T(T x) \
    { \
        if (fabs##S(x.re) >= fabs##S(x.im)) { \
            R ratio = x.im / x.re, scale = 1 / (x.re + x.im * ratio); \
            return (T){scale, -ratio * scale}; \
        } \
        R ratio = x.re / x.im, scale = 1 / (x.im + x.re * ratio); \
        return (T){ratio * scale, -scale}; \
    } \
    /* small integer exponents: repeated multiplication; zero to a power is zero or NaN */ \
    static inline T power_of_##T(T x, T y) \
    { \
        if (y.re == 0 && y.im == 0) \
            return (T){1, 0}; \
        if (x.re == 0 && x.im == 0) \
            return y.re > 0 ? (T){0, 0} : (T){NAN, NAN}; \
        if (y.im == 0 && y.re > -100 && y.re < 100 && y.re == (R)(int)y.re) { \
            int exponent = (int)y.re, remaining = exponent < 0 ? -exponent : exponent; \
            if (exponent == 1) \
                return x; \
            if (exponent == 2) \
                return product_##T(x, x); \
            if (exponent == 3) \
                return product_##T(x, product_##T(x, x)); \
            T result = {1, 0}; \
            for (T base = x;; base = product_##T(base, base)) { \
                if (remaining & 1) \
                    result = product_##T(result, base); \
                remaining >>= 1; \
                if (remaining == 0) \
                    return exponent < 0 ? reciprocal_##T(result) : result; \
            } \
        } \
        return from_complex_##T(cpow##S(to_complex_##T(x), to_complex_##T(y))); \
    } \
    LOOP2(power_##T, T, T, power_of_##T(x, y)) \
    LOOP1(sqrt_##T, T, T, from_complex_##T(csqrt##S(to_complex_##T(x)))) \
    LOOP1(exp_##T, T, T, from_complex_##T(cexp##S(to_complex_##T(x)))) \
    LOOP1(exp2_##T, T, T, \
          from_complex_##T(cexp##S(to_complex_##T(scaled_##T(x, (R)0.693147180559945309417232121458176568))))) \
    LOOP1(expm1_##T, T, T, expm1_of_##T(x)) \
    LOOP1(log_##T, T, T, from_complex_##T(clog##S(to_complex_##T(x)))) \
    LOOP1(log2_##T, T, T, \
          scaled_##T(from_complex_##T(clog##S(to_complex_##T(x))), (R)1.442695040888963407359924681001892137)) \
    LOOP1(log10_##T, T, T, \
          scaled_##T(from_complex_##T(clog##S(to_complex_##T(x))), (R)0.434294481903251827651128918916605082)) \
    LOOP1(log1p_##T, T, T, log1p_of_##T(x)) \
    LOOP1(sin_##T, T, T, from_complex_##T(csin##S(to_complex_##T(x)))) \
    LOOP1(cos_##T, T, T, from_complex_##T(ccos##S(to_complex_##T(x)))) \
    LOOP1(tan_##T, T, T, from_complex_##T(ctan##S(to_complex_##T(x)))) \
    LOOP1(arcsin_##T, T, T, from_complex_##T(casin##S(to_complex_##T(x)))) \
    LOOP1(arccos_##T, T, T, from_complex_##T(cacos##S(to_complex_##T(x)))) \
    LOOP1(arctan_##T, T, T, from_complex_##T(catan##S(to_complex_##T(x)))) \
    LOOP1(sinh_##T, T, T, from_complex_##T(csinh##S(to_complex_##T(x)))) \
    LOOP1(cosh_##T, T, T, from_complex_##T(ccosh##S(to_complex_##T(x)))) \
    LOOP1(tanh_##T, T, T, from_complex_##T(ctanh##S(to_complex_##T(x)))) \
    LOOP1(arcsinh_##T, T, T, from_complex_##T(casinh##S(to_complex_##T(x)))) \
    LOOP1(arccosh_##T, T, T, from_complex_##T(cacosh##S(to_complex_##T(x)))) \
    LOOP1(arctanh_##T, T, T, from_complex_##T(catanh##S(to_complex_##T(x))))
COMPLEXES(c64, f32, float complex, f, CMPLXF)
COMPLEXES(c128, f64, double complex, , CMPLX)

#define REAL(k) [VME_FLOAT32] = k##_f32, [VME_FLOAT64] = k##_f64
#define ALL(k)  REAL(k), [VME_COMPLEX64] = k##_c64, [VME_COMPLEX128] = k##_c128

/* clang-format off */
const vme_elementwise_kernels VME_TABLE(mathematics) = {
    .unary = {
        [VME_SQRT] = {[VME_COMPLEX64] = sqrt_c64, [VME_COMPLEX128] = sqrt_c128},
        [VME_CBRT] = {REAL(cbrt)},
        [VME_EXP] = {ALL(exp)},
        [VME_EXP2] = {ALL(exp2)},
        [VME_EXPM1] = {ALL(expm1)},
        [VME_LOG] = {ALL(log)},
        [VME_LOG2] = {ALL(log2)},
        [VME_LOG10] = {ALL(log10)},
        [VME_LOG1P] = {ALL(log1p)},
        [VME_SIN] = {ALL(sin)},
        [VME_COS] = {ALL(cos)},
        [VME_TAN] = {ALL(tan)},
        [VME_ARCSIN] = {ALL(arcsin)},
        [VME_ARCCOS] = {ALL(arccos)},
        [VME_ARCTAN] = {ALL(arctan)},
        [VME_SINH] = {ALL(sinh)},
        [VME_COSH] = {ALL(cosh)},
        [VME_TANH] = {ALL(tanh)},
        [VME_ARCSINH] = {ALL(arcsinh)},
        [VME_ARCCOSH] = {ALL(arccosh)},
        [VME_ARCTANH] = {ALL(arctanh)},
        [VME_ERF] = {REAL(erf)},
    },
    .binary = {
        [VME_POWER] = {ALL(power)},
        [VME_ARCTAN2] = {REAL(arctan2)},
        [VME_HYPOT] = {REAL(hypot)},
        [VME_LOGADDEXP] = {REAL(logaddexp)},
    },
};
/* clang-format on */
