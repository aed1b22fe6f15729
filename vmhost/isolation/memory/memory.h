/* The allocator hooks: they charge the allocations of VM threads, and let blocks leave a VM without being freed. */
#ifndef VMH_MEMORY_H
#define VMH_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "lanes/meter.h"

/* The memory limits of one VM. */
typedef struct vmh_allowance {
    vmh_meter *meter;                    /* one reference; never changes */
    atomic_llong soft_bytes, hard_bytes; /* the meter's limits from READY on */
    atomic_bool lost;                    /* a thread of the VM overflowed its stack and is parked: overflow.c */
} vmh_allowance;

int vmh_memory_install(void);
/* Why memory limits cannot be held in this process, and what to do; NULL: they can. */
const char *vmh_memory_refusal(void);
/* Whether allocations of this thread, which has a meter, are charged. A program may have put back the allocators from
 * before ours: then ours are installed again. */
bool vmh_memory_check(void);
void vmh_memory_bind(vmh_meter *meter); /* charges this thread's allocations to `meter`; NULL: to none */
vmh_meter *vmh_memory_payer(void);      /* the meter of this thread; borrowed */
/* The holdings of this thread's meter (holders.h); nearly always NULL. Borrowed. */
extern _Thread_local struct vmh_holdings *vmh_memory_watched __attribute__((tls_model("initial-exec")));

/* Whether large blocks of objects come from malloc, through our hooks and no others. */
bool vmh_memory_is_default(void);

/* Allocations of this thread wait a little where the system has no memory. */
void vmh_memory_wait(bool wait);

/* Makes this thread's next free, which must be of `block`, leave the block allocated and uncharged. Then call
 * vmh_memory_kept, once: whether that happened. */
void vmh_memory_keep(void *block);
bool vmh_memory_kept(void);

/* Makes this thread's next allocation, which must be of `size` bytes, return `block`. The thread must have no meter.
 * Then call vmh_memory_taken, once: whether that happened. */
void vmh_memory_offer(void *block, size_t size);
bool vmh_memory_taken(void);

#endif
