/* Kernels of the floating dtypes, for this backend. */
#define VME_TARGET portable
#include "../kernels/floats.h"
