/* The thread pool's less common functions; vme_parallel is in internal.h.
 *
 * Pieces of vme_parallel are taken in order, and a piece that was taken is completed. So a piece may wait for earlier
 * ones, if it polls the stop flag meanwhile: each of them is done or in progress. */
#ifndef VME_POOL_H
#define VME_POOL_H

#include "runtime/internal.h"

/* The number of the calling thread: 0 for a caller, 1 and up for helpers. Unique among the threads of one job. */
int vme_worker(void);

/* ---- slots.c */
/* Work stealing over items, for bodies that need scratch memory: vme_parallel_apart runs slots, and the body has
 * scratch memory for each slot. A slot processes its own part of the items first, then steals from other parts. */
enum { VME_SLOTS_MAX = 16 };
typedef struct vme_items vme_items;
/* Runs one slot on one thread: processes every item that vme_item_next gives it. */
typedef void vme_slot_body(void *argument, int64_t slot, vme_items *items);
/* False: no item is left, or the context was stopped. */
bool vme_item_next(vme_items *items, int64_t *item);
vme_status vme_parallel_slots(vme_context *context, int64_t slots, int64_t items, vme_slot_body *body, void *argument);

#endif
