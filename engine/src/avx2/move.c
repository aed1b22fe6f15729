/* Kernels that move elements, for this backend. */
#define VME_TARGET avx2
#include "../kernels/move.h"
