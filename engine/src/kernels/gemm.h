/* Tiles of matrix products, compiled once for each backend: the including file defines VME_TARGET, VME_REGISTERS (the
 * number of vector registers) and, for f32 and f64, a vector type and its operations (see portable/gemm.c). Integers
 * and bool use compiler vectors.
 *
 * A tile keeps rows x 2 vectors of sums in registers. Each step along k loads two vectors of b and one element of a for
 * each row, with any distance between the rows of a: with 14 rows and 512-bit vectors that is 28 multiply-adds in 14
 * cycles, beside 16 loads. */
#include "runtime/internal.h"
#include "gemm_compiler_vectors.h"

#include <string.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)
#define INLINE      VME_INLINE

/* The tile of te rows and tb columns with the least memory traffic (Walle, OSDI '22, section 4.2): e x b sums over a
 * products each move (e/te)(b/tb)(a te + a tb + te tb) elements, so 1/te + 1/tb is minimized, with te tb + te + tb <=
 * registers. Here tb is v vectors, and only one of a step's te factors is in a register at a time, so te v + v + 1 <=
 * registers. One vector is excluded: it needs te + 1 loads for te multiply-adds, and CPUs load no faster than they
 * compute. Of the other widths, two vectors have the least traffic, as asserted below for both element types. */
#define VECTORS                      2
#define TILE_ROWS(vectors)           ((VME_REGISTERS - 1 - (vectors)) / (vectors))
#define TILE_TRAFFIC(vectors, lanes) (1000000 / TILE_ROWS(vectors) + 1000000 / ((vectors) * (lanes)))
#define VME_GEMM_ROWS                TILE_ROWS(VECTORS)
#define ASSERT_TWO_VECTORS(T, E) \
    _Static_assert(TILE_TRAFFIC(VECTORS, (int)(sizeof(T##_vec) / sizeof(E))) \
                           <= TILE_TRAFFIC(VECTORS + 1, (int)(sizeof(T##_vec) / sizeof(E))) \
                       && TILE_TRAFFIC(VECTORS, (int)(sizeof(T##_vec) / sizeof(E))) \
                              <= TILE_TRAFFIC(VECTORS + 2, (int)(sizeof(T##_vec) / sizeof(E))), \
                   "tiles of two vectors move the fewest numbers");
ASSERT_TWO_VECTORS(f32, float)
ASSERT_TWO_VECTORS(f64, double)

/* Rows of a packed panel with padding: a step of 14 rows of float32 takes one cache line. */
#define VME_PACKED_ROWS(rows) ((rows) > 8 ? 16 : (rows) > 4 ? 8 : 4)

/* ---- integers: compiler vectors, two's complement, wrapping; the backend loads partial vectors */
#define INTEGER(T, E, BITS, COMBINE) \
    VME_COMPILER_VECTORS(T, E) \
    COMBINE(T) \
    VME_FACTORS_IN_REGISTERS(T) \
    VME_FIRST_LANES_##BITS(T, E)
INTEGER(b8, uint8_t, 8, VME_OR_OF_ANDS)
INTEGER(i8, uint8_t, 8, VME_SUM_OF_PRODUCTS)
INTEGER(i16, uint16_t, 16, VME_SUM_OF_PRODUCTS)
INTEGER(i32, uint32_t, 32, VME_SUM_OF_PRODUCTS)
INTEGER(i64, uint64_t, 64, VME_SUM_OF_PRODUCTS)

#define ROWS   VME_GEMM_ROWS
#define PACKED true
#define LAYERS true
#define T      f32
#define E      float
#include "gemm_tile.h"
#include "gemm_vector.h"
#undef T
#undef E
#undef LAYERS
#define LAYERS false
#define T      f64
#define E      double
#include "gemm_tile.h"
#include "gemm_vector.h"
#undef T
#undef E
#undef ROWS
#undef PACKED

#define ROWS   4
#define PACKED false
#define T      b8
#define E      uint8_t
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
#undef PACKED
#undef LAYERS

#define INTEGER_KERNEL(T, E) \
    {.tile = T##_tile, \
     .rows = 4, \
     .packed_rows = VME_PACKED_ROWS(4), \
     .columns = 2 * VME_VECTOR_BYTES / (int)sizeof(E), \
     .work = 1 << 18}
#define FLOAT_KERNEL(T, E, LAYER_TILE) \
    {.tile = T##_tile, \
     .layer_tile = LAYER_TILE, \
     .rows = VME_GEMM_ROWS, \
     .packed_rows = VME_PACKED_ROWS(VME_GEMM_ROWS), \
     .columns = 2 * (int)(sizeof(T##_vec) / sizeof(E)), \
     .work = VME_GEMM_WORK, \
     .pack_a = T##_PACK_A, \
     .pack_b = T##_pack_b, \
     .dots = T##_dots, \
     .sums = T##_sums}
const vme_gemm_kernels JOIN(vme_gemm_, VME_TARGET) = {
    .of =
        {
            [VME_BOOL] = INTEGER_KERNEL(b8, uint8_t),
            [VME_INT8] = INTEGER_KERNEL(i8, uint8_t),
            [VME_INT16] = INTEGER_KERNEL(i16, uint16_t),
            [VME_INT32] = INTEGER_KERNEL(i32, uint32_t),
            [VME_INT64] = INTEGER_KERNEL(i64, uint64_t),
            [VME_UINT8] = INTEGER_KERNEL(i8, uint8_t),
            [VME_UINT16] = INTEGER_KERNEL(i16, uint16_t),
            [VME_UINT32] = INTEGER_KERNEL(i32, uint32_t),
            [VME_UINT64] = INTEGER_KERNEL(i64, uint64_t),
            [VME_FLOAT32] = FLOAT_KERNEL(f32, float, f32_layer_tile),
            [VME_FLOAT64] = FLOAT_KERNEL(f64, double, NULL),
        },
};
