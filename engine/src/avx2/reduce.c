/* Kernels of reductions, for this backend. */
#define VME_TARGET avx2
#include "../kernels/reduce.h"
