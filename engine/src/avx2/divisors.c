/* Kernels of divisors and multiples, for this backend. */
#define VME_TARGET avx2
#include "../kernels/divisors.h"
