/* Data-movement kernels compiled for this folder's instructions. */
#define VME_TARGET portable
#include "../kernels/move.h"
