/* Embedding tables: rows of float32 by int64 keys, which grow as keys come (DeepRec's EmbeddingVariable). A part of the
 * engine that its arrays and the host's binding call: see vme.h for contexts, tensors and statuses.
 *
 * A table belongs to the context that made it, which pays for all its memory. Any number of threads and contexts may
 * look up, train, save and evict at once: a lookup sees each row as it was before or after a gradient step, never
 * between, and the optimizer's slots of a row change with its weights. A call that is stopped, or fails, leaves every
 * row whole; rows that it had already changed stay changed.
 *
 * A key has a row once it is *admitted*: at once without a filter, else when the gradient steps have counted it often
 * enough. Only gradient steps count and admit; lookups change nothing.
 */
#ifndef VME_EMBEDDING_H
#define VME_EMBEDDING_H

#include "vme.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vme_embedding vme_embedding;

/* What a gradient step does with a row; the formulas are those of vmhost.engine.optim. */
typedef enum vme_embedding_optimizer {
    VME_EMBEDDING_SGD,     /* no slot */
    VME_EMBEDDING_ADAGRAD, /* the sum of squares */
    VME_EMBEDDING_ADAM,    /* mean, squares */
    VME_EMBEDDING_FTRL,    /* z, squares */
    VME_EMBEDDING_OPTIMIZERS,
} vme_embedding_optimizer;

/* Which rows stay in memory. */
typedef enum vme_embedding_cache {
    VME_EMBEDDING_LRU, /* those that were used last */
    VME_EMBEDDING_LFU, /* those that are used most */
    VME_EMBEDDING_CACHES,
} vme_embedding_cache;

typedef struct vme_embedding_options {
    int64_t dim;               /* numbers in a row, 1 .. 65536 */
    int32_t optimizer;         /* vme_embedding_optimizer */
    int64_t filter_freq;       /* admitted at frequency + count >= filter_freq; 0 and 1: no filter */
    int64_t bloom_elements;    /* 0: each key that waits is counted exactly; else in a counting Bloom filter for
                                  so many keys */
    double bloom_error;        /* its rate of false positives, above 0 and below 1 */
    float no_permission;       /* what each number of a key reads that waits to be admitted */
    float slot_initial;        /* what Adagrad's sum of squares begins with */
    int64_t steps_to_live;     /* eviction: gone when more steps lie behind its last one; 0: never */
    float l2_weight_threshold; /* eviction: gone when half its squared norm is below; not above 0: never */
    int64_t default_rows;      /* rows of `defaults`, at least 1 */
    const float *defaults;     /* copied: a key begins as row (key mod default_rows) */
    int64_t quota_bytes;       /* the most memory that it may take; 0: no bound of its own */
    uint64_t seed; /* of the keys' hash; 0: drawn. It decides in what order rows are saved, and nothing else */
    /* Rows on disk; NULL: all are in memory. Not with a Bloom filter. */
    const char *disk_folder;   /* where the file is made that has them. It has no name, and ends with the table */
    int64_t disk_memory_bytes; /* what rows in memory may take, of the quota */
    int64_t disk_quota_bytes;  /* the most that the file may take */
    int32_t disk_cache;        /* vme_embedding_cache */
} vme_embedding_options;

/* VME_BAD_VALUE says which option is wrong. */
VME_API vme_status vme_embedding_new(vme_context *context, const vme_embedding_options *options, vme_embedding **table);
VME_API vme_embedding *vme_embedding_ref(vme_embedding *table);
VME_API void vme_embedding_unref(vme_embedding *table);
VME_API int64_t vme_embedding_dim(const vme_embedding *table);
VME_API int vme_embedding_slots(
    const vme_embedding *table); /* arrays of `dim` numbers that a row has beside its weights */
VME_API int vme_embedding_optimizer_of(const vme_embedding *table);

typedef struct vme_embedding_statistics {
    int64_t rows, waiting; /* keys admitted; keys counted and not admitted (0 with a Bloom filter) */
    int64_t changed;       /* rows that the next incremental save has */
    int64_t bytes;         /* of memory */
    int64_t step;          /* the highest global step so far */
    int64_t bloom_counters;
    int64_t disk_rows, disk_bytes;  /* of `rows`; of the file */
    int64_t memory_hits, disk_hits; /* keys of lookups whose rows were there, in tables with rows on disk */
} vme_embedding_statistics;
VME_API void vme_embedding_statistics_of(vme_embedding *table, vme_embedding_statistics *statistics);

/* ---- lookups */
/* out[i] = the row of ids[i], or what stands for it: ids int64, out float32 of their shape and `dim` more, both
 * contiguous. */
VME_API vme_status vme_embedding_lookup(vme_context *context, vme_embedding *table, const vme_tensor *ids,
                                        const vme_tensor *out);

typedef enum vme_embedding_combiner {
    VME_EMBEDDING_SUM,
    VME_EMBEDDING_MEAN,  /* divided by the sum of weights */
    VME_EMBEDDING_SQRTN, /* divided by the root of the sum of their squares */
    VME_EMBEDDING_COMBINERS,
} vme_embedding_combiner;
/* Bags of one table: bag b has ids[offsets[b]] .. ids[offsets[b + 1] - 1]. Ids below 0 are left out, and those whose
 * weight is not above 0. A bag without ids reads the row of `default_id`, or zeros where that is below 0. */
