/* Comparisons and logic in AVX-512: a vector's comparison is a mask of bits, and a masked store writes it as bools. */
#include <immintrin.h>

#include "loops.h"

/* Stores the bits of `results` as bytes 0 and 1; only those of `lanes`. */
static inline void store_bools_8(char *out, u64 lanes, u64 results)
{
    _mm_mask_storeu_epi8(out, (__mmask16)(lanes & 0xff), _mm_maskz_set1_epi8((__mmask16)results, 1));
}
static inline void store_bools_16(char *out, u64 lanes, u64 results)
{
    _mm_mask_storeu_epi8(out, (__mmask16)lanes, _mm_maskz_set1_epi8((__mmask16)results, 1));
}
static inline void store_bools_32(char *out, u64 lanes, u64 results)
{
    _mm256_mask_storeu_epi8(out, (__mmask32)lanes, _mm256_maskz_set1_epi8((__mmask32)results, 1));
}
static inline void store_bools_64(char *out, u64 lanes, u64 results)
{
    _mm512_mask_storeu_epi8(out, lanes, _mm512_maskz_set1_epi8(results, 1));
}

/* out = MASK of vectors x and y if out is contiguous and each operand is contiguous or a single value; otherwise
 * EXPRESSION of single values x and y. */
#define COMPARE(NAME, T, V, LANES, LOAD, SPLAT, MASK, EXPRESSION) \
    static void NAME(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out, \
                     int64_t out_step) \
    { \
        if (out_step != 1 || (a_step != 0 && a_step != sizeof(T)) || (b_step != 0 && b_step != sizeof(T))) { \
            for (; n > 0; n--, a += a_step, b += b_step, out += out_step) { \
                VME_ONE_BY_ONE(a); \
                T x = *(const T##_at *)a, y = *(const T##_at *)b; \
                *out = (char)(EXPRESSION); \
            } \
            return; \
        } \
        u64 lanes = (u64) - 1 >> (64 - LANES); \
        V x = SPLAT(n > 0 ? *(const T##_at *)a : 0), y = SPLAT(n > 0 ? *(const T##_at *)b : 0); \
        for (; n >= LANES; n -= LANES, a += a_step * LANES, b += b_step * LANES, out += LANES) { \
            if (a_step != 0) \
                x = LOAD(lanes, a); \
            if (b_step != 0) \
                y = LOAD(lanes, b); \
            store_bools_##LANES(out, lanes, MASK); \
        } \
        if (n > 0) { \
            lanes = ((u64)1 << n) - 1; \
            if (a_step != 0) \
                x = LOAD(lanes, a); \
            if (b_step != 0) \
                y = LOAD(lanes, b); \
            store_bools_##LANES(out, lanes, MASK); \
        } \
    }

#define LOAD_8(lanes, from)   _mm512_maskz_loadu_epi8((__mmask64)(lanes), from)
#define LOAD_16(lanes, from)  _mm512_maskz_loadu_epi16((__mmask32)(lanes), from)
#define LOAD_32(lanes, from)  _mm512_maskz_loadu_epi32((__mmask16)(lanes), from)
#define LOAD_64(lanes, from)  _mm512_maskz_loadu_epi64((__mmask8)(lanes), from)
#define LOAD_F32(lanes, from) _mm512_maskz_loadu_ps((__mmask16)(lanes), from)
#define LOAD_F64(lanes, from) _mm512_maskz_loadu_pd((__mmask8)(lanes), from)
#define SPLAT_8(x)            _mm512_set1_epi8((char)(x))
#define SPLAT_16(x)           _mm512_set1_epi16((short)(x))
#define SPLAT_32(x)           _mm512_set1_epi32((int)(x))
#define SPLAT_64(x)           _mm512_set1_epi64((long long)(x))

#define EQUALITY(T, W, LANES) \
    COMPARE(equal_##T, T, __m512i, LANES, LOAD_##W, SPLAT_##W, _mm512_cmpeq_epi##W##_mask(x, y), x == y) \
    COMPARE(not_equal_##T, T, __m512i, LANES, LOAD_##W, SPLAT_##W, _mm512_cmpneq_epi##W##_mask(x, y), x != y) \
    COMPARE(logical_and_##T, T, __m512i, LANES, LOAD_##W, SPLAT_##W, \
            _mm512_test_epi##W##_mask(x, x) & _mm512_test_epi##W##_mask(y, y), x != 0 && y != 0) \
    COMPARE(logical_or_##T, T, __m512i, LANES, LOAD_##W, SPLAT_##W, \
            _mm512_test_epi##W##_mask(x, x) | _mm512_test_epi##W##_mask(y, y), x != 0 || y != 0) \
    COMPARE(logical_xor_##T, T, __m512i, LANES, LOAD_##W, SPLAT_##W, \
            _mm512_test_epi##W##_mask(x, x) ^ _mm512_test_epi##W##_mask(y, y), (x != 0) != (y != 0))
EQUALITY(u8, 8, 64)
EQUALITY(u16, 16, 32)
EQUALITY(u32, 32, 16)
EQUALITY(u64, 64, 8)

/* greater_ calls less_ with swapped operands: noinline avoids a second copy of the loop. */
#define ORDER(T, W, KIND, LANES) \
    static vme_loop2 less_##T __attribute__((noinline)), less_equal_##T __attribute__((noinline)); \
    COMPARE(less_##T, T, __m512i, LANES, LOAD_##W, SPLAT_##W, _mm512_cmplt_##KIND##_mask(x, y), x < y) \
    COMPARE(less_equal_##T, T, __m512i, LANES, LOAD_##W, SPLAT_##W, _mm512_cmple_##KIND##_mask(x, y), x <= y)
ORDER(u8, 8, epu8, 64)
ORDER(u16, 16, epu16, 32)
ORDER(u32, 32, epu32, 16)
ORDER(u64, 64, epu64, 8)
ORDER(i8, 8, epi8, 64)
ORDER(i16, 16, epi16, 32)
ORDER(i32, 32, epi32, 16)
ORDER(i64, 64, epi64, 8)

#define FLOATING(T, V, LANES, LOAD, SPLAT, TEST, ZERO) \
    static vme_loop2 less_##T __attribute__((noinline)), less_equal_##T __attribute__((noinline)); \
    COMPARE(equal_##T, T, V, LANES, LOAD, SPLAT, TEST(x, y, _CMP_EQ_OQ), x == y) \
    COMPARE(not_equal_##T, T, V, LANES, LOAD, SPLAT, TEST(x, y, _CMP_NEQ_UQ), x != y) \
    COMPARE(less_##T, T, V, LANES, LOAD, SPLAT, TEST(x, y, _CMP_LT_OQ), x < y) \
    COMPARE(less_equal_##T, T, V, LANES, LOAD, SPLAT, TEST(x, y, _CMP_LE_OQ), x <= y) \
    COMPARE(logical_and_##T, T, V, LANES, LOAD, SPLAT, TEST(x, ZERO, _CMP_NEQ_UQ) & TEST(y, ZERO, _CMP_NEQ_UQ), \
            x != 0 && y != 0) \
    COMPARE(logical_or_##T, T, V, LANES, LOAD, SPLAT, TEST(x, ZERO, _CMP_NEQ_UQ) | TEST(y, ZERO, _CMP_NEQ_UQ), \
            x != 0 || y != 0) \
    COMPARE(logical_xor_##T, T, V, LANES, LOAD, SPLAT, TEST(x, ZERO, _CMP_NEQ_UQ) ^ TEST(y, ZERO, _CMP_NEQ_UQ), \
            (x != 0) != (y != 0))
FLOATING(f32, __m512, 16, LOAD_F32, _mm512_set1_ps, _mm512_cmp_ps_mask, _mm512_setzero_ps())
FLOATING(f64, __m512d, 8, LOAD_F64, _mm512_set1_pd, _mm512_cmp_pd_mask, _mm512_setzero_pd())
#undef FLOATING
