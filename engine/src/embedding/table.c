/* Embedding tables: options, memory, locks, creation and destruction. */
#include "embedding/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>

enum { DIM_MAX = 65536, DEFAULT_ROWS_MAX = 1 << 24, BLOOM_MAX = INT32_MAX };

/* ---- memory */

/* How far restored rows may pass the quota: how many segments, chunks and slabs a number of rows needs depends on the
 * table's hash and on their order, so a full table would not fit into the same quota again. */
static long long allowance(const vme_embedding *table)
{
    return atomic_load(&table->restores) == 0
               ? 0
               : table->options.quota_bytes / 4 + SHARDS * (long long)sizeof(key_segment);
}

static bool fits_quota(vme_embedding *table, size_t bytes, long long *before)
{
    *before = atomic_fetch_add(&table->bytes, (long long)bytes);
    if (table->options.quota_bytes == 0 || *before + (long long)bytes <= table->options.quota_bytes + allowance(table))
        return true;
    atomic_fetch_sub(&table->bytes, (long long)bytes);
    return false;
}

/* Tables live long and are many: their memory has its exact size, unlike scratch memory. From 2 MiB on it is aligned to
 * huge pages; madvise is only a hint. */
static void *charged_memory(vme_embedding *table, size_t bytes)
{
    size_t alignment = bytes < SLAB ? VME_ALIGNMENT : SLAB;
    if (bytes > PTRDIFF_MAX - SLAB) {
        vme_fail(VME_NO_MEMORY, "%zu bytes are more than memory can hold", bytes);
        return NULL;
    }
    if (vme_context_charge(table->context, bytes) != VME_OK)
        return NULL;
    void *memory = aligned_alloc(alignment, ((bytes == 0 ? 1 : bytes) + alignment - 1) & ~(alignment - 1));
    if (memory == NULL) {
        vme_context_release(table->context, bytes);
        vme_fail(VME_NO_MEMORY, "the system has no %zu bytes", bytes);
        return NULL;
    }
    vme_context_note_peak(table->context);
    if (bytes >= SLAB)
        madvise(memory, bytes & ~(size_t)(SLAB - 1), MADV_HUGEPAGE);
    return memory;
}

void *embedding_memory(vme_embedding *table, size_t bytes)
{
    long long before;
    if (!fits_quota(table, bytes, &before)) {
        vme_fail(VME_NO_MEMORY,
                 "the embedding table has %lld of its %lld bytes and wants %zu more: raise its quota, or admit fewer "
                 "keys (filter_freq) and evict them (steps_to_live)",
                 before, (long long)table->options.quota_bytes, bytes);
        return NULL;
    }
    void *memory = charged_memory(table, bytes);
    if (memory == NULL)
        atomic_fetch_sub(&table->bytes, (long long)bytes);
    return memory;
}

void embedding_memory_free(vme_embedding *table, void *memory, size_t bytes)
{
    if (memory == NULL)
        return;
    free(memory);
    vme_context_release(table->context, bytes);
    atomic_fetch_sub(&table->bytes, (long long)bytes);
}

/* ---- slabs */
struct slab {
    struct slab *next;
    void *memory;
};

/* Allocates a slab and its entry in the list. Expects the lock held. */
static void *slab_new(vme_embedding *table)
{
    long long before;
    struct slab *slab = vme_scratch_new(table->context, sizeof *slab);
    if (slab == NULL)
        return NULL;
    slab->memory = fits_quota(table, SLAB, &before) ? charged_memory(table, SLAB) : NULL;
    if (slab->memory == NULL) {
        vme_scratch_free(table->context, slab, sizeof *slab);
        return NULL;
    }
    slab->next = table->slabs.all;
    table->slabs.all = slab;
    return slab->memory;
}

void *embedding_slab_memory(vme_embedding *table, size_t bytes)
{
    struct embedding_slabs *slabs = &table->slabs;
    if (bytes > SLAB || atomic_load_explicit(&table->bytes, memory_order_relaxed) < SLABS_FROM)
        return NULL;
    bytes = (bytes + 63) & ~(size_t)63;
    char *memory = NULL;
    pthread_mutex_lock(&slabs->lock);
    if (bytes <= slabs->left) {
        memory = slabs->next;
        slabs->next += bytes;
        slabs->left -= bytes;
    } else if ((memory = slab_new(table)) != NULL && SLAB - bytes > slabs->left) {
        slabs->next = memory + bytes;
        slabs->left = SLAB - bytes;
    }
    pthread_mutex_unlock(&slabs->lock);
    return memory;
}

static void slabs_end(vme_embedding *table)
{
    for (struct slab *slab = table->slabs.all, *next; slab != NULL; slab = next) {
        next = slab->next;
        embedding_memory_free(table, slab->memory, SLAB);
        vme_scratch_free(table->context, slab, sizeof *slab);
    }
    pthread_mutex_destroy(&table->slabs.lock);
}

