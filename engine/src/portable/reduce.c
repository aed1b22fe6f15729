/* Kernels of reductions, for this backend. */
#define VME_TARGET portable
#include "../kernels/reduce.h"
