/* Kernels of float32 and float64: arithmetic, rounding, minima and maxima. float16 computes in float32, except
 * nextafter.
 *
 * As in NumPy, maximum and minimum return NaN if either operand is NaN, fmax and fmin return the other operand; the
 * remainder has the divisor's sign. */
#include "loops.h"

/* Floor quotient and its remainder, as npy_divmod (numpy/_core/src/npymath). */
#define FLOATS(T, S) \
    static inline T fmod_of_##T(T x, T y) { return fmod##S(x, y); } \
    static inline T remainder_of_##T(T x, T y) \
    { \
        T remainder = fmod##S(x, y); \
        if (y == 0) \
            return remainder; \
        if (remainder == 0) \
            return copysign##S(0, y); \
        return (y < 0) != (remainder < 0) ? remainder + y : remainder; \
    } \
    static inline T floor_quotient_of_##T(T x, T y) \
    { \
        if (y == 0) \
            return x / y; \
        T remainder = fmod##S(x, y), quotient = (x - remainder) / y; \
        if (remainder != 0 && (y < 0) != (remainder < 0)) \
            quotient -= 1; \
        if (quotient == 0) \
            return copysign##S(0, x / y); \
        T floored = floor##S(quotient); \
        return quotient - floored > (T)0.5 ? floored + 1 : floored; \
    } \
    LOOP2(add_##T, T, T, x + y) \
    LOOP2(subtract_##T, T, T, x - y) \
    LOOP2(multiply_##T, T, T, x *y) \
    LOOP2(divide_any_##T, T, T, x / y) \
    /* reads every other element in place: copying them to a block first would add to the divisions' time */ \
    static void divide_##T(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out, \
                           int64_t out_step) \
    { \
        if (a_step != 2 * sizeof(T) || b_step != 2 * sizeof(T) || out_step != sizeof(T)) { \
            divide_any_##T(n, a, a_step, b, b_step, out, out_step); \
            return; \
        } \
        const T##_at *left = (const T##_at *)a, *right = (const T##_at *)b; \
        T##_at *to = (T##_at *)out; \
        VME_INDEPENDENT \
        for (int64_t i = 0; i < n; i++) \
            to[i] = left[2 * i] / right[2 * i]; \
    } \
    LOOP2(maximum_##T, T, T, x >= y || x != x ? x : y) \
    LOOP2(minimum_##T, T, T, x <= y || x != x ? x : y) \
    LOOP2(fmax_##T, T, T, x >= y || y != y ? x : y) \
    LOOP2(fmin_##T, T, T, x <= y || y != y ? x : y) \
    LOOP2(copysign_##T, T, T, copysign##S(x, y)) \
    LOOP2(nextafter_##T, T, T, nextafter##S(x, y)) \
    LOOP2(heaviside_##T, T, T, x == 0 ? y : x < 0 ? 0 : x > 0 ? 1 : x) \
    LOOP1(negative_##T, T, T, -x) \
    LOOP1(positive_##T, T, T, x) \
    LOOP1(absolute_##T, T, T, fabs##S(x)) \
    LOOP1(sign_##T, T, T, x > 0 ? (T)1 : x < 0 ? (T) - 1 : x == 0 ? (T)0 : x) \
    LOOP1(square_##T, T, T, x *x) \
    LOOP1(sqrt_any_##T, T, T, sqrt##S(x)) \
    static void sqrt_##T(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step) \
    { \
        if (in_step != 2 * sizeof(T) || out_step != sizeof(T)) { \
            sqrt_any_##T(n, in, in_step, out, out_step); \
            return; \
        } \
        const T##_at *from = (const T##_at *)in; \
        T##_at *to = (T##_at *)out; \
        VME_INDEPENDENT \
        for (int64_t i = 0; i < n; i++) \
            to[i] = sqrt##S(from[2 * i]); \
    } \
    LOOP1(reciprocal_##T, T, T, 1 / x) \
    LOOP1(floor_##T, T, T, floor##S(x)) \
    LOOP1(ceil_##T, T, T, ceil##S(x)) \
    LOOP1(trunc_##T, T, T, trunc##S(x)) \
    LOOP1(rint_##T, T, T, rint##S(x)) \
    LOOP1(zero_##T, T, T, (T)0 * (x != x))
FLOATS(f32, f)
FLOATS(f64, )

#ifdef __FMA__
/* Vectorized division with remainder: while the quotient is below LIMIT, a fused multiply-add computes the remainder of
 * its integral part exactly, and one correction fixes a quotient that was rounded up to an integer. Blocks with larger
 * quotients, zeros, infinities or NaNs use SCALAR. RESULT is an expression of x, y, the quotient `truncated`,
 * and the remainder. */
enum { BLOCK = 64 };
#define DIVIDING(NAME, T, S, LIMIT, SCALAR, RESULT) \
    static void NAME(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out, \
                     int64_t out_step) \
    { \
        for (int64_t count; n > 0; n -= count, a += count * a_step, b += count * b_step, out += count * out_step) { \
            T left[BLOCK], right[BLOCK], result[BLOCK]; \
            int special = 0; \
            count = n < BLOCK ? n : BLOCK; \
            for (int64_t i = 0; i < count; i++) { \
                left[i] = *(const T##_at *)(a + i * a_step); \
                right[i] = *(const T##_at *)(b + i * b_step); \
            } \
            for (int64_t i = 0; i < count; i++) { \
                T x = left[i], y = right[i], quotient = x / y, truncated = trunc##S(quotient); \
                special |= !(fabs##S(quotient) < (T)LIMIT) | !(fabs##S(y) < (T)INFINITY); \
                T remainder = fma##S(-truncated, y, x), unit = copysign##S(1, quotient); \
                truncated = (remainder < 0) != (x < 0) && remainder != 0 ? truncated - unit : truncated; \
                remainder = fma##S(-truncated, y, x); \
                truncated = fabs##S(remainder) >= fabs##S(y) ? truncated + unit : truncated; \
                remainder = copysign##S(fma##S(-truncated, y, x), x); \
                result[i] = (RESULT); \
            } \
            for (int64_t i = 0; special && i < count; i++) \
                result[i] = SCALAR(left[i], right[i]); \
            for (int64_t i = 0; i < count; i++) \
                *(T##_at *)(out + i * out_step) = result[i]; \
        } \
    }
#define DIVISIONS(T, S, LIMIT) \
    DIVIDING(fmod_##T, T, S, LIMIT, fmod_of_##T, remainder) \
    DIVIDING(remainder_##T, T, S, LIMIT, remainder_of_##T, \
             remainder == 0               ? copysign##S(0, y) \
             : (y < 0) != (remainder < 0) ? remainder + y \
                                          : remainder) \
    DIVIDING(floor_divide_##T, T, S, LIMIT, floor_quotient_of_##T, \
             copysign##S(remainder != 0 && (y < 0) != (remainder < 0) ? truncated - 1 : truncated, quotient))
DIVISIONS(f32, f, 0x1p22)
DIVISIONS(f64, , 0x1p51)
#else
#define DIVISIONS(T) \
    LOOP2(fmod_##T, T, T, fmod_of_##T(x, y)) \
    LOOP2(remainder_##T, T, T, remainder_of_##T(x, y)) \
    LOOP2(floor_divide_##T, T, T, floor_quotient_of_##T(x, y))
DIVISIONS(f32)
DIVISIONS(f64)
#endif

/* The next float16 after x towards y, on the bits (libm has no such function). */
static inline u16 half_nextafter(u16 x, u16 y)
{
    bool x_nan = (x & 0x7fff) > 0x7c00, y_nan = (y & 0x7fff) > 0x7c00;
    if (x_nan || y_nan)
        return 0x7e00; /* NumPy's half NaN */
    if (x == y || ((x | y) & 0x7fff) == 0)
        return y;
    if ((x & 0x7fff) == 0)
        return (u16)((y & 0x8000) | 1);
    int x_order = x & 0x8000 ? -(x & 0x7fff) : x, y_order = y & 0x8000 ? -(y & 0x7fff) : y;
    bool grows = (y_order > x_order) == ((x & 0x8000) == 0); /* in magnitude */
    return (u16)(grows ? x + 1 : x - 1);
}
LOOP2(nextafter_half, u16, u16, half_nextafter(x, y))

#define BOTH(k) [VME_FLOAT32] = k##_f32, [VME_FLOAT64] = k##_f64

/* clang-format off */
const vme_elementwise_kernels VME_TABLE(floats) = {
    .unary = {
        [VME_NEGATIVE] = {BOTH(negative)},
        [VME_POSITIVE] = {BOTH(positive)},
        [VME_ABSOLUTE] = {BOTH(absolute)},
        [VME_SIGN] = {BOTH(sign)},
        [VME_SQUARE] = {BOTH(square)},
        [VME_SQRT] = {BOTH(sqrt)},
        [VME_RECIPROCAL] = {BOTH(reciprocal)},
        [VME_FLOOR] = {BOTH(floor)},
        [VME_CEIL] = {BOTH(ceil)},
        [VME_TRUNC] = {BOTH(trunc)},
        [VME_RINT] = {BOTH(rint)},
        [VME_REAL] = {BOTH(positive)},
        [VME_IMAG] = {BOTH(zero)},
        [VME_CONJUGATE] = {BOTH(positive)},
    },
    .binary = {
        [VME_ADD] = {BOTH(add)},
        [VME_SUBTRACT] = {BOTH(subtract)},
        [VME_MULTIPLY] = {BOTH(multiply)},
        [VME_DIVIDE] = {BOTH(divide)},
        [VME_FLOOR_DIVIDE] = {BOTH(floor_divide)},
        [VME_REMAINDER] = {BOTH(remainder)},
        [VME_FMOD] = {BOTH(fmod)},
        [VME_MAXIMUM] = {BOTH(maximum)},
        [VME_MINIMUM] = {BOTH(minimum)},
        [VME_FMAX] = {BOTH(fmax)},
        [VME_FMIN] = {BOTH(fmin)},
        [VME_COPYSIGN] = {BOTH(copysign)},
        [VME_NEXTAFTER] = {BOTH(nextafter), [VME_FLOAT16] = nextafter_half},
        [VME_HEAVISIDE] = {BOTH(heaviside)},
    },
};
/* clang-format on */
