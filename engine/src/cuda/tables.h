/* Embedding tables: the data that lookups of networks need. */
#ifndef VME_CUDA_TABLES_H
#define VME_CUDA_TABLES_H

#include <pthread.h>

#include "device.h"

/* Keys are in buckets of four entries with linear probing, as in embedding/table.h: all buckets from a key's own to the
 * one before the key's are full. Values of an entry's `where`; any other value is a row number: */
#define ENTRY_EMPTY   0xffffffffu
#define ENTRY_CLAIMED 0xfffffffeu /* a key is being inserted here; no other thread inserts the same key */
#define ENTRY_WAITING 0x80000000u /* counted but not admitted; the low 31 bits hold its version */
#define ROWS_MAX      0x7fffffffu
enum { BUCKET = 4 };
struct key_entry {
    int64_t key;
    uint32_t where, count; /* `count` of a waiting key: how often it was counted; otherwise 0 */
};

/* The part of a table that lookups read, in GPU memory. Rewritten when the table grows. */
struct table_view {
    key_entry *entries;
    uint64_t bucket_mask; /* number of buckets, a power of two, minus 1 */
    float *const *chunks;
    const float *defaults;
    int64_t default_rows;
    uint64_t seed;
    uint32_t chunk_bits; /* log2 of the rows of a chunk */
    int32_t dim, stride; /* stride: floats between rows */
    float no_permission;
    int32_t filters;
};

/* A set of bags of one table; all arrays are in GPU memory. */
struct lookup_view {
    const table_view *table;
    const int64_t *ids, *offsets;
    const float *weights;
    float *out;
    int64_t step, default_id; /* step: floats between the results of bags */
    int32_t combiner;
    int32_t plain;  /* keys below 0 are looked up too, and weights are not checked */
    int32_t lanes;  /* threads of a bag: a power of two up to 32 */
    int32_t vector; /* elements of each access: 1 or 4 */
};

/* Shared for lookups, exclusive for changes. Writers take precedence: otherwise a stream of lookups would starve
 * training. */
struct table_lock {
    pthread_rwlock_t held;
    table_lock()
    {
        pthread_rwlockattr_t kind;
        pthread_rwlockattr_init(&kind);
        pthread_rwlockattr_setkind_np(&kind, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
        pthread_rwlock_init(&held, &kind);
        pthread_rwlockattr_destroy(&kind);
    }
    ~table_lock() { pthread_rwlock_destroy(&held); }
    table_lock(const table_lock &) = delete;
    table_lock &operator=(const table_lock &) = delete;
    void lock() { pthread_rwlock_wrlock(&held); }
    void unlock() { pthread_rwlock_unlock(&held); }
    void lock_shared() { pthread_rwlock_rdlock(&held); }
    void unlock_shared() { pthread_rwlock_unlock(&held); }
};

struct vme_cuda_table {
    std::atomic<int> references{1};
    vme_cuda_device *device = nullptr;
    vme_cuda_table_options options{};
    int slots = 0, stride = 0;
    uint32_t chunk_bits = 0;
    table_lock lock; /* held until the GPU has finished the work */
    cudaStream_t stream = nullptr;
    device_memory view, defaults, counters;
    struct table_state *state = nullptr; /* tables.cu */
};

void cuda_table_ref(vme_cuda_table *table);
/* Sets the lanes and the vector width of a lookup that writes to `out`. */
void cuda_lookup_shape(lookup_view *lookup, int dim, int table_stride);
/* Enqueues `count` lookups of `bags` bags each. `lookups` is an array in GPU memory. */
cudaError_t cuda_launch_lookups(cudaStream_t stream, const lookup_view *lookups, int count, int64_t bags,
                                int lanes_max);

#endif
