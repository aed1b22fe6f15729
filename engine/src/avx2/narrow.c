/* Products with narrow weights, for this backend. */
#define VME_TARGET avx2
#include "../kernels/narrow.h"
