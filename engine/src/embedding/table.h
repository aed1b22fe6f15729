/* Shared by the files of engine/src/embedding: the table, its shards, and the lookup of keys and rows.
 *
 * A table has VME_EMBEDDING_SHARDS shards; a key's hash determines its shard. A shard has
 *   - keys: a directory of segments (extendible hashing: Fagin et al. 1979). A segment is an open-addressing table of
 *     fixed size whose buckets are cache lines. A full segment is split in two, so the cost of growing is bounded;
 *   - rows: chunks that never move. Rows are numbered within their shard.
 *
 * Locks: a shard's lock is only held for a bounded piece of work. Lookups take the locks of all shards in shared mode,
 * in order of the shards' numbers. A change of a shard takes its lock exclusively. A snapshot begins and ends under the
 * exclusive locks of all shards. */
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
    SEGMENT_FULL = SEGMENT / 2, /* keys from which on a segment is split before an insertion */
    BUCKET = 4,                 /* entries of a bucket: one cache line */
    DEPTH_MAX = 26,             /* maximum bits of a directory index */
    FIRST_ROWS_BITS = 5,        /* log2 of the rows of a shard's first chunk; chunks double in size ... */
    CHUNK_BYTES_MAX = 4 << 20,  /* ... up to about this many bytes */
    CHUNK_STEPS_MAX = 24,
    PIECE = 256,          /* maximum keys or rows of a piece of work, processed without releasing the lock */
    SLAB = 2 << 20,       /* bytes of a slab, one huge page; segments and chunks are allocated from slabs ... */
    SLABS_FROM = 1 << 20, /* ... once a table has at least this many bytes */
};

/* ---- keys. Values of an entry's `where`; any other value is a row number: */
#define ENTRY_EMPTY   UINT32_C(0xffffffff)
#define ENTRY_WAITING UINT32_C(0x80000000) /* counted but not admitted; the low 31 bits hold its version */
#define VERSION_MAX   UINT32_C(0x7ffffffe)
#define ROWS_MAX      UINT32_C(0x7fffffff) /* maximum rows of a shard; as a row number: none */
/* `count` of a key with a row: 0, or these bits if the row is on disk and `where` is its record in the log. There are
 * two CHANGED bits: for the current save and for the next one. */
#define ON_DISK           UINT32_C(0x80000000)
#define CHANGED(sequence) (UINT32_C(0x20000000) << ((sequence) & 1)) /* the save `sequence` must contain the row */
#define USES_MAX          UINT32_C(0x1fffffff)                       /* lower bits: number of uses (LFU) */
typedef struct key_entry {
    int64_t key;
    uint32_t where, count; /* `count` of a waiting key: how often it was counted; otherwise as above */
} key_entry;
typedef struct key_segment {
    int32_t depth, used; /* bits of the hash that select the segment; entries in use */
    bool in_slab;
    _Alignas(64) key_entry entries[SEGMENT];
} key_segment;

/* ---- rows */
typedef struct row_note {
    int64_t key; /* of a free row: the next free row, or -1 */
    int64_t version;
    uint32_t freq;
    uint32_t changed; /* `sequence` at the last change: the number of the first save that contains it */
    uint32_t epoch;   /* the last snapshot that has read or copied the row, or does not contain it because it is new */
    uint32_t live;
} row_note;
#define NO_RECORD UINT32_MAX
typedef struct row_tier { /* in tables with a log */
    uint32_t used;        /* LRU: the clock at the last use; LFU: number of uses. Atomic under the shared lock */
    uint32_t record;      /* the record in the log that equals the row; NO_RECORD: none */
    uint32_t pinned;      /* the row must stay in memory while this equals the shard's `pins` */
} row_tier;
typedef struct row_chunk {
    uintptr_t origin; /* the address of the chunk's row r, minus r times the bytes between rows; may be outside of it */
    row_note *notes;
    row_tier *tiers; /* NULL: no log */
    bool in_slab;
} row_chunk;

typedef struct embedding_shard {
    pthread_rwlock_t lock;
    key_segment **directory; /* 1 << depth */
    int32_t depth;
    int64_t keys; /* entries in use */
    row_chunk *chunks;
    int32_t chunk_count, chunk_room;
    uint32_t row_count;                          /* row numbers assigned so far, including free rows */
    int64_t free_row;                            /* head of the list of free rows; -1: empty */
    int64_t live, waiting, changed, changed_now; /* rows; waiting keys; rows changed since the last save; rows changed
                                                  * since the current snapshot began */
    int64_t on_disk;                             /* how many live rows are on disk */
    uint32_t hand, pins;                         /* row at which the search for a row to evict continues; number of the
                                                  * current piece of work */
    struct kept_row *kept;                       /* copies of rows that changed before the current snapshot read them */
} embedding_shard;

