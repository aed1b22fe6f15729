/* Shared by the files of engine/src/embedding: the table, its shards, and how keys and rows are found.
 *
 * A table has VME_EMBEDDING_SHARDS shards; a key's hash determines its shard. A shard has
 *   - keys: a directory of segments (extendible hashing: Fagin et al. 1979), each an open-addressing table of fixed
 *     size whose buckets are cache lines. A full segment is split in two, so the cost of growing is bounded;
 *   - rows: chunks that never move; a row is a number within its shard.
 *
 * Locks: a shard's lock is only held for a bounded piece of work. Lookups hold the locks of all shards in shared mode,
 * in order of their numbers; a change of a shard holds that one lock exclusively; a snapshot begins with all of them.
 */
#ifndef VME_EMBEDDING_TABLE_H
#define VME_EMBEDDING_TABLE_H

#include <pthread.h>

#include "embedding/row_kernels.h"
#include "runtime/internal.h"
#include "vme_embedding.h"

enum {
    SHARD_BITS = 3,
    SHARDS = 1 << SHARD_BITS,
    SEGMENT_BITS = 10,
    SEGMENT = 1 << SEGMENT_BITS,
    SEGMENT_FULL = SEGMENT / 2, /* keys at which a segment is split */
    BUCKET = 4,                 /* entries in a cache line */
    DEPTH_MAX = 26,             /* maximum bits of a directory index */
    FIRST_ROWS_BITS = 5,        /* log2 of the rows of a shard's first chunk; each further chunk has twice as many ...
                                 */
    CHUNK_BYTES_MAX = 4 << 20,  /* ... up to about this size */
    CHUNK_STEPS_MAX = 24,
    PIECE = 256,          /* keys or rows processed under one lock */
    SLAB = 2 << 20,       /* bytes of a huge page, from which segments and chunks are allocated ... */
    SLABS_FROM = 1 << 20, /* ... once a table has more bytes than this */
};

/* ---- keys. Values of an entry's `where`: */
#define ENTRY_EMPTY   UINT32_C(0xffffffff)
#define ENTRY_WAITING UINT32_C(0x80000000) /* counted but not admitted; the low 31 bits hold its version */
#define VERSION_MAX   UINT32_C(0x7ffffffe)
#define ROWS_MAX      UINT32_C(0x7fffffff) /* rows of a shard; any other `where` is a row */
/* `count` of a key with a row: 0, or, if the row is on disk and `where` is its record in the log: */
#define ON_DISK           UINT32_C(0x80000000)
#define CHANGED(sequence) (UINT32_C(0x20000000) << ((sequence) & 1)) /* since that save, or since the one before */
#define USES_MAX          UINT32_C(0x1fffffff)                       /* lower bits: how often it was used (LFU) */
typedef struct key_entry {
    int64_t key;
    uint32_t where, count; /* `count`: of a waiting key its count; otherwise as above */
} key_entry;
typedef struct key_segment {
    int32_t depth, used;
    bool in_slab;
    _Alignas(64) key_entry entries[SEGMENT];
} key_segment;

/* ---- rows */
typedef struct row_note {
    int64_t key; /* in a free row: the next free row */
    int64_t version;
    uint32_t freq;
    uint32_t changed; /* number of the save before which it last changed */
    uint32_t epoch;   /* the last snapshot that need not read it any more */
    uint32_t live;
} row_note;
#define NO_RECORD UINT32_MAX
typedef struct row_tier { /* in tables with a log */
    uint32_t used;        /* time or number of uses; atomic under the shared lock */
    uint32_t record;      /* its record in the log, if that equals the row; NO_RECORD: none */
    uint32_t pinned;      /* the shard's number of the piece of work that needs it in memory */
} row_tier;
typedef struct row_chunk {
    uintptr_t origin; /* the address that the shard's row 0 would have: a row is at origin plus its number times its
                       * bytes */
    row_note *notes;
    row_tier *tiers; /* NULL: no log */
    bool in_slab;
} row_chunk;

typedef struct embedding_shard {
    pthread_rwlock_t lock;
    key_segment **directory; /* 1 << depth */
    int32_t depth;
    int64_t keys; /* number of entries in use */
    row_chunk *chunks;
    int32_t chunk_count, chunk_room;
    uint32_t row_count;                          /* row numbers assigned so far, including free rows */
    int64_t free_row;                            /* first free row; -1: none */
    int64_t live, waiting, changed, changed_now; /* rows; waiting keys; rows changed since the last save; rows changed
                                                  * since the current snapshot began */
    int64_t on_disk;                             /* how many live rows are on disk */
    uint32_t hand, pins;                         /* where the search for the next row to evict continues; number of
                                                  * pieces of work */
    struct kept_row *kept;                       /* rows changed by training before the current snapshot read them */
} embedding_shard;

