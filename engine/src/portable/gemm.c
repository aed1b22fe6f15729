/* Matrix products in compiler vectors of 16 bytes: SSE2 on x86-64, NEON on ARM. */
#define VME_TARGET    portable
#define VME_REGISTERS 16
#define VME_GEMM_WORK (1 << 20)

#include "vectors.h"

VME_FACTORS_IN_REGISTERS(f32)
VME_FACTORS_IN_REGISTERS(f64)

/* rows are packed by the kernels that move elements */
#define f32_PACK_A NULL
#define f64_PACK_A NULL

#include "../kernels/gemm.h"
