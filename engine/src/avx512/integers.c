/* Kernels of bool and the integers, for this backend. */
#define VME_TARGET avx512
#include "../kernels/integers.h"
