/* Choosing the backend of a model and the algorithms of its steps (tuning.c). */
#ifndef VME_MODEL_TUNING_H
#define VME_MODEL_TUNING_H

#include "models/step.h"

/* Chooses the backend, for steps whose shapes and layouts are known, and says what each would take. `kept`: it was
 * chosen before. VME_NO_MEMORY. */
vme_status backend_choose(vme_model *model, bool kept);
/* Sets the step's algorithm, for shapes that are known, and the bytes of scratch memory that it needs. `kept`: what
 * an earlier process or the plan's base chose, or NULL. */
vme_status algorithm_choose(vme_model *model, model_step *step, const model_algorithm *kept, int64_t *scratch);

#endif
