/* Kernels of bits, for this backend. */
#define VME_TARGET avx512
#include "../kernels/bits.h"
