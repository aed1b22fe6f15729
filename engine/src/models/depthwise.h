/* Convolutions with as many groups as channels (depthwise.c): the functions of convolution.h. */
#ifndef VME_MODEL_DEPTHWISE_H
#define VME_MODEL_DEPTHWISE_H

#include "models/step.h"

int64_t depthwise_packed(const model_step *step, int64_t channels);
void depthwise_pack(model_step *step, int64_t channels, const char *weights, const char *bias);
vme_status depthwise_run(vme_context *context, const vme_model *model, const model_step *step, char *arena);
void depthwise_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band);

#endif
