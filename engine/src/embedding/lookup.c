/* Lookups of rows by key, and sums of bags of rows, for many tables at once. Keys are processed in pieces: the entries
 * of later keys, then their rows, are prefetched while earlier rows are read, so that memory accesses overlap. */
#include "embedding/table.h"

#include <math.h>
#include <string.h>

enum {
    AHEAD = 64,           /* distance in keys of the prefetch of entries */
    MIXED_PIECE = 1024,   /* maximum keys that read_mixed_bags collects at once */
    GRAIN_IDS_MIN = 1024, /* minimum and maximum ids of a piece of work for a thread */
    GRAIN_IDS_MAX = 4096
};

static inline uint64_t prefetch_entry(const vme_embedding *table, int64_t key)
{
    const uint64_t hash = embedding_hash(table, key);
    const key_segment *segment = embedding_segment(&table->shards[embedding_shard_of(hash)], hash);
    __builtin_prefetch(&segment->entries[embedding_slot(hash)]);
    return hash;
}

vme_status embedding_read(vme_embedding *table, int64_t n, const int64_t *keys, const float **rows, cold_rows *cold)
{
    if (table->log != NULL)
        return embedding_read_tiers(table, n, keys, rows, cold);
    uint64_t hashes[PIECE];
    for (int64_t i = 0; i < n && i < AHEAD; i++)
        hashes[i] = prefetch_entry(table, keys[i]);
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            hashes[i + AHEAD] = prefetch_entry(table, keys[i + AHEAD]);
        const embedding_shard *shard = &table->shards[embedding_shard_of(hashes[i])];
        rows[i] = embedding_weights(table, shard, keys[i], embedding_find(shard, keys[i], hashes[i]));
    }
    return VME_OK;
}

/* ---- plain rows */
typedef struct plain_job {
    vme_embedding *table;
    const int64_t *ids;
    float *out;
} plain_job;

static vme_status plain_some(void *argument, int64_t begin, int64_t end)
{
    const plain_job *job = argument;
    const int64_t step = job->table->options.dim * (int64_t)sizeof(float);
    const embedding_row_kernels *kernels = vme_kernels_current()->embedding;
    const int64_t piece = job->table->log != NULL ? embedding_piece(job->table) : EMBEDDING_PIECE;
    const float *rows[PIECE];
    vme_status status = VME_OK;
    cold_rows cold = {0};
    embedding_share(job->table);
    for (int64_t i = begin, n; i < end; i += n) {
        n = end - i < piece ? end - i : piece;
        if (job->table->log == NULL) {
            kernels->sum_bags(&(embedding_bags_piece){.table = job->table,
                                                      .dim = job->table->options.dim,
                                                      .n = n,
                                                      .bags = n,
                                                      .keys = job->ids + i,
                                                      .any_key = true,
                                                      .out = (char *)job->out + i * step,
                                                      .out_step = step});
            continue;
        }
        if ((status = embedding_read(job->table, n, job->ids + i, rows, &cold)) != VME_OK)
            break;
        for (int64_t k = 0; k < n; k++)
            memcpy(job->out + (i + k) * job->table->options.dim, rows[k], (size_t)step);
    }
    embedding_unshare(job->table);
    embedding_cold_end(job->table, &cold);
    return status;
}

/* Ids of a piece of work (the stop flag is checked between pieces), for rows of about 128 elements. */
static int64_t grain_of(int64_t ids)
{
    const int64_t each = ids / (4 * (int64_t)vme_parallel_threads());
    return vme_parallel_threads() == 1 || each > GRAIN_IDS_MAX ? GRAIN_IDS_MAX
           : each < GRAIN_IDS_MIN                              ? GRAIN_IDS_MIN
                                                               : each;
}

vme_status vme_embedding_lookup(vme_context *context, vme_embedding *table, const vme_tensor *ids,
                                const vme_tensor *out)
{
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    const int64_t n = vme_elements(ids);
    if (ids->dtype != VME_INT64 || !vme_is_contiguous(ids))
        return vme_fail(VME_BAD_VALUE, "ids: expected contiguous numbers of int64");
    if ((status = embedding_expect("out", out, VME_FLOAT32, n, table->options.dim)) != VME_OK)
        return status;
    if (vme_overlap(ids, out))
        return vme_fail(VME_BAD_VALUE, "out: it overlaps the ids");
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    plain_job job = {table, (const int64_t *)ids->data, (float *)out->data};
    const int64_t size = (table->options.dim + 127) / 128; /* size of a row in units of 128 elements, rounded up */
    return vme_parallel(context, n, 1 + grain_of(n * size) / size, plain_some, &job);
}

