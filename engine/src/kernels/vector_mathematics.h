/* Transcendental kernels on whole vectors: glibc's libmvec (2.35 and later) through its vector ABI, within 4 ulp.
 *
 * The last elements of a run, and elements with steps, go through the same functions in a padded vector: a value never depends on
 * where in an array it lies, nor on how the work was divided. Empty without VME_LIBMVEC (setup.py): libm's kernels serve then. */
#include "loops.h"

#ifdef VME_LIBMVEC
#ifdef __AVX512F__
typedef f32 v32 __attribute__((vector_size(64)));
typedef f64 v64 __attribute__((vector_size(64)));
#define NAME32_1(base) _ZGVeN16v_##base##f
#define NAME64_1(base) _ZGVeN8v_##base
#define NAME32_2(base) _ZGVeN16vv_##base##f
#define NAME64_2(base) _ZGVeN8vv_##base
#else
typedef f32 v32 __attribute__((vector_size(32)));
typedef f64 v64 __attribute__((vector_size(32)));
#define NAME32_1(base) _ZGVdN8v_##base##f
#define NAME64_1(base) _ZGVdN4v_##base
#define NAME32_2(base) _ZGVdN8vv_##base##f
#define NAME64_2(base) _ZGVdN4vv_##base
#endif

#define VECTOR1(NAME, T, V, FUNCTION)                                                                       \
    extern V FUNCTION(V);                                                                                   \
    static void NAME(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step)              \
    {                                                                                                       \
        enum { LANES = sizeof(V) / sizeof(T) };                                                             \
        int64_t i = 0;                                                                                      \
        if (in_step == sizeof(T) && out_step == sizeof(T))                                                  \
            for (; i + LANES <= n; i += LANES) {                                                            \
                V x;                                                                                        \
                memcpy(&x, in + i * (int64_t)sizeof(T), sizeof x);                                          \
                x = FUNCTION(x);                                                                            \
                memcpy(out + i * (int64_t)sizeof(T), &x, sizeof x);                                         \
            }                                                                                               \
        for (; i < n; i += LANES) {                                                                         \
            int count = n - i < LANES ? (int)(n - i) : LANES;                                               \
            union { V whole; T each[LANES]; } x;                                                            \
            for (int lane = 0; lane < LANES; lane++)                                                        \
                x.each[lane] = lane < count ? *(const T##_at *)(in + (i + lane) * in_step) : (T)1;          \
            x.whole = FUNCTION(x.whole);                                                                    \
            for (int lane = 0; lane < count; lane++)                                                        \
                *(T##_at *)(out + (i + lane) * out_step) = x.each[lane];                                    \
        }                                                                                                   \
    }

#define VECTOR2(NAME, T, V, FUNCTION)                                                                       \
    extern V FUNCTION(V, V);                                                                                \
    static void NAME(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out,   \
                     int64_t out_step)                                                                      \
    {                                                                                                       \
        enum { LANES = sizeof(V) / sizeof(T) };                                                             \
        int64_t i = 0;                                                                                      \
        if (a_step == sizeof(T) && b_step == sizeof(T) && out_step == sizeof(T))                            \
            for (; i + LANES <= n; i += LANES) {                                                            \
                V x, y;                                                                                     \
                memcpy(&x, a + i * (int64_t)sizeof(T), sizeof x);                                           \
                memcpy(&y, b + i * (int64_t)sizeof(T), sizeof y);                                           \
                x = FUNCTION(x, y);                                                                         \
                memcpy(out + i * (int64_t)sizeof(T), &x, sizeof x);                                         \
            }                                                                                               \
        for (; i < n; i += LANES) {                                                                         \
            int count = n - i < LANES ? (int)(n - i) : LANES;                                               \
            union { V whole; T each[LANES]; } x, y;                                                         \
            for (int lane = 0; lane < LANES; lane++) {                                                      \
                x.each[lane] = lane < count ? *(const T##_at *)(a + (i + lane) * a_step) : (T)1;            \
                y.each[lane] = lane < count ? *(const T##_at *)(b + (i + lane) * b_step) : (T)1;            \
            }                                                                                               \
            x.whole = FUNCTION(x.whole, y.whole);                                                           \
            for (int lane = 0; lane < count; lane++)                                                        \
                *(T##_at *)(out + (i + lane) * out_step) = x.each[lane];                                    \
        }                                                                                                   \
    }

#define BOTH1(name, libm) VECTOR1(name##_f32, f32, v32, NAME32_1(libm)) VECTOR1(name##_f64, f64, v64, NAME64_1(libm))
#define BOTH2(name, libm) VECTOR2(name##_f32, f32, v32, NAME32_2(libm)) VECTOR2(name##_f64, f64, v64, NAME64_2(libm))
BOTH1(cbrt, cbrt)
BOTH1(exp, exp)
BOTH1(exp2, exp2)
BOTH1(expm1, expm1)
BOTH1(log, log)
BOTH1(log2, log2)
BOTH1(log10, log10)
BOTH1(log1p, log1p)
BOTH1(sin, sin)
BOTH1(cos, cos)
BOTH1(tan, tan)
BOTH1(arcsin, asin)
BOTH1(arccos, acos)
BOTH1(arctan, atan)
BOTH1(sinh, sinh)
BOTH1(cosh, cosh)
BOTH1(tanh, tanh)
BOTH1(arcsinh, asinh)
BOTH1(arccosh, acosh)
BOTH1(arctanh, atanh)
BOTH1(erf, erf)
BOTH2(power, pow)
BOTH2(arctan2, atan2)
BOTH2(hypot, hypot)

#define BOTH(k) {[VME_FLOAT32] = k##_f32, [VME_FLOAT64] = k##_f64}
#endif

const vme_elementwise_kernels VME_TABLE(vector_mathematics) = {
#ifdef VME_LIBMVEC
    .unary = {
        [VME_CBRT] = BOTH(cbrt),
        [VME_EXP] = BOTH(exp),
        [VME_EXP2] = BOTH(exp2),
        [VME_EXPM1] = BOTH(expm1),
        [VME_LOG] = BOTH(log),
        [VME_LOG2] = BOTH(log2),
        [VME_LOG10] = BOTH(log10),
        [VME_LOG1P] = BOTH(log1p),
        [VME_SIN] = BOTH(sin),
        [VME_COS] = BOTH(cos),
        [VME_TAN] = BOTH(tan),
        [VME_ARCSIN] = BOTH(arcsin),
        [VME_ARCCOS] = BOTH(arccos),
        [VME_ARCTAN] = BOTH(arctan),
        [VME_SINH] = BOTH(sinh),
        [VME_COSH] = BOTH(cosh),
        [VME_TANH] = BOTH(tanh),
        [VME_ARCSINH] = BOTH(arcsinh),
        [VME_ARCCOSH] = BOTH(arccosh),
        [VME_ARCTANH] = BOTH(arctanh),
        [VME_ERF] = BOTH(erf),
    },
    .binary = {
        [VME_POWER] = BOTH(power),
        [VME_ARCTAN2] = BOTH(arctan2),
        [VME_HYPOT] = BOTH(hypot),
    },
#endif
    .choose = {NULL},
};
