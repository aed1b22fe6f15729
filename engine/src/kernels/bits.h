/* Kernels on bits: population count of integers (of the absolute value, as numpy.bitwise_count), floats split into
 * mantissa and exponent or into fractional and integral part, and booleans packed into bytes and unpacked. */
#include "loops.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

/* Population count of a byte by arithmetic, which compilers vectorize. Wider integers use the instruction, or libgcc's
 * replacement. */
static inline u8 popcount_byte(u8 x)
{
    x = (u8)(x - (x >> 1 & 0x55));
    x = (u8)((x & 0x33) + (x >> 2 & 0x33));
    return (u8)((x + (x >> 4)) & 0x0f);
}

LOOP1(count_u8, u8, u8, popcount_byte(x))
LOOP1(count_i8, i8, u8, popcount_byte((u8)(x < 0 ? -x : x)))
#define COUNT(BITS, POPCOUNT) \
    LOOP1(count_u##BITS, u##BITS, u8, (u8)POPCOUNT(x)) \
    LOOP1(count_i##BITS, i##BITS, u8, (u8)POPCOUNT(x < 0 ? (u##BITS)0 - (u##BITS)x : (u##BITS)x))
#define POPCOUNT16(x) __builtin_popcount((u16)(x))
COUNT(16, POPCOUNT16)
COUNT(32, __builtin_popcount)
COUNT(64, __builtin_popcountll)

#ifdef __AVX512BW__
/* Contiguous 64-bit words: a table gives the count of each half byte, the bytes of a word are summed, and the sum is
 * stored as one byte. */
#define COUNT_WORDS(T, ABSOLUTE) \
    static void count_words_##T(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step) \
    { \
        const __m512i nibble_counts = \
            _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4)); \
        const __m512i nibble_mask = _mm512_set1_epi8(15); \
        if (in_step == 8 && out_step == 1) \
            for (; n >= 8; n -= 8, in += 64, out += 8) { \
                __m512i x = ABSOLUTE(_mm512_loadu_si512(in)); \
                __m512i lower = _mm512_shuffle_epi8(nibble_counts, _mm512_and_si512(x, nibble_mask)); \
                __m512i upper = \
                    _mm512_shuffle_epi8(nibble_counts, _mm512_and_si512(_mm512_srli_epi16(x, 4), nibble_mask)); \
                __m512i sums = _mm512_sad_epu8(_mm512_add_epi8(lower, upper), _mm512_setzero_si512()); \
                _mm_storel_epi64((__m128i *)out, _mm512_cvtepi64_epi8(sums)); \
            } \
        count_##T(n, in, in_step, out, out_step); \
    }
COUNT_WORDS(i64, _mm512_abs_epi64)
COUNT_WORDS(u64, )
#else
#define count_words_i64 count_i64
#define count_words_u64 count_u64
#endif

/* ---- mantissa and exponent, as frexp: subnormal numbers are first multiplied by SCALE = 2^(MANTISSA_BITS + 1), which
 * makes them normal. Zeros, infinities and NaNs are their own mantissas, with exponent 0: `scalable` is 0 for them. */
#define SPLIT(T, U, S, MIN_NORMAL, SCALE, MANTISSA_BITS, BIAS) \
    static void split_##T(int64_t n, const char *in, char *mantissas, char *exponents) \
    { \
        const T##_at *from = (const T##_at *)in; \
        const U exponent_ones = 2 * (U)(BIAS) + 1, exponent_mask = exponent_ones << (MANTISSA_BITS); \
        T##_at *mantissa = (T##_at *)mantissas; \
        i32_at *exponent = (i32_at *)exponents; \
        VME_INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            T x = from[i], magnitude = fabs##S(x); \
            bool subnormal = magnitude < (T)MIN_NORMAL; \
            T scaled = subnormal ? x * (T)SCALE : x; \
            U bits, scalable = (U) - (U)((magnitude > 0) & (magnitude < (T)INFINITY)); \
            memcpy(&bits, &scaled, sizeof bits); \
            U fraction = (bits & ~exponent_mask) | (U)((BIAS) - 1) << (MANTISSA_BITS); \
            i32 power = \
                (i32)(bits >> (MANTISSA_BITS) & exponent_ones) - ((BIAS) - 1) - (subnormal ? (MANTISSA_BITS) + 1 : 0); \
            bits = (fraction & scalable) | (bits & ~scalable); \
            exponent[i] = power & (i32)scalable; \
            memcpy(&scaled, &bits, sizeof bits); \
            mantissa[i] = scaled; \
        } \
    }
