/* Where values lie in the arena (arena.c). */
#ifndef VME_MODEL_ARENA_H
#define VME_MODEL_ARENA_H

#include "vme.h"

/* Says of values that lie in no other which steps use them first and last. */
void arena_lives(vme_model *model);
/* Largest first, each at the lowest place that no value which lives at the same time has. */
vme_status arena_plan(vme_model *model);
/* Values that lie within others lie where those do. */
void arena_place_views(vme_model *model);

#endif
