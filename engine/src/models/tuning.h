/* Choosing the backend of a model and the algorithms of its steps (tuning.c). */
#ifndef VME_MODEL_TUNING_H
#define VME_MODEL_TUNING_H

#include "models/step.h"

/* Chooses the backend, for steps with known shapes and layouts, and stores the expected total of each. `kept`: the
 * backend is the kept file's. VME_NO_MEMORY. */
vme_status backend_choose(vme_model *model, bool kept);
/* Sets the step's algorithm, for known shapes, and the bytes of scratch memory that it needs. `kept`: the choice of an
 * earlier process or of the plan's base, or NULL. */
vme_status algorithm_choose(vme_model *model, model_step *step, const model_algorithm *kept, int64_t *scratch);

#endif
