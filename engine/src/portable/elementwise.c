/* The elementwise kernels of this backend. */
#define VME_TARGET portable
#include "../kernels/elementwise.h"
