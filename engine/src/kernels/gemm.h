/* Tiles of matrix products, once a backend: the file that includes this names VME_TARGET, VME_GEMM_ROWS (of a floating tile: as
 * many as its accumulators fit the registers) and, for f32 and f64, a vector type and its operations (see portable/gemm.c).
 * Integers and bool use the compiler's own vectors.
 *
 * A tile holds rows x 2 vectors of sums in registers. Each step along k reads two vectors of b and one element of a for each
 * row, wherever the rows of a lie: with 14 rows and 512-bit vectors that is 28 multiply-adds in 14 cycles, beside 16 loads. */
#include "../internal.h"

#include <string.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define INLINE static inline __attribute__((always_inline))

/* ---- integers: the compiler's vectors, two's complement, wrapping */
#define INTEGER(T, E, COMBINE) \
    typedef E T##_vec __attribute__((vector_size(VME_VECTOR_BYTES))); \
    typedef int T##_mask; \
    INLINE T##_vec T##_load(const E *from) { T##_vec v; memcpy(&v, from, sizeof v); return v; } \
    INLINE void T##_store(E *to, T##_vec v) { memcpy(to, &v, sizeof v); } \
    INLINE T##_mask T##_first(int count) { return count; } \
    INLINE T##_vec T##_load_first(const E *from, T##_mask count) \
    { \
        T##_vec v = {0}; \
        memcpy(&v, from, (size_t)count * sizeof *from); \
        return v; \
    } \
    INLINE void T##_store_first(E *to, T##_mask count, T##_vec v) { memcpy(to, &v, (size_t)count * sizeof *to); } \
    INLINE T##_vec T##_all(E value) { return (T##_vec){0} + value; } \
    COMBINE(T)
#define SUM_OF_PRODUCTS(T) \
    INLINE T##_vec T##_add_product(T##_vec sum, T##_vec a, T##_vec b) { return sum + a * b; } \
    INLINE T##_vec T##_add(T##_vec a, T##_vec b) { return a + b; }
/* bool: any byte but 0 is true */
#define OR_OF_ANDS(T) \
    INLINE T##_vec T##_add_product(T##_vec sum, T##_vec a, T##_vec b) { return sum | ((T##_vec)((a != 0) & (b != 0)) & 1); } \
    INLINE T##_vec T##_add(T##_vec a, T##_vec b) { return a | b; }
INTEGER(b8, uint8_t, OR_OF_ANDS)
INTEGER(i8, uint8_t, SUM_OF_PRODUCTS)
INTEGER(i16, uint16_t, SUM_OF_PRODUCTS)
INTEGER(i32, uint32_t, SUM_OF_PRODUCTS)
INTEGER(i64, uint64_t, SUM_OF_PRODUCTS)

#define ROWS VME_GEMM_ROWS
#define T f32
#define E float
#include "gemm_tile.h"
#include "gemm_vector.h"
#undef T
#undef E
#define T f64
#define E double
#include "gemm_tile.h"
#include "gemm_vector.h"
#undef T
#undef E
#undef ROWS

#define ROWS 4
#define T b8
#define E uint8_t
#include "gemm_tile.h"
#undef T
#define T i8
#include "gemm_tile.h"
#undef T
#undef E
#define T i16
#define E uint16_t
#include "gemm_tile.h"
#undef T
#undef E
#define T i32
#define E uint32_t
#include "gemm_tile.h"
#undef T
#undef E
#define T i64
#define E uint64_t
#include "gemm_tile.h"
#undef T
#undef E
#undef ROWS

#define INTEGER_KERNEL(T, E) {.tile = T##_tile, .rows = 4, .columns = 2 * VME_VECTOR_BYTES / (int)sizeof(E), .work = 1 << 18}
#define FLOAT_KERNEL(T, E) \
    {.tile = T##_tile, .rows = VME_GEMM_ROWS, .columns = 2 * (int)(sizeof(T##_vec) / sizeof(E)), .work = VME_GEMM_WORK, \
     .dots = T##_dots, .sums = T##_sums}
const vme_gemm_kernels JOIN(vme_gemm_, VME_TARGET) = {
    .of = {
        [VME_BOOL] = INTEGER_KERNEL(b8, uint8_t),
        [VME_INT8] = INTEGER_KERNEL(i8, uint8_t),
        [VME_INT16] = INTEGER_KERNEL(i16, uint16_t),
        [VME_INT32] = INTEGER_KERNEL(i32, uint32_t),
        [VME_INT64] = INTEGER_KERNEL(i64, uint64_t),
        [VME_UINT8] = INTEGER_KERNEL(i8, uint8_t),
        [VME_UINT16] = INTEGER_KERNEL(i16, uint16_t),
        [VME_UINT32] = INTEGER_KERNEL(i32, uint32_t),
        [VME_UINT64] = INTEGER_KERNEL(i64, uint64_t),
        [VME_FLOAT32] = FLOAT_KERNEL(f32, float),
        [VME_FLOAT64] = FLOAT_KERNEL(f64, double),
    },
};
