/* Kernels of float32 and float64, for this backend. */
#define VME_TARGET portable
#include "../kernels/floats.h"
