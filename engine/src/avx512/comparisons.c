/* Kernels of comparisons, logic and choices, for this backend. */
#define VME_TARGET avx512
#include "../kernels/comparisons.h"