struct vme_embedding {
    atomic_int references;
    vme_context *context;
    vme_embedding_options options; /* `defaults` points to the table's own copy */
    int slots;
    int64_t stride;  /* floats between rows */
    int chunk_steps; /* number of chunks that double in size */
    float *no_permission;
    _Atomic(uint16_t) *bloom; /* NULL: no filter. Not guarded by a lock */
    int64_t bloom_counters;
    int bloom_hashes;
    uint64_t seed;
    struct embedding_slabs {
        pthread_mutex_t lock;
        struct slab *all;
        char *next;                /* free bytes of the newest slab: their start ... */
        size_t left;               /* ... and their number */
        key_segment *free_segment; /* a list, linked through the segments' first pointers */
    } slabs;
    atomic_llong bytes, step;  /* bytes of memory; the highest version given to a row */
    struct embedding_log *log; /* NULL: all rows are in memory */
    uint32_t rows_max;         /* rows of a shard in memory, with a log */
    /* Written under all locks, readable under any of them. */
    uint32_t epoch, sequence, committed;
    vme_embedding_snapshot *snapshot;
    atomic_bool saving; /* a snapshot or an eviction is in progress */
    embedding_shard shards[SHARDS];
};

/* Shared by the shards of a log (log.h). */
typedef struct shard_log shard_log;
struct log_record;
typedef struct embedding_log {
    int file;
    char *folder;
    bool used_most; /* LFU: the most used rows stay in memory; otherwise LRU */
    int64_t record_bytes, segment_bytes;
    uint32_t segment_records, buffer_records;
    int32_t segments;         /* maximum of a shard */
    atomic_int segments_used; /* in all shards */
    shard_log *shards;
    struct log_record *saved;            /* memory for a record, for the save or eviction in progress */
    atomic_uint clock;                   /* counts pieces of work */
    atomic_llong memory_hits, disk_hits; /* keys of lookups found in memory and on disk */
} embedding_log;

struct vme_embedding_snapshot {
    vme_embedding *table;
    bool incremental;
    atomic_bool failed; /* memory for a copied row was short */
    int64_t rows, read; /* rows in all; rows read so far */
    uint32_t sequence;  /* number of the save */
    /* Positions: rows of each shard first, then copied rows of each shard, then waiting keys of each shard. */
    int shard, kept_shard, waiting_shard;
    uint32_t row, last[SHARDS]; /* the next row; the number of rows of each shard at the start */
    uint64_t segment;           /* the lowest hash of the next segment of waiting keys */
    /* For a table with a log, whose rows move, instead of `row`: the hash of each shard's next key, and whether all
     * keys were read. Under the shard's lock. */
    uint64_t next[SHARDS];
    bool done[SHARDS];
};

/* A copy of a row that changed before the snapshot read it: weights, then slots. */
typedef struct kept_row {
    struct kept_row *next;
    int64_t key, version;
    uint32_t freq;
    bool waiting; /* a waiting key without a row: `freq` is its count, and there are no numbers */
    float numbers[];
} kept_row;

/* ---- table.c */
/* Charged to the quota and the table's context; NULL, with the message stored: refused. 64-byte aligned. */
void *embedding_memory(vme_embedding *table, size_t bytes);
void embedding_memory_free(vme_embedding *table, void *memory, size_t bytes);
/* Memory from a slab, for large tables: huge pages avoid a TLB miss for each row. It is freed with the table. NULL,
 * without a message: the table is small, `bytes` are too many, or the quota has no room for a slab; use
 * embedding_memory. */
void *embedding_slab_memory(vme_embedding *table, size_t bytes);
void embedding_share(vme_embedding *table);
void embedding_unshare(vme_embedding *table);
/* Prefetches the locks that embedding_share takes. Reads and changes nothing, so no lock is needed. */
static inline void embedding_prefetch_locks(const vme_embedding *table)
{
    const char *shards = (const char *)table->shards;
    const char *end = (const char *)(table->shards + SHARDS);
    for (const char *line = shards; line < end; line += 64)
        __builtin_prefetch(line, 1);
}
void embedding_lock_all(vme_embedding *table);
void embedding_unlock_all(vme_embedding *table);
/* VME_BAD_VALUE, with a message, unless the tensor is contiguous with this dtype and shape (`n` rows; width 0: rank 1).
 */
