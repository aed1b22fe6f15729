/* Kernels of fused operators on rows, for this backend. */
#define VME_TARGET portable
#include "../kernels/rows.h"
