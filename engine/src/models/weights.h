/* The packed block: weights and other constants of a model (weights.c). */
#ifndef VME_MODEL_WEIGHTS_H
#define VME_MODEL_WEIGHTS_H

#include "models/preparation.h"

/* The weights of a file of `size` bytes are given back as they are packed. */
void weights_spend(model_preparation *preparation, size_t size);
/* The weights of products as their tiles want them, then the constants that steps read as they are. */
vme_status weights_pack(model_preparation *preparation);

#endif