vme_status embedding_expect(const char *name, const vme_tensor *tensor, vme_dtype dtype, int64_t n, int64_t width);

void embedding_note_step(vme_embedding *table, int64_t step);

/* ---- keys.c */
static inline uint64_t embedding_mixed(uint64_t h)
{
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 32;
}
/* Seeded, so that keys cannot be chosen to collide. */
static inline uint64_t embedding_hash(const vme_embedding *table, int64_t key)
{
    return embedding_mixed((uint64_t)key ^ table->seed);
}
static inline int embedding_shard_of(uint64_t hash) { return (int)(hash & (SHARDS - 1)); }
static inline key_segment *embedding_segment(const embedding_shard *shard, uint64_t hash)
{
    return shard->directory[shard->depth == 0 ? 0 : hash >> (64 - shard->depth)];
}
/* The first entry of a key's bucket. A bucket fills from its first entry on; a key is in a later bucket only if all
 * buckets from its own to that one were full. */
static inline uint32_t embedding_slot(uint64_t hash) { return (uint32_t)(hash >> SHARD_BITS) & (SEGMENT - BUCKET); }
static inline key_entry *embedding_find_in(key_segment *segment, int64_t key, uint64_t hash)
{
    for (uint32_t at = embedding_slot(hash);; at = (at + BUCKET) & (SEGMENT - 1)) {
        key_entry *bucket = &segment->entries[at];
        uint32_t same = 0; /* branch-free, because branches would be unpredictable */
        for (int i = 0; i < BUCKET; i++)
            same |= (uint32_t)(bucket[i].key == key) << i;
        if (same != 0) { /* a live entry comes before empty ones */
            key_entry *entry = bucket + __builtin_ctz(same);
            return entry->where == ENTRY_EMPTY ? NULL : entry;
        }
        if (bucket[BUCKET - 1].where == ENTRY_EMPTY)
            return NULL;
    }
}
static inline key_entry *embedding_find(const embedding_shard *shard, int64_t key, uint64_t hash)
{
    return embedding_find_in(embedding_segment(shard, hash), key, hash);
}
vme_status embedding_keys_start(vme_embedding *table, embedding_shard *shard);
void embedding_keys_end(vme_embedding *table, embedding_shard *shard);
/* Inserts a new entry for a key that is not present, waiting with count 0; other entries may move. VME_NO_MEMORY:
 * nothing changed. */
vme_status embedding_insert(vme_embedding *table, embedding_shard *shard, int64_t key, uint64_t hash,
                            key_entry **entry);
/* Removes the entry; other entries of its segment may move. Returns true if a later one took its place, so the same
 * place must be checked again. */
bool embedding_remove(vme_embedding *table, key_segment *segment, key_entry *entry);

/* ---- rows.c */
/* The chunk of a row, without an unpredictable branch. */
static inline uint32_t embedding_chunk(uint32_t row, int steps)
{
    const uint32_t group = (row >> FIRST_ROWS_BITS) + 1, behind = group >> steps; /* groups after the growing chunks */
    const uint32_t growing = 31 - (uint32_t)__builtin_clz(group);
    return (growing < (uint32_t)steps ? growing : (uint32_t)steps) + behind - (behind != 0);
}
static inline uint32_t embedding_first_row(const vme_embedding *table, uint32_t chunk)
{
    const uint32_t steps = (uint32_t)table->chunk_steps;
    return chunk <= steps ? ((UINT32_C(1) << chunk) - 1) << FIRST_ROWS_BITS
                          : ((UINT32_C(1) << steps) * (chunk - steps + 1) - 1) << FIRST_ROWS_BITS;
}
static inline float *embedding_row(const vme_embedding *table, const embedding_shard *shard, uint32_t row)
{
    const row_chunk *chunk = &shard->chunks[embedding_chunk(row, table->chunk_steps)];
    return (float *)(chunk->origin + (uintptr_t)row * (uintptr_t)table->stride * sizeof(float));
}
static inline row_note *embedding_note(const vme_embedding *table, const embedding_shard *shard, uint32_t row)
{
    const uint32_t chunk = embedding_chunk(row, table->chunk_steps);
    return shard->chunks[chunk].notes + (row - embedding_first_row(table, chunk));
}
void embedding_rows_end(vme_embedding *table, embedding_shard *shard);
/* Takes a free row, without a key. With a log, another row may move to disk for it, and records of others may move. */
vme_status embedding_row_take(vme_embedding *table, embedding_shard *shard, uint32_t *row);
void embedding_row_release(vme_embedding *table, embedding_shard *shard, uint32_t row);
/* Takes a row for the key: live, with undefined contents; the current snapshot does not read it. */
vme_status embedding_row_new(vme_embedding *table, embedding_shard *shard, int64_t key, uint32_t *row);
void embedding_row_free(vme_embedding *table, embedding_shard *shard, uint32_t row);
/* Call before a row changes: counts it as changed, and copies it for the current snapshot if that has not read it.
 * Never fails; if memory is short, the snapshot fails. */
