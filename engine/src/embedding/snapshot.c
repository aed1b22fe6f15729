/* Snapshots: the contents of tables at one moment, read piece by piece while training continues (copy on write).
 *
 * A snapshot increments the table's epoch. Reading a row marks it with the epoch. Training copies an unmarked row for
 * the snapshot before it changes it, and marks it (embedding_row_touch). New rows are marked from the start. So each
 * row is read once, as it was when the snapshot began, with weights and slots of the same moment.
 *
 * In a table with a log rows move, so keys are read in order of their hashes instead: all keys before the next one have
 * been read. Marks then only tell which rows are new or were copied. A bit in each key's entry (CHANGED) tells which
 * rows on disk the save must contain; otherwise an incremental save would have to read the whole log. */
#include "embedding/log.h"

#include <stdlib.h>
#include <string.h>

enum { COUNTERS_PIECE = 1 << 16 /* counters of a Bloom filter between two checks of the stop flag */ };

static size_t kept_bytes(const vme_embedding *table, bool waiting)
{
    return sizeof(kept_row) + (waiting ? 0 : (size_t)table->options.dim * (size_t)(1 + table->slots) * sizeof(float));
}

void embedding_keep(vme_embedding *table, embedding_shard *shard, int64_t key, int64_t version, uint32_t freq,
                    const float *numbers)
{
    vme_embedding_snapshot *snapshot = table->snapshot;
    const size_t bytes = kept_bytes(table, numbers == NULL);
    if ((numbers == NULL && snapshot->incremental) || atomic_load(&snapshot->failed))
        return;
    /* not charged to the table's quota, so that a save does not make training fail; freed when the snapshot ends */
    kept_row *kept = vme_scratch_new(table->context, bytes);
    if (kept == NULL) {
        atomic_store(&snapshot->failed, true);
        return;
    }
    *kept = (kept_row){.next = shard->kept, .key = key, .version = version, .freq = freq, .waiting = numbers == NULL};
    if (numbers != NULL)
        memcpy(kept->numbers, numbers, bytes - sizeof *kept);
    shard->kept = kept;
}

static void free_kept(vme_embedding *table, embedding_shard *shard)
{
    for (kept_row *kept = shard->kept, *next; kept != NULL; kept = next) {
        next = kept->next;
        vme_scratch_free(table->context, kept, kept_bytes(table, kept->waiting));
    }
    shard->kept = NULL;
}

static int by_address(const void *a, const void *b)
{
    const vme_embedding *x = *(vme_embedding *const *)a, *y = *(vme_embedding *const *)b;
    return (x > y) - (x < y);
}

static void begin(vme_embedding_snapshot *snapshot)
{
    vme_embedding *table = snapshot->table;
    table->epoch++;
    table->snapshot = snapshot;
    snapshot->sequence = table->sequence++;
    for (int s = 0; s < SHARDS; s++) {
        embedding_shard *shard = &table->shards[s];
        snapshot->last[s] = shard->row_count;
        snapshot->rows += snapshot->incremental ? shard->changed : shard->live;
        shard->changed_now = 0;
    }
}

vme_status vme_embedding_snapshot_new(vme_context *context, int count, vme_embedding *const *tables, bool incremental,
                                      vme_embedding_snapshot **snapshots)
{
    (void)context;
    vme_embedding **sorted = malloc(((size_t)count + 1) * sizeof *sorted);
    int made = 0, saving = 0;
    vme_status status = sorted == NULL ? vme_fail(VME_NO_MEMORY, "no memory for a snapshot") : VME_OK;
    for (; made < count && status == VME_OK; made++) {
        sorted[made] = tables[made];
        snapshots[made] = calloc(1, sizeof *snapshots[made]);
        if (snapshots[made] == NULL) {
            status = vme_fail(VME_NO_MEMORY, "no memory for a snapshot");
            break;
        }
        snapshots[made]->table = tables[made];
        snapshots[made]->incremental = incremental;
    }
    for (; saving < count && status == VME_OK; saving++)
        if ((status = embedding_saving_begin(tables[saving])) != VME_OK)
            break;
    if (status != VME_OK) {
        for (int i = 0; i < saving; i++)
            embedding_saving_end(tables[i]);
        for (int i = 0; i < made; i++)
            free(snapshots[i]);
        free(sorted);
        return status;
    }
    qsort(sorted, (size_t)count, sizeof *sorted, by_address); /* lock order: threads that begin snapshots of several
                                                               * tables cannot deadlock */
    for (int i = 0; i < count; i++)
        embedding_lock_all(sorted[i]);
    for (int i = 0; i < count; i++) {
        vme_embedding_ref(tables[i]);
        begin(snapshots[i]);
    }
    for (int i = count - 1; i >= 0; i--)
        embedding_unlock_all(sorted[i]);
    free(sorted);
    return VME_OK;
}

