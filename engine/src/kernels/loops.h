/* Shared by all elementwise kernel files: element types, and the loops around the expression for one element.
 *
 * A kernel walks n elements; its operands step by any number of bytes and need no alignment. The output either is an
 * input's memory, element by element, or overlaps no input. So iterations are independent, and the loops tell the
 * compiler. These files are compiled once for each backend, with VME_TARGET naming it: portable, avx2 or avx512. */
#ifndef VME_KERNELS_LOOPS_H
#define VME_KERNELS_LOOPS_H

#include <math.h>
#include <string.h>

#include "runtime/internal.h"

#define VME_JOIN_(group, target) vme_##group##_##target
#define VME_JOIN(group, target)  VME_JOIN_(group, target)
/* The name of a group's table in this backend, e.g. VME_TABLE(integers) is vme_integers_avx2. */
#define VME_TABLE(group) VME_JOIN(group, VME_TARGET)

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;
typedef float f32;
typedef double f64;

/* The same types in memory: unaligned and allowed to alias (one buffer may be viewed as several types). */
#define VME_IN_MEMORY(T) typedef T T##_at __attribute__((aligned(1), may_alias));
VME_IN_MEMORY(u8)
VME_IN_MEMORY(u16)
VME_IN_MEMORY(u32)
VME_IN_MEMORY(u64)
VME_IN_MEMORY(i8)
VME_IN_MEMORY(i16)
VME_IN_MEMORY(i32)
VME_IN_MEMORY(i64)
VME_IN_MEMORY(f32)
VME_IN_MEMORY(f64)
typedef struct __attribute__((packed, may_alias)) c64 {
    f32 re, im;
} c64, c64_at;
typedef struct __attribute__((packed, may_alias)) c128 {
    f64 re, im;
} c128, c128_at;

#define VME_INDEPENDENT _Pragma("GCC ivdep")
/* Keeps the compiler from vectorizing a loop with arbitrary steps: vectors gathered from single elements are no faster,
 * and double the code. */
#define VME_ONE_BY_ONE(pointer) __asm__("" : "+r"(pointer))

/* out = EXPRESSION of x; from elements T to elements R. */
#define LOOP1(NAME, T, R, EXPRESSION) \
    static void NAME(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step) \
    { \
        if (in_step == sizeof(T) && out_step == sizeof(R)) { \
            const T##_at *from = (const T##_at *)in; \
            R##_at *to = (R##_at *)out; \
            VME_INDEPENDENT \
            for (int64_t i = 0; i < n; i++) { \
                T x = from[i]; \
                to[i] = (EXPRESSION); \
            } \
        } else { \
            for (; n > 0; n--, in += in_step, out += out_step) { \
                VME_ONE_BY_ONE(in); \
                T x = *(const T##_at *)in; \
                *(R##_at *)out = (EXPRESSION); \
            } \
        } \
    }

/* out = EXPRESSION of x and y, with loops for contiguous operands, for one operand that is a single value, and for any
 * steps. */
#define LOOP2(NAME, T, R, EXPRESSION) LOOP2_MIXED(NAME, T, T, R, EXPRESSION)
#define LOOP2_MIXED(NAME, T, S, R, EXPRESSION) \
    static void NAME(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out, \
                     int64_t out_step) \
    { \
        const T##_at *left = (const T##_at *)a; \
        const S##_at *right = (const S##_at *)b; \
        R##_at *to = (R##_at *)out; \
        if (out_step == sizeof(R) && a_step == sizeof(T) && b_step == sizeof(S)) { \
            VME_INDEPENDENT \
            for (int64_t i = 0; i < n; i++) { \
                T x = left[i]; \
                S y = right[i]; \
                to[i] = (EXPRESSION); \
            } \
        } else if (out_step == sizeof(R) && a_step == sizeof(T) && b_step == 0) { \
            S y = *right; \
            VME_INDEPENDENT \
            for (int64_t i = 0; i < n; i++) { \
                T x = left[i]; \
                to[i] = (EXPRESSION); \
            } \
        } else if (out_step == sizeof(R) && a_step == 0 && b_step == sizeof(S)) { \
            T x = *left; \
            VME_INDEPENDENT \
            for (int64_t i = 0; i < n; i++) { \
                S y = right[i]; \
                to[i] = (EXPRESSION); \
            } \
        } else { \
            for (; n > 0; n--, a += a_step, b += b_step, out += out_step) { \
                VME_ONE_BY_ONE(a); \
                T x = *(const T##_at *)a; \
                S y = *(const S##_at *)b; \
                *(R##_at *)out = (EXPRESSION); \
            } \
        } \
    }

/* The same, one element at a time for all steps: for expressions that do not gain from vectors. */
#define LOOP2_SINGLE(NAME, T, R, EXPRESSION) \
    static void NAME(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out, \
                     int64_t out_step) \
    { \
        for (; n > 0; n--, a += a_step, b += b_step, out += out_step) { \
            VME_ONE_BY_ONE(a); \
            T x = *(const T##_at *)a, y = *(const T##_at *)b; \
            *(R##_at *)out = (EXPRESSION); \
        } \
    }

#endif
