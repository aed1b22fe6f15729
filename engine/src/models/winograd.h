/* Of convolutions whose algorithm is Winograd's (winograd.c): done by bands. */
#ifndef VME_MODEL_WINOGRAD_H
#define VME_MODEL_WINOGRAD_H

#include "models/step.h"

int64_t winograd_unit(const model_step *step); /* bands begin at its multiples */
/* bytes for bands of at most so many rows */
int64_t winograd_band_scratch(const vme_model *model, const model_step *step, int64_t rows);
/* squares that so many rows of them take, with tiles filled up */
int64_t winograd_padded(const vme_model *model, const model_step *step, int64_t rows);
void winograd_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band);

#endif
