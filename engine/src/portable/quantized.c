/* Quantized operators of models, for this backend. */
#define VME_TARGET portable
#include "../kernels/quantized.h"