SPLIT(f32, u32, f, 0x1p-126, 0x1p24, 23, 127)
SPLIT(f64, u64, , 0x1p-1022, 0x1p53, 52, 1023)

/* Fractional and integral parts, both with the sign of x, as modf. */
#define PARTS(T, S) \
    static void parts_##T(int64_t n, const char *in, char *fractions, char *integrals) \
    { \
        const T##_at *from = (const T##_at *)in; \
        T##_at *fraction = (T##_at *)fractions, *integral = (T##_at *)integrals; \
        VME_INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            T x = from[i], truncated = trunc##S(x), fractional = fabs##S(x) == (T)INFINITY ? 0 : x - truncated; \
            fraction[i] = copysign##S(fractional, x); \
            integral[i] = truncated; \
        } \
    }
PARTS(f32, f)
PARTS(f64, )

/* ---- packing */
/* These factors move the eight bytes of a word, 0 or 1 each, to the bits of its highest byte. */
#define GATHER_BIG    UINT64_C(0x8040201008040201)
#define GATHER_LITTLE UINT64_C(0x0102040810204080)
#define LOWER_BITS    UINT64_C(0x7f7f7f7f7f7f7f7f)

static void pack(int64_t bytes, bool big, const u8 *bools, u8 *out)
{
    int64_t i = 0;
#ifdef __AVX2__
    __m256i reversal = _mm256_broadcastsi128_si256(_mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8));
    for (; i + 4 <= bytes; i += 4) {
        __m256i block = _mm256_loadu_si256((const __m256i *)(bools + 8 * i));
        block = _mm256_cmpeq_epi8(big ? _mm256_shuffle_epi8(block, reversal) : block, _mm256_setzero_si256());
        *(u32_at *)(out + i) = ~(u32)_mm256_movemask_epi8(block);
    }
#endif
    for (; i < bytes; i++) {
        u64 word = *(const u64_at *)(bools + 8 * i);
        word = (((word & LOWER_BITS) + LOWER_BITS) | word) >> 7 & ~LOWER_BITS >> 7; /* any non-zero byte is true */
        out[i] = (u8)(word * (big ? GATHER_BIG : GATHER_LITTLE) >> 56);
    }
}

/* Byte i is bit i of `value`. */
#define BIT(value, i) ((u64)((value) >> (i) & 1) << 8 * (i))
#define SPREAD1(value) \
    (BIT(value, 0) | BIT(value, 1) | BIT(value, 2) | BIT(value, 3) | BIT(value, 4) | BIT(value, 5) | BIT(value, 6) \
     | BIT(value, 7))
#define SPREAD4(value)  SPREAD1(value), SPREAD1(value + 1), SPREAD1(value + 2), SPREAD1(value + 3)
#define SPREAD16(value) SPREAD4(value), SPREAD4(value + 4), SPREAD4(value + 8), SPREAD4(value + 12)
#define SPREAD64(value) SPREAD16(value), SPREAD16(value + 16), SPREAD16(value + 32), SPREAD16(value + 48)
static const u64 spread[256] = {SPREAD64(0), SPREAD64(64), SPREAD64(128), SPREAD64(192)};

static void unpack(int64_t bytes, bool big, const u8 *in, u8 *bools)
{
    int64_t i = 0;
#ifdef __AVX512BW__
    __m512i reversal = _mm512_broadcast_i32x4(_mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8));
    for (; i + 8 <= bytes; i += 8) {
        __m512i ones = _mm512_maskz_set1_epi8(*(const u64_at *)(in + i), 1);
        _mm512_storeu_si512(bools + 8 * i, big ? _mm512_shuffle_epi8(ones, reversal) : ones);
    }
#endif
    for (; i < bytes; i++)
        *(u64_at *)(bools + 8 * i) = big ? __builtin_bswap64(spread[in[i]]) : spread[in[i]];
}

/* clang-format off */
const vme_bits_kernels VME_TABLE(bits) = {
    .pack = pack,
    .unpack = unpack,
    .split = {split_f32, split_f64},
    .parts = {parts_f32, parts_f64},
};
/* clang-format on */

/* clang-format off */
const vme_elementwise_kernels VME_TABLE(bit_counts) = {.unary = {[VME_BITWISE_COUNT] = {
    [VME_INT8] = count_i8, [VME_INT16] = count_i16, [VME_INT32] = count_i32, [VME_INT64] = count_words_i64,
    [VME_UINT8] = count_u8, [VME_UINT16] = count_u16, [VME_UINT32] = count_u32, [VME_UINT64] = count_words_u64,
}}};
/* clang-format on */
