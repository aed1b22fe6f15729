/* Kernels that move elements, for this backend. */
#define VME_TARGET portable
#include "../kernels/move.h"
