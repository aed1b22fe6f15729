/* Kernels with bool results: comparisons, logic, and floating-point classification; and selection by a bool (where). */
#include "loops.h"

#ifdef __AVX512BW__
#include "comparisons_avx512.h"
#else
#define EQUALITY(T) \
    LOOP2(equal_##T, T, u8, (u8)(x == y)) \
    LOOP2(not_equal_##T, T, u8, (u8)(x != y)) \
    LOOP2(logical_and_##T, T, u8, (u8)((x != 0) & (y != 0))) \
    LOOP2(logical_or_##T, T, u8, (u8)((x != 0) | (y != 0))) \
    LOOP2(logical_xor_##T, T, u8, (u8)((x != 0) ^ (y != 0)))
/* greater_ calls less_ with swapped operands: noinline avoids a second copy of the loop. */
#define ORDER(T) \
    static vme_loop2 less_##T __attribute__((noinline)), less_equal_##T __attribute__((noinline)); \
    LOOP2(less_##T, T, u8, (u8)(x < y)) \
    LOOP2(less_equal_##T, T, u8, (u8)(x <= y))
EQUALITY(u8)
EQUALITY(u16)
EQUALITY(u32)
EQUALITY(u64)
EQUALITY(f32)
EQUALITY(f64)
ORDER(u8)
ORDER(u16)
ORDER(u32)
ORDER(u64)
ORDER(i8)
ORDER(i16)
ORDER(i32)
ORDER(i64)
ORDER(f32)
ORDER(f64)
#endif

#define NOT(T) LOOP1(logical_not_##T, T, u8, (u8)(x == 0))
NOT(u8)
NOT(u16)
NOT(u32)
NOT(u64)
NOT(f32)
NOT(f64)

/* a > b is b < a. */
#define SWAPPED(T) \
    static void greater_##T(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out, \
                            int64_t out_step) \
    { \
        less_##T(n, b, b_step, a, a_step, out, out_step); \
    } \
    static void greater_equal_##T(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out, \
                                  int64_t out_step) \
    { \
        less_equal_##T(n, b, b_step, a, a_step, out, out_step); \
    }
SWAPPED(u8)
SWAPPED(u16)
SWAPPED(u32)
SWAPPED(u64)
SWAPPED(i8)
SWAPPED(i16)
SWAPPED(i32)
SWAPPED(i64)
SWAPPED(f32)
SWAPPED(f64)

/* bool: any non-zero byte is true. */
LOOP2(equal_bool, u8, u8, (u8)((x != 0) == (y != 0)))
LOOP2(not_equal_bool, u8, u8, (u8)((x != 0) != (y != 0)))
LOOP2(less_bool, u8, u8, (u8)((x == 0) & (y != 0)))
LOOP2(less_equal_bool, u8, u8, (u8)((x == 0) | (y != 0)))
SWAPPED(bool)

/* int64 against uint64: exact, although no dtype holds both. */
LOOP2_MIXED(equal_mixed, i64, u64, u8, (u8)((x >= 0) & ((u64)x == y)))
LOOP2_MIXED(not_equal_mixed, i64, u64, u8, (u8)((x < 0) | ((u64)x != y)))
LOOP2_MIXED(less_mixed, i64, u64, u8, (u8)((x < 0) | ((u64)x < y)))
LOOP2_MIXED(less_equal_mixed, i64, u64, u8, (u8)((x < 0) | ((u64)x <= y)))
LOOP2_MIXED(greater_mixed, i64, u64, u8, (u8)((x >= 0) & ((u64)x > y)))
LOOP2_MIXED(greater_equal_mixed, i64, u64, u8, (u8)((x >= 0) & ((u64)x >= y)))

#define COMPLEX(T) \
    static vme_loop2 less_##T __attribute__((noinline)), less_equal_##T __attribute__((noinline)); \
    LOOP2_SINGLE(equal_##T, T, u8, (u8)((x.re == y.re) & (x.im == y.im))) \
    LOOP2_SINGLE(not_equal_##T, T, u8, (u8)((x.re != y.re) | (x.im != y.im))) \
    LOOP2_SINGLE(less_##T, T, u8, \
                 (u8)(((x.re < y.re) & (x.im == x.im) & (y.im == y.im)) | ((x.re == y.re) & (x.im < y.im)))) \
    LOOP2_SINGLE(less_equal_##T, T, u8, \
                 (u8)(((x.re < y.re) & (x.im == x.im) & (y.im == y.im)) | ((x.re == y.re) & (x.im <= y.im)))) \
    SWAPPED(T) \
    LOOP2_SINGLE(logical_and_##T, T, u8, (u8)(((x.re != 0) | (x.im != 0)) & ((y.re != 0) | (y.im != 0)))) \
    LOOP2_SINGLE(logical_or_##T, T, u8, (u8)(((x.re != 0) | (x.im != 0)) | ((y.re != 0) | (y.im != 0)))) \
    LOOP2_SINGLE(logical_xor_##T, T, u8, (u8)(((x.re != 0) | (x.im != 0)) ^ ((y.re != 0) | (y.im != 0)))) \
    LOOP1(logical_not_##T, T, u8, (u8)((x.re == 0) & (x.im == 0))) \
    LOOP1(isnan_##T, T, u8, (u8)((x.re != x.re) | (x.im != x.im))) \
    LOOP1(isinf_##T, T, u8, (u8)((fabs(x.re) == INFINITY) | (fabs(x.im) == INFINITY))) \
    LOOP1(isfinite_##T, T, u8, (u8)((fabs(x.re) < INFINITY) & (fabs(x.im) < INFINITY)))
COMPLEX(c64)
COMPLEX(c128)

#define FLOAT(T, U) \
    LOOP1(isnan_##T, T, u8, (u8)(x != x)) \
    LOOP1(isinf_##T, T, u8, (u8)(((x < 0 ? -x : x)) == INFINITY)) \
    LOOP1(isfinite_##T, T, u8, (u8)(((x < 0 ? -x : x)) < INFINITY)) \
    LOOP1(signbit_##T, U, u8, (u8)(x >> (8 * sizeof(U) - 1)))
FLOAT(f32, u32)
FLOAT(f64, u64)

/* Integers are always finite. */
#define CONSTANT(NAME, VALUE) \
    static void NAME(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step) \
    { \
        (void)in, (void)in_step; \
        if (out_step == 1) \
            memset(out, VALUE, (size_t)n); \
        else \
            for (int64_t i = 0; i < n; i++) \
                out[i * out_step] = VALUE; \
    }
CONSTANT(constant_false, 0)
CONSTANT(constant_true, 1)

#define CHOOSE(NAME, T) \
    static void NAME(int64_t n, const char *condition, int64_t condition_step, const char *a, int64_t a_step, \
                     const char *b, int64_t b_step, char *out, int64_t out_step) \
    { \
        const u8_at *conditions = (const u8_at *)condition; \
        const T##_at *left = (const T##_at *)a, *right = (const T##_at *)b; \
        T##_at *to = (T##_at *)out; \
        if (condition_step == 1 && a_step == sizeof(T) && b_step == sizeof(T) && out_step == sizeof(T)) { \
            VME_INDEPENDENT \
            for (int64_t i = 0; i < n; i++) { \
                T x = left[i], y = right[i]; \
                to[i] = conditions[i] != 0 ? x : y; \
            } \
        } else if (condition_step == 1 && a_step == sizeof(T) && b_step == 0 && out_step == sizeof(T)) { \
            T y = *right; \
            VME_INDEPENDENT \
            for (int64_t i = 0; i < n; i++) { \
                T x = left[i]; \
                to[i] = conditions[i] != 0 ? x : y; \
            } \
        } else if (condition_step == 1 && a_step == 0 && b_step == sizeof(T) && out_step == sizeof(T)) { \
            T x = *left; \
            VME_INDEPENDENT \
            for (int64_t i = 0; i < n; i++) { \
                T y = right[i]; \
                to[i] = conditions[i] != 0 ? x : y; \
            } \
        } else { \
            for (; n > 0; n--, condition += condition_step, a += a_step, b += b_step, out += out_step) { \
                VME_ONE_BY_ONE(condition); \
                *(T##_at *)out = *(const T##_at *)(*condition != 0 ? a : b); \
            } \
        } \
    }
CHOOSE(choose_1, u8)
CHOOSE(choose_2, u16)
CHOOSE(choose_4, u32)
CHOOSE(choose_8, u64)
CHOOSE(choose_16, c128)

/* Rows of the tables: SHARED for kernels that depend only on the bits, OWN for kernels that depend on the sign. */
#define FLOATING(k) \
    [VME_FLOAT32] = k##_f32, [VME_FLOAT64] = k##_f64, [VME_COMPLEX64] = k##_c64, [VME_COMPLEX128] = k##_c128
#define SHARED(k) \
    [VME_INT8] = k##_u8, [VME_INT16] = k##_u16, [VME_INT32] = k##_u32, [VME_INT64] = k##_u64, [VME_UINT8] = k##_u8, \
    [VME_UINT16] = k##_u16, [VME_UINT32] = k##_u32, [VME_UINT64] = k##_u64
#define OWN(k) \
    [VME_INT8] = k##_i8, [VME_INT16] = k##_i16, [VME_INT32] = k##_i32, [VME_INT64] = k##_i64, [VME_UINT8] = k##_u8, \
    [VME_UINT16] = k##_u16, [VME_UINT32] = k##_u32, [VME_UINT64] = k##_u64
#define EVERY_INTEGER(k) \
    [VME_BOOL] = k, [VME_INT8] = k, [VME_INT16] = k, [VME_INT32] = k, [VME_INT64] = k, [VME_UINT8] = k, \
    [VME_UINT16] = k, [VME_UINT32] = k, [VME_UINT64] = k

/* clang-format off */
const vme_elementwise_kernels VME_TABLE(comparisons) = {
    .unary = {
        [VME_LOGICAL_NOT] = {[VME_BOOL] = logical_not_u8, SHARED(logical_not), FLOATING(logical_not)},
        [VME_ISNAN] = {EVERY_INTEGER(constant_false), FLOATING(isnan)},
        [VME_ISINF] = {EVERY_INTEGER(constant_false), FLOATING(isinf)},
        [VME_ISFINITE] = {EVERY_INTEGER(constant_true), FLOATING(isfinite)},
        [VME_SIGNBIT] = {[VME_FLOAT32] = signbit_f32, [VME_FLOAT64] = signbit_f64},
    },
    .binary = {
        [VME_EQUAL] = {[VME_BOOL] = equal_bool, SHARED(equal), FLOATING(equal)},
        [VME_NOT_EQUAL] = {[VME_BOOL] = not_equal_bool, SHARED(not_equal), FLOATING(not_equal)},
        [VME_LESS] = {[VME_BOOL] = less_bool, OWN(less), FLOATING(less)},
        [VME_LESS_EQUAL] = {[VME_BOOL] = less_equal_bool, OWN(less_equal), FLOATING(less_equal)},
        [VME_GREATER] = {[VME_BOOL] = greater_bool, OWN(greater), FLOATING(greater)},
        [VME_GREATER_EQUAL] = {[VME_BOOL] = greater_equal_bool, OWN(greater_equal), FLOATING(greater_equal)},
        [VME_LOGICAL_AND] = {[VME_BOOL] = logical_and_u8, SHARED(logical_and), FLOATING(logical_and)},
        [VME_LOGICAL_OR] = {[VME_BOOL] = logical_or_u8, SHARED(logical_or), FLOATING(logical_or)},
        [VME_LOGICAL_XOR] = {[VME_BOOL] = logical_xor_u8, SHARED(logical_xor), FLOATING(logical_xor)},
    },
    .compare_mixed = {equal_mixed, not_equal_mixed, less_mixed, less_equal_mixed, greater_mixed, greater_equal_mixed},
    .choose = {choose_1, choose_2, choose_4, choose_8, choose_16},
};
/* clang-format on */