/* ---- locks */
void embedding_share(vme_embedding *table)
{
    for (int i = 0; i < SHARDS; i++)
        pthread_rwlock_rdlock(&table->shards[i].lock);
}

void embedding_unshare(vme_embedding *table)
{
    for (int i = SHARDS - 1; i >= 0; i--)
        pthread_rwlock_unlock(&table->shards[i].lock);
}

void embedding_lock_all(vme_embedding *table)
{
    for (int i = 0; i < SHARDS; i++)
        pthread_rwlock_wrlock(&table->shards[i].lock);
}

void embedding_unlock_all(vme_embedding *table) { embedding_unshare(table); }

/* ---- creation and destruction */
static vme_status check_options(const vme_embedding_options *o)
{
    if (o->dim < 1 || o->dim > DIM_MAX)
        return vme_fail(VME_BAD_VALUE, "dim: expected 1 to %d, got %lld", DIM_MAX, (long long)o->dim);
    if (o->optimizer < 0 || o->optimizer >= VME_EMBEDDING_OPTIMIZERS)
        return vme_fail(VME_BAD_VALUE, "optimizer: unknown number %d", o->optimizer);
    if (o->filter_freq < 0 || o->filter_freq > INT32_MAX)
        return vme_fail(VME_BAD_VALUE, "filter_freq: expected 0 to %d, got %lld", INT32_MAX, (long long)o->filter_freq);
    if (o->bloom_elements < 0 || o->bloom_elements > BLOOM_MAX)
        return vme_fail(VME_BAD_VALUE, "max_element_size: expected 1 to %d, got %lld", BLOOM_MAX,
                        (long long)o->bloom_elements);
    if (o->bloom_elements > 0 && !(o->bloom_error > 0 && o->bloom_error < 1))
        return vme_fail(VME_BAD_VALUE, "false_positive_probability: expected a number between 0 and 1, got %g",
                        o->bloom_error);
    if (o->bloom_elements > 0 && o->filter_freq >= UINT16_MAX)
        return vme_fail(VME_BAD_VALUE, "filter_freq: a counting Bloom filter counts to %d, got %lld", UINT16_MAX - 1,
                        (long long)o->filter_freq);
    if (o->steps_to_live < 0)
        return vme_fail(VME_BAD_VALUE, "steps_to_live: expected 0 or more, got %lld", (long long)o->steps_to_live);
    if (o->default_rows < 1 || o->default_rows > DEFAULT_ROWS_MAX || o->defaults == NULL)
        return vme_fail(VME_BAD_VALUE, "default_value_dim: expected 1 to %d rows, got %lld", DEFAULT_ROWS_MAX,
                        (long long)o->default_rows);
    if (o->quota_bytes < 0)
        return vme_fail(VME_BAD_VALUE, "quota: expected 0 or more bytes, got %lld", (long long)o->quota_bytes);
    if (o->disk_folder != NULL && o->bloom_elements > 0) /* as in DeepRec */
        return vme_fail(VME_BAD_VALUE, "a counting Bloom filter does not go with rows on disk: count keys exactly");
    if (o->disk_folder != NULL && (o->disk_cache < 0 || o->disk_cache >= VME_EMBEDDING_CACHES))
        return vme_fail(VME_BAD_VALUE, "cache: unknown number %d", o->disk_cache);
    return VME_OK;
}

static uint64_t random_seed(void)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        seed = (uint64_t)now.tv_nsec * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)(uintptr_t)&now;
    }
    return seed == 0 ? 1 : seed;
}

static void table_free(vme_embedding *table)
{
    const vme_embedding_options *o = &table->options;
    for (int i = 0; i < SHARDS; i++) {
        embedding_shard *shard = &table->shards[i];
        embedding_keys_end(table, shard);
        embedding_rows_end(table, shard);
        pthread_rwlock_destroy(&shard->lock);
    }
    embedding_log_end(table);
    embedding_memory_free(table, (void *)(uintptr_t)o->defaults,
                          (size_t)o->default_rows * (size_t)o->dim * sizeof(float));
    embedding_memory_free(table, table->bloom, (size_t)table->bloom_counters * sizeof *table->bloom);
    embedding_memory_free(table, table->no_permission, (size_t)o->dim * sizeof(float));
    slabs_end(table);
    vme_context_unref(table->context);
    free(table);
}

static int slots_of(int optimizer)
{
    static const int slots[] = {
        [VME_EMBEDDING_SGD] = 0, [VME_EMBEDDING_ADAGRAD] = 1, [VME_EMBEDDING_ADAM] = 2, [VME_EMBEDDING_FTRL] = 2};
    return slots[optimizer];
}

