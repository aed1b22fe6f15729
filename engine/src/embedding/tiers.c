/* Tables with two tiers of rows: each shard has a bounded number of rows in memory, and the others in its log.
 *
 * A row that a lookup or a gradient step needs is read into memory. If memory is full, it replaces another row: the
 * least recently or least frequently used one of the next SAMPLE rows (Redis approximates LRU and LFU by samples too).
 * A row in memory keeps its record in the log while it is unchanged, so that its eviction needs no write. */
#include "embedding/log.h"

#include <string.h>

enum {
    SAMPLE = 8, /* rows from which one is chosen for eviction */
    WAITS = 16, /* of the rows read from disk, one in this many waits for a busy shard */
};

int64_t embedding_piece(const vme_embedding *table)
{
    enum { BYTES = 4 << 20 };
    if (table->log == NULL || table->log->record_bytes * PIECE <= BYTES)
        return PIECE;
    const int64_t rows = BYTES / table->log->record_bytes;
    return rows < 1 ? 1 : rows;
}

row_tier *embedding_tier(const vme_embedding *table, const embedding_shard *shard, uint32_t row)
{
    const uint32_t chunk = embedding_chunk(row, table->chunk_steps);
    return shard->chunks[chunk].tiers + (row - embedding_first_row(table, chunk));
}

/* Counts a use. Atomic, because lookups hold the shard's lock in shared mode only. */
static void use(const vme_embedding *table, row_tier *tier, uint32_t now)
{
    uint32_t used = now;
    if (table->log->used_most) {
        used = __atomic_load_n(&tier->used, __ATOMIC_RELAXED);
        used += used < USES_MAX;
    }
    __atomic_store_n(&tier->used, used, __ATOMIC_RELAXED);
}

static uint32_t tick(vme_embedding *table) { return (uint32_t)atomic_fetch_add(&table->log->clock, 1); }

void embedding_row_used(vme_embedding *table, embedding_shard *shard, uint32_t row)
{
    row_tier *tier = embedding_tier(table, shard, row);
    tier->pinned = shard->pins;
    use(table, tier, (uint32_t)atomic_load_explicit(&table->log->clock, memory_order_relaxed));
}

void embedding_pins_new(vme_embedding *table, embedding_shard *shard)
{
    shard->pins++;
    tick(table);
}

void embedding_row_dirty(vme_embedding *table, embedding_shard *shard, uint32_t row)
{
    row_tier *tier = embedding_tier(table, shard, row);
    if (tier->record != NO_RECORD)
        embedding_log_drop(table, shard, tier->record);
    tier->record = NO_RECORD;
}

/* ---- eviction to disk */
/* The row with the lowest value is evicted first. */
static uint32_t eviction_rank(const vme_embedding *table, const row_tier *tier, uint32_t now)
{
    return table->log->used_most ? tier->used : UINT32_MAX - (now - tier->used);
}

/* Chooses the row to evict; ROWS_MAX: none, because the current piece of work has pinned all of them. */
static uint32_t choose_victim(const vme_embedding *table, embedding_shard *shard)
{
    const uint32_t now = (uint32_t)atomic_load_explicit(&table->log->clock, memory_order_relaxed);
    uint32_t chosen = ROWS_MAX, lowest = 0;
    int seen = 0;
    for (uint32_t tries = 0; tries < shard->row_count && seen < SAMPLE; tries++) {
        const uint32_t row = shard->hand;
        shard->hand = row + 1 < shard->row_count ? row + 1 : 0;
        row_tier *tier = embedding_tier(table, shard, row);
        if (!embedding_note(table, shard, row)->live || tier->pinned == shard->pins)
            continue;
        const uint32_t of = eviction_rank(table, tier, now);
        if (chosen == ROWS_MAX || of < lowest) {
            chosen = row;
            lowest = of;
        }
        if (table->log->used_most)
            tier->used -= tier->used / 16; /* exponential decay of old uses */
        seen++;
    }
    return chosen;
}

static uint32_t changes_of(const vme_embedding *table, uint32_t changed)
{
    if (changed <= table->committed)
        return 0;
    /* the change belongs to the current snapshot if it was made before that began, otherwise to the next one */
    return CHANGED(table->snapshot != NULL && changed < table->sequence ? table->sequence - 1 : table->sequence);
}

