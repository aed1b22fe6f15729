/* The elementwise kernels of this backend. */
#define VME_TARGET avx2
#define VME_VECTORS
#include "../kernels/elementwise.h"