int64_t vme_embedding_snapshot_rows(const vme_embedding_snapshot *snapshot) { return snapshot->rows; }

/* Arrays for `n` rows, of which the first `at` are filled. */
typedef struct saved_rows {
    int64_t n, at;
    int64_t *keys, *freqs, *versions;
    float *values, *slots;
} saved_rows;

static void save_row(const vme_embedding *table, saved_rows *to, int64_t key, uint32_t freq, int64_t version,
                     const float *numbers)
{
    const int64_t dim = table->options.dim, slot_floats = dim * table->slots;
    to->keys[to->at] = key;
    to->freqs[to->at] = freq;
    to->versions[to->at] = version;
    memcpy(to->values + to->at * dim, numbers, (size_t)dim * sizeof(float));
    if (slot_floats > 0)
        memcpy(to->slots + to->at * slot_floats, numbers + dim, (size_t)slot_floats * sizeof(float));
    to->at++;
}

bool embedding_snapshot_reads(const vme_embedding *table, const embedding_shard *shard, int64_t key)
{
    const vme_embedding_snapshot *snapshot = table->snapshot;
    const int64_t s = shard - table->shards;
    return table->log == NULL || (!snapshot->done[s] && embedding_hash(table, key) >= snapshot->next[s]);
}

typedef struct hashed_key {
    uint64_t hash;
    int32_t at; /* index in the segment */
} hashed_key;

static int by_hash(const void *a, const void *b)
{
    const uint64_t x = ((const hashed_key *)a)->hash, y = ((const hashed_key *)b)->hash;
    return (x > y) - (x < y);
}

/* For a table with a log: saves the entry's row, unless it is new or was copied, or an incremental save omits it. */
static vme_status read_entry(const vme_embedding_snapshot *snapshot, embedding_shard *shard, const key_entry *entry,
                             saved_rows *to)
{
    vme_embedding *table = snapshot->table;
    if (!(entry->count & ON_DISK)) {
        const row_note *note = embedding_note(table, shard, entry->where);
        if (note->epoch != table->epoch && (!snapshot->incremental || note->changed > table->committed))
            save_row(table, to, note->key, note->freq, note->version, embedding_row(table, shard, entry->where));
        return VME_OK;
    }
    if (snapshot->incremental && !(entry->count & CHANGED(snapshot->sequence)))
        return VME_OK;
    const log_record *record = table->log->saved;
    vme_status status = embedding_log_read(table, shard, entry->where, table->log->saved);
    if (status == VME_OK && record->epoch != table->epoch
        && (!snapshot->incremental || record->changed > table->committed))
        save_row(table, to, record->key, record->freq, record->version, record->numbers);
    return status;
}

