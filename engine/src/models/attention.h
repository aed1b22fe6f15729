/* Steps of attention (attention.c). */
#ifndef VME_MODEL_ATTENTION_H
#define VME_MODEL_ATTENTION_H

#include "models/rates.h"

bool model_is_attention(const model_step *step);
const char *attention_name(model_algorithm algorithm);
rates_work attention_work(const vme_kernels *kernels, const vme_model *model, const model_step *step,
                          model_algorithm algorithm);
int64_t attention_scratch(const vme_model *model, model_step *step); /* in bytes; sets the step's slots */
vme_status attention_run(vme_context *context, const vme_model *model, const model_step *step, char *arena);

#endif
