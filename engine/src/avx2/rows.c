/* Kernels of fused operators on rows, for this backend. */
#define VME_TARGET avx2
#include "../kernels/rows.h"
