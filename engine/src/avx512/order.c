/* Kernels of sorting compiled for this folder's instructions. */
#define VME_TARGET avx512
#include "../kernels/order.h"
