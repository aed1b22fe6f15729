/* Kernels of sorting, for this backend. */
#define VME_TARGET avx2
#include "../kernels/order.h"