typedef struct vme_embedding_bags {
    vme_embedding *table;      /* NULL: `plain` */
    const vme_tensor *ids;     /* int64, rank 1 */
    const vme_tensor *offsets; /* int64, rank 1: 0 first, never falling, the number of ids last */
    const vme_tensor *weights; /* float32, as ids; NULL: each is 1 */
    int64_t default_id;
    int32_t combiner;        /* vme_embedding_combiner */
    const vme_tensor *dense; /* float32 [bags, dim], any step between rows: where a lookup writes its results, or the
                                gradient of those */
    const vme_tensor *plain; /* lookups of a plain table: float32 [rows, dim], numbers of a row side by side; an id is a
                                row's number, one too high VME_BAD_VALUE */
} vme_embedding_bags;
/* Many tables at once; the same table may be there several times. */
VME_API vme_status vme_embedding_lookup_bags(vme_context *context, int count, const vme_embedding_bags *bags);

/* ---- gradient steps */
typedef struct vme_embedding_rates { /* as the optimizer's arguments; those of other optimizers are not read */
    double learning_rate, eps, beta1, beta2, l1, l2, beta;
    int64_t updates; /* Adam: the optimizer's updates, this one among them */
    int64_t step;    /* the global step, which a row's version becomes */
} vme_embedding_rates;
/* The gradient of ids[i] is gradients[i] (float32, as lookup's out): those of one key are added up, its occurrences are
 * counted, and its row, once admitted, makes one step. VME_NO_MEMORY: the quota; rows of other keys have made theirs.
 */
VME_API vme_status vme_embedding_update(vme_context *context, vme_embedding *table, const vme_embedding_rates *rates,
                                        const vme_tensor *ids, const vme_tensor *gradients);
/* The same for what vme_embedding_lookup_bags read; `dense` is the gradient of its results. */
VME_API vme_status vme_embedding_update_bags(vme_context *context, int count, const vme_embedding_bags *bags,
                                             const vme_embedding_rates *rates);

/* ---- eviction and saving. One save of a table at a time: VME_BAD_VALUE while another one is under way. */
/* Removes what the options say, for a full save at this global step. */
VME_API vme_status vme_embedding_evict(vme_context *context, vme_embedding *table, int64_t step, int64_t *evicted);

/* The rows of a table as they are at one moment, while training goes on. */
typedef struct vme_embedding_snapshot vme_embedding_snapshot;
/* Of `count` tables at the same moment. `incremental`: the rows changed since the last snapshot that was ended with
 * `saved`. */
VME_API vme_status vme_embedding_snapshot_new(vme_context *context, int count, vme_embedding *const *tables,
                                              bool incremental, vme_embedding_snapshot **snapshots);
VME_API int64_t vme_embedding_snapshot_rows(const vme_embedding_snapshot *snapshot); /* that will be read in all */
/* The next rows, at most as many as `keys` has room for; all contiguous, of one length: keys, freqs and versions int64,
 * values float32 [n, dim], slots float32 [n, slots * dim]. *read 0: that was all. */
VME_API vme_status vme_embedding_snapshot_read(vme_context *context, vme_embedding_snapshot *snapshot,
                                               const vme_tensor *keys, const vme_tensor *freqs,
                                               const vme_tensor *versions, const vme_tensor *values,
                                               const vme_tensor *slots, int64_t *read);
/* After all rows: the next keys that wait to be admitted, which has none with a Bloom filter or an incremental one. */
VME_API vme_status vme_embedding_snapshot_waiting(vme_context *context, vme_embedding_snapshot *snapshot,
                                                  const vme_tensor *keys, const vme_tensor *freqs,
                                                  const vme_tensor *versions, int64_t *read);
/* The Bloom filter's counters: uint16 [bloom_counters]. */
VME_API vme_status vme_embedding_snapshot_bloom(vme_context *context, vme_embedding_snapshot *snapshot,
                                                const vme_tensor *counters);
/* Ends and frees it; NULL is allowed. `saved`: what it has is safe, the next increment begins behind it. */
VME_API void vme_embedding_snapshot_end(vme_embedding_snapshot *snapshot, bool saved);

/* ---- restoring: tensors as a snapshot gives them. Rows that are there are written over. */
VME_API vme_status vme_embedding_put(vme_context *context, vme_embedding *table, const vme_tensor *keys,
                                     const vme_tensor *freqs, const vme_tensor *versions, const vme_tensor *values,
                                     const vme_tensor *slots);
VME_API vme_status vme_embedding_put_waiting(vme_context *context, vme_embedding *table, const vme_tensor *keys,
                                             const vme_tensor *freqs, const vme_tensor *versions);
VME_API vme_status vme_embedding_put_bloom(vme_context *context, vme_embedding *table, const vme_tensor *counters);

#ifdef __cplusplus
}
#endif
#endif