/* For a table with a log: saves the next rows of a segment, at most PIECE. */
static vme_status read_entries(vme_embedding_snapshot *snapshot, embedding_shard *shard, saved_rows *to)
{
    const int64_t s = shard - snapshot->table->shards, before = to->at;
    hashed_key keys[SEGMENT];
    size_t count = 0, read = 0;
    vme_status status = VME_OK;
    pthread_rwlock_rdlock(&shard->lock);
    const key_segment *segment = embedding_segment(shard, snapshot->next[s]);
    for (int i = 0; i < SEGMENT; i++)
        if (segment->entries[i].where < ENTRY_WAITING) {
            const uint64_t hash = embedding_hash(snapshot->table, segment->entries[i].key);
            if (hash >= snapshot->next[s])
                keys[count++] = (hashed_key){hash, i};
        }
    qsort(keys, count, sizeof *keys, by_hash);
    for (; read < count && to->at < to->n && to->at - before < PIECE && status == VME_OK; read++)
        status = read_entry(snapshot, shard, &segment->entries[keys[read].at], to);
    const int depth = segment->depth;
    if (read < count)
        snapshot->next[s] = keys[read].hash;
    else {
        snapshot->next[s] = depth == 0 ? 0 : ((snapshot->next[s] >> (64 - depth)) + 1) << (64 - depth);
        snapshot->done[s] = snapshot->next[s] == 0;
    }
    pthread_rwlock_unlock(&shard->lock);
    return status;
}

static void read_rows(vme_embedding_snapshot *snapshot, embedding_shard *shard, saved_rows *to)
{
    vme_embedding *table = snapshot->table;
    /* bounds the time under the lock, even if few of the rows have changed */
    const uint32_t last = snapshot->last[snapshot->shard],
                   stop = last - snapshot->row > 16 * PIECE ? snapshot->row + 16 * PIECE : last;
    pthread_rwlock_wrlock(&shard->lock);
    for (int taken = 0; snapshot->row < stop && to->at < to->n && taken < PIECE; snapshot->row++) {
        row_note *note = embedding_note(table, shard, snapshot->row);
        if (!note->live || note->epoch == table->epoch)
            continue;
        note->epoch = table->epoch;
        if (snapshot->incremental && note->changed <= table->committed)
            continue;
        save_row(table, to, note->key, note->freq, note->version, embedding_row(table, shard, snapshot->row));
        taken++;
    }
    pthread_rwlock_unlock(&shard->lock);
}

/* Takes copied rows, or waiting keys, from the shard's list; the others stay in it. Called when all rows have been
 * read, after which no more rows are copied. */
static void read_kept(vme_embedding *table, embedding_shard *shard, bool waiting, saved_rows *to)
{
    pthread_rwlock_wrlock(&shard->lock);
    kept_row *kept = shard->kept, *other = NULL;
    for (kept_row *next; kept != NULL && to->at < to->n; kept = next) {
        next = kept->next;
        if (kept->waiting != waiting) {
            kept->next = other;
            other = kept;
            continue;
        }
        if (waiting) {
            to->keys[to->at] = kept->key;
            to->freqs[to->at] = kept->freq;
            to->versions[to->at++] = kept->version;
        } else
            save_row(table, to, kept->key, kept->freq, kept->version, kept->numbers);
        vme_scratch_free(table->context, kept, kept_bytes(table, waiting));
    }
    while (other != NULL) {
        kept_row *next = other->next;
        other->next = kept;
        kept = other;
        other = next;
    }
    shard->kept = kept;
    pthread_rwlock_unlock(&shard->lock);
}

static vme_status check_failed(vme_embedding_snapshot *snapshot)
{
    if (atomic_load(&snapshot->failed))
        return vme_fail(VME_NO_MEMORY, "no memory to keep rows that change while they are saved");
    return VME_OK;
}

static vme_status check_notes(const vme_tensor *keys, const vme_tensor *freqs, const vme_tensor *versions, int64_t n)
{
    vme_status status;
    if ((status = embedding_expect("keys", keys, VME_INT64, n, 0)) != VME_OK
        || (status = embedding_expect("freqs", freqs, VME_INT64, n, 0)) != VME_OK)
        return status;
    return embedding_expect("versions", versions, VME_INT64, n, 0);
}

static vme_status check_rows(const vme_embedding *table, const vme_tensor *keys, const vme_tensor *freqs,
                             const vme_tensor *versions, const vme_tensor *values, const vme_tensor *slots, int64_t n)
{
    vme_status status = check_notes(keys, freqs, versions, n);
    if (status == VME_OK)
        status = embedding_expect("values", values, VME_FLOAT32, n, table->options.dim);
    if (status == VME_OK && table->slots > 0)
        status = embedding_expect("slots", slots, VME_FLOAT32, n, table->options.dim * table->slots);
    return status;
}

