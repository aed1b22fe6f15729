/* What the files of engine/src/embedding share: the table, its shards, and how keys and rows are found.
 *
 * A table is VME_EMBEDDING_SHARDS shards; a key belongs to one by its hash. A shard has
 *   - keys: a directory of segments (extendible hashing: Fagin et al. 1979), each an open-addressing table of fixed
 *     size whose buckets are cache lines. A full segment splits in two, so growing never takes longer than that;
 *   - rows: chunks that never move; a row is a number within its shard.
 *
 * Locks: a shard's lock is taken for a bounded piece of work only. Lookups share the locks of all shards, in order of
 * their numbers; whatever changes a shard has that one lock for itself; a snapshot begins with all of them.
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
    SEGMENT_FULL = SEGMENT / 2, /* keys: splits then */
    BUCKET = 4,                 /* entries of a cache line */
    DEPTH_MAX = 26,             /* bits of a directory */
    FIRST_ROWS_BITS = 5,        /* rows of a shard's first chunk; each next one has twice as many ... */
    CHUNK_BYTES_MAX = 4 << 20,  /* ... up to about this size */
    CHUNK_STEPS_MAX = 24,
    PIECE = 256,          /* keys or rows under one lock */
    SLAB = 2 << 20,       /* bytes: a huge page, of which segments and chunks are made ... */
    SLABS_FROM = 1 << 20, /* ... once a table has more than so many */
};

/* ---- keys. `where` of an entry: */
#define ENTRY_EMPTY   UINT32_C(0xffffffff)
#define ENTRY_WAITING UINT32_C(0x80000000) /* counted, not admitted: with its version in the lower 31 bits */
#define VERSION_MAX   UINT32_C(0x7ffffffe)
#define ROWS_MAX      UINT32_C(0x7fffffff) /* in a shard; else `where` is the row */
/* `count` of a key with a row: 0, or, where the row is on disk and `where` its record in the log: */
#define ON_DISK           UINT32_C(0x80000000)
#define CHANGED(sequence) (UINT32_C(0x20000000) << ((sequence) & 1)) /* since the save of that number, or before it */
#define USES_MAX          UINT32_C(0x1fffffff)                       /* below these: how often it was used (LFU) */
typedef struct key_entry {
    int64_t key;
    uint32_t where, count; /* `count`: of a waiting key; or as above */
} key_entry;
typedef struct key_segment {
    int32_t depth, used;
    bool in_slab;
    _Alignas(64) key_entry entries[SEGMENT];
} key_segment;

/* ---- rows */
typedef struct row_note {
    int64_t key; /* of a free row: the next free one */
    int64_t version;
    uint32_t freq;
    uint32_t changed; /* the save's number before which it last changed */
    uint32_t epoch;   /* the last snapshot that need not read it any more */
    uint32_t live;
} row_note;
#define NO_RECORD UINT32_MAX
typedef struct row_tier { /* of a table with a log */
    uint32_t used;        /* when last, or how often; under the shared lock atomic */
    uint32_t record;      /* in the log, equal to the row; NO_RECORD: none */
    uint32_t pinned;      /* the shard's number of the piece of work that needs it in memory */
} row_tier;
typedef struct row_chunk {
    uintptr_t origin; /* where the shard's row 0 would lie: a row's number times its bytes behind it lies the row */
    row_note *notes;
    row_tier *tiers; /* NULL without a log */
    bool in_slab;
} row_chunk;

typedef struct embedding_shard {
    pthread_rwlock_t lock;
    key_segment **directory; /* 1 << depth */
    int32_t depth;
    int64_t keys; /* entries in use */
    row_chunk *chunks;
    int32_t chunk_count, chunk_room;
    uint32_t row_count;                          /* numbers given out, free ones too */
    int64_t free_row;                            /* -1: none */
    int64_t live, waiting, changed, changed_now; /* rows; waiting keys; rows changed since the last save; since the
                                                    current snapshot began */
    int64_t on_disk;                             /* of the live ones */
    uint32_t hand, pins;                         /* where the next row to go to disk is looked for; pieces of work */
    struct kept_row *kept; /* what the snapshot under way has not read and training changed meanwhile */
} embedding_shard;

struct vme_embedding {
    atomic_int references;
    vme_context *context;
    vme_embedding_options options; /* `defaults` is the table's own */
    int slots;
    int64_t stride;  /* floats from one row to the next */
    int chunk_steps; /* chunks of growing size */
    float *no_permission;
    _Atomic(uint16_t) *bloom; /* NULL: none. Under no lock */
    int64_t bloom_counters;
    int bloom_hashes;
    uint64_t seed;
    struct embedding_slabs {
        pthread_mutex_t lock;
        struct slab *all;
        char *next;                /* free bytes of the newest one begin here: ... */
        size_t left;               /* ... so many */
        key_segment *free_segment; /* its first pointer leads to the next one */
    } slabs;
    atomic_llong bytes, step;  /* of memory; the highest version that a row was given */
    struct embedding_log *log; /* NULL: all rows are in memory */
    uint32_t rows_max;         /* in memory, of a shard, with a log */
    /* Under all locks; readable under any of them. */
    uint32_t epoch, sequence, committed;
    vme_embedding_snapshot *snapshot;
    atomic_bool saving; /* a snapshot or an eviction is under way */
    embedding_shard shards[SHARDS];
};

