/* Winograd's transforms, for this backend. */
#define VME_TARGET avx512
#include "vectors.h"
#include "../kernels/winograd.h"