vme_status vme_embedding_snapshot_read(vme_context *context, vme_embedding_snapshot *snapshot, const vme_tensor *keys,
                                       const vme_tensor *freqs, const vme_tensor *versions, const vme_tensor *values,
                                       const vme_tensor *slots, int64_t *read)
{
    vme_embedding *table = snapshot->table;
    const int64_t n = vme_elements(keys);
    vme_status status = check_rows(table, keys, freqs, versions, values, slots, n);
    saved_rows to = {n,
                     0,
                     (int64_t *)keys->data,
                     (int64_t *)freqs->data,
                     (int64_t *)versions->data,
                     (float *)values->data,
                     table->slots > 0 ? (float *)slots->data : NULL};
    while (status == VME_OK && to.at < n && snapshot->shard < SHARDS) {
        if (vme_stopping(context))
            return vme_stopped_here(context);
        embedding_shard *shard = &table->shards[snapshot->shard];
        if (table->log == NULL ? snapshot->row == snapshot->last[snapshot->shard] : snapshot->done[snapshot->shard]) {
            snapshot->shard++;
            snapshot->row = 0;
        } else if (table->log == NULL)
            read_rows(snapshot, shard, &to);
        else
            status = read_entries(snapshot, shard, &to);
        if (status == VME_OK)
            status = check_failed(snapshot);
    }
    while (status == VME_OK && to.at < n && snapshot->kept_shard < SHARDS) {
        if (vme_stopping(context))
            return vme_stopped_here(context);
        read_kept(table, &table->shards[snapshot->kept_shard], false, &to);
        snapshot->kept_shard += to.at < n;
    }
    snapshot->read += to.at;
    *read = to.at;
    return status == VME_OK ? check_failed(snapshot) : status;
}

vme_status vme_embedding_snapshot_waiting(vme_context *context, vme_embedding_snapshot *snapshot,
                                          const vme_tensor *keys, const vme_tensor *freqs, const vme_tensor *versions,
                                          int64_t *read)
{
    vme_embedding *table = snapshot->table;
    const int64_t n = vme_elements(keys);
    vme_status status = check_notes(keys, freqs, versions, n);
    if (status == VME_OK && n < SEGMENT)
        status = vme_fail(VME_BAD_VALUE, "keys: expected room for %d or more", SEGMENT);
    saved_rows to = {n, 0, (int64_t *)keys->data, (int64_t *)freqs->data, (int64_t *)versions->data, NULL, NULL};
    while (status == VME_OK && !snapshot->incremental && snapshot->waiting_shard < SHARDS && n - to.at >= SEGMENT) {
        embedding_shard *shard = &table->shards[snapshot->waiting_shard];
        if (vme_stopping(context))
            return vme_stopped_here(context);
        pthread_rwlock_rdlock(&shard->lock);
        const key_segment *segment = embedding_segment(shard, snapshot->segment);
        for (int i = 0; i < SEGMENT; i++) {
            const key_entry *entry = &segment->entries[i];
            if (entry->where == ENTRY_EMPTY || entry->where < ENTRY_WAITING)
                continue;
            to.keys[to.at] = entry->key;
            to.freqs[to.at] = entry->count;
            to.versions[to.at++] = entry->where & ~ENTRY_WAITING;
        }
        const int depth = segment->depth;
        snapshot->segment = depth == 0 ? 0 : ((snapshot->segment >> (64 - depth)) + 1) << (64 - depth);
        pthread_rwlock_unlock(&shard->lock);
        snapshot->waiting_shard += snapshot->segment == 0; /* it was the last segment of the shard */
    }
    /* keys that were admitted after the snapshot began: it contains them as waiting, without rows */
    for (; status == VME_OK && !snapshot->incremental && snapshot->waiting_shard >= SHARDS
           && snapshot->waiting_shard < 2 * SHARDS && to.at < n;
         snapshot->waiting_shard += to.at < n)
        read_kept(table, &table->shards[snapshot->waiting_shard - SHARDS], true, &to);
    *read = to.at;
    return status == VME_OK ? check_failed(snapshot) : status;
}

