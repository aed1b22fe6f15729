/* Kernels of models on rows of channels, for this backend. */
#define VME_TARGET portable
#include "../kernels/model.h"
