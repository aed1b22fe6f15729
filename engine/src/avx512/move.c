/* Data-movement kernels compiled for this folder's instructions. */
#define VME_TARGET avx512
#include "../kernels/move.h"
