/* Kernels of casts, for this backend. */
#define VME_TARGET avx2
#include "../kernels/casts.h"
