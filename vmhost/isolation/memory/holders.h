/* Which lines hold a VM's memory: samples of its allocations, for a MemoryLimitError to tell.
 *
 * Off, there is none of it: CPython's allocators of objects have our hooks while a VM lives that wants to know. Then an
 * object costs some nanoseconds more, in other VMs as well; in that VM a subtraction on top, a look into the filter
 * when it is freed, and each interval (a thousandth of the memory limit) a look at the stack.
 */
#ifndef VMH_HOLDERS_H
#define VMH_HOLDERS_H

#include "cpython/compat.h"
#include "lanes/meter.h"
#include "profile/holdings.h"

/* From now on it is noted what holds the meter's memory. On a thread of its VM, at most once; without memory for it,
 * nothing is noted. */
void vmh_holders_start(vmh_meter *meter, const char *task, const char *version);
/* A call begins, or the VM loads: what was remembered of limits before is forgotten. */
void vmh_holders_rearm(vmh_meter *meter);
/* What held the memory when the limit was met: vmh_holdings_tell's text, or NULL. Any thread. */
char *vmh_holders_tell(vmh_meter *meter);

/* Is `now`, of objects, our hooks over `before`? */
bool vmh_holders_are(const PyMemAllocatorEx *now, const PyMemAllocatorEx *before);

void vmh_holders_note(vmh_meter *meter, const void *address, size_t bytes);
void vmh_holders_forget(vmh_meter *meter, const void *address);

/* A block that the meter paid for was made, or will be freed or moved. Any thread. */
static inline void vmh_holders_made(vmh_meter *meter, const void *address, size_t bytes)
{
    if (meter != NULL && atomic_load_explicit(&meter->holdings, memory_order_relaxed) != NULL)
        vmh_holders_note(meter, address, bytes);
}

static inline void vmh_holders_gone(vmh_meter *meter, const void *address)
{
    if (meter != NULL && atomic_load_explicit(&meter->holdings, memory_order_relaxed) != NULL)
        vmh_holders_forget(meter, address);
}

#endif
