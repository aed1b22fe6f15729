/* Winograd's transforms, for this backend. */
#define VME_TARGET avx2
#include "vectors.h"
#include "../kernels/winograd.h"
