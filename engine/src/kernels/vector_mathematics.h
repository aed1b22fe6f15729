/* Vectorized transcendental kernels: glibc's libmvec (2.35 and later) through its vector ABI, within 4 ulp.
 *
 * The last elements of a run, and strided elements, use the same functions on padded vectors, so that a result never
 * depends on the position in an array or on how work was divided. Empty without VME_LIBMVEC (setup.py): libm's kernels
 * are used then. */
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

/* Strided elements are gathered into blocks on the stack, one for each operand. */
enum { BLOCK = 64 };

#define GATHER(T, to, from, step, count) \
    for (int64_t element = 0; element < (count); element++) \
        (to)[element] = *(const T##_at *)((from) + element * (step));

#define VECTOR1(NAME, T, V, FUNCTION) \
    static void NAME(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step) \
    { \
        enum { LANES = sizeof(V) / sizeof(T) }; \
        if (in_step == sizeof(T) && out_step == sizeof(T)) \
            for (; n >= LANES; n -= LANES, in += sizeof(V), out += sizeof(V)) { \
                V x; \
                memcpy(&x, in, sizeof x); \
                x = FUNCTION(x); \
                memcpy(out, &x, sizeof x); \
            } \
        while (n > 0) { \
            int64_t count = n < BLOCK ? n : BLOCK; \
            union { \
                V vectors[BLOCK / LANES]; \
                T elements[BLOCK]; \
            } x; \
            GATHER(T, x.elements, in, in_step, count) \
            for (int64_t lane = count; lane % LANES != 0; lane++) \
                x.elements[lane] = (T)1; \
            for (int64_t i = 0; i * LANES < count; i++) \
                x.vectors[i] = FUNCTION(x.vectors[i]); \
            for (int64_t lane = 0; lane < count; lane++) \
                *(T##_at *)(out + lane * out_step) = x.elements[lane]; \
            n -= count; \
            in += count * in_step; \
            out += count * out_step; \
        } \
    }

#define VECTOR2(NAME, T, V, FUNCTION) \
    static void NAME(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out, \
                     int64_t out_step) \
    { \
        enum { LANES = sizeof(V) / sizeof(T) }; \
        if (a_step == sizeof(T) && b_step == sizeof(T) && out_step == sizeof(T)) \
            for (; n >= LANES; n -= LANES, a += sizeof(V), b += sizeof(V), out += sizeof(V)) { \
                V x, y; \
                memcpy(&x, a, sizeof x); \
                memcpy(&y, b, sizeof y); \
                x = FUNCTION(x, y); \
                memcpy(out, &x, sizeof x); \
            } \
        while (n > 0) { \
            int64_t count = n < BLOCK ? n : BLOCK; \
            union { \
                V vectors[BLOCK / LANES]; \
                T elements[BLOCK]; \
            } x, y; \
            GATHER(T, x.elements, a, a_step, count) \
            GATHER(T, y.elements, b, b_step, count) \
            for (int64_t lane = count; lane % LANES != 0; lane++) \
                x.elements[lane] = y.elements[lane] = (T)1; \
            for (int64_t i = 0; i * LANES < count; i++) \
                x.vectors[i] = FUNCTION(x.vectors[i], y.vectors[i]); \
            for (int64_t lane = 0; lane < count; lane++) \
                *(T##_at *)(out + lane * out_step) = x.elements[lane]; \
            n -= count; \
            a += count * a_step; \
            b += count * b_step; \
            out += count * out_step; \
        } \
    }

#define SINGLE1(name, libm) \
    extern v32 NAME32_1(libm)(v32); \
    VECTOR1(name##_f32, f32, v32, NAME32_1(libm))
#define DOUBLE1(name, libm) \
    extern v64 NAME64_1(libm)(v64); \
    VECTOR1(name##_f64, f64, v64, NAME64_1(libm))
#define SINGLE2(name, libm) \
    extern v32 NAME32_2(libm)(v32, v32); \
    VECTOR2(name##_f32, f32, v32, NAME32_2(libm))
#define DOUBLE2(name, libm) \
    extern v64 NAME64_2(libm)(v64, v64); \
    VECTOR2(name##_f64, f64, v64, NAME64_2(libm))
#define BOTH1(name, libm) SINGLE1(name, libm) DOUBLE1(name, libm)
#define BOTH2(name, libm) SINGLE2(name, libm) DOUBLE2(name, libm)
BOTH1(cbrt, cbrt)
SINGLE1(exp, exp)
BOTH1(exp2, exp2)
BOTH1(expm1, expm1)
SINGLE1(log, log)
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
BOTH1(arcsinh, asinh)
BOTH1(arccosh, acosh)
BOTH1(arctanh, atanh)
BOTH1(erf, erf)
BOTH2(arctan2, atan2)
BOTH2(hypot, hypot)
#ifdef __AVX512F__
#include "vector_power.h"
#include "vector_tanh.h"
/* float16: computed in float32, converted in registers. */
#define HALF1(NAME, FUNCTION) \
    static void NAME(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step) \
    { \
        if (in_step == 2 && out_step == 2) \
            for (; n >= 16; n -= 16, in += 32, out += 32) { \
                v32 x = (v32)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)in)); \
                _mm256_storeu_si256((void *)out, _mm512_cvtps_ph((__m512)FUNCTION(x), _MM_FROUND_TO_NEAREST_INT)); \
            } \
        for (int64_t count; n > 0; n -= count, in += count * in_step, out += count * out_step) { \
            u16 block[16] = {0}; \
            count = n < 16 ? n : 16; \
            GATHER(u16, block, in, in_step, count) \
            v32 x = (v32)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)block)); \
            _mm256_storeu_si256((void *)block, _mm512_cvtps_ph((__m512)FUNCTION(x), _MM_FROUND_TO_NEAREST_INT)); \
            for (int64_t lane = 0; lane < count; lane++) \
                *(u16_at *)(out + lane * out_step) = block[lane]; \
        } \
    }
/* Precise enough for the 11 bits of float16: the Taylor series to r^6/6!, |r| <= log(2)/2, has 23 correct bits. A NaN
 * is the second operand and passes through. */
static inline v32 exp_for_half(v32 argument)
{
    static const f32 inverse_factorials[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1, 1};
    __m512 x = _mm512_max_ps(_mm512_set1_ps(-100), _mm512_min_ps(_mm512_set1_ps(100), (__m512)argument));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 r =
        _mm512_fnmadd_ps(n, _mm512_set1_ps(-0x1.05c610p-29f), _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e430p-1f), x));
    __m512 sum = _mm512_set1_ps(1.0f / 720);
    for (int i = 0; i < 6; i++)
        sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(inverse_factorials[i]));
    return (v32)_mm512_scalef_ps(sum, n);
}
HALF1(exp_half, exp_for_half)
HALF1(log_half, NAME32_1(log))
HALF1(sin_half, NAME32_1(sin))
HALF1(cos_half, NAME32_1(cos))
HALF1(tanh_half, tanh_of_f32)
#define WITH_HALF(k) {[VME_FLOAT16] = k##_half, [VME_FLOAT32] = k##_f32, [VME_FLOAT64] = k##_f64}
#else
DOUBLE1(exp, exp)
DOUBLE1(log, log)
BOTH1(tanh, tanh)
BOTH2(power, pow)
#endif

