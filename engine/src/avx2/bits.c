/* Kernels of counting bits compiled for this folder's instructions. */
#define VME_TARGET avx2
#include "../kernels/bits.h"