vme_status vme_embedding_snapshot_bloom(vme_context *context, vme_embedding_snapshot *snapshot,
                                        const vme_tensor *counters)
{
    vme_embedding *table = snapshot->table;
    vme_status status = embedding_expect("counters", counters, VME_UINT16, table->bloom_counters, 0);
    for (int64_t i = 0; i < table->bloom_counters && status == VME_OK; i++) {
        if (i % COUNTERS_PIECE == 0 && vme_stopping(context))
            return vme_stopped_here(context);
        ((uint16_t *)counters->data)[i] = atomic_load_explicit(&table->bloom[i], memory_order_relaxed);
    }
    return status;
}

/* Clears the CHANGED marks of a save that has ended. If it failed, the rows are marked for the next save instead. */
static void mark_changes(embedding_shard *shard, uint32_t sequence, bool saved)
{
    for (uint64_t hash = 0;;) {
        pthread_rwlock_wrlock(&shard->lock);
        key_segment *segment = embedding_segment(shard, hash);
        for (int i = 0; i < SEGMENT; i++) {
            key_entry *entry = &segment->entries[i];
            if (entry->where >= ENTRY_WAITING || !(entry->count & CHANGED(sequence)))
                continue;
            entry->count &= ~CHANGED(sequence);
            if (!saved)
                entry->count |= CHANGED(sequence + 1);
        }
        hash = segment->depth == 0 ? 0 : ((hash >> (64 - segment->depth)) + 1) << (64 - segment->depth);
        pthread_rwlock_unlock(&shard->lock);
        if (hash == 0)
            return;
    }
}

void vme_embedding_snapshot_end(vme_embedding_snapshot *snapshot, bool saved)
{
    if (snapshot == NULL)
        return;
    vme_embedding *table = snapshot->table;
    embedding_lock_all(table);
    table->snapshot = NULL;
    if (saved)
        table->committed = snapshot->sequence;
    for (int s = 0; s < SHARDS; s++) {
        if (saved)
            table->shards[s].changed = table->shards[s].changed_now;
        free_kept(table, &table->shards[s]);
    }
    embedding_unlock_all(table);
    for (int s = 0; table->log != NULL && s < SHARDS; s++)
        mark_changes(&table->shards[s], snapshot->sequence, saved);
    embedding_saving_end(table);
    vme_embedding_unref(table);
    free(snapshot);
}

/* ---- restoring */
static vme_status put_row(vme_embedding *table, embedding_shard *shard, uint64_t hash, const saved_rows *from,
                          int64_t i)
{
    key_entry *entry = embedding_find(shard, from->keys[i], hash);
    uint32_t row;
    if (entry == NULL && embedding_insert(table, shard, from->keys[i], hash, &entry) != VME_OK)
        return VME_NO_MEMORY;
    vme_status status = VME_OK;
    if (table->log != NULL)
        embedding_pins_new(table, shard);
    if (entry->where < ENTRY_WAITING && entry->count & ON_DISK)
        status = embedding_bring_in(table, shard, entry, &row);
    else if (entry->where >= ENTRY_WAITING) {
        if ((status = embedding_row_new(table, shard, from->keys[i], &row)) != VME_OK)
            return status;
        entry->where = row;
        entry->count = 0;
        shard->waiting--;
    }
    if (status != VME_OK)
        return status;
    row = entry->where;
    if (table->log != NULL)
        embedding_row_dirty(table, shard, row);
    row_note *note = embedding_note(table, shard, row);
    shard->changed -= note->changed > table->committed; /* it is unchanged since the save that is restored */
    shard->changed_now -= note->changed == table->sequence;
    note->changed = 0;
    note->freq = from->freqs[i] < 0 ? 0 : from->freqs[i] > UINT32_MAX ? UINT32_MAX : (uint32_t)from->freqs[i];
    note->version = from->versions[i];
    embedding_note_step(table, note->version);
    const int64_t dim = table->options.dim, slot_floats = dim * table->slots;
    float *numbers = embedding_row(table, shard, row);
    memcpy(numbers, from->values + i * dim, (size_t)dim * sizeof(float));
    memset(numbers + dim, 0, (size_t)(table->stride - dim) * sizeof(float));
    if (slot_floats > 0)
        memcpy(numbers + dim, from->slots + i * slot_floats, (size_t)slot_floats * sizeof(float));
    return VME_OK;
}

