/* Eviction of keys that had no gradient step for long (steps_to_live), or whose weights are close to zero
 * (l2_weight_threshold). */
#include "embedding/log.h"

vme_status embedding_saving_begin(vme_embedding *table)
{
    bool idle = false;
    if (atomic_compare_exchange_strong(&table->saving, &idle, true))
        return VME_OK;
    return vme_fail(VME_BAD_VALUE, "the embedding table is being saved already: wait until that save has ended");
}

void embedding_saving_end(vme_embedding *table) { atomic_store(&table->saving, false); }

static bool has_small_weights(const vme_embedding *table, const float *row)
{
    double squares = 0;
    for (int64_t d = 0; d < table->options.dim; d++)
        squares += (double)row[d] * (double)row[d];
    return squares / 2 < (double)table->options.l2_weight_threshold;
}

static bool should_evict_row(const vme_embedding *table, int64_t version, const float *row, int64_t step)
{
    const vme_embedding_options *o = &table->options;
    if (o->steps_to_live > 0 && step > version && (uint64_t)step - (uint64_t)version > (uint64_t)o->steps_to_live)
        return true;
    return o->l2_weight_threshold > 0 && has_small_weights(table, row);
}

/* Whether to evict the entry. `read`: the record if the row is on disk, otherwise NULL. */
static bool should_evict(const vme_embedding *table, const embedding_shard *shard, const key_entry *entry, int64_t step,
                         const log_record *read)
{
    const vme_embedding_options *o = &table->options;
    if (entry->where >= ENTRY_WAITING)
        return o->steps_to_live > 0 && step - (int64_t)(entry->where & ~ENTRY_WAITING) > o->steps_to_live;
    if (read != NULL)
        return should_evict_row(table, read->version, read->numbers, step);
    return should_evict_row(table, embedding_note(table, shard, entry->where)->version,
                            embedding_row(table, shard, entry->where), step);
}

static void free_on_disk(vme_embedding *table, embedding_shard *shard, uint32_t record, uint32_t changed)
{
    embedding_log_drop(table, shard, record);
    shard->on_disk--;
    shard->live--;
    shard->changed -= changed > table->committed;
    shard->changed_now -= changed == table->sequence;
}

/* Evicts keys of one segment, and adds their number to `*gone`. */
static vme_status evict_in_segment(vme_embedding *table, embedding_shard *shard, key_segment *segment, int64_t step,
                                   int64_t *gone)
{
    for (int i = 0; i < SEGMENT;) {
        key_entry *entry = &segment->entries[i];
        const bool on_disk = table->log != NULL && entry->where < ENTRY_WAITING && entry->count & ON_DISK;
        if (on_disk) {
            const vme_status status = embedding_log_read(table, shard, entry->where, table->log->saved);
            if (status != VME_OK)
                return status;
        }
        if (entry->where == ENTRY_EMPTY
            || !should_evict(table, shard, entry, step, on_disk ? table->log->saved : NULL)) {
            i++;
            continue;
        }
        if (on_disk)
            free_on_disk(table, shard, entry->where, table->log->saved->changed);
        else if (entry->where < ENTRY_WAITING)
            embedding_row_free(table, shard, entry->where);
        else
            shard->waiting--;
        shard->keys--;
        ++*gone;
        i += !embedding_remove(table, segment, entry);
    }
    return VME_OK;
}

vme_status vme_embedding_evict(vme_context *context, vme_embedding *table, int64_t step, int64_t *evicted)
{
    vme_status status = embedding_saving_begin(table);
    if (status != VME_OK)
        return status;
    *evicted = 0;
    const bool any = table->options.steps_to_live > 0 || table->options.l2_weight_threshold > 0;
    for (int s = 0; any && s < SHARDS && status == VME_OK; s++) {
        embedding_shard *shard = &table->shards[s];
        /* iterates by the lowest hash of each segment, because the directory may grow while the lock is released */
        for (uint64_t hash = 0; status == VME_OK;) {
            pthread_rwlock_wrlock(&shard->lock);
            key_segment *segment = embedding_segment(shard, hash);
            status = evict_in_segment(table, shard, segment, step, evicted);
            const uint64_t next =
                segment->depth == 0 ? 0 : ((hash >> (64 - segment->depth)) + 1) << (64 - segment->depth);
            pthread_rwlock_unlock(&shard->lock);
            if (status == VME_OK && vme_stopping(context))
                status = vme_stopped_here(context);
            if (next == 0) /* it was the last segment */
                break;
            hash = next;
        }
    }
    embedding_saving_end(table);
    return status;
}
