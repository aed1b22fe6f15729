/* Kernels of the floating dtypes, for this backend. */
#define VME_TARGET avx2
#include "../kernels/floats.h"
