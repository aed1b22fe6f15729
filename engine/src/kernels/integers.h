/* Kernels of bool and the integers: wrapping arithmetic, floor division, bits and shifts.
 *
 * As in NumPy, division by zero gives 0; the minimum divided by -1 is itself; a shift by the width or more, or by a
 * negative count, shifts everything out. Signed and unsigned types share a kernel if their bits are equal. */
#include "loops.h"

#define PRODUCTS(T, W) \
    LOOP2(multiply_##T, T, T, (T)((W)x * (W)y)) \
    LOOP1(square_##T, T, T, (T)((W)x * (W)x))
PRODUCTS(u16, u32)
PRODUCTS(u32, u32)
PRODUCTS(u64, u64)

LOOP2(multiply_bytes, u8, u8, (u8)((u32)x * y))
#if !defined(__AVX2__) || defined(__AVX512BW__)
/* Vector units multiply 16-bit numbers, not bytes, so two bytes are multiplied as one such number. The low byte of the
 * product is the product of the low bytes. The product of x shifted right by 8 and y without its low byte has the
 * product of the high bytes in its high byte. (With AVX2, code that widens and narrows is as fast.) */
LOOP2(multiply_pairs, u16, u16, (u16)((((u32)x * y) & 0xff) | ((u32)(x >> 8) * (y & 0xff00))))
static void multiply_u8(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out,
                        int64_t out_step)
{
    if (n >= 2 && out_step == 1 && (a_step | b_step) == 1) {
        u16 repeated = (u16)((a_step == 0 ? *(const u8 *)a : *(const u8 *)b) * 0x101);
        multiply_pairs(n / 2, a_step == 0 ? (const char *)&repeated : a, 2 * a_step,
                       b_step == 0 ? (const char *)&repeated : b, 2 * b_step, out, 2);
        a += a_step * (n - 1);
        b += b_step * (n - 1);
        out += n - 1;
        n %= 2;
    }
    multiply_bytes(n, a, a_step, b, b_step, out, out_step);
}
#else
#define multiply_u8 multiply_bytes
#endif
static void square_u8(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step)
{
    multiply_u8(n, in, in_step, in, in_step, out, out_step);
}

/* Operations whose results have the same bits for signed and unsigned types. */
#define BITS(T, W) \
    LOOP2(add_##T, T, T, (T)(x + y)) \
    LOOP2(subtract_##T, T, T, (T)(x - y)) \
    LOOP2(and_##T, T, T, (T)(x & y)) \
    LOOP2(or_##T, T, T, (T)(x | y)) \
    LOOP2(xor_##T, T, T, (T)(x ^ y)) \
    LOOP2(left_shift_##T, T, T, y < 8 * sizeof(T) ? (T)((W)x << (y & (8 * sizeof(T) - 1))) : (T)0) \
    LOOP1(invert_##T, T, T, (T)~x) \
    LOOP1(negative_##T, T, T, (T)((T)0 - x)) \
    LOOP1(identity_##T, T, T, x) \
    LOOP1(zero_##T, T, T, (T)(x & 0)) \
    static inline T power_of_##T(T base, T exponent) \
    { \
        T result = 1; \
        for (; exponent != 0; exponent = (T)(exponent >> 1)) { \
            if (exponent & 1) \
                result = (T)((W)result * (W)base); \
            base = (T)((W)base * (W)base); \
        } \
        return result; \
    } \
    LOOP2(power_any_##T, T, T, power_of_##T(x, y)) \
    static void power_##T(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out, \
                          int64_t out_step) \
    { \
        if (b_step == 0 && n > 0 && *(const T##_at *)b == 2) \
            square_##T(n, a, a_step, out, out_step); \
        else \
            power_any_##T(n, a, a_step, b, b_step, out, out_step); \
    }
BITS(u8, u32)
BITS(u16, u32)
BITS(u32, u32)
BITS(u64, u64)

/* Truncated quotients. Vector units divide floating-point numbers only. If the type F holds every value of T exactly,
 * its quotient truncates to the exact one: a fractional quotient is at least 1/y away from the nearest integer. */
#define QUOTIENT_UNSIGNED(T, F, I) \
    static inline T quotient_##T(T x, T y) { return y == 0 ? (T)0 : (T)(I)((F)x / (F)(y == 0 ? (T)1 : y)); }
#define QUOTIENT_SIGNED(T, U, F, I) \
    static inline T quotient_##T(T x, T y) \
    { \
        T safe = y == 0 || y == -1 ? (T)1 : y; \
        T whole = (T)(I)((F)x / (F)safe); \
        return y == 0 ? (T)0 : y == -1 ? (T)((U)0 - (U)x) : whole; \
    }
QUOTIENT_UNSIGNED(u8, f32, i32)
QUOTIENT_UNSIGNED(u16, f32, i32)
QUOTIENT_UNSIGNED(u32, f64, i64)
QUOTIENT_SIGNED(i8, u8, f32, i32)
QUOTIENT_SIGNED(i16, u16, f32, i32)
QUOTIENT_SIGNED(i32, u32, f64, i32)
/* double does not hold 64 bits; the processor divides 32-bit numbers three times faster than 64-bit ones. */
static inline u64 quotient_u64(u64 x, u64 y)
{
    if (((x | y) >> 32) == 0)
        return y == 0 ? 0 : (u32)x / (u32)y;
    return y == 0 ? 0 : x / y;
}
static inline i64 quotient_i64(i64 x, i64 y)
{
    if ((((u64)x | (u64)y) >> 32) == 0)
        return y == 0 ? 0 : (i64)((u32)x / (u32)y);
    if (y == -1)
        return (i64)((u64)0 - (u64)x);
    return y == 0 ? 0 : x / y;
}

#define REMAINDER(T, U, W) \
    static inline T truncated_remainder_##T(T x, T y) \
    { \
        return y == 0 ? (T)0 : (T)((W)x - (W)quotient_##T(x, y) * (W)y); \
    }
REMAINDER(u8, u8, u32)
REMAINDER(u16, u16, u32)
REMAINDER(u32, u32, u32)
REMAINDER(u64, u64, u64)
REMAINDER(i8, u8, u32)
REMAINDER(i16, u16, u32)
REMAINDER(i32, u32, u32)
REMAINDER(i64, u64, u64)

#define ANY_SIGN(T) \
    LOOP2(maximum_##T, T, T, x > y ? x : y) \
    LOOP2(minimum_##T, T, T, x < y ? x : y) \
    LOOP2(fmod_##T, T, T, truncated_remainder_##T(x, y))

#define UNSIGNED(T) \
    ANY_SIGN(T) \
    LOOP2(floor_divide_##T, T, T, quotient_##T(x, y)) \
    LOOP2(right_shift_##T, T, T, y < 8 * sizeof(T) ? (T)(x >> (y & (8 * sizeof(T) - 1))) : (T)0) \
    LOOP1(sign_##T, T, T, (T)(x != 0)) \
    LOOP1(reciprocal_##T, T, T, (T)(x == 1))
UNSIGNED(u8)
UNSIGNED(u16)
UNSIGNED(u32)
UNSIGNED(u64)

#define SIGNED(T, U) \
    ANY_SIGN(T) \
    static inline T floor_quotient_##T(T x, T y) \
    { \
        T whole = quotient_##T(x, y), remainder = (T)((U)x - (U)((U)whole * (U)y)); \
        return (T)((U)whole - (U)(y != 0 && remainder != 0 && (remainder ^ y) < 0)); \
    } \
    static inline T modulo_##T(T x, T y) \
    { \
        T remainder = truncated_remainder_##T(x, y); \
        return remainder != 0 && (remainder ^ y) < 0 ? (T)((U)remainder + (U)y) : remainder; \
    } \
    LOOP2(floor_divide_##T, T, T, floor_quotient_##T(x, y)) \
    LOOP2(remainder_##T, T, T, modulo_##T(x, y)) \
    LOOP2(right_shift_##T, T, T, \
          (T)(x >> ((U)y < 8 * sizeof(T) ? (y & (T)(8 * sizeof(T) - 1)) : (T)(8 * sizeof(T) - 1)))) \
    LOOP1(absolute_##T, T, T, x < 0 ? (T)((U)0 - (U)x) : x) \
    LOOP1(sign_##T, T, T, (T)((x > 0) - (x < 0))) \
    LOOP1(reciprocal_##T, T, T, \
          x == 1 || x == -1          ? x \
          : x == 0 && sizeof(T) >= 4 ? (T)((U)1 << (8 * sizeof(T) - 1)) \
                                     : (T)0)
SIGNED(i8, u8)
SIGNED(i16, u16)
SIGNED(i32, u32)
SIGNED(i64, u64)

/* Divides many 64-bit numbers by one divisor: multiplies by its reciprocal, rounded up to 65 bits (Granlund and
 * Montgomery 1994, figure 5.2 with the sign handled separately). */
static void floor_divide_by_scalar_i64(int64_t n, const char *a, int64_t a_step, i64 divisor, char *out,
                                       int64_t out_step)
{
    u64 divisor_magnitude = divisor < 0 ? (u64)0 - (u64)divisor : (u64)divisor;
    int shift =
        divisor_magnitude == 1 ? 0 : 64 - __builtin_clzll(divisor_magnitude - 1); /* 2^shift >= divisor_magnitude */
    u64 factor = (u64)((((unsigned __int128)1 << 64) * (((unsigned __int128)1 << shift) - divisor_magnitude))
                       / divisor_magnitude)
                 + 1;
    int first_shift = shift < 1 ? shift : 1, second_shift = shift < 1 ? 0 : shift - 1;
    for (; n > 0; n--, a += a_step, out += out_step) {
        i64 x = *(const i64_at *)a;
        /* if the signs differ, the result is -ceil(m/d) = ~((m - 1) / d), where m and d are the magnitudes */
        u64 signs_differ = (u64)((x >> 63) ^ (divisor >> 63));
        u64 magnitude = x < 0 ? (u64)0 - (u64)x : (u64)x;
        u64 rounded = signs_differ ? magnitude - (magnitude != 0) : magnitude;
        u64 high = (u64)(((unsigned __int128)factor * rounded) >> 64);
        u64 quotient = (high + ((rounded - high) >> first_shift)) >> second_shift;
        *(i64_at *)out = (i64)(signs_differ && magnitude != 0 ? ~quotient : quotient);
    }
}
#ifdef __AVX512DQ__
/* The same in vectors of doubles, for numbers below 2^50: the quotient by the rounded reciprocal is wrong by one at
 * most, and only if the exact quotient is an integer. Returns how many numbers it processed before the first block with
 * a larger number. */
static int64_t floor_divide_in_doubles_i64(int64_t n, const i64_at *from, i64 divisor, i64_at *to)
{
    enum { BLOCK = 64 };
    const f64 divisor_f64 = (f64)divisor, inverse = 1 / divisor_f64;
    int64_t i = 0;
    for (int64_t count; i < n; i += count) {
        u64 excess = 0;
        count = n - i < BLOCK ? n - i : BLOCK;
        for (int64_t j = i; j < i + count; j++)
            excess |= ((u64)from[j] + ((u64)1 << 50)) >> 51;
        if (excess != 0)
            break;
        VME_INDEPENDENT
        for (int64_t j = i; j < i + count; j++) {
            f64 x = (f64)from[j], whole = trunc(x * inverse), remainder = x - whole * divisor_f64;
            whole += remainder == divisor_f64 ? 1 : 0;
            whole -= remainder != 0 && (remainder < 0) != (divisor_f64 < 0) ? 1 : 0;
            to[j] = (i64)whole;
        }
    }
    return i;
}
#endif
static void floor_divide_any_i64(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out,
                                 int64_t out_step)
{
    i64 divisor = n > 8 && b_step == 0 ? *(const i64_at *)b : 0;
    if (divisor == 0) {
        floor_divide_i64(n, a, a_step, b, b_step, out, out_step);
        return;
    }
#ifdef __AVX512DQ__
    if (a_step == 8 && out_step == 8 && divisor > -((i64)1 << 50) && divisor < (i64)1 << 50) {
        int64_t done = floor_divide_in_doubles_i64(n, (const i64_at *)a, divisor, (i64_at *)out);
        n -= done, a += 8 * done, out += 8 * done;
    }
#endif
    floor_divide_by_scalar_i64(n, a, a_step, divisor, out, out_step);
}
/* Divides many 32-bit numbers by one divisor: multiplies by its reciprocal in doubles. The result is wrong by one at
 * most, and only if the exact quotient is an integer. */
static void floor_divide_any_i32(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out,
                                 int64_t out_step)
{
    const i32 divisor = n > 8 && b_step == 0 && a_step == 4 && out_step == 4 ? *(const i32_at *)b : 0;
    if (divisor == 0 || divisor == -1) {
        floor_divide_i32(n, a, a_step, b, b_step, out, out_step);
        return;
    }
    const f64 inverse = 1 / (f64)divisor;
    const i32_at *from = (const i32_at *)a;
    i32_at *to = (i32_at *)out;
    VME_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        i32 x = from[i], whole = (i32)((f64)x * inverse), remainder = (i32)((u32)x - (u32)whole * (u32)divisor);
        to[i] = whole + (remainder == divisor) - (remainder != 0 && (remainder ^ divisor) < 0);
    }
}

/* bool: any non-zero byte is true; results are 0 or 1. */
LOOP2(or_bool, u8, u8, (u8)((x | y) != 0))
LOOP2(and_bool, u8, u8, (u8)(x != 0 && y != 0))
LOOP2(xor_bool, u8, u8, (u8)((x != 0) != (y != 0)))
LOOP1(not_bool, u8, u8, (u8)(x == 0))
LOOP1(true_bool, u8, u8, (u8)(x != 0))

/* Rows of the table: SHARED if signed and unsigned types share kernels, OWN if each type has its own. */
#define SHARED(k) \
    [VME_INT8] = k##_u8, [VME_INT16] = k##_u16, [VME_INT32] = k##_u32, [VME_INT64] = k##_u64, [VME_UINT8] = k##_u8, \
    [VME_UINT16] = k##_u16, [VME_UINT32] = k##_u32, [VME_UINT64] = k##_u64
#define OWN(k) \
    [VME_INT8] = k##_i8, [VME_INT16] = k##_i16, [VME_INT32] = k##_i32, [VME_INT64] = k##_i64, [VME_UINT8] = k##_u8, \
    [VME_UINT16] = k##_u16, [VME_UINT32] = k##_u32, [VME_UINT64] = k##_u64
#define OF_SIGNED(k)   [VME_INT8] = k##_i8, [VME_INT16] = k##_i16, [VME_INT32] = k##_i32, [VME_INT64] = k##_i64
#define OF_UNSIGNED(k) [VME_UINT8] = k##_u8, [VME_UINT16] = k##_u16, [VME_UINT32] = k##_u32, [VME_UINT64] = k##_u64

/* clang-format off */
const vme_elementwise_kernels VME_TABLE(integers) = {
    .unary = {
        [VME_NEGATIVE] = {SHARED(negative)},
        [VME_POSITIVE] = {SHARED(identity)},
        [VME_ABSOLUTE] = {[VME_BOOL] = true_bool, OF_SIGNED(absolute), OF_UNSIGNED(identity)},
        [VME_SIGN] = {OWN(sign)},
        [VME_INVERT] = {[VME_BOOL] = not_bool, SHARED(invert)},
        [VME_SQUARE] = {SHARED(square)},
        [VME_RECIPROCAL] = {OWN(reciprocal)},
        [VME_FLOOR] = {[VME_BOOL] = true_bool, SHARED(identity)},
        [VME_CEIL] = {[VME_BOOL] = true_bool, SHARED(identity)},
        [VME_TRUNC] = {[VME_BOOL] = true_bool, SHARED(identity)},
        [VME_REAL] = {[VME_BOOL] = true_bool, SHARED(identity)},
        [VME_IMAG] = {[VME_BOOL] = zero_u8, SHARED(zero)},
        [VME_CONJUGATE] = {SHARED(identity)},
    },
    .binary = {
        [VME_ADD] = {[VME_BOOL] = or_bool, SHARED(add)},
        [VME_SUBTRACT] = {SHARED(subtract)},
        [VME_MULTIPLY] = {[VME_BOOL] = and_bool, SHARED(multiply)},
        [VME_FLOOR_DIVIDE] = {[VME_INT8] = floor_divide_i8, [VME_INT16] = floor_divide_i16,
                              [VME_INT32] = floor_divide_any_i32,
                              [VME_INT64] = floor_divide_any_i64, OF_UNSIGNED(floor_divide)},
        [VME_REMAINDER] = {OF_SIGNED(remainder), OF_UNSIGNED(fmod)},
        [VME_FMOD] = {OWN(fmod)},
        [VME_POWER] = {SHARED(power)},
        [VME_MAXIMUM] = {[VME_BOOL] = or_bool, OWN(maximum)},
        [VME_MINIMUM] = {[VME_BOOL] = and_bool, OWN(minimum)},
        [VME_FMAX] = {[VME_BOOL] = or_bool, OWN(maximum)},
        [VME_FMIN] = {[VME_BOOL] = and_bool, OWN(minimum)},
        [VME_BITWISE_AND] = {[VME_BOOL] = and_bool, SHARED(and)},
        [VME_BITWISE_OR] = {[VME_BOOL] = or_bool, SHARED(or)},
        [VME_BITWISE_XOR] = {[VME_BOOL] = xor_bool, SHARED(xor)},
        [VME_LEFT_SHIFT] = {SHARED(left_shift)},
        [VME_RIGHT_SHIFT] = {OWN(right_shift)},
    },
};
/* clang-format on */
