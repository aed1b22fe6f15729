/* The rows of a shard: chunks of increasing size, which never move, and a list of free rows. */
#include "embedding/log.h"

#include <string.h>

static int64_t chunk_rows(const vme_embedding *table, int chunk)
{
    const int steps = table->chunk_steps, doubled = chunk < steps ? chunk : steps;
    const int64_t rows = INT64_C(1) << (FIRST_ROWS_BITS + doubled);
    if (table->log == NULL)
        return rows;
    const int64_t before = (((INT64_C(1) << doubled) - 1) << FIRST_ROWS_BITS) + (chunk - doubled) * rows,
                  left = table->rows_max - before;
    return left < rows ? left : rows;
}

static size_t chunk_bytes(const vme_embedding *table, int chunk)
{
    return (size_t)chunk_rows(table, chunk)
           * ((size_t)table->stride * sizeof(float) + sizeof(row_note) + (table->log != NULL ? sizeof(row_tier) : 0));
}

static vme_status add_chunk(vme_embedding *table, embedding_shard *shard)
{
    if (shard->chunk_count == shard->chunk_room) {
        const int32_t room = shard->chunk_room == 0 ? 8 : 2 * shard->chunk_room;
        row_chunk *chunks = embedding_memory(table, (size_t)room * sizeof *chunks);
        if (chunks == NULL)
            return VME_NO_MEMORY;
        if (shard->chunk_count > 0)
            memcpy(chunks, shard->chunks, (size_t)shard->chunk_count * sizeof *chunks);
        embedding_memory_free(table, shard->chunks, (size_t)shard->chunk_room * sizeof *chunks);
        shard->chunks = chunks;
        shard->chunk_room = room;
    }
    const size_t bytes = chunk_bytes(table, shard->chunk_count);
    float *rows = embedding_slab_memory(table, bytes);
    const bool in_slab = rows != NULL;
    if (rows == NULL && (rows = embedding_memory(table, bytes)) == NULL)
        return VME_NO_MEMORY;
    const int64_t count = chunk_rows(table, shard->chunk_count);
    row_note *notes = (row_note *)(void *)(rows + count * table->stride);
    row_tier *tiers = table->log == NULL ? NULL : (row_tier *)(void *)(notes + count);
    const uintptr_t before =
        (uintptr_t)embedding_first_row(table, (uint32_t)shard->chunk_count) * (uintptr_t)table->stride * sizeof(float);
    shard->chunks[shard->chunk_count++] = (row_chunk){(uintptr_t)rows - before, notes, tiers, in_slab};
    return VME_OK;
}

void embedding_rows_end(vme_embedding *table, embedding_shard *shard)
{
    for (int32_t i = 0; i < shard->chunk_count; i++)
        if (!shard->chunks[i].in_slab)
            embedding_memory_free(table, embedding_row(table, shard, embedding_first_row(table, (uint32_t)i)),
                                  chunk_bytes(table, i));
    embedding_memory_free(table, shard->chunks, (size_t)shard->chunk_room * sizeof *shard->chunks);
}

vme_status embedding_row_take(vme_embedding *table, embedding_shard *shard, uint32_t *row)
{
    vme_status status = VME_OK;
    if (shard->free_row < 0) {
        const bool bounded = table->log != NULL, full = shard->row_count == (bounded ? table->rows_max : ROWS_MAX);
        if (full && !bounded)
            return vme_fail(VME_NO_MEMORY, "the embedding table is full: 2^31 rows in one of its %d shards", SHARDS);
        if (!full && embedding_chunk(shard->row_count, table->chunk_steps) == (uint32_t)shard->chunk_count)
            status = add_chunk(table, shard);
        if (!full && status == VME_OK) {
            *row = shard->row_count++;
            return VME_OK;
        }
        if (!bounded || (!full && shard->row_count == 0))
            return status;
        /* evicts a row instead: rows_max is reached, or the quota is full before that */
        if ((status = embedding_make_room(table, shard)) != VME_OK)
            return status;
    }
    *row = (uint32_t)shard->free_row;
    shard->free_row = embedding_note(table, shard, *row)->key;
    return VME_OK;
}

void embedding_row_release(vme_embedding *table, embedding_shard *shard, uint32_t row)
{
    *embedding_note(table, shard, row) = (row_note){.key = shard->free_row};
    shard->free_row = row;
}

vme_status embedding_row_new(vme_embedding *table, embedding_shard *shard, int64_t key, uint32_t *row)
{
    vme_status status = VME_OK;
    if (table->log != NULL && shard->free_row < 0 && shard->row_count == table->rows_max)
        status = embedding_log_admits(table, shard);
    if (status == VME_OK)
        status = embedding_row_take(table, shard, row);
    if (status != VME_OK)
        return status;
    if (table->log != NULL) {
        *embedding_tier(table, shard, *row) = (row_tier){.record = NO_RECORD};
        embedding_row_used(table, shard, *row);
    }
    *embedding_note(table, shard, *row) =
        (row_note){.key = key, .epoch = table->epoch, .changed = table->sequence, .live = 1};
    shard->live++;
    shard->changed++;
    shard->changed_now++;
    return VME_OK;
}

void embedding_row_free(vme_embedding *table, embedding_shard *shard, uint32_t row)
{
    row_note *note = embedding_note(table, shard, row);
    shard->live--;
    shard->changed -= note->changed > table->committed;
    shard->changed_now -= note->changed == table->sequence;
    if (table->log != NULL)
        embedding_row_dirty(table, shard, row);
    embedding_row_release(table, shard, row);
}

void embedding_row_touch(vme_embedding *table, embedding_shard *shard, uint32_t row, row_note *note)
{
    if (table->log != NULL)
        embedding_row_dirty(table, shard, row);
    if (table->snapshot != NULL && note->epoch != table->epoch) {
        if ((note->changed > table->committed || !table->snapshot->incremental)
            && embedding_snapshot_reads(table, shard, note->key))
            embedding_keep(table, shard, note->key, note->version, note->freq, embedding_row(table, shard, row));
        note->epoch = table->epoch;
    }
    if (note->changed == table->sequence)
        return;
    shard->changed += note->changed <= table->committed;
    shard->changed_now++;
    note->changed = table->sequence;
}
