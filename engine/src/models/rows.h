/* Steps of fused operators on rows of float32, and activations by curves (rows.c). */
#ifndef VME_MODEL_ROWS_H
#define VME_MODEL_ROWS_H

#include "models/step.h"
#include "models/row_kernels.h"

bool model_is_activation(const model_step *step);
/* The kernel of the step's activation, or NULL if the activation is no curve. */
model_curve_kernel *model_curve_of(const vme_model *model, const model_step *step);
/* Applies the step's activation, if it is a curve, to everything that the step has written. */
vme_status model_activate(vme_context *context, const vme_model *model, const model_step *step, char *arena);

#endif