vme_status vme_embedding_new(vme_context *context, const vme_embedding_options *options, vme_embedding **result)
{
    vme_status status = check_options(options);
    if (status != VME_OK)
        return status;
    vme_embedding *table = calloc(1, sizeof *table);
    if (table == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for an embedding table");
    atomic_init(&table->references, 1);
    table->context = vme_context_ref(context);
    table->options = *options;
    table->options.defaults = NULL;
    table->options.disk_folder = NULL;
    table->slots = slots_of(options->optimizer);
    table->stride = options->dim * (1 + table->slots);
    if (table->stride > 8) /* aligns rows to cache lines, if that wastes less than half of them */
        table->stride = (table->stride + 15) / 16 * 16;
    const int64_t row_bytes = table->stride * (int64_t)sizeof(float);
    while (table->chunk_steps < CHUNK_STEPS_MAX
           && row_bytes << (FIRST_ROWS_BITS + table->chunk_steps + 1) <= CHUNK_BYTES_MAX)
        table->chunk_steps++;
    table->seed = options->seed != 0 ? options->seed : random_seed();
    table->sequence = 1;
    pthread_rwlockattr_t kind;
    pthread_rwlockattr_init(&kind);
    /* writers take precedence: otherwise a stream of lookups would starve training */
    pthread_rwlockattr_setkind_np(&kind, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    for (int i = 0; i < SHARDS; i++) {
        pthread_rwlock_init(&table->shards[i].lock, &kind);
        table->shards[i].free_row = -1;
    }
    pthread_rwlockattr_destroy(&kind);
    pthread_mutex_init(&table->slabs.lock, NULL);
    const size_t defaults_bytes = (size_t)options->default_rows * (size_t)options->dim * sizeof(float);
    float *defaults = embedding_memory(table, defaults_bytes);
    table->options.defaults = defaults;
    table->no_permission = defaults == NULL ? NULL : embedding_memory(table, (size_t)options->dim * sizeof(float));
    status = table->no_permission == NULL ? VME_NO_MEMORY : embedding_bloom_start(table);
    if (status == VME_OK)
        status = embedding_log_start(table, options);
    for (int i = 0; i < SHARDS && status == VME_OK; i++)
        status = embedding_keys_start(table, &table->shards[i]);
    if (status != VME_OK) {
        table_free(table);
        return status;
    }
    memcpy(defaults, options->defaults, defaults_bytes);
    for (int64_t d = 0; d < options->dim; d++)
        table->no_permission[d] = options->no_permission;
    *result = table;
    return VME_OK;
}

vme_embedding *vme_embedding_ref(vme_embedding *table)
{
    atomic_fetch_add_explicit(&table->references, 1, memory_order_relaxed);
    return table;
}

void vme_embedding_unref(vme_embedding *table)
{
    if (table != NULL && atomic_fetch_sub_explicit(&table->references, 1, memory_order_acq_rel) == 1)
        table_free(table);
}

int64_t vme_embedding_dim(const vme_embedding *table) { return table->options.dim; }
int vme_embedding_slots(const vme_embedding *table) { return table->slots; }
int vme_embedding_optimizer_of(const vme_embedding *table) { return table->options.optimizer; }

void vme_embedding_statistics_of(vme_embedding *table, vme_embedding_statistics *statistics)
{
    *statistics = (vme_embedding_statistics){.bytes = atomic_load(&table->bytes),
                                             .step = atomic_load(&table->step),
                                             .bloom_counters = table->bloom_counters,
                                             .disk_bytes = embedding_log_bytes(table)};
    if (table->log != NULL) {
        statistics->memory_hits = atomic_load(&table->log->memory_hits);
        statistics->disk_hits = atomic_load(&table->log->disk_hits);
    }
    for (int i = 0; i < SHARDS; i++) {
        embedding_shard *shard = &table->shards[i];
        pthread_rwlock_rdlock(&shard->lock);
        statistics->rows += shard->live;
        statistics->waiting += shard->waiting;
        statistics->changed += shard->changed;
        statistics->disk_rows += shard->on_disk;
        pthread_rwlock_unlock(&shard->lock);
    }
}

void embedding_note_step(vme_embedding *table, int64_t step)
{
    long long before = atomic_load_explicit(&table->step, memory_order_relaxed);
    while (step > before && !atomic_compare_exchange_weak(&table->step, &before, step))
        ;
}

vme_status embedding_expect(const char *name, const vme_tensor *tensor, vme_dtype dtype, int64_t n, int64_t width)
{
    bool fits = tensor->dtype == (int)dtype && vme_is_contiguous(tensor)
                && vme_elements(tensor) == n * (width ? width : 1)
                && (width == 0 ? tensor->rank == 1 : tensor->rank >= 1);
    if (fits)
        return VME_OK;
    if (width == 0)
        return vme_fail(VME_BAD_VALUE, "%s: expected %lld contiguous numbers of %s", name, (long long)n,
                        vme_dtype_name(dtype));
    return vme_fail(VME_BAD_VALUE, "%s: expected %lld contiguous rows of %lld numbers of %s", name, (long long)n,
                    (long long)width, vme_dtype_name(dtype));
}