/* ---- bags */
float embedding_bag_factor(int combiner, int64_t count, double weights, double squares)
{
    if (count == 0 || combiner == VME_EMBEDDING_SUM)
        return 1;
    return (float)(1 / (combiner == VME_EMBEDDING_MEAN ? weights : sqrt(squares)));
}

static int64_t dim_of(const vme_embedding_bags *bags)
{
    return bags->table == NULL ? bags->plain->shape[1] : bags->table->options.dim;
}

vme_status embedding_bags_check(const vme_embedding_bags *bags, bool written, int64_t *bag_count, int64_t *id_count,
                                bool *singles)
{
    const vme_tensor *ids = bags->ids, *offsets = bags->offsets, *dense = bags->dense, *plain = bags->plain;
    vme_status status;
    if (bags->table == NULL
        && (!written || plain == NULL || plain->dtype != VME_FLOAT32 || plain->rank != 2 || plain->shape[1] < 1
            || (plain->shape[1] > 1 && plain->strides[1] != sizeof(float))
            || plain->strides[0] % (int64_t)sizeof(float)))
        return vme_fail(VME_BAD_SHAPE, "table: expected float32 of [rows, dim], with contiguous rows");
    if (bags->combiner < 0 || bags->combiner >= VME_EMBEDDING_COMBINERS)
        return vme_fail(VME_BAD_VALUE, "combiner: unknown number %d", bags->combiner);
    if (ids->rank != 1 || offsets->rank != 1)
        return vme_fail(VME_BAD_SHAPE, "ids and offsets: expected one dimension");
    const int64_t n = ids->shape[0], count = offsets->shape[0] - 1, dim = dim_of(bags);
    if (count < 0)
        return vme_fail(VME_BAD_VALUE, "offsets: expected one more than there are bags, got none");
    if ((status = embedding_expect("ids", ids, VME_INT64, n, 0)) != VME_OK
        || (status = embedding_expect("offsets", offsets, VME_INT64, count + 1, 0)) != VME_OK
        || (bags->weights != NULL
            && (status = embedding_expect("weights", bags->weights, VME_FLOAT32, n, 0)) != VME_OK))
        return status;
    const int64_t *at = (const int64_t *)offsets->data;
    if (at[0] != 0 || at[count] != n)
        return vme_fail(VME_BAD_VALUE, "offsets: expected 0 first and the number of ids, %lld, last, got %lld and %lld",
                        (long long)n, (long long)at[0], (long long)at[count]);
    int decreases = 0;
    uint64_t others = 0;                  /* 0 if every bag has exactly one id */
    for (int64_t b = 0; b < count; b++) { /* branch-free */
        decreases |= at[b + 1] < at[b];
        others |= ((uint64_t)at[b + 1] - (uint64_t)at[b]) ^ 1;
    }
    for (int64_t b = 0; decreases && b < count; b++)
        if (at[b + 1] < at[b])
            return vme_fail(VME_BAD_VALUE, "offsets: they decrease from %lld to %lld after bag %lld", (long long)at[b],
                            (long long)at[b + 1], (long long)b);
    if (dense->dtype != VME_FLOAT32 || dense->rank != 2 || dense->shape[0] != count || dense->shape[1] != dim
        || (dim > 1 && count > 0 && dense->strides[1] != sizeof(float)) || dense->strides[0] % (int64_t)sizeof(float))
        return vme_fail(VME_BAD_SHAPE, "expected float32 of %lld bags and %lld numbers side by side", (long long)count,
                        (long long)dim);
    if (written && (status = vme_check_output(dense)) != VME_OK)
        return status;
    if (written
        && (vme_overlap(ids, dense) || vme_overlap(offsets, dense)
            || (bags->weights != NULL && vme_overlap(bags->weights, dense))
            || (bags->table == NULL && vme_overlap(plain, dense))))
        return vme_fail(VME_BAD_VALUE, "out: it overlaps the ids, offsets, weights or the table");
    *bag_count = count;
    *id_count = n;
    *singles = others == 0 && n == count;
    return VME_OK;
}

/* A set of bags (vme_embedding_bags), unpacked for lookups. */
typedef struct bag_reader {
    vme_embedding *table; /* NULL: a plain table, as in embedding_bags_piece */
    const char *rows;
    int64_t row_step, row_count, dim;
    const int64_t *ids, *offsets;
    const float *weights;
    const embedding_row_kernels *kernels;
    char *out;
    int64_t out_step, default_id;
    int combiner;
    bool singles; /* each bag has one id: the offsets need not be read */
} bag_reader;