#ifndef WITH_HALF
#define WITH_HALF BOTH
#endif
#define BOTH(k) {[VME_FLOAT32] = k##_f32, [VME_FLOAT64] = k##_f64}
#endif

/* clang-format off */
const vme_elementwise_kernels VME_TABLE(vector_mathematics) = {
#ifdef VME_LIBMVEC
    .unary = {
        [VME_CBRT] = BOTH(cbrt),
        [VME_EXP] = WITH_HALF(exp),
        [VME_EXP2] = BOTH(exp2),
        [VME_EXPM1] = BOTH(expm1),
        [VME_LOG] = WITH_HALF(log),
        [VME_LOG2] = BOTH(log2),
        [VME_LOG10] = BOTH(log10),
        [VME_LOG1P] = BOTH(log1p),
        [VME_SIN] = WITH_HALF(sin),
        [VME_COS] = WITH_HALF(cos),
        [VME_TAN] = BOTH(tan),
        [VME_ARCSIN] = BOTH(arcsin),
        [VME_ARCCOS] = BOTH(arccos),
        [VME_ARCTAN] = BOTH(arctan),
        [VME_SINH] = BOTH(sinh),
        [VME_COSH] = BOTH(cosh),
        [VME_TANH] = WITH_HALF(tanh),
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
/* clang-format on */
