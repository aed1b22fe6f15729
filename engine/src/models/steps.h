/* Running of steps (steps.c). */
#ifndef VME_MODEL_STEPS_H
#define VME_MODEL_STEPS_H

#include "models/step.h"

/* `caller_tensor` is that of an import or export; otherwise NULL. */
vme_status step_run(vme_context *context, const vme_model *model, const model_step *step, char *arena,
                    const vme_tensor *caller_tensor);
/* Runs the step for the rows of a band, on the calling thread. */
void step_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band);
/* A band with the step's values and all rows; n is 0. */
model_band model_whole_band(const vme_model *model, const model_step *step, char *arena);
/* Clears memory. Stops early if the context is stopped, like model_clear_margin. */
void model_clear(vme_context *context, void *from, size_t bytes);
/* Clears the margin around a step's output: the arena's bytes held other values before. */
void model_clear_margin(vme_context *context, const model_value *value, char *arena);
uint64_t model_now_ns(void);

#endif