void embedding_row_touch(vme_embedding *table, embedding_shard *shard, uint32_t row, row_note *note);
/* The initial weights of a key without a row. */
static inline const float *embedding_default(const vme_embedding *table, int64_t key)
{
    int64_t row = key % table->options.default_rows;
    return table->options.defaults + (row < 0 ? row + table->options.default_rows : row) * table->options.dim;
}
static inline bool embedding_filters(const vme_embedding *table) { return table->options.filter_freq > 1; }
/* The weights that a lookup reads for a key that was not admitted. */
static inline const float *embedding_stand_in(const vme_embedding *table, int64_t key)
{
    return embedding_filters(table) ? table->no_permission : embedding_default(table, key);
}
/* The weights that a lookup of the key reads; `entry`: the key's entry, or NULL. */
static inline const float *embedding_weights(const vme_embedding *table, const embedding_shard *shard, int64_t key,
                                             const key_entry *entry)
{
    return entry == NULL || entry->where >= ENTRY_WAITING ? embedding_stand_in(table, key)
                                                          : embedding_row(table, shard, entry->where);
}

/* ---- tiers.c: for tables with a log */
/* Maximum keys of one piece of work, whose rows are in memory at the same time. */
int64_t embedding_piece(const vme_embedding *table);
row_tier *embedding_tier(const vme_embedding *table, const embedding_shard *shard, uint32_t row);
/* Begins a piece of work, under the shard's lock: rows that it uses stay in memory until the next one begins. */
void embedding_pins_new(vme_embedding *table, embedding_shard *shard);
void embedding_row_used(vme_embedding *table, embedding_shard *shard, uint32_t row);
/* Call before the row changes: it will differ from its record. */
void embedding_row_dirty(vme_embedding *table, embedding_shard *shard, uint32_t row);
/* Moves a row to disk, which frees its place in memory. */
vme_status embedding_make_room(vme_embedding *table, embedding_shard *shard);
/* Brings the entry's row into memory. On failure nothing changed. */
vme_status embedding_bring_in(vme_embedding *table, embedding_shard *shard, key_entry *entry, uint32_t *row);
/* Rows that a lookup read from disk. Initialize to zero; the owner ends it. */
typedef struct cold_rows {
    void *memory;
    size_t bytes;
} cold_rows;
vme_status embedding_read_tiers(vme_embedding *table, int64_t n, const int64_t *keys, const float **rows,
                                cold_rows *cold);
void embedding_cold_end(vme_embedding *table, cold_rows *cold);

/* ---- bloom.c */
vme_status embedding_bloom_start(vme_embedding *table);
/* Adds `count` to the key's count; returns the filter's count. */
uint32_t embedding_bloom_count(vme_embedding *table, int64_t key, uint32_t count);

/* ---- lookup.c */
/* The address of each key's weights, in `rows`. Called under shared locks, which are released in between if there is a
 * log. At most `embedding_piece` keys. Rows are valid while the locks are held and until `cold` is used again. */
vme_status embedding_read(vme_embedding *table, int64_t n, const int64_t *keys, const float **rows, cold_rows *cold);
/* The factor by which a bag's sum is scaled: for `count` ids with these sums of weights and of squared weights. */
float embedding_bag_factor(int combiner, int64_t count, double weights, double squares);
/* Checks bags, and counts bags and ids. `singles` tells whether each bag has exactly one id. */
vme_status embedding_bags_check(const vme_embedding_bags *bags, bool written, int64_t *bag_count, int64_t *id_count,
                                bool *singles);

/* ---- eviction.c */
/* A table has at most one save or eviction in progress. */
vme_status embedding_saving_begin(vme_embedding *table);
void embedding_saving_end(vme_embedding *table);

/* ---- snapshot.c */
/* Whether the current snapshot has yet to read the key, in a table with a log; without one the rows' marks tell. */
bool embedding_snapshot_reads(const vme_embedding *table, const embedding_shard *shard, int64_t key);
/* Copies a row, or (`numbers` NULL) a waiting key, for the current snapshot. */
void embedding_keep(vme_embedding *table, embedding_shard *shard, int64_t key, int64_t version, uint32_t freq,
                    const float *numbers);

#endif