static vme_status no_such_row(const bag_reader *job, int64_t id)
{
    return vme_fail(VME_BAD_VALUE, "ids: the table has rows 0 to %lld, got %lld", (long long)job->row_count - 1,
                    (long long)id);
}

/* embedding_read, or its equivalent for a plain table. */
static vme_status read_rows(const bag_reader *job, int64_t n, const int64_t *keys, const float **rows, cold_rows *cold)
{
    if (job->table != NULL)
        return embedding_read(job->table, n, keys, rows, cold);
    for (int64_t i = 0; i < n; i++) {
        if (keys[i] >= job->row_count)
            return no_such_row(job, keys[i]);
        rows[i] = (const float *)(const void *)(job->rows + keys[i] * job->row_step);
    }
    return VME_OK;
}

static void share_table(const bag_reader *job)
{
    if (job->table != NULL)
        embedding_share(job->table);
}

static void unshare_table(const bag_reader *job)
{
    if (job->table != NULL)
        embedding_unshare(job->table);
}

static bool has_log(const bag_reader *job) { return job->table != NULL && job->table->log != NULL; }

/* Reads one bag of many ids, as sums over pieces of them. Takes the locks itself, and releases them between pieces. */
static vme_status read_long_bag(vme_context *context, const bag_reader *job, int64_t bag)
{
    const int64_t dim = job->dim;
    float *out = (float *)(void *)(job->out + bag * job->out_step);
    int64_t keys[AHEAD], kept = 0;
    const float *rows[AHEAD];
    float weights[AHEAD];
    double sum = 0, squares = 0;
    const int64_t piece = job->table == NULL ? AHEAD : embedding_piece(job->table);
    const int64_t each = piece < AHEAD ? piece : AHEAD;
    vme_status status = VME_OK;
    cold_rows cold = {0};
    for (int64_t i = job->offsets[bag]; i < job->offsets[bag + 1] && status == VME_OK;) {
        int n = 0;
        for (; n < each && i < job->offsets[bag + 1]; i++) {
            const float weight = job->weights == NULL ? 1 : job->weights[i];
            const int64_t key = __atomic_load_n(&job->ids[i], __ATOMIC_RELAXED); /* once: other threads may write it */
            if (key < 0 || !(weight > 0))
                continue;
            keys[n] = key;
            weights[n++] = weight;
            sum += (double)weight;
            squares += (double)weight * (double)weight;
        }
        if (vme_stopping(context)) {
            status = vme_stopped_here(context);
            break;
        }
        share_table(job);
        status = read_rows(job, n, keys, rows, &cold);
        if (n > 0 && status == VME_OK)
            job->kernels->sum(n, dim, rows, job->weights == NULL ? NULL : weights, kept > 0, out);
        unshare_table(job);
        kept += n;
    }
    if (kept == 0 && job->default_id >= 0 && status == VME_OK) {
        share_table(job);
        if ((status = read_rows(job, 1, &job->default_id, rows, &cold)) == VME_OK)
            memcpy(out, rows[0], (size_t)dim * sizeof *out);
        unshare_table(job);
    } else if (kept == 0)
        memset(out, 0, (size_t)dim * sizeof *out);
    if (job->table != NULL)
        embedding_cold_end(job->table, &cold);
    const float factor = embedding_bag_factor(job->combiner, kept, sum, squares);
    if (factor != 1 && status == VME_OK)
        job->kernels->scale(dim, factor, out);
    return status;
}

/* Counts the bags from `begin` on that have at most `ids_max` ids together, counting a default id for each empty bag.
 * `ends` receives the end of each bag among these ids. */
static int64_t short_bags(const bag_reader *job, int64_t begin, int64_t end, int64_t ids_max, int16_t *ends,
                          bool *empty)
{
    const int64_t first = job->offsets[begin];
    int64_t bag = begin, before = 0, defaults = 0;
    for (; bag < end; bag++) {
        const int64_t to = job->offsets[bag + 1] - first;
        defaults += to == before;
        if (to < before || to + defaults > ids_max)
            break;
        ends[bag - begin] = (int16_t)to;
        before = to;
    }
    *empty = defaults > 0;
    return bag - begin;
}

