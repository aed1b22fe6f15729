/* Kernels of float32 and float64, for this backend. */
#define VME_TARGET avx512
#include "../kernels/floats.h"
