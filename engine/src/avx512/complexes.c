/* Kernels of the complex dtypes, for this backend. */
#define VME_TARGET avx512
#include "../kernels/complexes.h"
