/* Kernels of divisors and multiples, for this backend. */
#define VME_TARGET avx512
#include "../kernels/divisors.h"
