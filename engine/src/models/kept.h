/* Prepared models in files (kept.c). */
#ifndef VME_MODEL_KEPT_H
#define VME_MODEL_KEPT_H

#include "models/preparation.h"

/* Maps the kept file at `path` for a model file of `size` bytes, if there is a valid one of this user, and stores its
 * choices in `preparation->kept`. */
void kept_open(model_preparation *preparation, const char *path, size_t size);
/* The packed block in the mapped file; NULL: it does not match this preparation. */
char *kept_packed(const model_preparation *preparation);
/* Loads all of the mapped file into memory, after the model's own bytes were released. */
void kept_load(const model_preparation *preparation);
/* Writes a finished model; on failure no file is left. */
void kept_write(const vme_model *model, const char *path, size_t size);

#endif