vme_status embedding_make_room(vme_embedding *table, embedding_shard *shard)
{
    const uint32_t row = choose_victim(table, shard);
    if (row == ROWS_MAX)
        return vme_fail(VME_NO_MEMORY, "the embedding table's memory for rows is too small for one step: raise the "
                                       "memory of its storage");
    const row_note *note = embedding_note(table, shard, row);
    row_tier *tier = embedding_tier(table, shard, row);
    uint32_t record = tier->record;
    if (record == NO_RECORD) {
        vme_status status = embedding_log_append(table, shard, note, embedding_row(table, shard, row), &record);
        if (status != VME_OK)
            return status;
    }
    key_entry *entry = embedding_find(shard, note->key, embedding_hash(table, note->key));
    entry->where = record;
    entry->count = ON_DISK | changes_of(table, note->changed)
                   | (table->log->used_most ? tier->used < USES_MAX ? tier->used : USES_MAX : 0);
    tier->record = NO_RECORD;
    embedding_row_release(table, shard, row);
    shard->on_disk++;
    return VME_OK;
}

/* ---- rows read into memory */
/* `from`: the entry's record; NULL: reads it from the log. */
static vme_status bring_in(vme_embedding *table, embedding_shard *shard, key_entry *entry, const log_record *from,
                           uint32_t *row)
{
    vme_status status = embedding_row_take(table, shard, row);
    if (status != VME_OK)
        return status;
    if (from == NULL) {
        log_record *one = embedding_log_room(table, shard);
        if ((status = embedding_log_read(table, shard, entry->where, one)) != VME_OK) {
            embedding_row_release(table, shard, *row);
            return status;
        }
        from = one;
    }
    float *numbers = embedding_row(table, shard, *row);
    const int64_t filled = table->options.dim * (1 + table->slots);
    memcpy(numbers, from->numbers, (size_t)filled * sizeof *numbers);
    memset(numbers + filled, 0, (size_t)(table->stride - filled) * sizeof *numbers);
    *embedding_note(table, shard, *row) = (row_note){.key = from->key,
                                                     .version = from->version,
                                                     .freq = from->freq,
                                                     .changed = from->changed,
                                                     .epoch = from->epoch,
                                                     .live = 1};
    const uint32_t now = (uint32_t)atomic_load_explicit(&table->log->clock, memory_order_relaxed);
    const uint32_t uses = entry->count & USES_MAX;
    *embedding_tier(table, shard, *row) = (row_tier){.used = table->log->used_most ? uses + (uses < USES_MAX) : now,
                                                     .record = entry->where,
                                                     .pinned = shard->pins - 1};
    entry->where = *row;
    entry->count = 0;
    shard->on_disk--;
    return VME_OK;
}

vme_status embedding_bring_in(vme_embedding *table, embedding_shard *shard, key_entry *entry, uint32_t *row)
{
    return bring_in(table, shard, entry, NULL, row);
}

/* ---- lookups */
typedef struct cold_key {
    uint64_t hash;
    uint32_t record;
    int16_t at; /* index in the piece */
    bool read;
} cold_key;

static log_record *record_at(const vme_embedding *table, const cold_rows *cold, int64_t at)
{
    return (log_record *)(void *)((char *)cold->memory + at * table->log->record_bytes);
}

static inline void prefetch_row(const float *row, int64_t dim)
{
    enum { LINES = 8 }; /* the hardware prefetcher does the rest */
    const char *line = (const char *)row, *end = (const char *)(row + dim);
    for (int i = 0; i < LINES && line < end; i++, line += 64)
        __builtin_prefetch(line);
}

/* One pass over the keys under shared locks; writes the addresses of rows in memory. Rows on disk: with `cold` NULL
 * they are listed. Otherwise they are taken from the records that were read for the list, or read here if they were
 * evicted or their records moved in between. */
