/* Which stacks hold the memory of one VM, by sampling its blocks, for the report of a MemoryLimitError. No Python in
 * here.
 *
 * On average one block is sampled each `interval` bytes. It counts as a whole number of intervals or, if it is large,
 * as its own size. The records are not charged to the VM. Any thread; it has its own lock, under which no other is
 * taken.
 */
#ifndef VMH_HOLDINGS_H
#define VMH_HOLDINGS_H

#include <pthread.h>
#include <stdatomic.h>

#include "profile/profile.h"

enum { VMH_HOLDINGS_DEPTH = 24, VMH_HOLDINGS_FILTER = 1 << 15, VMH_HOLDINGS_REPORTED = 64 };

typedef struct vmh_holding { /* of one tree node */
    int64_t bytes, marked;
} vmh_holding;

typedef struct vmh_held_block {
    uintptr_t address; /* 0: free */
    int64_t bytes;     /* the number of bytes that it represents */
    int32_t node;
} vmh_held_block;

typedef struct vmh_holdings {
    pthread_mutex_t lock; /* guards all but `interval`, `process`, and reads of `filter` */
    int64_t interval;     /* never changes */
    int process;          /* the process that made it: a forked child leaves it alone */
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
    /* Number of recorded blocks by hash: nearly always 0, so that most frees of other blocks need no lock. */
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

/* Whether the block may be recorded. */
static inline bool vmh_holdings_may_have(vmh_holdings *holdings, const void *address)
{
    return atomic_load_explicit(&holdings->filter[vmh_holdings_hash(address)], memory_order_relaxed) != 0;
}

void vmh_holdings_lock(vmh_holdings *holdings);
void vmh_holdings_unlock(vmh_holdings *holdings);

/* These require the lock. */
void vmh_holdings_add(vmh_holdings *holdings, const void *address, int64_t bytes, int32_t node);
void vmh_holdings_remove(vmh_holdings *holdings, const void *address);
/* Snapshots what is held now, as `node` asks for `bytes`. `passed`: the limit was passed; the first of these is kept.
 * Otherwise a request was refused; the last of these is kept until the limit is passed. */
void vmh_holdings_mark(vmh_holdings *holdings, int32_t node, int64_t bytes, bool passed);
void vmh_holdings_unmark(vmh_holdings *holdings);
/* The report of the snapshot, one line for each of VMH_HOLDINGS_REPORTED stacks, largest first:
 *
 *   kind bytes|file|line|name|file|line|name ...        innermost frame first, fields separated by \x1f
 *
 * kind is "asked" (once: the request that met the limit), "held", or "other" (the sum of all other stacks, without
 * frames). malloc'ed; NULL: there is no snapshot, or no memory. Takes the lock. */
char *vmh_holdings_report(vmh_holdings *holdings);

#endif