/* Sums bags of a table with a log; at most PIECE keys. */
static vme_status read_from_tiers(const bag_reader *job, int64_t begin, int64_t count, const int16_t *ends, int64_t n,
                                  const int64_t *keys, const float *weights, const float *factors, cold_rows *cold)
{
    const float *rows[PIECE];
    const int64_t dim = job->table->options.dim;
    const vme_status status = embedding_read(job->table, n, keys, rows, cold);
    for (int64_t bag = 0, from = 0; bag < count && status == VME_OK; from = ends[bag++]) {
        float *out = (float *)(void *)(job->out + (begin + bag) * job->out_step);
        job->kernels->sum(ends[bag] - from, dim, rows + from, weights == NULL ? NULL : weights + from, false, out);
        if (factors[bag] != 1)
            job->kernels->scale(dim, factors[bag], out);
    }
    return status;
}

/* Sums bags of a table without a log, or of a plain table; at most EMBEDDING_PIECE keys. Returns the kernel's result
 * (row_kernels.h). */
static int64_t sum_bags(const bag_reader *job, int64_t begin, int64_t count, int64_t n, const int64_t *keys,
                        const int16_t *ends, const float *weights, const float *factors)
{
    return job->kernels->sum_bags(&(embedding_bags_piece){.table = job->table,
                                                          .rows = job->rows,
                                                          .row_step = job->row_step,
                                                          .row_count = job->row_count,
                                                          .dim = job->dim,
                                                          .n = n,
                                                          .bags = count,
                                                          .keys = keys,
                                                          .ends = ends,
                                                          .weights = weights,
                                                          .factors = factors,
                                                          .out = job->out + begin * job->out_step,
                                                          .out_step = job->out_step});
}

/* Reads bags with weights, skipped ids or defaults: collects their keys, then sums. Each id and weight is read only
 * once, because another thread of the program may write them meanwhile. */
static vme_status read_mixed_bags(const bag_reader *job, int64_t begin, int64_t count, int16_t *ends, cold_rows *cold)
{
    int64_t keys[MIXED_PIECE + 1]; /* one more, because a skipped id is stored before it is checked */
    float weights[MIXED_PIECE], factors[MIXED_PIECE];
    const int64_t *ids = job->ids + job->offsets[begin];
    const float *given = job->weights == NULL ? NULL : job->weights + job->offsets[begin];
    int n = 0;
    keys[0] = 0; /* avoids a warning: the compiler cannot tell that all n keys are initialized */
    for (int64_t bag = 0, i = 0; bag < count; bag++) {
        const int first = n;
        double sum = 0, squares = 0;
        if (given == NULL) {
            for (; i < ends[bag]; i++) {
                keys[n] = ids[i];
                n += keys[n] >= 0;
            }
            sum = squares = n - first;
        } else
            for (; i < ends[bag]; i++) {
                const int64_t key = ids[i];
                const float weight = given[i];
                if (key < 0 || !(weight > 0))
                    continue;
                keys[n] = key;
                weights[n++] = weight;
                sum += (double)weight;
                squares += (double)weight * (double)weight;
            }
        factors[bag] = embedding_bag_factor(job->combiner, n - first, sum, squares);
        if (n == first && job->default_id >= 0) {
            keys[n] = job->default_id;
            weights[n++] = 1;
        }
        ends[bag] = (int16_t)n;
    }
    if (has_log(job))
        return read_from_tiers(job, begin, count, ends, n, keys, given == NULL ? NULL : weights, factors, cold);
    const int64_t bad = sum_bags(job, begin, count, n, keys, ends, given == NULL ? NULL : weights, factors);
    return bad < 0 ? VME_OK : no_such_row(job, keys[bad]);
}

