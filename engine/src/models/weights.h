/* The packed block: weights and other constants of a model (weights.c). */
#ifndef VME_MODEL_WEIGHTS_H
#define VME_MODEL_WEIGHTS_H

#include "models/preparation.h"

/* Makes weights_pack release the weights of a file of `size` bytes as it packs them. */
void weights_release_init(model_preparation *preparation, size_t size);
/* Packs the weights of products in the formats of their tiles, then the constants that steps read unpacked. */
vme_status weights_pack(model_preparation *preparation);

#endif
