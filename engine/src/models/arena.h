/* Arena offsets of values (arena.c). */
#ifndef VME_MODEL_ARENA_H
#define VME_MODEL_ARENA_H

#include "vme.h"

/* Computes the first and last step that use each value which is not part of another one. */
void arena_lives(vme_model *model);
/* Assigns offsets, largest value first, each at the lowest offset that is free during its lifetime. */
vme_status arena_plan(vme_model *model);
/* Assigns offsets to values within others. */
void arena_place_views(vme_model *model);

#endif
