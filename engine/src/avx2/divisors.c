/* Kernels of greatest common divisors and least common multiples, for this backend. */
#define VME_TARGET avx2
#include "../kernels/divisors.h"
