/* Convolutions by Winograd's algorithm in bands (winograd.c). */
#ifndef VME_MODEL_WINOGRAD_H
#define VME_MODEL_WINOGRAD_H

#include "models/step.h"

int64_t winograd_unit(const model_step *step); /* bands begin at multiples of this */
/* bytes for bands of at most `rows` rows */
int64_t winograd_band_scratch(const vme_model *model, const model_step *step, int64_t rows);
/* squares that `rows` rows take, in full tiles */
int64_t winograd_padded(const vme_model *model, const model_step *step, int64_t rows);
void winograd_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band);

#endif
