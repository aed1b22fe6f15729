/* Kernels of reductions, for this backend. */
#define VME_TARGET avx512
#include "../kernels/reduce.h"
