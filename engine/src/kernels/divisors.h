/* Greatest common divisors and least common multiples of absolute values, as numpy.gcd and lcm. The number of steps
 * depends on the values, so a block of pairs runs until the slowest is done.
 *
 * Euclid's algorithm on floats that hold the numbers and their quotients exactly; rounding never turns a fractional
 * quotient into an integer, because it is at least 1/y away from the nearest one. Larger numbers are computed one by
 * one with shifts and differences (Stein 1967). */
#include "loops.h"

enum { PAIRS = 32 };
#define LIMIT_F32 (UINT64_C(1) << 22)
#define LIMIT_F64 (UINT64_C(1) << 31)

/* The divisors, or the multiples, of PAIRS pairs of numbers below LIMIT_F32 or LIMIT_F64. */
#define EUCLID(F) \
    static void euclid_##F(const u64 *restrict x, const u64 *restrict y, bool multiples, u64 *restrict result) \
    { \
        F left[PAIRS], right[PAIRS]; \
        for (int i = 0; i < PAIRS; i++) { \
            left[i] = (F)(i32)x[i]; \
            right[i] = (F)(i32)y[i]; \
        } \
        for (i32 unfinished = 1; unfinished != 0;) { \
            unfinished = 0; \
            for (int i = 0; i < PAIRS; i++) { /* a finished pair (right is 0) is divided by 1 */ \
                F a = left[i], b = right[i], nonzero = b == 0 ? 1 : b, \
                  remainder = a - (F)(i32)(a / nonzero) * nonzero; \
                left[i] = b == 0 ? a : b; \
                right[i] = remainder; \
                unfinished |= remainder != 0; \
            } \
        } \
        for (int i = 0; i < PAIRS; i++) { \
            F divisor = left[i], nonzero = divisor == 0 ? 1 : divisor; \
            result[i] = multiples ? (u64)(i32)((F)(i32)x[i] / nonzero) * y[i] : (u64)(i32)divisor; \
        } \
    }
EUCLID(f32)
EUCLID(f64)

static u64 binary_gcd(u64 x, u64 y)
{
    if (x == 0 || y == 0)
        return x | y;
    int shift = __builtin_ctzll(x | y);
    x >>= __builtin_ctzll(x);
    do {
        y >>= __builtin_ctzll(y);
        u64 smaller = x < y ? x : y;
        y = x < y ? y - x : x - y;
        x = smaller;
    } while (y != 0);
    return x << shift;
}

static void compute_pairs(const u64 *x, const u64 *y, u64 bits, bool multiples, u64 *result)
{
    if (bits < LIMIT_F32)
        euclid_f32(x, y, multiples, result);
    else if (bits < LIMIT_F64)
        euclid_f64(x, y, multiples, result);
    else
        for (int i = 0; i < PAIRS; i++) {
            u64 divisor = binary_gcd(x[i], y[i]);
            result[i] = !multiples ? divisor : divisor == 0 ? 0 : x[i] / divisor * y[i];
        }
}

#define MAGNITUDE(value) ((value) < 0 ? (u64)0 - (u64)(i64)(value) : (u64)(value))
#define DIVISORS(NAME, T, MAGNITUDE_OF, MULTIPLES) \
    static void NAME##_##T(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out, \
                           int64_t out_step) \
    { \
        u64 x[PAIRS] = {0}, y[PAIRS] = {0}, result[PAIRS]; \
        for (int64_t count; n > 0; n -= count, a += count * a_step, b += count * b_step, out += count * out_step) { \
            u64 bits = 0; \
            count = n < PAIRS ? n : PAIRS; \
            for (int64_t i = 0; i < count; i++) { \
                T left = *(const T##_at *)(a + i * a_step), right = *(const T##_at *)(b + i * b_step); \
                x[i] = MAGNITUDE_OF(left); \
                y[i] = MAGNITUDE_OF(right); \
                bits |= x[i] | y[i]; \
            } \
            for (int64_t i = count; i < PAIRS; i++) \
                x[i] = y[i] = 0; \
            compute_pairs(x, y, bits, MULTIPLES, result); \
            for (int64_t i = 0; i < count; i++) \
                *(T##_at *)(out + i * out_step) = (T)result[i]; \
        } \
    }
#define BOTH(T, MAGNITUDE_OF) DIVISORS(gcd, T, MAGNITUDE_OF, false) DIVISORS(lcm, T, MAGNITUDE_OF, true)
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
