/* Kernels of greatest common divisors and least common multiples, for this backend. */
#define VME_TARGET portable
#include "../kernels/divisors.h"
