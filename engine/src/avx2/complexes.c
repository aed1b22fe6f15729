/* Kernels of the complex dtypes, for this backend. */
#define VME_TARGET avx2
#include "../kernels/complexes.h"
