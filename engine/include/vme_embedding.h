/* Embedding tables: rows of float32, found by int64 keys. Tables grow as new keys are trained (DeepRec's
 * EmbeddingVariable). Used by the engine's arrays and the host's binding. See vme.h for contexts, tensors and statuses.
 *
 * A table belongs to the context that made it, which is charged for all its memory. Any number of threads and contexts
 * may look up, train, save and evict at once: a lookup sees each row as it was before or after a gradient step, never
 * in between, and the optimizer's slots of a row change together with its weights. A call that is stopped or fails
 * leaves every row consistent; rows that it has already changed stay changed.
 *
 * A key has a row once it is *admitted*: by its first gradient step if there is no filter, otherwise when gradient
 * steps have counted it often enough. Lookups neither count nor admit keys. */
#ifndef VME_EMBEDDING_H
#define VME_EMBEDDING_H

#include "vme.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vme_embedding vme_embedding;

/* How a gradient step changes a row; the formulas are those of vmhost.engine.optim. */
typedef enum vme_embedding_optimizer {
    VME_EMBEDDING_SGD,     /* no slot */
    VME_EMBEDDING_ADAGRAD, /* the sum of squares */
    VME_EMBEDDING_ADAM,    /* mean, squares */
    VME_EMBEDDING_FTRL,    /* z, squares */
    VME_EMBEDDING_OPTIMIZERS,
} vme_embedding_optimizer;

/* Which rows stay in memory. */
typedef enum vme_embedding_cache {
    VME_EMBEDDING_LRU, /* the most recently used */
    VME_EMBEDDING_LFU, /* the most frequently used */
    VME_EMBEDDING_CACHES,
} vme_embedding_cache;

typedef struct vme_embedding_options {
    int64_t dim;               /* elements of a row, 1 to 65536 */
    int32_t optimizer;         /* vme_embedding_optimizer */
    int64_t filter_freq;       /* a key is admitted when its count reaches this; 0 and 1: no filter */
    int64_t bloom_elements;    /* 0: each waiting key is counted exactly; otherwise keys are counted in a counting Bloom
                                * filter for this many keys */
    double bloom_error;        /* its rate of false positives, above 0 and below 1 */
    float no_permission;       /* what lookups of a key that waits for admission return, in each element */
    float slot_initial;        /* initial value of Adagrad's sum of squares */
    int64_t steps_to_live;     /* eviction of keys whose last gradient step was more steps ago; 0: none */
    float l2_weight_threshold; /* eviction of rows with half their squared norm below this; <= 0: none */
    int64_t default_rows;      /* rows of `defaults`, at least 1 */
    const float *defaults;     /* copied; the initial weights of a key are row (key mod default_rows) */
    int64_t quota_bytes;       /* maximum memory; 0: only the context's limit applies */
    uint64_t seed;             /* of the hash of keys; 0: random. Only affects the order in which rows are saved */
    /* Rows on disk; NULL: all are in memory. Not with a Bloom filter. */
    const char *disk_folder;   /* folder of the file with these rows, which is unnamed and disappears with the table */
    int64_t disk_memory_bytes; /* maximum memory for rows, part of the quota */
    int64_t disk_quota_bytes;  /* maximum size of the file */
    int32_t disk_cache;        /* vme_embedding_cache */
} vme_embedding_options;

/* VME_BAD_VALUE says which option is wrong. */
VME_API vme_status vme_embedding_new(vme_context *context, const vme_embedding_options *options, vme_embedding **table);
VME_API vme_embedding *vme_embedding_ref(vme_embedding *table);
VME_API void vme_embedding_unref(vme_embedding *table);
VME_API int64_t vme_embedding_dim(const vme_embedding *table);
VME_API int vme_embedding_slots(
    const vme_embedding *table); /* number of arrays of `dim` elements that a row has in addition to its weights */
VME_API int vme_embedding_optimizer_of(const vme_embedding *table);

typedef struct vme_embedding_statistics {
    int64_t rows, waiting; /* keys admitted; keys counted and not admitted (0 with a Bloom filter) */
    int64_t changed;       /* rows that the next incremental save contains */
    int64_t bytes;         /* of memory */
    int64_t step;          /* the highest global step so far */
    int64_t bloom_counters;
    int64_t disk_rows, disk_bytes;  /* how many of `rows` are on disk; bytes of the file */
    int64_t memory_hits, disk_hits; /* keys of lookups found in memory and on disk, in tables with rows on disk */
} vme_embedding_statistics;
VME_API void vme_embedding_statistics_of(vme_embedding *table, vme_embedding_statistics *statistics);

/* ---- lookups */
/* out[i] = the weights of ids[i]; of a key without a row, its default or no_permission. `ids`: int64. `out`: float32,
 * with their shape followed by `dim`. Both contiguous. */
VME_API vme_status vme_embedding_lookup(vme_context *context, vme_embedding *table, const vme_tensor *ids,
                                        const vme_tensor *out);

