/* Winograd's transforms, for this backend. */
#define VME_TARGET portable
#include "vectors.h"
#include "../kernels/winograd.h"
