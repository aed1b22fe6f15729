/* Outputs that go on from an input (caches.c). */
#ifndef VME_MODEL_CACHES_H
#define VME_MODEL_CACHES_H

#include "models/model.h"

/* Finds them, of a model whose steps are made and whose values have layouts. */
void caches_find(vme_model *model);
/* Bytes at the beginning of an arena, for their addresses. */
int64_t caches_front(const vme_model *model);
/* The number of the input that output `number` goes on from, or -1. */
int caches_input(const vme_model *model, int number);
/* Makes ready a run: what goes on lies where the output is. VME_BAD_VALUE: arrays of it overlap others'. */
vme_status caches_begin(vme_context *context, const vme_model *model, const vme_tensor *const *inputs,
                        const vme_tensor *const *outputs, char *arena);

#endif
