/* The slowest calls of the last minutes, with their request sizes, to explain tail latency. No Python in here.
 *
 * There are two windows: the current one and the one before. The owner's lock guards all but `bar_ns` and `until_ns`,
 * which a call checks first, so that few calls take the lock.
 */
#ifndef VMH_TAILS_H
#define VMH_TAILS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { VMH_TAILS = 10 };
#define VMH_TAILS_WINDOW_NS INT64_C(300000000000)

typedef struct vmh_tail {
    int64_t ended_ns, wall_ns, wait_ns;
    size_t request_bytes;
    int kind;
} vmh_tail;

typedef struct vmh_tails {
    atomic_llong bar_ns;   /* only a call that ran longer is among the slowest */
    atomic_llong until_ns; /* when the window ends */
    int count, before_count;
    vmh_tail now[VMH_TAILS], before[VMH_TAILS];
} vmh_tails;

static inline bool vmh_tails_wants(const vmh_tails *tails, int64_t wall_ns, int64_t ended_ns)
{
    return wall_ns > atomic_load_explicit(&tails->bar_ns, memory_order_relaxed)
           || ended_ns > atomic_load_explicit(&tails->until_ns, memory_order_relaxed);
}

/* Requires the owner's lock. */
static inline void vmh_tails_add(vmh_tails *tails, const vmh_tail *tail)
{
    if (tail->ended_ns > atomic_load_explicit(&tails->until_ns, memory_order_relaxed)) {
        memcpy(tails->before, tails->now, sizeof tails->now);
        tails->before_count = tails->count;
        tails->count = 0;
        atomic_store_explicit(&tails->bar_ns, 0, memory_order_relaxed);
        atomic_store_explicit(&tails->until_ns, tail->ended_ns + VMH_TAILS_WINDOW_NS, memory_order_relaxed);
    }
    bool full = tails->count == VMH_TAILS;
    int at = full ? 0 : tails->count++;
    for (int i = 1; full && i < VMH_TAILS; i++)
        if (tails->now[i].wall_ns < tails->now[at].wall_ns)
            at = i;
    if (!full || tail->wall_ns > tails->now[at].wall_ns)
        tails->now[at] = *tail;
    int64_t bar = tails->count < VMH_TAILS ? 0 : INT64_MAX;
    for (int i = 0; i < tails->count && bar > 0; i++)
        if (tails->now[i].wall_ns < bar)
            bar = tails->now[i].wall_ns;
    atomic_store_explicit(&tails->bar_ns, bar, memory_order_relaxed);
}

/* Copies the calls of both windows that ended after `since_ns`, unordered, to `found`, which has room for
 * 2 * VMH_TAILS; returns how many. Requires the lock. */
static inline int vmh_tails_read(const vmh_tails *tails, int64_t since_ns, vmh_tail *found)
{
    int count = 0;
    for (int i = 0; i < tails->count + tails->before_count; i++) {
        const vmh_tail *tail = i < tails->count ? &tails->now[i] : &tails->before[i - tails->count];
        if (tail->ended_ns > since_ns)
            found[count++] = *tail;
    }
    return count;
}

#endif
