/* Embedding tables as lookups see them. */
#ifndef VME_CUDA_TABLES_H
#define VME_CUDA_TABLES_H

#include <pthread.h>

#include "device.h"

/* Keys lie in buckets of four entries, as in embedding/table.h: a key lies in a later bucket only where all from its
 * own to that one were full. `where` of an entry: */
#define ENTRY_EMPTY   0xffffffffu
#define ENTRY_CLAIMED 0xfffffffeu /* by a key that is being put there; no other key is that one */
#define ENTRY_WAITING 0x80000000u /* counted, not admitted: with its version in the lower 31 bits */
#define ROWS_MAX      0x7fffffffu
enum { BUCKET = 4 };
struct key_entry {
    int64_t key;
    uint32_t where, count; /* `count`: of a waiting key */
};

/* What kernels read of a table; it lies in GPU memory, and is written anew when the table grows. */
struct table_view {
    key_entry *entries;
    uint64_t bucket_mask; /* buckets - 1, a power of two less one */
    float *const *chunks;
    const float *defaults;
    int64_t default_rows;
    uint64_t seed;
    uint32_t chunk_bits; /* rows of a chunk, as a power of two */
    int32_t dim, stride; /* stride: floats from one row to the next */
    float no_permission;
    int32_t filters;
};

/* One table's bags, all in GPU memory. */
struct lookup_view {
    const table_view *table;
    const int64_t *ids, *offsets;
    const float *weights;
    float *out;
    int64_t step, default_id;
    int32_t combiner;
    int32_t plain;  /* keys below 0 are read too */
    int32_t lanes;  /* threads of a bag: a power of two up to 32 */
    int32_t vector; /* numbers of each of their accesses, 1 or 4 */
};

/* Shared by lookups, for itself whatever changes a table. Who changes it comes first: lookups that follow each other
 * would keep training waiting else. */
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
    table_lock lock; /* held until the GPU is done */
    cudaStream_t stream = nullptr;
    device_memory view, defaults, counters;
    struct table_state *state = nullptr; /* tables.cu */
};

void cuda_table_ref(vme_cuda_table *table);
/* Lanes and vector of a lookup that writes to `out`. */
void cuda_lookup_shape(lookup_view *lookup, int dim, int table_stride);
/* Reads `bags` bags of each of `count` lookups, an array in GPU memory. */
cudaError_t cuda_launch_lookups(cudaStream_t stream, const lookup_view *lookups, int count, int64_t bags,
                                int lanes_max);

#endif
