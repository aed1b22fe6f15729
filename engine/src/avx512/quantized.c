/* Quantized operators of models, for this backend. */
#define VME_TARGET avx512
#include "../kernels/quantized.h"
