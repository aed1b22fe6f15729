/* Compiler vectors of 16 bytes, SSE2 on x86-64 and NEON on ARM, for gemm.c and winograd.c. */
#ifndef VME_PORTABLE_VECTORS_H
#define VME_PORTABLE_VECTORS_H

#define VME_VECTOR_BYTES 16

#include <stdint.h>

#include "../kernels/gemm_compiler_vectors.h"

#define VME_FIRST_LANES_8  VME_FIRST_LANES_COPIED
#define VME_FIRST_LANES_16 VME_FIRST_LANES_COPIED
#define VME_FIRST_LANES_32 VME_FIRST_LANES_COPIED
#define VME_FIRST_LANES_64 VME_FIRST_LANES_COPIED

#define FLOATING(T, E) \
    VME_COMPILER_VECTORS(T, E) \
    VME_FIRST_LANES_COPIED(T, E) \
    VME_SUM_OF_PRODUCTS(T) \
    VME_INLINE E T##_total(T##_vec v) \
    { \
        E total = v[0]; \
        for (unsigned i = 1; i < sizeof v / sizeof v[0]; i++) \
            total += v[i]; \
        return total; \
    }
FLOATING(f32, float)
FLOATING(f64, double)
/* NaN and -0 stay */
VME_INLINE f32_vec f32_without_negatives(f32_vec v)
{
    typedef int32_t integers __attribute__((vector_size(VME_VECTOR_BYTES)));
    return (f32_vec)((integers)v & ~(integers)(v < 0));
}
/* NaN stays */
VME_INLINE f32_vec f32_max(f32_vec v, f32_vec low)
{
    typedef int32_t integers __attribute__((vector_size(VME_VECTOR_BYTES)));
    const integers below = v < low;
    return (f32_vec)(((integers)low & below) | ((integers)v & ~below));
}
VME_INLINE f32_vec f32_min(f32_vec v, f32_vec high)
{
    typedef int32_t integers __attribute__((vector_size(VME_VECTOR_BYTES)));
    const integers above = v > high;
    return (f32_vec)(((integers)high & above) | ((integers)v & ~above));
}
#endif
