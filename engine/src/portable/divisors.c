/* Kernels of divisors and multiples, for this backend. */
#define VME_TARGET portable
#include "../kernels/divisors.h"
