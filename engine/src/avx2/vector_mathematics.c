/* Kernels of the transcendental functions on vectors, for this backend. */
#define VME_TARGET avx2
#include "../kernels/vector_mathematics.h"
