/* The keys of a shard: extendible hashing, which grows by splitting one segment at a time, without long pauses. */
#include "embedding/table.h"

#include <string.h>

static key_segment *segment_new(vme_embedding *table, int32_t depth)
{
    key_segment *segment = NULL;
    pthread_mutex_lock(&table->slabs.lock);
    if (table->slabs.free_segment != NULL) {
        segment = table->slabs.free_segment;
        table->slabs.free_segment = *(key_segment **)(void *)segment;
    }
    pthread_mutex_unlock(&table->slabs.lock);
    if (segment == NULL)
        segment = embedding_slab_memory(table, sizeof *segment);
    const bool in_slab = segment != NULL;
    if (segment == NULL)
        segment = embedding_memory(table, sizeof *segment);
    if (segment != NULL) {
        segment->in_slab = in_slab;
        segment->depth = depth;
        segment->used = 0;
        for (int i = 0; i < SEGMENT; i++)
            segment->entries[i] = (key_entry){.where = ENTRY_EMPTY};
    }
    return segment;
}

static void segment_free(vme_embedding *table, key_segment *segment)
{
    if (segment == NULL)
        return;
    if (!segment->in_slab) {
        embedding_memory_free(table, segment, sizeof *segment);
        return;
    }
    pthread_mutex_lock(&table->slabs.lock);
    *(key_segment **)(void *)segment = table->slabs.free_segment;
    table->slabs.free_segment = segment;
    pthread_mutex_unlock(&table->slabs.lock);
}

vme_status embedding_keys_start(vme_embedding *table, embedding_shard *shard)
{
    shard->directory = embedding_memory(table, sizeof *shard->directory);
    if (shard->directory == NULL)
        return VME_NO_MEMORY;
    shard->directory[0] = segment_new(table, 0);
    return shard->directory[0] == NULL ? VME_NO_MEMORY : VME_OK;
}

void embedding_keys_end(vme_embedding *table, embedding_shard *shard)
{
    const size_t size = (size_t)1 << shard->depth;
    if (shard->directory == NULL)
        return;
    for (size_t i = 0; i < size && shard->directory[i] != NULL;) {
        key_segment *segment = shard->directory[i];
        i += (size_t)1 << (shard->depth - segment->depth);
        segment_free(table, segment);
    }
    embedding_memory_free(table, shard->directory, size * sizeof *shard->directory);
    shard->directory = NULL;
}

static key_entry *take_entry(key_segment *segment, uint64_t hash)
{
    uint32_t at = embedding_slot(hash);
    while (segment->entries[at].where != ENTRY_EMPTY) /* tries this bucket, then the following ones */
        at = (at + 1) & (SEGMENT - 1);
    segment->used++;
    return &segment->entries[at];
}

static vme_status double_directory(vme_embedding *table, embedding_shard *shard)
{
    const size_t size = (size_t)1 << shard->depth;
    if (shard->depth == DEPTH_MAX)
        return vme_fail(VME_NO_MEMORY, "too many keys of the embedding table have nearly the same hash");
    key_segment **directory = embedding_memory(table, 2 * size * sizeof *directory);
    if (directory == NULL)
        return VME_NO_MEMORY;
    for (size_t i = 0; i < 2 * size; i++)
        directory[i] = shard->directory[i / 2];
    embedding_memory_free(table, shard->directory, size * sizeof *directory);
    shard->directory = directory;
    shard->depth++;
    return VME_OK;
}

static vme_status split(vme_embedding *table, embedding_shard *shard, uint64_t hash)
{
    key_segment *old = embedding_segment(shard, hash);
    if (old->depth == shard->depth && double_directory(table, shard) != VME_OK)
        return VME_NO_MEMORY;
    key_segment *half[2] = {segment_new(table, old->depth + 1), NULL};
    half[1] = half[0] == NULL ? NULL : segment_new(table, old->depth + 1);
    if (half[1] == NULL) {
        segment_free(table, half[0]);
        return VME_NO_MEMORY;
    }
    for (int i = 0; i < SEGMENT; i++) {
        const key_entry *entry = &old->entries[i];
        if (entry->where == ENTRY_EMPTY)
            continue;
        const uint64_t of = embedding_hash(table, entry->key);
        *take_entry(half[of >> (63 - old->depth) & 1], of) = *entry;
    }
    const int below = shard->depth - old->depth; /* bits of the directory index that do not select the old segment: at
                                                  * least 1 */
    const size_t first = (shard->depth == 0 ? 0 : hash >> (64 - shard->depth)) >> below << below;
    for (size_t i = 0; i < (size_t)1 << below; i++)
        shard->directory[first + i] = half[i >> (below - 1)];
    segment_free(table, old);
    return VME_OK;
}

vme_status embedding_insert(vme_embedding *table, embedding_shard *shard, int64_t key, uint64_t hash, key_entry **entry)
{
    while (embedding_segment(shard, hash)->used >= SEGMENT_FULL) {
        vme_status status = split(table, shard, hash);
        if (status != VME_OK)
            return status;
    }
    *entry = take_entry(embedding_segment(shard, hash), hash);
    **entry = (key_entry){.key = key, .where = ENTRY_WAITING};
    shard->keys++;
    shard->waiting++;
    return VME_OK;
}

bool embedding_remove(vme_embedding *table, key_segment *segment, key_entry *entry)
{
    key_entry *entries = segment->entries;
    uint32_t hole = (uint32_t)(entry - entries);
    const uint32_t first = hole;
    bool moved = false;
    for (bool more = true; more;) {
        const uint32_t bucket = hole & ~(uint32_t)(BUCKET - 1);
        uint32_t last = bucket + BUCKET - 1;
        more = entries[last].where != ENTRY_EMPTY; /* the bucket was full: a key of it may be in a later bucket */
        while (entries[last].where == ENTRY_EMPTY)
            last--;
        moved = moved || (hole == first && last != first);
        entries[hole] = entries[last];
        entries[last].where = ENTRY_EMPTY;
        if (!more)
            break;
        more = false;
        for (uint32_t at = (bucket + BUCKET) & (SEGMENT - 1); !more; at = (at + BUCKET) & (SEGMENT - 1)) {
            for (uint32_t i = at; i < at + BUCKET && entries[i].where != ENTRY_EMPTY && !more; i++) {
                const uint32_t home = embedding_slot(embedding_hash(table, entries[i].key));
                if (((at - home) & (SEGMENT - 1)) < ((at - bucket) & (SEGMENT - 1)))
                    continue;
                entries[last] = entries[i];
                moved = moved || last == first;
                hole = i;
                more = true;
            }
            if (entries[at + BUCKET - 1].where == ENTRY_EMPTY)
                break;
        }
    }
    segment->used--;
    return moved;
}
