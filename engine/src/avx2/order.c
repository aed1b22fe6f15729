/* Kernels of sorting compiled for this folder's instructions. */
#define VME_TARGET avx2
#include "../kernels/order.h"