struct vme_embedding {
    atomic_int references;
    vme_context *context;
    vme_embedding_options options; /* `defaults` points to the table's own copy */
    int slots;
    int64_t stride;           /* floats between rows */
    int chunk_steps;          /* number of times that chunks double in size */
    float *no_permission;     /* the weights of a key that waits for admission */
    _Atomic(uint16_t) *bloom; /* NULL: no filter. Atomic, not guarded by a lock */
    int64_t bloom_counters;
    int bloom_hashes;
    uint64_t seed;
    struct embedding_slabs {
        pthread_mutex_t lock;
        struct slab *all;
        char *next;                /* start of the free bytes of the current slab */
        size_t left;               /* number of these bytes */
        key_segment *free_segment; /* a list, linked through the segments' first pointers */
    } slabs;
    atomic_llong bytes, step;  /* bytes of memory, bounded by the quota; the highest global step so far */
    atomic_int restores;       /* calls under way that restore rows, which may pass the quota: table.c */
    struct embedding_log *log; /* NULL: all rows are in memory */
    uint32_t rows_max;         /* rows of a shard in memory, with a log */
    /* Written under all shards' exclusive locks, read under any of them: number of snapshots; number of the next save;
     * number of the last save that succeeded. */
    uint32_t epoch, sequence, committed;
    vme_embedding_snapshot *snapshot;
    atomic_bool saving; /* a snapshot, an eviction or a restore is in progress */
    embedding_shard shards[SHARDS];
};

/* The log of all shards (log.h). */
typedef struct shard_log shard_log;
struct log_record;
typedef struct embedding_log {
    int file;
    char *folder;
    bool used_most; /* LFU: the most frequently used rows stay in memory; otherwise LRU */
    int64_t record_bytes, segment_bytes;
    uint32_t segment_records, buffer_records;
    int32_t segments;         /* maximum segments of a shard */
    atomic_int segments_used; /* segments with records, of all shards */
    shard_log *shards;
    struct log_record *saved;            /* memory for one record, used by the save or eviction in progress */
    atomic_uint clock;                   /* LRU's time: number of pieces of work so far */
    atomic_llong memory_hits, disk_hits; /* keys of lookups found in memory and on disk */
} embedding_log;

struct vme_embedding_snapshot {
    vme_embedding *table;
    bool incremental;
    atomic_bool failed; /* a row could not be copied for lack of memory */
    int64_t rows, read; /* rows in all; rows read so far */
    uint32_t sequence;  /* number of the save */
    /* Positions of the reader: rows of each shard, then copied rows of each shard, then waiting keys of each shard. */
    int shard, kept_shard, waiting_shard;
    uint32_t row, last[SHARDS]; /* the next row; each shard's row_count when the snapshot began */
    uint64_t segment;           /* lowest hash of the next segment to search for waiting keys */
    /* Instead of `row` in a table with a log, whose rows move: the hash of each shard's next key, and whether all keys
     * have been read. Under the shard's lock. */
    uint64_t next[SHARDS];
    bool done[SHARDS];
};

/* A copy of a row that changed before the snapshot had read it: weights, then slots. */
typedef struct kept_row {
    struct kept_row *next;
    int64_t key, version;
    uint32_t freq;
    bool waiting; /* of a key that was waiting: `freq` is its count, `numbers` is empty */
    float numbers[];
} kept_row;

/* ---- table.c */
/* 64-byte aligned; charged to the table's quota and context. NULL: refused, the message is stored. */
void *embedding_memory(vme_embedding *table, size_t bytes);
void embedding_memory_free(vme_embedding *table, void *memory, size_t bytes);
/* Memory from a slab, for large tables: huge pages avoid a TLB miss for each row. It is freed with the table. NULL: the
 * table is small, `bytes` are too many, or the quota has no room for a slab; then use embedding_memory. */
void *embedding_slab_memory(vme_embedding *table, size_t bytes);
/* Take and release the locks of all shards in shared mode. */
void embedding_share(vme_embedding *table);
void embedding_unshare(vme_embedding *table);
/* Prefetches the locks that embedding_share takes. Needs no lock, because a prefetch is only a hint. */
static inline void embedding_prefetch_locks(const vme_embedding *table)
{
    const char *shards = (const char *)table->shards;
    const char *end = (const char *)(table->shards + SHARDS);
    for (const char *line = shards; line < end; line += 64)
        __builtin_prefetch(line, 1);
}
/* The same in exclusive mode. */
void embedding_lock_all(vme_embedding *table);
void embedding_unlock_all(vme_embedding *table);
/* VME_BAD_VALUE, with a message, unless the tensor is contiguous, of this dtype, and has `n` rows of `width` elements
 * (width 0: `n` elements, of rank 1). */
vme_status embedding_expect(const char *name, const vme_tensor *tensor, vme_dtype dtype, int64_t n, int64_t width);
/* Raises the table's `step` to this one, if it is higher. */
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
/* Seeded, so that nobody can choose keys that collide. */
static inline uint64_t embedding_hash(const vme_embedding *table, int64_t key)
{
    return embedding_mixed((uint64_t)key ^ table->seed);
}
static inline int embedding_shard_of(uint64_t hash) { return (int)(hash & (SHARDS - 1)); }
static inline key_segment *embedding_segment(const embedding_shard *shard, uint64_t hash)
{
    return shard->directory[shard->depth == 0 ? 0 : hash >> (64 - shard->depth)];
}
/* The index of the first entry of a key's own bucket (linear probing by buckets). A bucket is filled from its first
 * entry on. Invariant: all buckets from a key's own to the one before the key's are full. */
