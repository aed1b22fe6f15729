/* Which stacks hold the memory of one VM, by a sample of its blocks: what a MemoryLimitError tells. No Python in here.
 *
 * On average one block is noted each `interval` bytes; it stands for a whole number of intervals, or, where it has
 * many, for itself. Notes lie beyond the VM's own limit. Any thread; a lock of its own, under which nothing else is
 * taken.
 */
#ifndef VMH_HOLDINGS_H
#define VMH_HOLDINGS_H

#include <pthread.h>
#include <stdatomic.h>

#include "profile/profile.h"

enum { VMH_HOLDINGS_DEPTH = 24, VMH_HOLDINGS_FILTER = 1 << 15, VMH_HOLDINGS_TOLD = 64 };

typedef struct vmh_holding { /* of one node of the tree */
    int64_t bytes, marked;
} vmh_holding;

typedef struct vmh_held_block {
    uintptr_t address; /* 0: free */
    int64_t bytes;     /* that it stands for */
    int32_t node;
} vmh_held_block;

typedef struct vmh_holdings {
    pthread_mutex_t lock; /* of all but `interval`, `process`, and reads of `filter` */
    int64_t interval;     /* never changes */
    int process;          /* that made it: a forked child leaves it alone */
    int32_t root;         /* the node of the task */
    vmh_profile tree;
    vmh_holding *holdings; /* by node; owned */
    size_t holding_room;
    int32_t holding_count;
    vmh_held_block *blocks; /* open hash table; owned */
    size_t size, used;      /* size: a power of 2 */
    bool marked, passed;
    int64_t asked_bytes;
    int32_t asked_node;
    /* blocks of each hash: nearly always 0, so that most frees of blocks that are not noted need no lock */
    _Atomic(uint8_t) filter[VMH_HOLDINGS_FILTER];
} vmh_holdings;

/* NULL: no memory. */
vmh_holdings *vmh_holdings_new(const char *task, const char *version, int64_t interval);
void vmh_holdings_free(vmh_holdings *holdings);

static inline unsigned vmh_holdings_hash(const void *address)
{
    return (unsigned)((uint64_t)((uintptr_t)address >> 4) * UINT64_C(11400714819323198485) >> 49);
}
_Static_assert(VMH_HOLDINGS_FILTER == 1 << (64 - 49), "a hash is an index of the filter");

/* May the block be noted? */
static inline bool vmh_holdings_may_have(vmh_holdings *holdings, const void *address)
{
    return atomic_load_explicit(&holdings->filter[vmh_holdings_hash(address)], memory_order_relaxed) != 0;
}

void vmh_holdings_lock(vmh_holdings *holdings);
void vmh_holdings_unlock(vmh_holdings *holdings);

/* The lock is held: */
void vmh_holdings_add(vmh_holdings *holdings, const void *address, int64_t bytes, int32_t node);
void vmh_holdings_remove(vmh_holdings *holdings, const void *address);
/* Remembers what is held now, as `node` asks for `bytes`. `passed`: over the limit; the first such counts. Else a
 * request was refused, which counts until that happens, the last one. */
void vmh_holdings_mark(vmh_holdings *holdings, int32_t node, int64_t bytes, bool passed);
void vmh_holdings_unmark(vmh_holdings *holdings);
/* What was held at the mark, a line for each of VMH_HOLDINGS_TOLD stacks, those that hold most first:
 *
 *   kind bytes|file|line|name|file|line|name ...        the innermost frame first, fields divided by \x1f
 *
 * kind is "asked" (once, the request that met the limit), "held", "other" (the rest of the stacks, without frames).
 * malloc'ed; NULL: nothing was marked, or no memory. Takes the lock. */
char *vmh_holdings_tell(vmh_holdings *holdings);

#endif
