/* Outputs that continue an input (caches.c). */
#ifndef VME_MODEL_CACHES_H
#define VME_MODEL_CACHES_H

#include "models/model.h"

/* Finds them; the model's steps and its values' layouts must be complete. */
void caches_find(vme_model *model);
/* Bytes at the start of an arena that hold their addresses. */
int64_t caches_front(const vme_model *model);
/* The number of the input that output `number` continues, or -1. */
int caches_input(const vme_model *model, int number);
/* Prepares a run: stores the addresses and copies inputs to outputs where needed. VME_BAD_VALUE: its arrays overlap
 * others. */
vme_status caches_begin(vme_context *context, const vme_model *model, const vme_tensor *const *inputs,
                        const vme_tensor *const *outputs, char *arena);

#endif
