/* Kernels of the floating dtypes, for this backend. */
#define VME_TARGET avx512
#include "../kernels/floats.h"
