/* Plans in which tensors have no elements (empty.c). */
#ifndef VME_MODEL_EMPTY_H
#define VME_MODEL_EMPTY_H

#include "models/model.h"

/* Whether any value has no elements. */
bool empty_found(const vme_model *model);
/* Gives values without elements their shapes and marks the steps that compute them as idle. The last stage of preparing
 * a plan. VME_BAD_VALUE: a step whose result has elements cannot read a tensor without elements. */
vme_status empty_apply_shapes(vme_model *model);

#endif
