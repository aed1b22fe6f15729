/* Which lines hold a VM's memory: samples of its allocations, which a MemoryLimitError reports.
 *
 * CPython's object allocators have our hooks only while a VM with this option lives; otherwise there is no cost. With
 * the hooks, an object costs some nanoseconds more in every VM. In that VM an allocation also subtracts its size from a
 * counter, a free looks into a filter, and each interval (a thousandth of the memory limit) reads the stack.
 */
#ifndef VMH_HOLDERS_H
#define VMH_HOLDERS_H

#include "cpython/compat.h"
#include "lanes/meter.h"
#include "profile/holdings.h"

/* Starts to sample the meter's memory. Call on a thread of its VM, at most once. Where there is no memory for the
 * samples, nothing is sampled. */
void vmh_holders_start(vmh_meter *meter, const char *task, const char *version);
/* Call when a call begins or the VM loads: drops the report of an earlier limit. */
void vmh_holders_rearm(vmh_meter *meter);
/* What held the memory when the limit was met: vmh_holdings_report's text, or NULL. Any thread. */
char *vmh_holders_report(vmh_meter *meter);

/* Whether `now`, an object allocator, is our hooks around `before`. */
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
