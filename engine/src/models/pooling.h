/* STEP_MAX_POOL, STEP_AVERAGE_POOL, STEP_GLOBAL_AVERAGE_POOL (pooling.c). */
#ifndef VME_MODEL_POOLING_H
#define VME_MODEL_POOLING_H

#include "models/step.h"

vme_status pooling_run(vme_context *context, const vme_model *model, const model_step *step, char *arena);
/* not for STEP_GLOBAL_AVERAGE_POOL */
void pooling_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band);

#endif
