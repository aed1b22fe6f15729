/* Kernels of bool and the integers, for this backend. */
#define VME_TARGET portable
#include "../kernels/integers.h"
