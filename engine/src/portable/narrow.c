/* Products with narrow weights, for this backend. */
#define VME_TARGET portable
#include "../kernels/narrow.h"