static vme_status find_all(vme_embedding *table, int64_t n, const int64_t *keys, const float **rows, cold_key *list,
                           int *listed, const cold_rows *cold)
{
    int next = 0; /* index in the list */
    const uint32_t now = tick(table);
    int64_t hot = 0;
    int on_disk = 0;
    vme_status status = VME_OK;
    uint64_t hashes[PIECE];
    row_tier *tiers[PIECE]; /* of rows in memory */
    for (int64_t i = 0; i < n; i++) {
        hashes[i] = embedding_hash(table, keys[i]);
        __builtin_prefetch(&embedding_segment(&table->shards[embedding_shard_of(hashes[i])], hashes[i])
                                ->entries[embedding_slot(hashes[i])]);
    }
    for (int64_t i = 0; i < n && status == VME_OK; i++) {
        const uint64_t hash = hashes[i];
        embedding_shard *shard = &table->shards[embedding_shard_of(hash)];
        const key_entry *entry = embedding_find(shard, keys[i], hash);
        if (entry == NULL || entry->where >= ENTRY_WAITING)
            rows[i] = embedding_stand_in(table, keys[i]);
        else if (!(entry->count & ON_DISK)) {
            rows[i] = embedding_row(table, shard, entry->where);
            tiers[hot++] = embedding_tier(table, shard, entry->where);
            __builtin_prefetch(tiers[hot - 1], 1);
            prefetch_row(rows[i], table->options.dim);
        } else if (cold == NULL)
            list[on_disk++] = (cold_key){.hash = hash, .record = entry->where, .at = (int16_t)i};
        else {
            log_record *to = record_at(table, cold, i);
            while (next < *listed && list[next].at < i)
                next++;
            if (next == *listed || list[next].at != i || list[next].record != entry->where)
                status = embedding_log_read(table, shard, entry->where, to);
            rows[i] = to->numbers;
        }
    }
    for (int64_t i = 0; i < hot; i++)
        use(table, tiers[i], now);
    if (cold == NULL) {
        *listed = on_disk;
        atomic_fetch_add_explicit(&table->log->memory_hits, hot, memory_order_relaxed);
        atomic_fetch_add_explicit(&table->log->disk_hits, on_disk, memory_order_relaxed);
    }
    return status;
}

static vme_status room_for(vme_embedding *table, int64_t n, cold_rows *cold)
{
    const size_t bytes = (size_t)(n * table->log->record_bytes);
    if (bytes <= cold->bytes)
        return VME_OK;
    embedding_cold_end(table, cold);
    cold->memory = vme_scratch_new(table->context, bytes);
    cold->bytes = cold->memory == NULL ? 0 : bytes;
    return cold->memory == NULL ? VME_NO_MEMORY : VME_OK;
}

void embedding_cold_end(vme_embedding *table, cold_rows *cold)
{
    if (cold->memory != NULL)
        vme_scratch_free(table->context, cold->memory, cold->bytes);
    *cold = (cold_rows){0};
}

vme_status embedding_read_tiers(vme_embedding *table, int64_t n, const int64_t *keys, const float **rows,
                                cold_rows *cold)
{
    cold_key list[PIECE];
    int listed = 0;
    vme_status status = find_all(table, n, keys, rows, list, &listed, NULL);
    if (listed == 0 || status != VME_OK || (status = room_for(table, n, cold)) != VME_OK)
        return status;
    for (int i = 0; i < listed; i++) {
        cold_key *one = &list[i];
        embedding_shard *shard = &table->shards[embedding_shard_of(one->hash)];
        one->read = embedding_log_hold(table, shard, one->record, record_at(table, cold, one->at));
    }
    embedding_unshare(table); /* so that no other thread waits for the disk */
    for (int i = 0; i < listed; i++) {
        const cold_key *one = &list[i];
        embedding_shard *shard = &table->shards[embedding_shard_of(one->hash)];
        if (one->read)
            continue;
        const vme_status read = embedding_log_read_held(table, shard, one->record, record_at(table, cold, one->at));
        if (status == VME_OK)
            status = read;
    }
    for (int i = 0; i < listed && status == VME_OK; i++) {
        const cold_key *one = &list[i];
        embedding_shard *shard = &table->shards[embedding_shard_of(one->hash)];
        uint32_t row;
        /* if the shard is locked, only one row in WAITS waits for it; the others stay on disk until a later lookup */
        if (pthread_rwlock_trywrlock(&shard->lock) != 0) {
            if (one->record % WAITS != 0)
                continue;
            pthread_rwlock_wrlock(&shard->lock);
        }
        key_entry *entry = embedding_find(shard, keys[one->at], one->hash);
        if (entry != NULL && entry->where == one->record && entry->count & ON_DISK)
            /* on failure the row stays on disk; the lookup uses the record */
            (void)!bring_in(table, shard, entry, record_at(table, cold, one->at), &row);
        pthread_rwlock_unlock(&shard->lock);
    }
    embedding_share(table);
    if (status == VME_OK)
        status = find_all(table, n, keys, rows, list, &listed, cold);
    for (int i = 0; i < listed; i++)
        embedding_log_let_go(table, &table->shards[embedding_shard_of(list[i].hash)], list[i].record);
    return status;
}