vme_status vme_embedding_put(vme_context *context, vme_embedding *table, const vme_tensor *keys,
                             const vme_tensor *freqs, const vme_tensor *versions, const vme_tensor *values,
                             const vme_tensor *slots)
{
    const int64_t n = vme_elements(keys);
    vme_status status = check_rows(table, keys, freqs, versions, values, slots, n);
    if (status != VME_OK || (status = embedding_saving_begin(table)) != VME_OK)
        return status;
    atomic_fetch_add(&table->restores, 1);
    const saved_rows from = {n,
                             0,
                             (int64_t *)keys->data,
                             (int64_t *)freqs->data,
                             (int64_t *)versions->data,
                             (float *)values->data,
                             table->slots > 0 ? (float *)slots->data : NULL};
    for (int64_t i = 0; i < n && status == VME_OK; i++) {
        const uint64_t hash = embedding_hash(table, from.keys[i]);
        embedding_shard *shard = &table->shards[embedding_shard_of(hash)];
        if (i % PIECE == 0 && vme_stopping(context)) {
            status = vme_stopped_here(context);
            break;
        }
        pthread_rwlock_wrlock(&shard->lock);
        status = put_row(table, shard, hash, &from, i);
        pthread_rwlock_unlock(&shard->lock);
    }
    atomic_fetch_sub(&table->restores, 1);
    embedding_saving_end(table);
    return status;
}

vme_status vme_embedding_put_waiting(vme_context *context, vme_embedding *table, const vme_tensor *keys,
                                     const vme_tensor *freqs, const vme_tensor *versions)
{
    const int64_t n = vme_elements(keys);
    vme_status status = check_notes(keys, freqs, versions, n);
    atomic_fetch_add(&table->restores, 1);
    for (int64_t i = 0; i < n && status == VME_OK; i++) {
        const int64_t key = ((const int64_t *)keys->data)[i], freq = ((const int64_t *)freqs->data)[i],
                      version = ((const int64_t *)versions->data)[i];
        const uint64_t hash = embedding_hash(table, key);
        embedding_shard *shard = &table->shards[embedding_shard_of(hash)];
        if (i % PIECE == 0 && vme_stopping(context)) {
            status = vme_stopped_here(context);
            break;
        }
        pthread_rwlock_wrlock(&shard->lock);
        key_entry *entry = embedding_find(shard, key, hash);
        if (entry == NULL)
            status = embedding_insert(table, shard, key, hash, &entry);
        if (status == VME_OK && entry->where >= ENTRY_WAITING) {
            entry->count = freq < 0 ? 0 : freq > UINT32_MAX ? UINT32_MAX : (uint32_t)freq;
            entry->where = ENTRY_WAITING | (version < 0 ? 0 : version > VERSION_MAX ? VERSION_MAX : (uint32_t)version);
        }
        pthread_rwlock_unlock(&shard->lock);
    }
    atomic_fetch_sub(&table->restores, 1);
    return status;
}

vme_status vme_embedding_put_bloom(vme_context *context, vme_embedding *table, const vme_tensor *counters)
{
    vme_status status = embedding_expect("counters", counters, VME_UINT16, table->bloom_counters, 0);
    for (int64_t i = 0; i < table->bloom_counters && status == VME_OK; i++) {
        if (i % COUNTERS_PIECE == 0 && vme_stopping(context))
            return vme_stopped_here(context);
        atomic_store_explicit(&table->bloom[i], ((const uint16_t *)counters->data)[i], memory_order_relaxed);
    }
    return status;
}
