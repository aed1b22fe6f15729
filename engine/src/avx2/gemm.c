/* Matrix products with AVX2 and FMA: tiles of 6 x 16 float32, 6 x 8 float64. */
#define VME_TARGET    avx2
#define VME_REGISTERS 16
#define VME_GEMM_WORK (1 << 22)

#include "vectors.h"

VME_FACTORS_IN_REGISTERS(f32)
VME_FACTORS_IN_REGISTERS(f64)

/* rows are packed by the kernels that move elements */
#define f32_PACK_A NULL
#define f64_PACK_A NULL

#include "../kernels/gemm.h"
