/* The part of the thread pool that few operators need, beside vme_parallel (internal.h).
 *
 * Pieces are taken in order (unless the job is vme_parallel_apart's), and one that was taken is done to its end. So a
 * piece may wait for those before it, with an eye on the stop flag: they are done or somebody is at work on them. */
#ifndef VME_POOL_H
#define VME_POOL_H

#include "runtime/internal.h"

/* Which of the pool's threads this is: 0 for a caller, else a helper's number from 1. Those at work on one job differ.
 */
int vme_worker(void);

/* ---- slots.c */
/* Items that are done in slots, each with scratch memory of its own: vme_parallel_apart(slots), where whoever has a
 * slot does its part of the items, then what others have left of theirs. */
enum { VME_SLOTS_MAX = 16 };
typedef struct vme_items vme_items;
/* One slot, on one thread: does each item that it is given. */
typedef void vme_slot_body(void *argument, int64_t slot, vme_items *items);
/* False: none is left, or the context was stopped. */
bool vme_item_next(vme_items *items, int64_t *item);
vme_status vme_parallel_slots(vme_context *context, int64_t slots, int64_t items, vme_slot_body *body, void *argument);

#endif
