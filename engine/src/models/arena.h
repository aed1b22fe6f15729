/* Arena offsets of values (arena.c). */
#ifndef VME_MODEL_ARENA_H
#define VME_MODEL_ARENA_H

#include "vme.h"

/* Sets the first and the last step that use each value that is not part of another one. */
void arena_find_lifetimes(vme_model *model);
/* Assigns offsets, largest value first, each at the lowest offset that is free during its lifetime. */
vme_status arena_plan(vme_model *model);
/* Assigns offsets to values within others. */
void arena_place_views(vme_model *model);

#endif
