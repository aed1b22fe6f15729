/* What steps of each kind do (steps.c). */
#ifndef VME_MODEL_STEPS_H
#define VME_MODEL_STEPS_H

#include "models/step.h"

/* `caller_tensor` is that of an import or export; otherwise NULL. */
vme_status step_run(vme_context *context, const vme_model *model, const model_step *step, char *arena,
                    const vme_tensor *caller_tensor);
void step_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band);
model_band model_whole_band(const vme_model *model, const model_step *step, char *arena);
/* Clear memory, and the margin around a step's output, whose bytes held other values before. Both stop early if the
 * context is stopped. */
void model_clear(vme_context *context, void *from, size_t bytes);
void model_clear_margin(vme_context *context, const model_value *value, char *arena);
uint64_t model_now_ns(void);

#endif
