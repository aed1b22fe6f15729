/* Kernels of casts, for this backend. */
#define VME_TARGET avx512
#include "../kernels/casts.h"
