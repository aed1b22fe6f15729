/* Kernels that move elements, for this backend. */
#define VME_TARGET avx512
#include "../kernels/move.h"
