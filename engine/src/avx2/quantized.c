/* Quantized operators of models, for this backend. */
#define VME_TARGET avx2
#include "../kernels/quantized.h"
