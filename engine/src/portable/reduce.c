/* Reduction kernels compiled for this folder's instructions. */
#define VME_TARGET portable
#include "../kernels/reduce.h"
