/* Values as tensors, and steps of operators on tensors (tensors.c). */
#ifndef VME_MODEL_TENSORS_H
#define VME_MODEL_TENSORS_H

#include "models/step.h"

/* The value as a tensor; `arena` may be NULL if its data are not read. Valid as long as the model. */
vme_tensor model_tensor(const vme_model *model, int value, char *arena);
/* Whether the step applies one function to every element, independent of its position. */
bool model_is_elementwise(const model_step *step);

#endif
