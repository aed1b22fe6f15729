/* Values in the caller's memory: outputs, and inputs that they continue (outside.c). */
#ifndef VME_MODEL_OUTSIDE_H
#define VME_MODEL_OUTSIDE_H

#include "models/model.h"

/* Finds such values; the model's steps and its values' layouts must be complete. */
void outside_find(vme_model *model);
/* An entry of the table at the start of an arena: where a value is in this run, and whether a step has written all of
 * it. */
typedef struct outside_entry {
    char *data;
    bool filled;
} outside_entry;
/* Bytes of the table. */
int64_t outside_table_bytes(const vme_model *model);
outside_entry *outside_entry_of(char *arena, int number);
/* The number of the input that output `number` continues, or -1. */
int outside_continued_input(const vme_model *model, int number);
/* Prepares a run: stores the addresses and copies inputs to outputs where needed. VME_BAD_VALUE: its arrays overlap
 * others. */
vme_status outside_begin(vme_context *context, const vme_model *model, const vme_tensor *const *inputs,
                         const vme_tensor *const *outputs, char *arena);
/* Ends a successful run: clears outputs that no step has written. */
void outside_end(const vme_model *model, const vme_tensor *const *outputs, char *arena);

#endif