typedef enum vme_embedding_combiner {
    VME_EMBEDDING_SUM,
    VME_EMBEDDING_MEAN,  /* divided by the sum of weights */
    VME_EMBEDDING_SQRTN, /* divided by the square root of the sum of squared weights */
    VME_EMBEDDING_COMBINERS,
} vme_embedding_combiner;
/* Bags of one table: bag b has ids[offsets[b]] to ids[offsets[b + 1] - 1]. Ids below 0 are skipped, and so are ids with
 * a weight that is not above 0. A bag without ids reads the row of `default_id`, or zeros if that is below 0. */
typedef struct vme_embedding_bags {
    vme_embedding *table;      /* NULL: `plain` is the table */
    const vme_tensor *ids;     /* int64, rank 1 */
    const vme_tensor *offsets; /* int64, rank 1: starts with 0, never decreases, ends with the number of ids */
    const vme_tensor *weights; /* float32, as ids; NULL: each is 1 */
    int64_t default_id;
    int32_t combiner;        /* vme_embedding_combiner */
    const vme_tensor *dense; /* float32 [bags, dim], any step between rows: the result of a lookup, or its gradient */
    const vme_tensor *plain; /* of lookups in a plain table: float32 [rows, dim] with contiguous rows. Ids are row
                              * indices; too high: VME_BAD_VALUE */
} vme_embedding_bags;
/* Looks up `count` sets of bags. A table may occur in several sets. */
VME_API vme_status vme_embedding_lookup_bags(vme_context *context, int count, const vme_embedding_bags *bags);

/* ---- gradient steps */
typedef struct vme_embedding_rates { /* the optimizer's arguments; those of other optimizers are ignored */
    double learning_rate, eps, beta1, beta2, l1, l2, beta;
    int64_t updates; /* Adam: number of the optimizer's updates, including this one */
    int64_t step;    /* the global step: the new version of the rows */
} vme_embedding_rates;
/* gradients[i] is the gradient of ids[i] (float32, shaped as lookup's out). Gradients of one key are summed, its
 * occurrences are counted, and its row, once admitted, makes one step. VME_NO_MEMORY: the quota is full; rows of other
 * keys may have made their steps. */
VME_API vme_status vme_embedding_update(vme_context *context, vme_embedding *table, const vme_embedding_rates *rates,
                                        const vme_tensor *ids, const vme_tensor *gradients);
/* The same for sets of bags, as in vme_embedding_lookup_bags; `dense` is the gradient of its results. */
VME_API vme_status vme_embedding_update_bags(vme_context *context, int count, const vme_embedding_bags *bags,
                                             const vme_embedding_rates *rates);

/* ---- eviction and saving. A table has one save, eviction or restore at a time: VME_BAD_VALUE for another. */
/* Evicts keys by the options, at this global step; called before a full save. */
VME_API vme_status vme_embedding_evict(vme_context *context, vme_embedding *table, int64_t step, int64_t *evicted);

/* The rows of a table at one moment, readable while training continues. */
typedef struct vme_embedding_snapshot vme_embedding_snapshot;
/* Snapshots of `count` tables at the same moment. `incremental`: only rows changed since the last snapshot that ended
 * with `saved`. */
VME_API vme_status vme_embedding_snapshot_new(vme_context *context, int count, vme_embedding *const *tables,
                                              bool incremental, vme_embedding_snapshot **snapshots);
VME_API int64_t vme_embedding_snapshot_rows(const vme_embedding_snapshot *snapshot); /* total number of rows to read */
/* Reads the next rows, at most n, the length of all tensors. They are contiguous: keys, freqs and versions int64 [n],
 * values float32 [n, dim], slots float32 [n, slots * dim]. `*read` receives the number of rows; 0: no more. */
VME_API vme_status vme_embedding_snapshot_read(vme_context *context, vme_embedding_snapshot *snapshot,
                                               const vme_tensor *keys, const vme_tensor *freqs,
                                               const vme_tensor *versions, const vme_tensor *values,
                                               const vme_tensor *slots, int64_t *read);
/* After all rows: reads the next keys that wait for admission. There are none with a Bloom filter or in an incremental
 * snapshot. */
VME_API vme_status vme_embedding_snapshot_waiting(vme_context *context, vme_embedding_snapshot *snapshot,
                                                  const vme_tensor *keys, const vme_tensor *freqs,
                                                  const vme_tensor *versions, int64_t *read);
/* The Bloom filter's counters: uint16 [bloom_counters]. */
VME_API vme_status vme_embedding_snapshot_bloom(vme_context *context, vme_embedding_snapshot *snapshot,
                                                const vme_tensor *counters);
/* Ends and frees a snapshot; NULL is allowed. `saved`: its rows are stored safely, so the next incremental snapshot
 * omits rows that have not changed since. */
VME_API void vme_embedding_snapshot_end(vme_embedding_snapshot *snapshot, bool saved);

/* ---- restoring: puts rows, waiting keys and counters as a snapshot returned them. Existing rows are overwritten. */
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
