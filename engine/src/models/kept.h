/* Prepared models in files (kept.c). */
#ifndef VME_MODEL_KEPT_H
#define VME_MODEL_KEPT_H

#include "models/preparation.h"

/* Maps the kept file at `path` for a model file of `size` bytes, if there is one that is this user's, and says in
 * it->kept what was chosen. */
void kept_open(model_preparation *preparation, const char *path, size_t size);
/* The packed block in the mapped file; NULL: it has another one. */
char *kept_packed(const model_preparation *preparation);
/* Has all of the mapped file in memory, now that the model's own bytes were given back. */
void kept_return(const model_preparation *preparation);
/* Keeps a finished model; where that fails there is no file. */
void kept_write(const vme_model *model, const char *path, size_t size);

#endif
