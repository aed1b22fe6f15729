/* Kernels of counting bits compiled for this folder's instructions. */
#define VME_TARGET portable
#include "../kernels/bits.h"
