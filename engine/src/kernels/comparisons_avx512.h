/* Comparisons and logic in AVX-512: a vector's comparison is a mask of bits, and a masked store writes it as bools. */
#include <immintrin.h>

#include "loops.h"

/* Stores a mask of lanes as bytes 0 and 1. */
static inline void put_8(char *out, u64 all, u64 bits)
{
    _mm_mask_storeu_epi8(out, (__mmask16)(all & 0xff), _mm_maskz_set1_epi8((__mmask16)bits, 1));
}
static inline void put_16(char *out, u64 all, u64 bits)
{
    _mm_mask_storeu_epi8(out, (__mmask16)all, _mm_maskz_set1_epi8((__mmask16)bits, 1));
}
static inline void put_32(char *out, u64 all, u64 bits)
{
    _mm256_mask_storeu_epi8(out, (__mmask32)all, _mm256_maskz_set1_epi8((__mmask32)bits, 1));
}
static inline void put_64(char *out, u64 all, u64 bits)
{
    _mm512_mask_storeu_epi8(out, all, _mm512_maskz_set1_epi8(bits, 1));
}

/* out = BITS of vectors x and y if the steps allow, otherwise EXPRESSION of single values x and y. */
#define COMPARE(NAME, T, V, LANES, LOAD, SPLAT, BITS, EXPRESSION) \
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
        u64 all = (u64) - 1 >> (64 - LANES); \
        V x = SPLAT(n > 0 ? *(const T##_at *)a : 0), y = SPLAT(n > 0 ? *(const T##_at *)b : 0); \
        for (; n >= LANES; n -= LANES, a += a_step * LANES, b += b_step * LANES, out += LANES) { \
            if (a_step != 0) \
                x = LOAD(all, a); \
            if (b_step != 0) \
                y = LOAD(all, b); \
            put_##LANES(out, all, BITS); \
        } \
        if (n > 0) { \
            all = ((u64)1 << n) - 1; \
            if (a_step != 0) \
                x = LOAD(all, a); \
            if (b_step != 0) \
                y = LOAD(all, b); \
            put_##LANES(out, all, BITS); \
        } \
    }

#define LOAD_8(all, from)   _mm512_maskz_loadu_epi8((__mmask64)(all), from)
#define LOAD_16(all, from)  _mm512_maskz_loadu_epi16((__mmask32)(all), from)
#define LOAD_32(all, from)  _mm512_maskz_loadu_epi32((__mmask16)(all), from)
#define LOAD_64(all, from)  _mm512_maskz_loadu_epi64((__mmask8)(all), from)
#define LOAD_F32(all, from) _mm512_maskz_loadu_ps((__mmask16)(all), from)
#define LOAD_F64(all, from) _mm512_maskz_loadu_pd((__mmask8)(all), from)
#define SPLAT_8(x)          _mm512_set1_epi8((char)(x))
#define SPLAT_16(x)         _mm512_set1_epi16((short)(x))
#define SPLAT_32(x)         _mm512_set1_epi32((int)(x))
#define SPLAT_64(x)         _mm512_set1_epi64((long long)(x))

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

/* `greater` calls `less` with swapped operands: noinline avoids a second copy */
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
