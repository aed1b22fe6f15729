/* Kernels of models on rows of channels, for this backend. */
#define VME_TARGET avx2
#include "../kernels/model.h"
