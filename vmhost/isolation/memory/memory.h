/* The allocator hooks: who pays for what the threads of VMs allocate, and blocks that leave a VM without being freed.
 */
#ifndef VMH_MEMORY_H
#define VMH_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "lanes/meter.h"

/* What one VM may use. */
typedef struct vmh_allowance {
    vmh_meter *meter;                    /* one reference; never changes */
    atomic_llong soft_bytes, hard_bytes; /* the meter's limits from READY on */
    atomic_bool lost; /* a thread of the VM ran over the end of its stack and is parked: overflow.c */
} vmh_allowance;

int vmh_memory_install(void);
void vmh_memory_bind(vmh_meter *meter); /* allocations of this thread are charged to it; NULL: nobody */
vmh_meter *vmh_memory_payer(void);      /* of this thread; borrowed */
/* What keeps the holdings of its memory (holders.h), NULL nearly always. Borrowed. */
extern _Thread_local struct vmh_holdings *vmh_memory_watched __attribute__((tls_model("initial-exec")));

/* Objects' large blocks come from malloc, through our hooks and nobody else's. */
bool vmh_memory_is_default(void);

/* This thread's free of `block`, which must come next, leaves it as it is: then `kept`, once, and nobody pays for it
 * any more. */
void vmh_memory_keep(void *block);
bool vmh_memory_kept(void);

/* This thread's allocation of `size` bytes, which must come next, gives `block`, on a thread that pays for nobody: then
 * `taken`, once. */
void vmh_memory_offer(void *block, size_t size);
bool vmh_memory_taken(void);

#endif
