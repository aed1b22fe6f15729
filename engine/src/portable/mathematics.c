/* Kernels of the transcendental functions, for this backend. */
#define VME_TARGET portable
#include "../kernels/mathematics.h"
