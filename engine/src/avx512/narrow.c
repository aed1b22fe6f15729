/* Products with narrow weights, for this backend. */
#define VME_TARGET avx512
#include "../kernels/narrow.h"