/* Reads bags from `begin` on that fit in one piece. `*count` receives their number; 0: the first one is too long. */
static vme_status read_short_bags(const bag_reader *job, int64_t begin, int64_t end, int64_t *count, cold_rows *cold)
{
    int16_t ends[EMBEDDING_PIECE];
    bool empty = false;
    const int64_t ids_max = has_log(job) ? embedding_piece(job->table) : EMBEDDING_PIECE;
    const bool direct = job->weights == NULL && !has_log(job), singles = direct && job->singles;
    if (singles)
        *count = end - begin < ids_max ? end - begin : ids_max;
    else
        *count = short_bags(job, begin, end, ids_max, ends, &empty);
    if (*count == 0)
        return VME_OK;
    if (direct && !(empty && job->default_id >= 0)) {
        /* The kernel reads the ids in place, and stops at an id below 0. In that case the piece is read again below. */
        const int64_t *ids = job->ids + (singles ? begin : job->offsets[begin]);
        const int64_t n = singles ? *count : ends[*count - 1];
        float factors[EMBEDDING_PIECE];
        const bool scaled = !singles && job->combiner != VME_EMBEDDING_SUM;
        for (int64_t bag = 0, from = 0; scaled && bag < *count; from = ends[bag++])
            factors[bag] = embedding_bag_factor(job->combiner, ends[bag] - from, ends[bag] - from, ends[bag] - from);
        const bool each_one = singles || (n == *count && !empty);
        const int64_t bad = sum_bags(job, begin, *count, n, ids, each_one ? NULL : ends, NULL, scaled ? factors : NULL);
        if (bad < 0)
            return VME_OK;
        const int64_t id = __atomic_load_n(&ids[bad], __ATOMIC_RELAXED);
        if (job->table == NULL && id >= 0)
            return no_such_row(job, id);
    }
    if (ids_max > MIXED_PIECE)
        *count = short_bags(job, begin, end, MIXED_PIECE, ends, &empty);
    return *count == 0 ? VME_OK : read_mixed_bags(job, begin, *count, ends, cold);
}

typedef struct bags_job {
    vme_context *context;
    int count;
    const vme_embedding_bags *bags;
    const int64_t *first; /* index of each set's first bag among all bags, followed by the total */
    const bool *singles;  /* for each set: see bag_reader */
} bags_job;

static vme_status bags_some(void *argument, int64_t begin, int64_t end)
{
    const bags_job *job = argument;
    for (int i = 0; i < job->count; i++) {
        const int64_t first = job->first[i], last = job->first[i + 1];
        if (last <= begin || first >= end)
            continue;
        const vme_embedding_bags *of = &job->bags[i];
        const bag_reader reader = {of->table,
                                   of->table == NULL ? of->plain->data : NULL,
                                   of->table == NULL ? of->plain->strides[0] : 0,
                                   of->table == NULL ? of->plain->shape[0] : 0,
                                   dim_of(of),
                                   (const int64_t *)of->ids->data,
                                   (const int64_t *)of->offsets->data,
                                   of->weights == NULL ? NULL : (const float *)of->weights->data,
                                   vme_kernels_current()->embedding,
                                   of->dense->data,
                                   of->dense->strides[0],
                                   of->default_id,
                                   of->combiner,
                                   job->singles[i]};
        const int64_t to = (last < end ? last : end) - first;
        int64_t n = 1, bag = (begin > first ? begin : first) - first;
        if (bag < to && i + 1 < job->count && job->bags[i + 1].table != NULL)
            embedding_prefetch_locks(job->bags[i + 1].table);
        while (bag < to) {
            cold_rows cold = {0};
            share_table(&reader);
            vme_status status = read_short_bags(&reader, bag, to, &n, &cold);
            unshare_table(&reader);
            if (of->table != NULL)
                embedding_cold_end(of->table, &cold);
            bag += n;
            if (status == VME_OK && n == 0)
                status = read_long_bag(job->context, &reader, bag++);
            if (status != VME_OK)
                return status;
        }
    }
    return VME_OK;
}

vme_status vme_embedding_lookup_bags(vme_context *context, int count, const vme_embedding_bags *bags)
{
    const size_t bytes = ((size_t)count + 1) * (sizeof(int64_t) + sizeof(bool));
    int64_t ids_in_all = 0, *first = vme_scratch_new(context, bytes);
    if (first == NULL)
        return VME_NO_MEMORY;
    bool *singles = (bool *)(first + count + 1);
    vme_status status = VME_OK;
    first[0] = 0;
    for (int i = 0; i < count && status == VME_OK; i++) {
        int64_t bag_count = 0, ids = 0;
        status = embedding_bags_check(&bags[i], true, &bag_count, &ids, &singles[i]);
        first[i + 1] = first[i] + bag_count;
        if (status == VME_OK)
            ids_in_all += ids * ((dim_of(&bags[i]) + 127) / 128);
    }
    if (status == VME_OK) {
        atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
        const int64_t bags_in_all = first[count];
        const int64_t each = bags_in_all == 0 ? 1 : 1 + ids_in_all / bags_in_all; /* average ids of a bag */
        bags_job job = {context, count, bags, first, singles};
        status = vme_parallel(context, bags_in_all, 1 + grain_of(ids_in_all) / each, bags_some, &job);
    }
    vme_scratch_free(context, first, bytes);
    return status;
}
