/* Kernels of the complex dtypes, for this backend. */
#define VME_TARGET portable
#include "../kernels/complexes.h"
