/* Chains: consecutive steps that run by bands of rows. */
#ifndef VME_BANDS_H
#define VME_BANDS_H

#include "models/preparation.h"

/* bands_choice.c */
/* Chooses the chains, the values that have strips, and the scratch memory. Lifetimes of values must be known. */
vme_status chains_choose(model_preparation *preparation);
/* bands.c */
/* Runs the chain that begins at step `first`; `ns` receives the times of its steps, or is NULL. */
vme_status chain_run(vme_context *context, const vme_model *model, int first, char *arena,
                     const vme_tensor *const *inputs, uint64_t *ns);

#endif
