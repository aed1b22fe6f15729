/* Kernels of counting bits compiled for this folder's instructions. */
#define VME_TARGET avx512
#include "../kernels/bits.h"
