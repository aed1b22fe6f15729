/* Kernels of comparisons, logic and choices, for this backend. */
#define VME_TARGET portable
#include "../kernels/comparisons.h"
