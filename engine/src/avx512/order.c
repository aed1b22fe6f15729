/* Kernels of sorting, for this backend. */
#define VME_TARGET avx512
#include "../kernels/order.h"
