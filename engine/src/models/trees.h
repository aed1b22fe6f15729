/* Steps of ensembles of decision trees (trees.c). */
#ifndef VME_MODEL_TREES_H
#define VME_MODEL_TREES_H

#include "models/step.h"

bool model_is_trees(const model_step *step);
int64_t trees_scratch(const vme_model *model, model_step *step); /* in bytes; sets the step's slots */
/* VME_BAD_VALUE unless the step's packed constants are valid trees, in which every walk ends. */
vme_status trees_check(const vme_model *model, const model_step *step);

#endif
