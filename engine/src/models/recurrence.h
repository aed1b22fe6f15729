/* Steps of recurrent layers (recurrence.c). */
#ifndef VME_MODEL_RECURRENCE_H
#define VME_MODEL_RECURRENCE_H

#include "models/step.h"

bool model_is_recurrence(const model_step *step);
int64_t recurrence_scratch(const vme_model *model, model_step *step); /* in bytes; sets the step's slots */
int64_t recurrence_products(const vme_model *model, const model_step *step);

#endif
