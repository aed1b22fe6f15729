/* Kernels of casts, for this backend. */
#define VME_TARGET portable
#include "../kernels/casts.h"
