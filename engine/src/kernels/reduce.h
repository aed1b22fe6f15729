/* Kernels of reductions: `fold` folds a run of elements into one accumulator, `rows` folds rows into an accumulator for
 * each column. Included once for each backend, with VME_TARGET naming it. engine/src/operators/reduce.h defines
 * accumulators; float16 has no kernels and is computed in float32.
 *
 * Floating-point sums are pairwise: blocks of 32 vectors, whose sums are added in pairs; as accurate as NumPy's.
 * Products of fewer than 64 floats are in order, as NumPy's. Elements need not be aligned. */
#include "operators/elements.h"
#include "operators/reduce.h"

#include <math.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)

#if defined(__AVX512F__)
#define VECTOR 64
#elif defined(__AVX2__)
#define VECTOR 32
#else
#define VECTOR 16
#endif

/* ---- sums and products of integers, modulo 2^64. The type `narrow` holds the sum of `block` elements, so that vectors
 * have more lanes. */
#define INTEGER_SUM(name, narrow, block) \
    static void sum_##name(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        uint64_t total = *(uint64_t *)accumulator; \
        if (step == sizeof(e_##name)) { \
            const e_##name *x = (const e_##name *)in; \
            for (int64_t i = 0; i < n;) { \
                int64_t end = n - i < (block) ? n : i + (block); \
                narrow block_sum = 0; \
                for (; i < end; i++) \
                    block_sum += (narrow)x[i]; \
                total += (uint64_t)(int64_t)block_sum; \
            } \
        } else { \
            for (int64_t i = 0; i < n; i++) \
                total += (uint64_t)(int64_t)*(const e_##name *)(in + i * step); \
        } \
        *(uint64_t *)accumulator = total; \
    }
INTEGER_SUM(i8, int32_t, 65536)
INTEGER_SUM(u8, int32_t, 65536)
INTEGER_SUM(i16, int32_t, 32768)
INTEGER_SUM(u16, int32_t, 32768)
INTEGER_SUM(i32, int64_t, 1 << 30)
INTEGER_SUM(u32, int64_t, 1 << 30)
INTEGER_SUM(i64, uint64_t, INT64_MAX)

#define INTEGER_PROD(name) \
    static void prod_##name(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        uint64_t total = *(uint64_t *)accumulator; \
        if (step == sizeof(e_##name)) { \
            const e_##name *x = (const e_##name *)in; \
            for (int64_t i = 0; i < n; i++) \
                total *= (uint64_t)(int64_t)x[i]; \
        } else { \
            for (int64_t i = 0; i < n; i++) \
                total *= (uint64_t)(int64_t)*(const e_##name *)(in + i * step); \
        } \
        *(uint64_t *)accumulator = total; \
    }
INTEGER_PROD(i8)
INTEGER_PROD(u8)
INTEGER_PROD(i16)
INTEGER_PROD(u16)
INTEGER_PROD(i32)
INTEGER_PROD(u32)
INTEGER_PROD(i64)

/* ---- sums of floats; `parts` 2: complex, with real and imaginary parts in alternate lanes */
#define FLOAT_SUM(name, real, parts) \
    typedef real v_##name __attribute__((vector_size(VECTOR), may_alias, aligned(1))); \
    typedef real r_##name __attribute__((vector_size(VECTOR))); \
    enum { LANES_##name = VECTOR / (int)sizeof(real) }; \
    static inline r_##name pairwise_##name(int64_t vectors, const v_##name *x) \
    { \
        r_##name level[40], result = {0}; \
        int depth = 0; \
        int64_t blocks = vectors / 32; \
        for (int64_t b = 0; b < blocks; b++, x += 32) { \
            r_##name s0 = x[0], s1 = x[1], s2 = x[2], s3 = x[3]; \
            for (int j = 4; j < 32; j += 4) { \
                s0 += x[j]; \
                s1 += x[j + 1]; \
                s2 += x[j + 2]; \
                s3 += x[j + 3]; \
            } \
            s0 = (s0 + s1) + (s2 + s3); \
            for (int64_t carry = b; carry & 1; carry >>= 1) \
                s0 += level[--depth]; \
            level[depth++] = s0; \
        } \
        int64_t remaining = vectors - blocks * 32, j = 0; \
        r_##name s1 = result; \
        for (; j + 2 <= remaining; j += 2) { \
            result += x[j]; \
            s1 += x[j + 1]; \
        } \
        if (j < remaining) \
            result += x[j]; \
        result += s1; \
        while (depth > 0) \
            result += level[--depth]; \
        return result; \
    } \
    static void sum_##name(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        real *total = accumulator, sum[2] = {0, 0}; \
        if (step == parts * sizeof(real)) { \
            const e_##real##_ *x = (const e_##real##_ *)in; \
            int64_t count = n * parts, done = 0; \
            if (count >= LANES_##name) { \
                done = count / LANES_##name * LANES_##name; \
                r_##name lanes = pairwise_##name(count / LANES_##name, (const v_##name *)x); \
                for (int half = LANES_##name / 2; half >= parts; half /= 2) \
                    for (int j = 0; j < half; j++) \
                        lanes[j] += lanes[j + half]; \
                sum[0] = lanes[0]; \
                sum[parts - 1] = lanes[parts - 1]; \
            } \
            for (; done < count; done++) \
                sum[done & (parts - 1)] += x[done]; \
        } else { \
            /* blocks of 128 elements in eight chains of 16 additions; the blocks' sums are added in order, because n \
             * is at most the size of a piece */ \
            int64_t i = 0; \
            for (; i + 128 <= n; i += 128) \
                for (int part = 0; part < parts; part++) { \
                    const char *first = in + i * step + part * (int)sizeof(real); \
                    real s[8]; \
                    for (int j = 0; j < 8; j++) \
                        s[j] = *(const e_##real##_ *)(first + j * step); \
                    for (int k = 8; k < 128; k += 8) \
                        for (int j = 0; j < 8; j++) \
                            s[j] += *(const e_##real##_ *)(first + (k + j) * step); \
                    sum[part] += ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])); \
                } \
            for (; i < n; i++) \
                for (int part = 0; part < parts; part++) \
                    sum[part] += *(const e_##real##_ *)(in + i * step + part * (int)sizeof(real)); \
        } \
        for (int part = 0; part < parts; part++) \
            total[part] += sum[part]; \
    }
typedef e_f32 e_float_;
typedef e_f64 e_double_;
FLOAT_SUM(f32, float, 1)
FLOAT_SUM(f64, double, 1)
FLOAT_SUM(c64, float, 2)
FLOAT_SUM(c128, double, 2)

#define FLOAT_PROD(name, real) \
    static void prod_##name(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        real total = *(real *)accumulator; \
        int64_t i = 0; \
        if (n >= 64) { \
            real p[8] = {1, 1, 1, 1, 1, 1, 1, 1}; \
            for (; i + 8 <= n; i += 8) \
                for (int j = 0; j < 8; j++) \
                    p[j] *= *(const e_##name *)(in + (i + j) * step); \
            total *= ((p[0] * p[1]) * (p[2] * p[3])) * ((p[4] * p[5]) * (p[6] * p[7])); \
        } \
        for (; i < n; i++) \
            total *= *(const e_##name *)(in + i * step); \
        *(real *)accumulator = total; \
    }
FLOAT_PROD(f32, float)
FLOAT_PROD(f64, double)

#define COMPLEX_PROD(name, real) \
    static void prod_##name(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        real *total = accumulator, re = total[0], im = total[1]; \
        for (int64_t i = 0; i < n; i++) { \
            const e_##name *x = (const e_##name *)(in + i * step); \
            real next = re * x->re - im * x->im; \
            im = re * x->im + im * x->re; \
            re = next; \
        } \
        total[0] = re; \
        total[1] = im; \
    }
COMPLEX_PROD(c64, float)
COMPLEX_PROD(c128, double)

/* ---- minima and maxima. beyond_(a, b): whether a replaces b. NaN replaces every number and is never replaced. */
#define INTEGER_EXTREME(op, name, sign) \
    static inline bool beyond_##op##_##name(e_##name a, e_##name b) { return a sign b; } \
    static inline bool is_nan_##op##_##name(e_##name a) { return (void)a, false; } \
    static void op##_##name(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        e_##name best = *(e_##name *)accumulator; \
        if (step == sizeof(e_##name)) { \
            const e_##name *x = (const e_##name *)in; \
            for (int64_t i = 0; i < n; i++) \
                best = x[i] sign best ? x[i] : best; \
        } else { \
            for (int64_t i = 0; i < n; i++) { \
                e_##name x = *(const e_##name *)(in + i * step); \
                best = x sign best ? x : best; \
            } \
        } \
        *(e_##name *)accumulator = best; \
    }
#define INTEGER_EXTREMES(name) INTEGER_EXTREME(max, name, >) INTEGER_EXTREME(min, name, <)
INTEGER_EXTREMES(i8)
INTEGER_EXTREMES(i16)
INTEGER_EXTREMES(i32)
#ifdef __AVX512F__
/* Minimum and maximum of 64-bit integers have a latency of six cycles: four independent chains hide it. */
#define LONG_EXTREME(op) \
    static void op##_i64(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        int64_t best = *(int64_t *)accumulator; \
        if (step == 8) { \
            __m512i b0 = _mm512_set1_epi64(best), b1 = b0, b2 = b0, b3 = b0; \
            for (; n >= 32; n -= 32, in += 256) { \
                b0 = _mm512_##op##_epi64(b0, _mm512_loadu_si512(in)); \
                b1 = _mm512_##op##_epi64(b1, _mm512_loadu_si512(in + 64)); \
                b2 = _mm512_##op##_epi64(b2, _mm512_loadu_si512(in + 128)); \
                b3 = _mm512_##op##_epi64(b3, _mm512_loadu_si512(in + 192)); \
            } \
            for (; n > 0; n -= 8, in += 64) { \
                __mmask8 mask = (__mmask8)(n < 8 ? (1 << n) - 1 : 255); \
                b0 = _mm512_##op##_epi64(b0, _mm512_mask_loadu_epi64(b0, mask, in)); \
            } \
            b0 = _mm512_##op##_epi64(_mm512_##op##_epi64(b0, b1), _mm512_##op##_epi64(b2, b3)); \
            best = _mm512_reduce_##op##_epi64(b0); \
        } else { \
            for (int64_t i = 0; i < n; i++) { \
                int64_t x = *(const e_i64 *)(in + i * step); \
                best = beyond_##op##_i64(x, best) ? x : best; \
            } \
        } \
        *(int64_t *)accumulator = best; \
    }
static inline bool beyond_max_i64(e_i64 a, e_i64 b) { return a > b; }
static inline bool beyond_min_i64(e_i64 a, e_i64 b) { return a < b; }
static inline bool is_nan_max_i64(e_i64 a) { return (void)a, false; }
static inline bool is_nan_min_i64(e_i64 a) { return (void)a, false; }
LONG_EXTREME(max)
LONG_EXTREME(min)
#else
INTEGER_EXTREMES(i64)
#endif
INTEGER_EXTREMES(u8)
INTEGER_EXTREMES(u16)
INTEGER_EXTREMES(u32)
INTEGER_EXTREMES(u64)

/* x86's max and min instructions return their second operand, here the accumulator, if either operand is NaN. So NaNs
 * are recorded separately. */
#if defined(__AVX512F__)
typedef uint32_t nans;
#define NANS_NONE      0
#define NANS_ANY(nans) ((nans) != 0)
#define FLOAT_VECTOR(name, suffix) \
    static inline r_##name larger_##name(r_##name a, r_##name b) { return (r_##name)_mm512_max_##suffix(a, b); } \
    static inline r_##name smaller_##name(r_##name a, r_##name b) { return (r_##name)_mm512_min_##suffix(a, b); } \
    static inline nans nans_##name(nans so_far, r_##name a, r_##name b) \
    { \
        return so_far | _mm512_cmp_##suffix##_mask(a, b, _CMP_UNORD_Q); \
    }
#elif defined(__AVX2__)
typedef __m256i nans;
#define NANS_NONE      _mm256_setzero_si256()
#define NANS_ANY(nans) (!_mm256_testz_si256(nans, nans))
#define FLOAT_VECTOR(name, suffix) \
    static inline r_##name larger_##name(r_##name a, r_##name b) { return (r_##name)_mm256_max_##suffix(a, b); } \
    static inline r_##name smaller_##name(r_##name a, r_##name b) { return (r_##name)_mm256_min_##suffix(a, b); } \
    static inline nans nans_##name(nans so_far, r_##name a, r_##name b) \
    { \
        return so_far | (__m256i)_mm256_cmp_##suffix(a, b, _CMP_UNORD_Q); \
    }
#elif defined(__x86_64__)
typedef __m128i nans;
#define NANS_NONE      _mm_setzero_si128()
#define NANS_ANY(nans) (_mm_movemask_epi8(nans) != 0)
#define FLOAT_VECTOR(name, suffix) \
    static inline r_##name larger_##name(r_##name a, r_##name b) { return (r_##name)_mm_max_##suffix(a, b); } \
    static inline r_##name smaller_##name(r_##name a, r_##name b) { return (r_##name)_mm_min_##suffix(a, b); } \
    static inline nans nans_##name(nans so_far, r_##name a, r_##name b) \
    { \
        return so_far | (__m128i)_mm_cmpunord_##suffix(a, b); \
    }
#else
typedef bool nans;
#define NANS_NONE      false
#define NANS_ANY(nans) (nans)
#define FLOAT_VECTOR(name, suffix) \
    static inline r_##name larger_##name(r_##name a, r_##name b) \
    { \
        for (int i = 0; i < LANES_##name; i++) \
            b[i] = a[i] > b[i] ? a[i] : b[i]; \
        return b; \
    } \
    static inline r_##name smaller_##name(r_##name a, r_##name b) \
    { \
        for (int i = 0; i < LANES_##name; i++) \
            b[i] = a[i] < b[i] ? a[i] : b[i]; \
        return b; \
    } \
    static inline nans nans_##name(nans so_far, r_##name a, r_##name b) \
    { \
        for (int i = 0; i < LANES_##name; i++) \
            so_far = so_far || a[i] != a[i] || b[i] != b[i]; \
        return so_far; \
    }
#endif
FLOAT_VECTOR(f32, ps)
FLOAT_VECTOR(f64, pd)

/* vector_: the first n elements, at least VECTOR_MIN; with fewer elements than lanes, the other lanes repeat the first
 * element. reduce_: the maximum or minimum of all lanes. */
#if defined(__AVX512F__)
enum { VECTOR_MIN_f32 = 2, VECTOR_MIN_f64 = 2 };
static inline r_f32 vector_f32(int64_t n, const char *in)
{
    return (r_f32)(n >= LANES_f32
                       ? _mm512_loadu_ps(in)
                       : _mm512_mask_loadu_ps(_mm512_set1_ps(*(const e_f32 *)in), (__mmask16)((1u << n) - 1), in));
}
static inline r_f64 vector_f64(int64_t n, const char *in)
{
    return (r_f64)(n >= LANES_f64
                       ? _mm512_loadu_pd(in)
                       : _mm512_mask_loadu_pd(_mm512_set1_pd(*(const e_f64 *)in), (__mmask8)((1u << n) - 1), in));
}
static inline float reduce_larger_f32(r_f32 x) { return _mm512_reduce_max_ps((__m512)x); }
static inline float reduce_smaller_f32(r_f32 x) { return _mm512_reduce_min_ps((__m512)x); }
static inline double reduce_larger_f64(r_f64 x) { return _mm512_reduce_max_pd((__m512d)x); }
static inline double reduce_smaller_f64(r_f64 x) { return _mm512_reduce_min_pd((__m512d)x); }
#else
enum { VECTOR_MIN_f32 = LANES_f32, VECTOR_MIN_f64 = LANES_f64 };
static inline r_f32 vector_f32(int64_t n, const char *in) { return (void)n, *(const v_f32 *)in; }
static inline r_f64 vector_f64(int64_t n, const char *in) { return (void)n, *(const v_f64 *)in; }
#define REDUCE_LANES(name, real, further, sign) \
    static inline real reduce_##further##_##name(r_##name x) \
    { \
        real lanes[LANES_##name]; \
        memcpy(lanes, &x, sizeof lanes); \
        for (int half = LANES_##name / 2; half > 0; half /= 2) \
            for (int j = 0; j < half; j++) \
                lanes[j] = lanes[j + half] sign lanes[j] ? lanes[j + half] : lanes[j]; \
        return lanes[0]; \
    }
REDUCE_LANES(f32, float, larger, >)
REDUCE_LANES(f32, float, smaller, <)
REDUCE_LANES(f64, double, larger, >)
REDUCE_LANES(f64, double, smaller, <)
#endif

#define FLOAT_EXTREME(op, name, real, sign, further) \
    static inline bool beyond_##op##_##name(real a, real b) { return (a sign b) | ((a != a) & (b == b)); } \
    static inline bool is_nan_##op##_##name(real a) { return a != a; } \
    static void op##_##name(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        real best = *(real *)accumulator; \
        int64_t i = 0; \
        if (step == sizeof(real) && n >= VECTOR_MIN_##name) { \
            const v_##name *x = (const v_##name *)in; \
            r_##name b0 = vector_##name(n, in); \
            nans found = nans_##name(NANS_NONE, b0, b0); \
            i = LANES_##name; \
            if (n >= 4 * LANES_##name) { \
                r_##name b1 = x[1], b2 = x[2], b3 = x[3]; \
                found = nans_##name(nans_##name(found, b0, b1), b2, b3); \
                for (i = 4 * LANES_##name; i + 4 * LANES_##name <= n; i += 4 * LANES_##name) { \
                    x += 4; \
                    r_##name x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3]; \
                    found = nans_##name(nans_##name(found, x0, x1), x2, x3); \
                    b0 = further##_##name(x0, b0); \
                    b1 = further##_##name(x1, b1); \
                    b2 = further##_##name(x2, b2); \
                    b3 = further##_##name(x3, b3); \
                } \
                b0 = further##_##name(further##_##name(b0, b1), further##_##name(b2, b3)); \
            } \
            for (; i < n; i += LANES_##name) { /* the last vector may overlap the one before it */ \
                int64_t offset = i + LANES_##name <= n ? i : n - LANES_##name; \
                r_##name x0 = *(const v_##name *)((const real *)in + offset); \
                found = nans_##name(found, x0, x0); \
                b0 = further##_##name(x0, b0); \
            } \
            real last = reduce_##further##_##name(b0); \
            if (NANS_ANY(found)) \
                best = (real)NAN; \
            best = beyond_##op##_##name(last, best) ? last : best; \
        } \
        for (; i < n; i++) { \
            real x = *(const e_##name *)(in + i * step); \
            best = beyond_##op##_##name(x, best) ? x : best; \
        } \
        *(real *)accumulator = best; \
    }
FLOAT_EXTREME(max, f32, float, >, larger)
FLOAT_EXTREME(min, f32, float, <, smaller)
FLOAT_EXTREME(max, f64, double, >, larger)
FLOAT_EXTREME(min, f64, double, <, smaller)

/* The same, ignoring NaN: the accumulator is NaN until a number was seen. */
#define FLOAT_KNOWN(op, name, real, sign, further, identity) \
    static void op##_##name(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        real best = *(real *)accumulator; \
        int64_t i = 0; \
        if (step == sizeof(real) && n >= 4 * LANES_##name) { \
            const v_##name *x = (const v_##name *)in; \
            r_##name b0 = (r_##name){0} + (real)(identity), b1 = b0, b2 = b0, b3 = b0; \
            for (; i + 4 * LANES_##name <= n; i += 4 * LANES_##name, x += 4) { \
                r_##name x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3]; \
                b0 = further##_##name(x0, b0); \
                b1 = further##_##name(x1, b1); \
                b2 = further##_##name(x2, b2); \
                b3 = further##_##name(x3, b3); \
            } \
            real last = \
                reduce_##further##_##name(further##_##name(further##_##name(b0, b1), further##_##name(b2, b3))); \
            if (last == (real)(identity)) \
                i = 0; /* `identity` may be an element, or there were NaNs only */ \
            else \
                best = last sign best || best != best ? last : best; \
        } \
        for (; i < n; i++) { \
            real x = *(const e_##name *)(in + i * step); \
            best = x sign best || best != best ? x : best; \
        } \
        *(real *)accumulator = best; \
    }
FLOAT_KNOWN(known_max, f32, float, >, larger, -INFINITY)
FLOAT_KNOWN(known_min, f32, float, <, smaller, INFINITY)
FLOAT_KNOWN(known_max, f64, double, >, larger, -INFINITY)
FLOAT_KNOWN(known_min, f64, double, <, smaller, INFINITY)

/* Complex numbers in lexicographic order; a number with NaN in either part counts as NaN. */
#define COMPLEX_EXTREME(op, name, sign) \
    static inline bool is_nan_##op##_##name(e_##name a) { return a.re != a.re || a.im != a.im; } \
    static inline bool beyond_##op##_##name(e_##name a, e_##name b) \
    { \
        if (is_nan_##op##_##name(a) || is_nan_##op##_##name(b)) \
            return !is_nan_##op##_##name(b); \
        return a.re sign b.re || (a.re == b.re && a.im sign b.im); \
    } \
    static void op##_##name(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        e_##name best = *(e_##name *)accumulator; \
        for (int64_t i = 0; i < n; i++) { \
            e_##name x = *(const e_##name *)(in + i * step); \
            if (beyond_##op##_##name(x, best)) \
                best = x; \
        } \
        *(e_##name *)accumulator = best; \
    }
#define COMPLEX_KNOWN(op, extreme, name) \
    static void op##_##name(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        e_##name best = *(e_##name *)accumulator; \
        for (int64_t i = 0; i < n; i++) { \
            e_##name x = *(const e_##name *)(in + i * step); \
            if (is_nan_##extreme##_##name(best) \
                || (!is_nan_##extreme##_##name(x) && beyond_##extreme##_##name(x, best))) \
                best = x; \
        } \
        *(e_##name *)accumulator = best; \
    }
COMPLEX_EXTREME(max, c64, >)
COMPLEX_EXTREME(min, c64, <)
COMPLEX_EXTREME(max, c128, >)
COMPLEX_EXTREME(min, c128, <)
COMPLEX_KNOWN(known_max, max, c64)
COMPLEX_KNOWN(known_min, min, c64)
COMPLEX_KNOWN(known_max, max, c128)
COMPLEX_KNOWN(known_min, min, c128)

/* ---- the index of the first minimum or maximum: folds a block, and searches it only if it improves the best value */
#define FIND(op, name) \
    /* the index of the first element that equals `target`, the extreme of all n (NaN equals NaN); 32 at a time, which \
     * compilers vectorize */ \
    static int64_t find_##op##_##name(e_##name target, int64_t n, const char *in, int64_t step) \
    { \
        int64_t j = 0; \
        if (step == sizeof(e_##name)) \
            for (const e_##name *x = (const e_##name *)in; j + 32 <= n; j += 32) { \
                unsigned char found = 0; \
                for (int k = 0; k < 32; k++) \
                    found |= !beyond_##op##_##name(target, x[j + k]); \
                if (found) \
                    break; \
            } \
        while (j < n && beyond_##op##_##name(target, *(const e_##name *)(in + j * step))) \
            j++; \
        return j; \
    }
#ifdef __AVX512BW__
/* The same with vector comparisons: an element matches if it equals `target`, or if both are NaN. Four vectors at once;
 * the last four may overlap those before. `mask`: the valid lanes of a single vector. */
#define FIND_VECTOR(op, name, lanes) \
    static int64_t find_##op##_##name(e_##name target, int64_t n, const char *in, int64_t step) \
    { \
        int64_t j = 0; \
        if (step != sizeof(e_##name)) { \
            while (j < n && beyond_##op##_##name(target, *(const e_##name *)(in + j * step))) \
                j++; \
            return j; \
        } \
        if (!is_nan_##op##_##name(target)) \
            for (; j < n && n >= 4 * lanes; j += 4 * lanes) { \
                const int64_t offset = j + 4 * lanes <= n ? j : n - 4 * lanes; \
                const char *from = in + offset * step; \
                uint64_t matches = equals_##name(target, from) | equals_##name(target, from + 64) << lanes \
                                   | equals_##name(target, from + 128) << 2 * lanes \
                                   | equals_##name(target, from + 192) << 3 * lanes; \
                if (matches != 0) \
                    return offset + __builtin_ctzll(matches); \
            } \
        for (; j < n; j += lanes) { \
            uint64_t mask = n - j < lanes ? ((uint64_t)1 << (n - j)) - 1 : UINT64_MAX >> (64 - lanes); \
            uint64_t matches = matches_##name(target, mask, in + j * step); \
            if (matches != 0) \
                return j + __builtin_ctzll(matches); \
        } \
        return n; \
    }
static inline uint64_t equals_i32(int32_t target, const char *in)
{
    return _mm512_cmpeq_epi32_mask(_mm512_loadu_si512(in), _mm512_set1_epi32(target));
}
static inline uint64_t equals_i64(int64_t target, const char *in)
{
    return _mm512_cmpeq_epi64_mask(_mm512_loadu_si512(in), _mm512_set1_epi64(target));
}
static inline uint64_t equals_f32(float target, const char *in)
{
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(in), _mm512_set1_ps(target), _CMP_EQ_OQ);
}
static inline uint64_t equals_f64(double target, const char *in)
{
    return _mm512_cmp_pd_mask(_mm512_loadu_pd(in), _mm512_set1_pd(target), _CMP_EQ_OQ);
}
static inline uint64_t matches_i32(int32_t target, uint64_t mask, const char *in)
{
    return _mm512_mask_cmpeq_epi32_mask((__mmask16)mask, _mm512_maskz_loadu_epi32((__mmask16)mask, in),
                                        _mm512_set1_epi32(target));
}
static inline uint64_t matches_i64(int64_t target, uint64_t mask, const char *in)
{
    return _mm512_mask_cmpeq_epi64_mask((__mmask8)mask, _mm512_maskz_loadu_epi64((__mmask8)mask, in),
                                        _mm512_set1_epi64(target));
}
static inline uint64_t matches_f32(float target, uint64_t mask, const char *in)
{
    __m512 x = _mm512_maskz_loadu_ps((__mmask16)mask, in);
    return target != target ? _mm512_mask_cmp_ps_mask((__mmask16)mask, x, x, _CMP_UNORD_Q)
                            : _mm512_mask_cmp_ps_mask((__mmask16)mask, x, _mm512_set1_ps(target), _CMP_EQ_OQ);
}
static inline uint64_t matches_f64(double target, uint64_t mask, const char *in)
{
    __m512d x = _mm512_maskz_loadu_pd((__mmask8)mask, in);
    return target != target ? _mm512_mask_cmp_pd_mask((__mmask8)mask, x, x, _CMP_UNORD_Q)
                            : _mm512_mask_cmp_pd_mask((__mmask8)mask, x, _mm512_set1_pd(target), _CMP_EQ_OQ);
}
#define FIND_I32(op) FIND_VECTOR(op, i32, 16)
#define FIND_I64(op) FIND_VECTOR(op, i64, 8)
#define FIND_F32(op) FIND_VECTOR(op, f32, 16)
#define FIND_F64(op) FIND_VECTOR(op, f64, 8)
#else
#define FIND_I32(op) FIND(op, i32)
#define FIND_I64(op) FIND(op, i64)
#define FIND_F32(op) FIND(op, f32)
#define FIND_F64(op) FIND(op, f64)
#endif
/* clang-format off */
#define FINDS(op) \
    FIND(op, i8) FIND(op, i16) FIND_I32(op) FIND_I64(op) FIND(op, u8) FIND(op, u16) FIND(op, u32) FIND(op, u64) \
    FIND_F32(op) FIND_F64(op) FIND(op, c64) FIND(op, c128)
/* clang-format on */
FINDS(max)
FINDS(min)

/* The minimum or maximum of a block, and its index if the search yields it; otherwise -1. */
#define FIRST_WITHOUT_INDEX(op, name) \
    static inline int64_t first_##op##_##name(int64_t n, const char *in, int64_t step, e_##name *block_best) \
    { \
        op##_##name(n, in, step, block_best); \
        return -1; \
    }
#ifdef __AVX512BW__
/* Each lane keeps the number of the group of four vectors that had its best value. The last group may overlap the one
 * before it: an element replaces the best value only if it goes beyond it. */
#define FIRST_VECTORS(op, name, lanes, vector, LOAD, FURTHER, BEYOND, SAME, REDUCE, NARROW, NANS) \
    static int64_t first_##op##_##name(int64_t n, const char *in, int64_t step, e_##name *block_best) \
    { \
        enum { FOUR = 4 * lanes }; \
        if (step != sizeof(e_##name) || n < FOUR) { \
            op##_##name(n, in, step, block_best); \
            return -1; \
        } \
        vector x0 = LOAD(in), x1 = LOAD(in + 64), x2 = LOAD(in + 128), x3 = LOAD(in + 192); \
        vector best = FURTHER(FURTHER(x0, x1), FURTHER(x2, x3)); \
        uint32_t any_nan = NANS(x0, x1) | NANS(x2, x3); \
        __m512i best_group = _mm512_setzero_si512(), group = best_group; \
        for (int64_t j = FOUR; j < n; j += FOUR) { \
            const char *from = in + (j + FOUR <= n ? j : n - FOUR) * step; \
            x0 = LOAD(from), x1 = LOAD(from + 64), x2 = LOAD(from + 128), x3 = LOAD(from + 192); \
            vector group_best = FURTHER(FURTHER(x0, x1), FURTHER(x2, x3)); \
            any_nan |= NANS(x0, x1) | NANS(x2, x3); \
            group = _mm512_add_epi##NARROW(group, _mm512_set1_epi##NARROW(1)); \
            best_group = _mm512_mask_mov_epi##NARROW(best_group, BEYOND(group_best, best), group); \
            best = FURTHER(group_best, best); \
        } \
        if (any_nan != 0) { \
            op##_##name(n, in, step, block_best); \
            return -1; \
        } \
        *block_best = REDUCE(best); \
        __m512i groups = NARROW == 32 ? best_group : _mm512_castsi256_si512(_mm512_cvtepi64_epi32(best_group)); \
        int64_t offset = FOUR * (int64_t)_mm512_mask_reduce_min_epi32(SAME(best, *block_best), groups); \
        offset = offset + FOUR <= n ? offset : n - FOUR; \
        in += offset * step; \
        return offset \
               + __builtin_ctzll(equals_##name(*block_best, in) | equals_##name(*block_best, in + 64) << lanes \
                                 | equals_##name(*block_best, in + 128) << 2 * lanes \
                                 | equals_##name(*block_best, in + 192) << 3 * lanes); \
    }
#define NANS_PS(a, b)       _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q)
#define NANS_PD(a, b)       _mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q)
#define NANS_I(a, b)        0
#define BEYOND_MAX_PS(a, b) _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)
#define BEYOND_MIN_PS(a, b) _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
#define BEYOND_MAX_PD(a, b) _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ)
#define BEYOND_MIN_PD(a, b) _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ)
#define SAME_PS(a, value)   _mm512_cmp_ps_mask(a, _mm512_set1_ps(value), _CMP_EQ_OQ)
#define SAME_PD(a, value)   _mm512_cmp_pd_mask(a, _mm512_set1_pd(value), _CMP_EQ_OQ)
#define SAME_I32(a, value)  _mm512_cmpeq_epi32_mask(a, _mm512_set1_epi32(value))
#define SAME_I64(a, value)  _mm512_cmpeq_epi64_mask(a, _mm512_set1_epi64(value))
FIRST_VECTORS(max, f32, 16, __m512, _mm512_loadu_ps, _mm512_max_ps, BEYOND_MAX_PS, SAME_PS, _mm512_reduce_max_ps, 32,
              NANS_PS)
FIRST_VECTORS(min, f32, 16, __m512, _mm512_loadu_ps, _mm512_min_ps, BEYOND_MIN_PS, SAME_PS, _mm512_reduce_min_ps, 32,
              NANS_PS)
FIRST_VECTORS(max, f64, 8, __m512d, _mm512_loadu_pd, _mm512_max_pd, BEYOND_MAX_PD, SAME_PD, _mm512_reduce_max_pd, 64,
              NANS_PD)
FIRST_VECTORS(min, f64, 8, __m512d, _mm512_loadu_pd, _mm512_min_pd, BEYOND_MIN_PD, SAME_PD, _mm512_reduce_min_pd, 64,
              NANS_PD)
FIRST_VECTORS(max, i32, 16, __m512i, _mm512_loadu_si512, _mm512_max_epi32, _mm512_cmpgt_epi32_mask, SAME_I32,
              _mm512_reduce_max_epi32, 32, NANS_I)
FIRST_VECTORS(min, i32, 16, __m512i, _mm512_loadu_si512, _mm512_min_epi32, _mm512_cmplt_epi32_mask, SAME_I32,
              _mm512_reduce_min_epi32, 32, NANS_I)
FIRST_VECTORS(max, i64, 8, __m512i, _mm512_loadu_si512, _mm512_max_epi64, _mm512_cmpgt_epi64_mask, SAME_I64,
              _mm512_reduce_max_epi64, 64, NANS_I)
FIRST_VECTORS(min, i64, 8, __m512i, _mm512_loadu_si512, _mm512_min_epi64, _mm512_cmplt_epi64_mask, SAME_I64,
              _mm512_reduce_min_epi64, 64, NANS_I)
#else
#define FIRST_BOTH(name) FIRST_WITHOUT_INDEX(max, name) FIRST_WITHOUT_INDEX(min, name)
FIRST_BOTH(i32)
FIRST_BOTH(i64)
FIRST_BOTH(f32)
FIRST_BOTH(f64)
#endif
/* clang-format off */
#define FIRSTS(op) \
    FIRST_WITHOUT_INDEX(op, i8) FIRST_WITHOUT_INDEX(op, i16) FIRST_WITHOUT_INDEX(op, u8) FIRST_WITHOUT_INDEX(op, u16) \
    FIRST_WITHOUT_INDEX(op, u32) FIRST_WITHOUT_INDEX(op, u64) FIRST_WITHOUT_INDEX(op, c64) FIRST_WITHOUT_INDEX(op, c128)
/* clang-format on */
FIRSTS(max)
FIRSTS(min)

#define ARG(op, name) \
    static void arg##op##_##name(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        enum { BLOCK = 2048 }; \
        vme_arg_accumulator *extreme = accumulator; \
        e_##name best; \
        memcpy(&best, extreme->value, sizeof best); \
        for (int64_t i = 0; i < n; i += BLOCK) { \
            int64_t count = n - i < BLOCK ? n - i : BLOCK; \
            const char *block = in + i * step; \
            e_##name block_best = *(const e_##name *)block; \
            if (extreme->seen > 0 && is_nan_##op##_##name(best)) { \
                extreme->seen += n - i; \
                break; \
            } \
            int64_t j = first_##op##_##name(count, block, step, &block_best); \
            if (extreme->seen == 0 || beyond_##op##_##name(block_best, best)) { \
                if (j < 0) \
                    j = find_##op##_##name(block_best, count, block, step); \
                best = *(const e_##name *)(block + j * step); \
                extreme->best = extreme->seen + j; \
            } \
            extreme->seen += count; \
        } \
        memcpy(extreme->value, &best, sizeof best); \
    }
#define ARGS(name) ARG(max, name) ARG(min, name)
ARGS(i8)
ARGS(i16)
ARGS(i32)
ARGS(i64)
ARGS(u8)
ARGS(u16)
ARGS(u32)
ARGS(u64)
ARGS(f32)
ARGS(f64)
ARGS(c64)
ARGS(c128)

/* bool: the search ends at the first byte with the wanted truth value. `first` returns any index before which there is
 * no such byte. */
static inline int64_t first_true(int64_t n, const char *in)
{
    int64_t j = 0;
    for (int64_t block = 64; j + block <= n; j += block, block = block < 2048 ? 2 * block : block) {
        unsigned char found = 0;
        for (int64_t k = 0; k < block; k++)
            found |= (unsigned char)in[j + k];
        if (found)
            break;
    }
    return j;
}

static inline int64_t first_false(int64_t n, const char *in)
{
    const char *found = n == 0 ? NULL : memchr(in, 0, (size_t)n);
    return found == NULL ? n : found - in;
}

#define ARG_TRUTH(op, truth, first) \
    static void arg##op##_bool(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        vme_arg_accumulator *extreme = accumulator; \
        unsigned char best = !truth; \
        if (extreme->seen > 0) \
            memcpy(&best, extreme->value, 1); \
        else \
            extreme->best = 0; \
        if ((best != 0) != truth) { \
            int64_t j = step == 1 ? first(n, in) : 0; \
            while (j < n && (in[j * step] != 0) != truth) \
                j++; \
            if (j < n) { \
                best = truth; \
                extreme->best = extreme->seen + j; \
            } \
        } \
        extreme->seen += n; \
        memcpy(extreme->value, &best, 1); \
    }
ARG_TRUTH(max, 1, first_true)
ARG_TRUTH(min, 0, first_false)

/* ---- truth */
#define TRUTH(name, is_true) \
    static __attribute__((noinline)) int32_t count_block_##name(int64_t n, const char *in, int64_t step) \
    { \
        int32_t count = 0; \
        if (step == sizeof(e_##name)) { \
            const e_##name *p = (const e_##name *)in; \
            for (int64_t i = 0; i < n; i++) { \
                e_##name x = p[i]; \
                count += is_true; \
            } \
            return count; \
        } \
        for (int64_t i = 0; i < n; i++) { \
            e_##name x = *(const e_##name *)(in + i * step); \
            count += is_true; \
        } \
        return count; \
    } \
    static void count_##name(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        for (int64_t i = 0; i < n; i += 65536) \
            *(int64_t *)accumulator += count_block_##name(n - i < 65536 ? n - i : 65536, in + i * step, step); \
    } \
    static void all_##name(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        bool *all = accumulator; \
        for (int64_t i = 0, block = step == sizeof(e_##name) ? 128 : 16; *all && i < n; \
             i += block, block = block < 4096 ? 2 * block : block) { \
            int64_t count = n - i < block ? n - i : block; \
            *all = count_block_##name(count, in + i * step, step) == count; \
        } \
    } \
    static void any_##name(int64_t n, const char *in, int64_t step, void *accumulator) \
    { \
        bool *any = accumulator; \
        for (int64_t i = 0, block = step == sizeof(e_##name) ? 128 : 16; !*any && i < n; \
             i += block, block = block < 4096 ? 2 * block : block) \
            *any = count_block_##name(n - i < block ? n - i : block, in + i * step, step) != 0; \
    }
TRUTH(i16, x != 0)
TRUTH(i32, x != 0)
TRUTH(i64, x != 0)
TRUTH(f32, x != 0)
TRUTH(f64, x != 0)
TRUTH(c64, (x.re != 0) | (x.im != 0))
TRUTH(c128, (x.re != 0) | (x.im != 0))

/* Bytes: each lane counts up to 255 before the lanes are summed. */
static __attribute__((noinline)) int32_t count_block_u8(int64_t n, const char *in, int64_t step)
{
    int32_t count = 0;
    if (step != 1) {
        for (int64_t i = 0; i < n; i++)
            count += in[i * step] != 0;
        return count;
    }
    typedef uint8_t lanes __attribute__((vector_size(VECTOR)));
    typedef uint8_t unaligned __attribute__((vector_size(VECTOR), may_alias, aligned(1)));
    int64_t i = 0;
    while (i + VECTOR <= n) {
        lanes part = {0};
        int64_t end = n - i < 255 * VECTOR ? n : i + 255 * VECTOR;
        for (; i + VECTOR <= end; i += VECTOR)
            part -= (lanes)(*(const unaligned *)(in + i) != 0);
        for (int j = 0; j < VECTOR; j++)
            count += part[j];
    }
    for (; i < n; i++)
        count += in[i] != 0;
    return count;
}
static void count_u8(int64_t n, const char *in, int64_t step, void *accumulator)
{
    for (int64_t i = 0; i < n; i += 65536)
        *(int64_t *)accumulator += count_block_u8(n - i < 65536 ? n - i : 65536, in + i * step, step);
}
static void all_u8(int64_t n, const char *in, int64_t step, void *accumulator)
{
    bool *all = accumulator;
    if (step == 1) {
        *all = *all && memchr(in, 0, (size_t)n) == NULL;
        return;
    }
    for (int64_t i = 0; *all && i < n; i++)
        *all = in[i * step] != 0;
}
static void any_u8(int64_t n, const char *in, int64_t step, void *accumulator)
{
    bool *any = accumulator;
    int64_t i = 0;
    for (; step == 1 && !*any && i + 8 <= n; i += 8) {
        uint64_t word;
        memcpy(&word, in + i, 8);
        *any = word != 0;
        if (i >= 128)
            break;
    }
    for (int64_t block = step == 1 ? 4096 : 16; !*any && i < n; i += block, block = block < 4096 ? 2 * block : block)
        *any = count_block_u8(n - i < block ? n - i : block, in + i * step, step) != 0;
}

/* ---- rows: accumulator[i] is folded with rows 0, 1, … of column i, four rows at a time, so that accumulators are read
 * and written once for four rows. */
#define ROWS(name, in_type, type, FOLD) \
    static void rows_##name(int64_t rows, int64_t n, const char *in, int64_t in_row, int64_t step, void *accumulators) \
    { \
        type *restrict total = accumulators; \
        int64_t r = 0; \
        if (step == sizeof(in_type)) { \
            for (; r + 4 <= rows; r += 4) { \
                const in_type *x0 = (const in_type *)(in + r * in_row), \
                              *x1 = (const in_type *)(in + (r + 1) * in_row); \
                const in_type *x2 = (const in_type *)(in + (r + 2) * in_row), \
                              *x3 = (const in_type *)(in + (r + 3) * in_row); \
                for (int64_t i = 0; i < n; i++) { \
                    type a = total[i]; \
                    a = FOLD(a, (type)x0[i]); \
                    a = FOLD(a, (type)x1[i]); \
                    a = FOLD(a, (type)x2[i]); \
                    a = FOLD(a, (type)x3[i]); \
                    total[i] = a; \
                } \
            } \
            for (; r < rows; r++) { \
                const in_type *x0 = (const in_type *)(in + r * in_row); \
                for (int64_t i = 0; i < n; i++) \
                    total[i] = FOLD(total[i], (type)x0[i]); \
            } \
            return; \
        } \
        for (; r < rows; r++) \
            for (int64_t i = 0; i < n; i++) \
                total[i] = FOLD(total[i], (type) * (const in_type *)(in + r * in_row + i * step)); \
    }
#define ADD(a, b)      ((a) + (b))
#define MULTIPLY(a, b) ((a) * (b))
#define LARGER(a, b)   ((b) > (a) ? (b) : (a))
#define SMALLER(a, b)  ((b) < (a) ? (b) : (a))
/* NaN in `a` fails the comparison and stays */
#define LARGER_OR_NAN(a, b)  (((b) > (a)) | ((b) != (b)) ? (b) : (a))
#define SMALLER_OR_NAN(a, b) (((b) < (a)) | ((b) != (b)) ? (b) : (a))
#define LARGER_KNOWN(a, b)   (((b) > (a)) | ((a) != (a)) ? (b) : (a))
#define SMALLER_KNOWN(a, b)  (((b) < (a)) | ((a) != (a)) ? (b) : (a))
#define MODULAR_ROWS(name) \
    ROWS(sum_##name, e_##name, uint64_t, ADD) \
    ROWS(prod_##name, e_##name, uint64_t, MULTIPLY)
MODULAR_ROWS(i8)
MODULAR_ROWS(i16)
MODULAR_ROWS(i32)
MODULAR_ROWS(i64)
MODULAR_ROWS(u8)
MODULAR_ROWS(u16)
MODULAR_ROWS(u32)
#define INTEGER_ROWS(name) \
    ROWS(max_##name, e_##name, e_##name, LARGER) \
    ROWS(min_##name, e_##name, e_##name, SMALLER)
INTEGER_ROWS(i8)
INTEGER_ROWS(i16)
INTEGER_ROWS(i32)
INTEGER_ROWS(i64)
INTEGER_ROWS(u8)
INTEGER_ROWS(u16)
INTEGER_ROWS(u32)
INTEGER_ROWS(u64)
#define FLOAT_ROWS(name, real) \
    ROWS(sum_##name, e_##name, real, ADD) \
    ROWS(prod_##name, e_##name, real, MULTIPLY) \
    ROWS(max_##name, e_##name, real, LARGER_OR_NAN) \
    ROWS(min_##name, e_##name, real, SMALLER_OR_NAN) \
    ROWS(known_max_##name, e_##name, real, LARGER_KNOWN) \
    ROWS(known_min_##name, e_##name, real, SMALLER_KNOWN)
FLOAT_ROWS(f32, float)
FLOAT_ROWS(f64, double)

/* A complex sum of rows is a real one with twice as many columns; all other complex folds of rows process single
 * elements. */
#define COMPLEX_ROWS(name, real_name, real) \
    static void rows_sum_##name(int64_t rows, int64_t n, const char *in, int64_t in_row, int64_t step, \
                                void *accumulators) \
    { \
        if (step == 2 * sizeof(real)) { \
            rows_sum_##real_name(rows, 2 * n, in, in_row, sizeof(real), accumulators); \
            return; \
        } \
        for (int64_t i = 0; i < n; i++) \
            rows_sum_##real_name(rows, 2, in + i * step, in_row, sizeof(real), (real *)accumulators + 2 * i); \
    } \
    ROWS_BY_FOLD(prod_##name, 2 * sizeof(real)) \
    ROWS_BY_FOLD(max_##name, 2 * sizeof(real)) \
    ROWS_BY_FOLD(min_##name, 2 * sizeof(real)) \
    ROWS_BY_FOLD(known_max_##name, 2 * sizeof(real)) \
    ROWS_BY_FOLD(known_min_##name, 2 * sizeof(real))
#define ROWS_BY_FOLD(name, accumulator_bytes) \
    static void rows_##name(int64_t rows, int64_t n, const char *in, int64_t in_row, int64_t step, void *accumulators) \
    { \
        for (int64_t r = 0; r < rows; r++) \
            for (int64_t i = 0; i < n; i++) \
                name(1, in + r * in_row + i * step, 0, (char *)accumulators + i * (int64_t)(accumulator_bytes)); \
    }
COMPLEX_ROWS(c64, f32, float)
COMPLEX_ROWS(c128, f64, double)

#define TRUTH_ROWS(name, is_true) \
    static void rows_count_##name(int64_t rows, int64_t n, const char *in, int64_t in_row, int64_t step, \
                                  void *accumulators) \
    { \
        int64_t *restrict total = accumulators; \
        for (int64_t r = 0; r < rows; r++) \
            for (int64_t i = 0; i < n; i++) { \
                e_##name x = *(const e_##name *)(in + r * in_row + i * step); \
                total[i] += is_true; \
            } \
    } \
    static void rows_all_##name(int64_t rows, int64_t n, const char *in, int64_t in_row, int64_t step, \
                                void *accumulators) \
    { \
        uint8_t *restrict all = accumulators; \
        for (int64_t r = 0; r < rows; r++) \
            for (int64_t i = 0; i < n; i++) { \
                e_##name x = *(const e_##name *)(in + r * in_row + i * step); \
                all[i] &= is_true; \
            } \
    } \
    static void rows_any_##name(int64_t rows, int64_t n, const char *in, int64_t in_row, int64_t step, \
                                void *accumulators) \
    { \
        uint8_t *restrict any = accumulators; \
        for (int64_t r = 0; r < rows; r++) \
            for (int64_t i = 0; i < n; i++) { \
                e_##name x = *(const e_##name *)(in + r * in_row + i * step); \
                any[i] |= is_true; \
            } \
    }
TRUTH_ROWS(u8, x != 0)
TRUTH_ROWS(i16, x != 0)
TRUTH_ROWS(i32, x != 0)
TRUTH_ROWS(i64, x != 0)
TRUTH_ROWS(f32, x != 0)
TRUTH_ROWS(f64, x != 0)
TRUTH_ROWS(c64, (x.re != 0) | (x.im != 0))
TRUTH_ROWS(c128, (x.re != 0) | (x.im != 0))

/* Rows of the tables, by element type. Sums modulo 2^64 and truth values do not depend on the sign. */
#define OF(op, b, i8_, i16_, i32_, i64_, u8_, u16_, u32_, u64_) \
    [VME_BOOL] = op##_##b, [VME_INT8] = op##_##i8_, [VME_INT16] = op##_##i16_, [VME_INT32] = op##_##i32_, \
    [VME_INT64] = op##_##i64_, [VME_UINT8] = op##_##u8_, [VME_UINT16] = op##_##u16_, [VME_UINT32] = op##_##u32_, \
    [VME_UINT64] = op##_##u64_, [VME_FLOAT32] = op##_f32, [VME_FLOAT64] = op##_f64, [VME_COMPLEX64] = op##_c64, \
    [VME_COMPLEX128] = op##_c128
/* integers have no NaN */
#define KNOWN(known, op) \
    {[VME_BOOL] = op##_u8,           [VME_INT8] = op##_i8,        [VME_INT16] = op##_i16, \
     [VME_INT32] = op##_i32,         [VME_INT64] = op##_i64,      [VME_UINT8] = op##_u8, \
     [VME_UINT16] = op##_u16,        [VME_UINT32] = op##_u32,     [VME_UINT64] = op##_u64, \
     [VME_FLOAT32] = known##_f32,    [VME_FLOAT64] = known##_f64, [VME_COMPLEX64] = known##_c64, \
     [VME_COMPLEX128] = known##_c128}
#define SIGNED(op)  {OF(op, u8, i8, i16, i32, i64, u8, u16, u32, u64)}
#define INDEXED(op) {OF(op, bool, i8, i16, i32, i64, u8, u16, u32, u64)}
#define MODULAR(op) {OF(op, u8, i8, i16, i32, i64, u8, u16, u32, i64)}
#define BITS(op)    {OF(op, u8, u8, i16, i32, i64, u8, i16, i32, i64)}
const vme_reduce_kernels JOIN(vme_reduce_, VME_TARGET) = {
    .fold =
        {
            [VME_SUM] = MODULAR(sum),
            [VME_PROD] = MODULAR(prod),
            [VME_MAX] = SIGNED(max),
            [VME_MIN] = SIGNED(min),
            [VME_ALL] = BITS(all),
            [VME_ANY] = BITS(any),
            [VME_ARGMAX] = INDEXED(argmax),
            [VME_ARGMIN] = INDEXED(argmin),
            [VME_COUNT_NONZERO] = BITS(count),
            [VME_KNOWN_MAX] = KNOWN(known_max, max),
            [VME_KNOWN_MIN] = KNOWN(known_min, min),
        },
    .rows =
        {
            [VME_SUM] = MODULAR(rows_sum),
            [VME_PROD] = MODULAR(rows_prod),
            [VME_MAX] = SIGNED(rows_max),
            [VME_MIN] = SIGNED(rows_min),
            [VME_ALL] = BITS(rows_all),
            [VME_ANY] = BITS(rows_any),
            [VME_COUNT_NONZERO] = BITS(rows_count),
            [VME_KNOWN_MAX] = KNOWN(rows_known_max, rows_max),
            [VME_KNOWN_MIN] = KNOWN(rows_known_min, rows_min),
        },
};
