/* Casts between all dtypes, as NumPy's casting="unsafe".
 *
 * Integers keep their low bits. Floats are truncated towards zero. If the integer cannot hold the value, the result is
 * that of x86-64's conversion to 32 or 64 bits, or its low bits (undefined in C). Complex numbers lose their imaginary
 * part. */
#include "half.h"

/* float64 to uint64, as x86-64 compilers convert it. */
static inline u64 u64_of_f64(f64 x) { return x < 0x1p63 ? (u64)(i64)x : (u64)(i64)(x - 0x1p63) ^ (u64)1 << 63; }

/* From an integer type; bool is any non-zero byte. */
#define FROM_INTEGER(N, T, VALUE) \
    LOOP1(N##_to_bool, T, u8, (u8)(x != 0)) \
    LOOP1(N##_to_8, T, u8, (u8)(VALUE)) \
    LOOP1(N##_to_16, T, u16, (u16)(VALUE)) \
    LOOP1(N##_to_32, T, u32, (u32)(VALUE)) \
    LOOP1(N##_to_64, T, u64, (u64)(VALUE)) \
    LOOP1(N##_to_half, T, u16, half_of_f32((f32)(VALUE))) \
    LOOP1(N##_to_f32, T, f32, (f32)(VALUE)) \
    LOOP1(N##_to_f64, T, f64, (f64)(VALUE)) \
    LOOP1(N##_to_c64, T, c64, ((c64){(f32)(VALUE), 0})) \
    LOOP1(N##_to_c128, T, c128, ((c128){(f64)(VALUE), 0}))
FROM_INTEGER(bool, u8, x != 0)
FROM_INTEGER(i8, i8, x)
FROM_INTEGER(i16, i16, x)
FROM_INTEGER(i32, i32, x)
FROM_INTEGER(i64, i64, x)
FROM_INTEGER(u8, u8, x)
FROM_INTEGER(u16, u16, x)
FROM_INTEGER(u32, u32, x)
FROM_INTEGER(u64, u64, x)

/* From a floating-point type: VALUE is the real value, IS_TRUE the truth value, HALF the float16, and C64 and C128
 * the complex numbers. */
#define FROM_FLOATING(N, T, VALUE, IS_TRUE, HALF, C64, C128) \
    LOOP1(N##_to_bool, T, u8, (u8)(IS_TRUE)) \
    LOOP1(N##_to_8, T, u8, (u8)(i32)(VALUE)) \
    LOOP1(N##_to_16, T, u16, (u16)(i32)(VALUE)) \
    LOOP1(N##_to_i32, T, i32, (i32)(VALUE)) \
    LOOP1(N##_to_i64, T, i64, (i64)(VALUE)) \
    LOOP1(N##_to_u32, T, u32, (u32)(i64)(VALUE)) \
    LOOP1(N##_to_u64, T, u64, u64_of_f64((f64)(VALUE))) \
    LOOP1(N##_to_half, T, u16, HALF) \
    LOOP1(N##_to_f32, T, f32, (f32)(VALUE)) \
    LOOP1(N##_to_f64, T, f64, (f64)(VALUE)) \
    LOOP1(N##_to_c64, T, c64, (C64)) \
    LOOP1(N##_to_c128, T, c128, (C128))
FROM_FLOATING(half, u16, f32_of_half(x), (x & 0x7fff) != 0, x, ((c64){f32_of_half(x), 0}), ((c128){f32_of_half(x), 0}))
FROM_FLOATING(f32, f32, x, x != 0, half_of_f32(x), ((c64){x, 0}), ((c128){x, 0}))
FROM_FLOATING(f64, f64, x, x != 0, half_of_f64(x), ((c64){(f32)x, 0}), ((c128){x, 0}))
FROM_FLOATING(c64, c64, x.re, (x.re != 0) | (x.im != 0), half_of_f32(x.re), x, ((c128){x.re, x.im}))
FROM_FLOATING(c128, c128, x.re, (x.re != 0) | (x.im != 0), half_of_f64(x.re), ((c64){(f32)x.re, (f32)x.im}), x)

#ifdef __F16C__
/* Conversions of contiguous elements, 8 at a time. */
static void halves_to_f32(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step)
{
    int64_t i = 0;
    if (in_step == 2 && out_step == 4)
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps((float *)(void *)(out + 4 * i),
                             _mm256_cvtph_ps(_mm_loadu_si128((const void *)(in + 2 * i))));
    half_to_f32(n - i, in + i * in_step, in_step, out + i * out_step, out_step);
}

static void halves_from_f32(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step)
{
    int64_t i = 0;
    if (in_step == 4 && out_step == 2)
        for (; i + 8 <= n; i += 8)
            _mm_storeu_si128((void *)(out + 2 * i),
                             _mm256_cvtps_ph(_mm256_loadu_ps((const void *)(in + 4 * i)), _MM_FROUND_TO_NEAREST_INT));
    f32_to_half(n - i, in + i * in_step, in_step, out + i * out_step, out_step);
}
#else
#define halves_to_f32   half_to_f32
#define halves_from_f32 f32_to_half
#endif

#define INTEGER_ROW(N) \
    { \
        [VME_BOOL] = N##_to_bool,     [VME_INT8] = N##_to_8,          [VME_INT16] = N##_to_16, \
        [VME_INT32] = N##_to_32,      [VME_INT64] = N##_to_64,        [VME_UINT8] = N##_to_8, \
        [VME_UINT16] = N##_to_16,     [VME_UINT32] = N##_to_32,       [VME_UINT64] = N##_to_64, \
        [VME_FLOAT16] = N##_to_half,  [VME_FLOAT32] = N##_to_f32,     [VME_FLOAT64] = N##_to_f64, \
        [VME_COMPLEX64] = N##_to_c64, [VME_COMPLEX128] = N##_to_c128, \
    }
#define FLOATING_ROW(N, TO_HALF, TO_F32) \
    { \
        [VME_BOOL] = N##_to_bool,     [VME_INT8] = N##_to_8,          [VME_INT16] = N##_to_16, \
        [VME_INT32] = N##_to_i32,     [VME_INT64] = N##_to_i64,       [VME_UINT8] = N##_to_8, \
        [VME_UINT16] = N##_to_16,     [VME_UINT32] = N##_to_u32,      [VME_UINT64] = N##_to_u64, \
        [VME_FLOAT16] = TO_HALF,      [VME_FLOAT32] = TO_F32,         [VME_FLOAT64] = N##_to_f64, \
        [VME_COMPLEX64] = N##_to_c64, [VME_COMPLEX128] = N##_to_c128, \
    }

/* clang-format off */
const vme_elementwise_kernels VME_TABLE(casts) = {
    .cast = {
        [VME_BOOL] = INTEGER_ROW(bool),
        [VME_INT8] = INTEGER_ROW(i8),
        [VME_INT16] = INTEGER_ROW(i16),
        [VME_INT32] = INTEGER_ROW(i32),
        [VME_INT64] = INTEGER_ROW(i64),
        [VME_UINT8] = INTEGER_ROW(u8),
        [VME_UINT16] = INTEGER_ROW(u16),
        [VME_UINT32] = INTEGER_ROW(u32),
        [VME_UINT64] = INTEGER_ROW(u64),
        [VME_FLOAT16] = FLOATING_ROW(half, half_to_half, halves_to_f32),
        [VME_FLOAT32] = FLOATING_ROW(f32, halves_from_f32, f32_to_f32),
        [VME_FLOAT64] = FLOATING_ROW(f64, f64_to_half, f64_to_f32),
        [VME_COMPLEX64] = FLOATING_ROW(c64, c64_to_half, c64_to_f32),
        [VME_COMPLEX128] = FLOATING_ROW(c128, c128_to_half, c128_to_f32),
    },
};
/* clang-format on */
