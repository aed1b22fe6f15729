/* Kernels of models on rows of channels, for this backend. */
#define VME_TARGET avx512
#include "../kernels/model.h"