static inline uint32_t embedding_slot(uint64_t hash) { return (uint32_t)(hash >> SHARD_BITS) & (SEGMENT - BUCKET); }
static inline key_entry *embedding_find_in(key_segment *segment, int64_t key, uint64_t hash)
{
    for (uint32_t at = embedding_slot(hash);; at = (at + BUCKET) & (SEGMENT - 1)) {
        key_entry *bucket = &segment->entries[at];
        uint32_t same = 0; /* branch-free, because a branch would be unpredictable */
        for (int i = 0; i < BUCKET; i++)
            same |= (uint32_t)(bucket[i].key == key) << i;
        if (same != 0) { /* the first match is the live one: empty entries are last */
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
/* Inserts an entry for a key that is not present, as waiting with count 0. Other entries may move. VME_NO_MEMORY: the
 * key was not inserted. */
vme_status embedding_insert(vme_embedding *table, embedding_shard *shard, int64_t key, uint64_t hash,
                            key_entry **entry);
/* Removes the entry, without a tombstone: other entries of its segment may move. Returns true if a later entry moved to
 * its index, so that an iteration must visit the index again. */
bool embedding_remove(vme_embedding *table, key_segment *segment, key_entry *entry);

/* ---- rows.c */
/* The number of a row's chunk, computed without a branch. */
static inline uint32_t embedding_chunk(uint32_t row, int steps)
{
    const uint32_t group = (row >> FIRST_ROWS_BITS) + 1, behind = group >> steps; /* > 0: after the growing chunks */
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
/* Takes a free row, without a key. With a log, another row may be evicted to disk for it, and records may move. */
vme_status embedding_row_take(vme_embedding *table, embedding_shard *shard, uint32_t *row);
void embedding_row_release(vme_embedding *table, embedding_shard *shard, uint32_t row);
/* Takes a row for the key: live, with undefined contents, and not part of the current snapshot. */
vme_status embedding_row_new(vme_embedding *table, embedding_shard *shard, int64_t key, uint32_t *row);
void embedding_row_free(vme_embedding *table, embedding_shard *shard, uint32_t row);
/* Call before a row changes: counts it as changed, and copies it for the current snapshot if that has not read it yet.
 * Never fails; for lack of memory the snapshot fails instead. */
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
/* Maximum keys of a piece of work: at most PIECE, and with a log at most 4 MiB of records. */
int64_t embedding_piece(const vme_embedding *table);
row_tier *embedding_tier(const vme_embedding *table, const embedding_shard *shard, uint32_t row);
/* Begins a piece of work, under the shard's exclusive lock. Rows passed to embedding_row_used are pinned in memory
 * until the next piece begins. */
void embedding_pins_new(vme_embedding *table, embedding_shard *shard);
void embedding_row_used(vme_embedding *table, embedding_shard *shard, uint32_t row);
/* Call before the row changes: drops its record, which is out of date then. */
void embedding_row_dirty(vme_embedding *table, embedding_shard *shard, uint32_t row);
/* Evicts a row to disk, and frees its place in memory. */
vme_status embedding_make_room(vme_embedding *table, embedding_shard *shard);
/* Reads the entry's row from disk into memory. On failure the row stays on disk. */
vme_status embedding_bring_in(vme_embedding *table, embedding_shard *shard, key_entry *entry, uint32_t *row);
/* Memory for rows that a lookup reads from disk. Initialize with zeros; free with embedding_cold_end. */
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
/* Writes the address of each key's weights to `rows`. At most embedding_piece() keys. Expects the shared locks held;
 * with a log they are released and taken again in between. The addresses are valid while the locks are held, until the
 * next call with this `cold`. */
vme_status embedding_read(vme_embedding *table, int64_t n, const int64_t *keys, const float **rows, cold_rows *cold);
/* The factor of a bag's sum; `weights` and `squares` are the sums of its ids' weights and of their squares. */
float embedding_bag_factor(int combiner, int64_t count, double weights, double squares);
/* Checks a set of bags, and counts its bags and ids. `written`: `dense` is an output. `singles`: whether each bag has
 * exactly one id. */
vme_status embedding_bags_check(const vme_embedding_bags *bags, bool written, int64_t *bag_count, int64_t *id_count,
                                bool *singles);

/* ---- eviction.c */
/* A table has at most one save, eviction or restore in progress: VME_BAD_VALUE while there is one. */
vme_status embedding_saving_begin(vme_embedding *table);
void embedding_saving_end(vme_embedding *table);

/* ---- snapshot.c */
/* In a table with a log: whether the current snapshot has not read the key yet. Without a log: true; the rows' marks
 * tell. */
bool embedding_snapshot_reads(const vme_embedding *table, const embedding_shard *shard, int64_t key);
/* Copies a row for the current snapshot; `numbers` NULL: a waiting key. */
void embedding_keep(vme_embedding *table, embedding_shard *shard, int64_t key, int64_t version, uint32_t freq,
                    const float *numbers);

#endif