/* What the log's shards have in common (log.h). */
typedef struct shard_log shard_log;
struct log_record;
typedef struct embedding_log {
    int file;
    char *folder;
    bool used_most; /* what is used most stays in memory; else what was used last */
    int64_t record_bytes, segment_bytes;
    uint32_t segment_records, buffer_records;
    int32_t segments;         /* of a shard, at most */
    atomic_int segments_used; /* of all shards */
    shard_log *shards;
    struct log_record *saved;            /* room for a record, for the save or eviction under way */
    atomic_uint clock;                   /* counts pieces of work */
    atomic_llong memory_hits, disk_hits; /* keys of lookups */
} embedding_log;

struct vme_embedding_snapshot {
    vme_embedding *table;
    bool incremental;
    atomic_bool failed; /* what it had to keep found no memory */
    int64_t rows, read; /* in all; so far */
    uint32_t sequence;  /* the save's number */
    /* What is read next: rows of each shard, then what was kept of each, then waiting keys of each. */
    int shard, kept_shard, waiting_shard;
    uint32_t row, last[SHARDS]; /* the next row, and how many each shard had */
    uint64_t segment;           /* the lowest hash of the next segment of waiting keys */
    /* Of a table with a log, whose rows move, instead of `row`: each shard's keys in order of their hashes, the next
     * one of them, and whether all were read. Under the shard's lock. */
    uint64_t next[SHARDS];
    bool done[SHARDS];
};

/* A row that changed before the snapshot read it, as it was. Its numbers follow: weights, then slots. */
typedef struct kept_row {
    struct kept_row *next;
    int64_t key, version;
    uint32_t freq;
    bool waiting; /* it had no row yet: `freq` is its count, and no numbers follow */
    float numbers[];
} kept_row;

/* ---- table.c */
/* Charged to the quota and the table's context; NULL with the sentence kept. 64-byte aligned. */
void *embedding_memory(vme_embedding *table, size_t bytes);
void embedding_memory_free(vme_embedding *table, void *memory, size_t bytes);
/* Memory of a table that has become large: from a slab, whose huge page spares the processor a walk through page tables
 * for each row. It lives as long as the table. NULL: the table is small, `bytes` are too many, or the quota has no
 * slab's bytes left (no sentence: take embedding_memory). */
void *embedding_slab_memory(vme_embedding *table, size_t bytes);
void embedding_share(vme_embedding *table);
void embedding_unshare(vme_embedding *table);
void embedding_lock_all(vme_embedding *table);
void embedding_unlock_all(vme_embedding *table);
/* VME_BAD_VALUE with the sentence unless the tensor is contiguous and of this dtype and shape (`n` rows; width 0: rank
 * 1). */
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
/* Seeded, so that nobody can choose keys which fall together. */
static inline uint64_t embedding_hash(const vme_embedding *table, int64_t key)
{
    return embedding_mixed((uint64_t)key ^ table->seed);
}
static inline int embedding_shard_of(uint64_t hash) { return (int)(hash & (SHARDS - 1)); }
static inline key_segment *embedding_segment(const embedding_shard *shard, uint64_t hash)
{
    return shard->directory[shard->depth == 0 ? 0 : hash >> (64 - shard->depth)];
}
/* The first entry of the bucket where a key belongs. A bucket is filled from its first entry on; a key lies in a later
 * bucket only where all from its own to that one were full. */
