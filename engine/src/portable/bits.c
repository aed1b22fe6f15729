/* Kernels of bits, for this backend. */
#define VME_TARGET portable
#include "../kernels/bits.h"
