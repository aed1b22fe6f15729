/* Kernels of the transcendental functions on vectors, for this backend. */
#define VME_TARGET avx512
#include "../kernels/vector_mathematics.h"