static inline uint32_t embedding_slot(uint64_t hash) { return (uint32_t)(hash >> SHARD_BITS) & (SEGMENT - BUCKET); }
static inline key_entry *embedding_find_in(key_segment *segment, int64_t key, uint64_t hash)
{
    for (uint32_t at = embedding_slot(hash);; at = (at + BUCKET) & (SEGMENT - 1)) {
        key_entry *bucket = &segment->entries[at];
        uint32_t same = 0; /* without branches, which nobody could foresee */
        for (int i = 0; i < BUCKET; i++)
            same |= (uint32_t)(bucket[i].key == key) << i;
        if (same != 0) { /* a live one comes before empty ones */
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
/* A new entry for a key that is not there, waiting with count 0; other entries may move. VME_NO_MEMORY: nothing
 * changed. */
vme_status embedding_insert(vme_embedding *table, embedding_shard *shard, int64_t key, uint64_t hash,
                            key_entry **entry);
/* Removes it; other entries of its segment may move. Returns true when one from behind took its place (look at the same
 * place again). */
bool embedding_remove(vme_embedding *table, key_segment *segment, key_entry *entry);

/* ---- rows.c */
/* The chunk of a row. Without a branch, which lookups could not foresee. */
static inline uint32_t embedding_chunk(uint32_t row, int steps)
{
    const uint32_t group = (row >> FIRST_ROWS_BITS) + 1, behind = group >> steps; /* the growing ones */
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
/* A place for a row, without a key: with a log another row may go to disk for it, and records of others move. */
vme_status embedding_row_take(vme_embedding *table, embedding_shard *shard, uint32_t *row);
void embedding_row_release(vme_embedding *table, embedding_shard *shard, uint32_t row);
/* A row for the key, live, its numbers undefined; no snapshot under way reads it. */
vme_status embedding_row_new(vme_embedding *table, embedding_shard *shard, int64_t key, uint32_t *row);
void embedding_row_free(vme_embedding *table, embedding_shard *shard, uint32_t row);
/* Counts the row as changed, and keeps what the snapshot under way has yet to read of it: before it changes. Never
 * fails; the snapshot does, for want of memory. */
void embedding_row_touch(vme_embedding *table, embedding_shard *shard, uint32_t row, row_note *note);
/* The weights that a key without a row begins with. */
static inline const float *embedding_default(const vme_embedding *table, int64_t key)
{
    int64_t row = key % table->options.default_rows;
    return table->options.defaults + (row < 0 ? row + table->options.default_rows : row) * table->options.dim;
}
static inline bool embedding_filters(const vme_embedding *table) { return table->options.filter_freq > 1; }
/* The same as seen by a lookup: what stands for a key that was not admitted. */
static inline const float *embedding_stand_in(const vme_embedding *table, int64_t key)
{
    return embedding_filters(table) ? table->no_permission : embedding_default(table, key);
}
/* The weights that a lookup of the key reads, whose entry this is (NULL: none). */
static inline const float *embedding_weights(const vme_embedding *table, const embedding_shard *shard, int64_t key,
                                             const key_entry *entry)
{
    return entry == NULL || entry->where >= ENTRY_WAITING ? embedding_stand_in(table, key)
                                                          : embedding_row(table, shard, entry->where);
}

/* ---- tiers.c: of tables with a log */
/* Keys of one piece of work, whose rows are in memory together. */
int64_t embedding_piece(const vme_embedding *table);
row_tier *embedding_tier(const vme_embedding *table, const embedding_shard *shard, uint32_t row);
/* A piece of work begins, under the shard's lock: rows that it uses stay in memory until the next one begins. */
void embedding_pins_new(vme_embedding *table, embedding_shard *shard);
void embedding_row_used(vme_embedding *table, embedding_shard *shard, uint32_t row);
/* The row is about to be another one than its record. */
void embedding_row_dirty(vme_embedding *table, embedding_shard *shard, uint32_t row);
/* A row goes to disk, which frees its place. */
vme_status embedding_make_room(vme_embedding *table, embedding_shard *shard);
/* The entry's row comes into memory. Changes nothing when it fails. */
vme_status embedding_bring_in(vme_embedding *table, embedding_shard *shard, key_entry *entry, uint32_t *row);
/* Rows that a lookup read from disk. Zeros at first; ended by who had it. */
typedef struct cold_rows {
    void *memory;
    size_t bytes;
} cold_rows;
vme_status embedding_read_tiers(vme_embedding *table, int64_t n, const int64_t *keys, const float **rows,
                                cold_rows *cold);
void embedding_cold_end(vme_embedding *table, cold_rows *cold);

/* ---- bloom.c */
vme_status embedding_bloom_start(vme_embedding *table);
/* Counts the key `count` times more; the filter's count of it. */
uint32_t embedding_bloom_count(vme_embedding *table, int64_t key, uint32_t count);

/* ---- lookup.c */
/* Where the weights lie that each key reads, in `rows`; under shared locks, which with a log are let go in between. At
 * most `embedding_piece` keys. Rows are valid while the locks are held and until `cold` is used again. */
vme_status embedding_read(vme_embedding *table, int64_t n, const int64_t *keys, const float **rows, cold_rows *cold);
/* What a bag's sum is divided by, as a factor: of `count` ids with these sums of weights and of their squares. */
float embedding_bag_factor(int combiner, int64_t count, double weights, double squares);
/* Checks bags, and counts them and their ids. */
vme_status embedding_bags_check(const vme_embedding_bags *bags, bool written, int64_t *bag_count, int64_t *id_count);

/* ---- eviction.c */
/* One save or eviction of a table at a time. */
vme_status embedding_saving_begin(vme_embedding *table);
void embedding_saving_end(vme_embedding *table);

/* ---- snapshot.c */
/* Whether the snapshot under way has yet to come to the key, in a table with a log; without one marks of rows tell. */
bool embedding_snapshot_reads(const vme_embedding *table, const embedding_shard *shard, int64_t key);
/* Keeps a row for the snapshot under way, or (`numbers` NULL) a waiting key. */
void embedding_keep(vme_embedding *table, embedding_shard *shard, int64_t key, int64_t version, uint32_t freq,
                    const float *numbers);

#endif
