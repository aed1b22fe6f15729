/* Kernels of comparisons, logic and selection, for this backend. */
#define VME_TARGET portable
#include "../kernels/comparisons.h"
