/* The counting Bloom filter: approximate counts of keys without storing them (Fan et al. 2000). */
#include "embedding/table.h"

#include <math.h>

vme_status embedding_bloom_start(vme_embedding *table)
{
    const vme_embedding_options *o = &table->options;
    if (o->bloom_elements == 0 || !embedding_filters(table))
        return VME_OK;
    const double ln2 = 0.6931471805599453, each = -log(o->bloom_error) / (ln2 * ln2);
    const int64_t counters = (int64_t)ceil((double)o->bloom_elements * each);
    table->bloom_hashes = (int)fmin(fmax(round(each * ln2), 1), 32);
    table->bloom = embedding_memory(table, (size_t)counters * sizeof *table->bloom);
    if (table->bloom == NULL)
        return VME_NO_MEMORY;
    table->bloom_counters = counters;
    for (int64_t i = 0; i < counters; i++)
        atomic_init(&table->bloom[i], 0);
    return VME_OK;
}

static uint16_t add_saturating(_Atomic(uint16_t) *counter, uint32_t count)
{
    uint16_t before = atomic_load_explicit(counter, memory_order_relaxed), after;
    do
        after = count > (uint32_t)(UINT16_MAX - before) ? UINT16_MAX : (uint16_t)(before + count);
    while (!atomic_compare_exchange_weak_explicit(counter, &before, after, memory_order_relaxed, memory_order_relaxed));
    return after;
}

/* The positions of a key's counters are an arithmetic progression made of two hashes (Kirsch and Mitzenmacher 2006).
 * The hashes are not seeded, because checkpoints contain the counters. */
uint32_t embedding_bloom_count(vme_embedding *table, int64_t key, uint32_t count)
{
    uint32_t lowest = UINT16_MAX;
    uint64_t at = embedding_mixed((uint64_t)key ^ UINT64_C(0x9e3779b97f4a7c15)), step = embedding_mixed(at) | 1;
    for (int i = 0; i < table->bloom_hashes; i++, at += step) {
        const uint16_t sum = add_saturating(&table->bloom[at % (uint64_t)table->bloom_counters], count);
        lowest = sum < lowest ? sum : lowest;
    }
    return lowest;
}
