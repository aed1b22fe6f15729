/* Kernels of bits, for this backend. */
#define VME_TARGET avx2
#include "../kernels/bits.h"
