/* Kernels of float32 and float64, for this backend. */
#define VME_TARGET avx2
#include "../kernels/floats.h"
