/* Histogram of durations in buckets an eighth of a power of two wide: a quantile is accurate to 12.5 %. No Python in
 * here.
 *
 * The first 8 buckets are UNIT_NS wide each; above them each power of two has 8. The last bucket also counts all longer
 * durations. Threads add without a lock; a reader sees each count whole, but not all counts at the same moment.
 */
#ifndef VMH_HISTOGRAM_H
#define VMH_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

#define VMH_HISTOGRAM_UNIT_NS INT64_C(128)
#define VMH_HISTOGRAM_BUCKETS 264 /* up to 2^35 units, 73 minutes */

typedef struct {
    atomic_llong counts[VMH_HISTOGRAM_BUCKETS];
} vmh_histogram;

/* The bucket of a duration; negative durations go into the first. */
static inline int vmh_histogram_bucket(int64_t ns)
{
    uint64_t units = ns > 0 ? (uint64_t)(ns / VMH_HISTOGRAM_UNIT_NS) : 0;
    if (units < 8)
        return (int)units;
    int power = 63 - __builtin_clzll(units); /* 3 or more */
    int bucket = (power - 2) * 8 + (int)((units >> (power - 3)) & 7);
    return bucket < VMH_HISTOGRAM_BUCKETS ? bucket : VMH_HISTOGRAM_BUCKETS - 1;
}

static inline void vmh_histogram_add(vmh_histogram *histogram, int64_t ns)
{
    atomic_fetch_add_explicit(&histogram->counts[vmh_histogram_bucket(ns)], 1, memory_order_relaxed);
}

#endif
