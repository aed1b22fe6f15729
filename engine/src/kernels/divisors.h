/* Greatest common divisors and least common multiples of absolute values, as numpy.gcd and lcm: the number of steps
 * depends on the values, so a group of pairs runs until the slowest is done.
 *
 * Euclid's algorithm on floats that hold the numbers and their quotients exactly; rounding never makes a fractional
 * quotient whole, because it is at least 1/y away from the nearest integer. Larger numbers are computed one by one with
 * shifts and differences (Stein 1967). */
#include "loops.h"

enum { TOGETHER = 32 };
#define MOST_F32 (UINT64_C(1) << 22)
#define MOST_F64 (UINT64_C(1) << 31)

/* TOGETHER pairs, all below MAX: their divisors, or their multiples. */
#define EUCLID(F) \
    static void together_##F(const u64 *restrict x, const u64 *restrict y, bool multiples, u64 *restrict result) \
    { \
        F left[TOGETHER], right[TOGETHER]; \
        for (int i = 0; i < TOGETHER; i++) { \
            left[i] = (F)(i32)x[i]; \
            right[i] = (F)(i32)y[i]; \
        } \
        for (i32 more = 1; more != 0;) { \
            more = 0; \
            for (int i = 0; i < TOGETHER; i++) { /* a finished pair (right is 0) is divided by 1 */ \
                F a = left[i], b = right[i], by = b == 0 ? 1 : b, rest = a - (F)(i32)(a / by) * by; \
                left[i] = b == 0 ? a : b; \
                right[i] = rest; \
                more |= rest != 0; \
            } \
        } \
        for (int i = 0; i < TOGETHER; i++) { \
            F divisor = left[i], by = divisor == 0 ? 1 : divisor; \
            result[i] = multiples ? (u64)(i32)((F)(i32)x[i] / by) * y[i] : (u64)(i32)divisor; \
        } \
    }
EUCLID(f32)
EUCLID(f64)

static u64 divisor_of(u64 x, u64 y)
{
    if (x == 0 || y == 0)
        return x | y;
    int twos = __builtin_ctzll(x | y);
    x >>= __builtin_ctzll(x);
    do {
        y >>= __builtin_ctzll(y);
        u64 less = x < y ? x : y;
        y = x < y ? y - x : x - y;
        x = less;
    } while (y != 0);
    return x << twos;
}

static void some(const u64 *x, const u64 *y, u64 bits, bool multiples, u64 *result)
{
    if (bits < MOST_F32)
        together_f32(x, y, multiples, result);
    else if (bits < MOST_F64)
        together_f64(x, y, multiples, result);
    else
        for (int i = 0; i < TOGETHER; i++) {
            u64 divisor = divisor_of(x[i], y[i]);
            result[i] = !multiples ? divisor : divisor == 0 ? 0 : x[i] / divisor * y[i];
        }
}

#define MAGNITUDE(value) ((value) < 0 ? (u64)0 - (u64)(i64)(value) : (u64)(value))
#define DIVISORS(NAME, T, SIZE, MULTIPLES) \
    static void NAME##_##T(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out, \
                           int64_t out_step) \
    { \
        u64 x[TOGETHER] = {0}, y[TOGETHER] = {0}, result[TOGETHER]; \
        for (int64_t count; n > 0; n -= count, a += count * a_step, b += count * b_step, out += count * out_step) { \
            u64 bits = 0; \
            count = n < TOGETHER ? n : TOGETHER; \
            for (int64_t i = 0; i < count; i++) { \
                T left = *(const T##_at *)(a + i * a_step), right = *(const T##_at *)(b + i * b_step); \
                x[i] = SIZE(left); \
                y[i] = SIZE(right); \
                bits |= x[i] | y[i]; \
            } \
            for (int64_t i = count; i < TOGETHER; i++) \
                x[i] = y[i] = 0; \
            some(x, y, bits, MULTIPLES, result); \
            for (int64_t i = 0; i < count; i++) \
                *(T##_at *)(out + i * out_step) = (T)result[i]; \
        } \
    }
#define BOTH(T, SIZE) DIVISORS(gcd, T, SIZE, false) DIVISORS(lcm, T, SIZE, true)
BOTH(i8, MAGNITUDE)
BOTH(i16, MAGNITUDE)
BOTH(i32, MAGNITUDE)
BOTH(i64, MAGNITUDE)
BOTH(u8, )
BOTH(u16, )
BOTH(u32, )
BOTH(u64, )

#define OF_ALL(k) \
    [VME_INT8] = k##_i8, [VME_INT16] = k##_i16, [VME_INT32] = k##_i32, [VME_INT64] = k##_i64, [VME_UINT8] = k##_u8, \
    [VME_UINT16] = k##_u16, [VME_UINT32] = k##_u32, [VME_UINT64] = k##_u64

/* clang-format off */
const vme_elementwise_kernels VME_TABLE(divisors) = {.binary = {[VME_GCD] = {OF_ALL(gcd)}, [VME_LCM] = {OF_ALL(lcm)}}};
/* clang-format on */
