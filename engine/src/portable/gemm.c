/* Matrix products in the compiler's own vectors of 16 bytes: SSE2 on x86-64, NEON on ARM. */
#define VME_TARGET portable
#define VME_VECTOR_BYTES 16
#define VME_GEMM_ROWS 6
#define VME_GEMM_WORK (1 << 20)

#include "../kernels/gemm_compiler_vectors.h"

#define FLOATING(T, E) \
    VME_COMPILER_VECTORS(T, E) \
    VME_SUM_OF_PRODUCTS(T) \
    VME_FACTORS_ASIDE(T) \
    VME_INLINE E T##_total(T##_vec v) \
    { \
        E total = v[0]; \
        for (unsigned i = 1; i < sizeof v / sizeof v[0]; i++) \
            total += v[i]; \
        return total; \
    }
FLOATING(f32, float)
FLOATING(f64, double)

/* rows are turned by the kernels that move elements */
#define f32_PACK_A NULL
#define f64_PACK_A NULL

#include "../kernels/gemm.h"
