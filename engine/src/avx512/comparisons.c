/* Kernels of comparisons, logic and selection, for this backend. */
#define VME_TARGET avx512
#include "../kernels/comparisons.h"
