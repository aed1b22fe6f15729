/* Chains: steps that follow each other, done by bands of rows. */
#ifndef VME_BANDS_H
#define VME_BANDS_H

#include "models/preparation.h"

/* bands_choice.c */
/* Says which steps are chains, which values of them have strips, and how much scratch memory that takes; values
 * know when they live. */
vme_status chains_choose(model_preparation *preparation);
/* bands.c */
/* The chain that begins at step `first`; `ns` of its steps, or NULL. */
vme_status chain_run(vme_context *context, const vme_model *model, int first, char *arena,
                     const vme_tensor *const *inputs, uint64_t *ns);

#endif
