/* Gradient steps: sums the gradients of each key, counts and admits keys, and makes one optimizer step for each row,
 * under its shard's lock. */
#include "embedding/table.h"

#include <math.h>
#include <string.h>

enum { GRADIENTS_PIECE = 1 << 16 /* elements of gradients between two checks of the stop flag */ };

/* ---- unique keys and their data */
typedef struct unique_keys {
    int64_t *keys;
    uint64_t *hashes;
    uint32_t *counts;
    float *sums;      /* sums of gradients */
    uint32_t *order;  /* indices of keys, grouped by shard */
    uint32_t *places; /* an open-addressing table of key indices plus 1; 0: empty */
    uint64_t mask;
    int64_t count, dim;
    void *scratch;
    size_t bytes;
} unique_keys;

static vme_status unique_start(vme_context *context, int64_t n, int64_t dim, unique_keys *unique)
{
    uint64_t room = 16;
    while (room < 2 * (uint64_t)n)
        room *= 2;
    const size_t sums = (size_t)n * (size_t)dim * sizeof(float), keys = (size_t)n * (8 + 8 + 4 + 4);
    if (n > INT32_MAX || (uint64_t)n * (uint64_t)dim > (uint64_t)1 << 40)
        return vme_fail(VME_BAD_SHAPE, "a gradient of %lld rows is too large: take smaller batches", (long long)n);
    unique->bytes = sums + keys + (size_t)room * sizeof *unique->places + 64;
    char *at = unique->scratch = vme_scratch_new(context, unique->bytes);
    if (at == NULL)
        return VME_NO_MEMORY;
    unique->sums = (float *)(void *)at;
    at += (sums + 7) / 8 * 8;
    unique->keys = (int64_t *)(void *)at;
    unique->hashes = (uint64_t *)(void *)(unique->keys + n);
    unique->counts = (uint32_t *)(void *)(unique->hashes + n);
    unique->order = unique->counts + n;
    unique->places = unique->order + n;
    memset(unique->places, 0, (size_t)room * sizeof *unique->places);
    unique->mask = room - 1;
    unique->count = 0;
    unique->dim = dim;
    return VME_OK;
}

/* Adds one occurrence of the key and returns its index. */
static inline int64_t unique_add(const vme_embedding *table, unique_keys *unique, int64_t key)
{
    const uint64_t hash = embedding_hash(table, key);
    for (uint64_t at = hash >> SHARD_BITS & unique->mask;; at = (at + 1) & unique->mask) {
        const uint32_t place = unique->places[at];
        if (place == 0) {
            const int64_t number = unique->count++;
            unique->places[at] = (uint32_t)number + 1;
            unique->keys[number] = key;
            unique->hashes[number] = hash;
            unique->counts[number] = 1;
            memset(unique->sums + number * unique->dim, 0, (size_t)unique->dim * sizeof(float));
            return number;
        }
        if (unique->keys[place - 1] == key) {
            unique->counts[place - 1]++;
            return place - 1;
        }
    }
}

/* Groups the indices of keys by shard (a counting sort). `first` receives the start of each group. */
static void unique_sort(unique_keys *unique, int64_t first[SHARDS + 1])
{
    int64_t next[SHARDS] = {0};
    for (int64_t i = 0; i < unique->count; i++)
        next[embedding_shard_of(unique->hashes[i])]++;
    first[0] = 0;
    for (int s = 0; s < SHARDS; s++) {
        first[s + 1] = first[s] + next[s];
        next[s] = first[s];
    }
    for (int64_t i = 0; i < unique->count; i++)
        unique->order[next[embedding_shard_of(unique->hashes[i])]++] = (uint32_t)i;
}

/* ---- one step */
typedef struct step_job {
    vme_embedding *table;
    embedding_step *step;
    embedding_factors factors;
    int64_t version;
} step_job;

static vme_status start_job(vme_embedding *table, const vme_embedding_rates *rates, step_job *job)
{
    const int kind = table->options.optimizer;
    if (!(rates->learning_rate > 0) || isinf(rates->learning_rate))
        return vme_fail(VME_BAD_VALUE, "learning_rate: expected a number above 0, got %g", rates->learning_rate);
    *job = (step_job){.table = table, .step = vme_kernels_current()->embedding->step[kind], .version = rates->step};
    job->factors = (embedding_factors){.rate = (float)rates->learning_rate,
                                       .eps = (float)rates->eps,
                                       .l1 = (float)rates->l1,
                                       .l2 = (float)rates->l2,
                                       .beta = (float)rates->beta};
    if (kind == VME_EMBEDDING_ADAM) {
        if (rates->updates < 1)
            return vme_fail(VME_BAD_VALUE, "updates: expected 1 or more, got %lld", (long long)rates->updates);
        const double done = (double)rates->updates;
        job->factors.rate = (float)(rates->learning_rate / (1 - pow(rates->beta1, done)));
        job->factors.root = (float)sqrt(1 - pow(rates->beta2, done));
        job->factors.keep1 = (float)rates->beta1;
        job->factors.add1 = (float)(1 - rates->beta1);
        job->factors.keep2 = (float)rates->beta2;
        job->factors.add2 = (float)(1 - rates->beta2);
    }
    return VME_OK;
}

static void start_row(const step_job *job, int64_t key, float *row)
{
    const vme_embedding *table = job->table;
    const int64_t dim = table->options.dim;
    memcpy(row, embedding_default(table, key), (size_t)dim * sizeof *row);
    memset(row + dim, 0, (size_t)(table->stride - dim) * sizeof *row);
    if (table->options.optimizer == VME_EMBEDDING_ADAGRAD)
        for (int64_t d = 0; d < dim; d++)
            row[dim + d] = table->options.slot_initial;
}

static uint32_t waiting_version(int64_t version)
{
    return version < 0 ? 0 : version > VERSION_MAX ? VERSION_MAX : (uint32_t)version;
}

static uint32_t sum_of_counts(uint32_t a, uint32_t b) { return a > UINT32_MAX - b ? UINT32_MAX : a + b; }

/* Counts the key, and admits it if its count is high enough. `*row` receives its row, or ROWS_MAX if it waits. */
static vme_status admit(const step_job *job, embedding_shard *shard, int64_t key, uint64_t hash, uint32_t count,
                        uint32_t *row)
{
    vme_embedding *table = job->table;
    key_entry *entry = embedding_find(shard, key, hash);
    *row = ROWS_MAX;
    if (entry != NULL && entry->where < ENTRY_WAITING) {
        if (table->log != NULL && entry->count & ON_DISK)
            return embedding_bring_in(table, shard, entry, row);
        *row = entry->where;
        return VME_OK;
    }
    uint32_t freq = entry == NULL ? 0 : entry->count;
    const uint32_t before = freq;
    if (table->bloom != NULL)
        freq = embedding_bloom_count(table, key, count);
    else
        freq = sum_of_counts(freq, count);
    const bool admitted = !embedding_filters(table) || freq >= table->options.filter_freq;
    if (!admitted && table->bloom != NULL)
        return VME_OK;
    if (entry == NULL && embedding_insert(table, shard, key, hash, &entry) != VME_OK)
        return VME_NO_MEMORY;
    entry->count = freq;
    entry->where = ENTRY_WAITING | waiting_version(job->version);
    if (!admitted)
        return VME_OK;
    const vme_status status = embedding_row_new(table, shard, key, row);
    if (status != VME_OK) {
        *row = ROWS_MAX;
        return status; /* the key is counted; a later step admits it if there is room */
    }
    entry->where = *row;
    entry->count = 0;
    shard->waiting--;
    embedding_note(table, shard, *row)->freq = freq - count; /* step_some adds `count` */
    start_row(job, key, embedding_row(table, shard, *row));
    if (table->snapshot != NULL && before > 0) /* the snapshot omits the new row, so it must contain the waiting key */
        embedding_keep(table, shard, key, job->version, before, NULL);
    return VME_OK;
}

/* Makes the steps of the keys `order`[0 .. n) of one shard; n is at most PIECE. */
static vme_status step_some(const step_job *job, embedding_shard *shard, const unique_keys *unique,
                            const uint32_t *order, int64_t n)
{
    vme_embedding *table = job->table;
    const int64_t dim = table->options.dim;
    uint32_t rows[PIECE];
    vme_status status = VME_OK;
    pthread_rwlock_wrlock(&shard->lock);
    if (table->log != NULL)
        embedding_pins_new(table, shard);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t hash = unique->hashes[order[i]];
        __builtin_prefetch(&embedding_segment(shard, hash)->entries[embedding_slot(hash)]);
    }
    for (int64_t i = 0; i < n && status == VME_OK; i++) {
        const uint32_t number = order[i];
        status = admit(job, shard, unique->keys[number], unique->hashes[number], unique->counts[number], &rows[i]);
        if (status != VME_OK)
            n = i;
        else if (rows[i] != ROWS_MAX) {
            if (table->log != NULL)
                embedding_row_used(table, shard, rows[i]);
            const char *line = (const char *)embedding_row(table, shard, rows[i]);
            for (int64_t at = 0; at < table->stride * (int64_t)sizeof(float) && at < 1024; at += 64)
                __builtin_prefetch(line + at, 1);
            __builtin_prefetch(embedding_note(table, shard, rows[i]), 1);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        if (rows[i] == ROWS_MAX)
            continue;
        row_note *note = embedding_note(table, shard, rows[i]);
        float *row = embedding_row(table, shard, rows[i]);
        embedding_row_touch(table, shard, rows[i], note);
        note->freq = sum_of_counts(note->freq, unique->counts[order[i]]);
        note->version = job->version;
        job->step(dim, &job->factors, unique->sums + order[i] * dim, row, row + dim, row + 2 * dim);
    }
    if (table->log != NULL)
        embedding_pins_new(table, shard); /* unpins the rows */
    pthread_rwlock_unlock(&shard->lock);
    return status;
}

static vme_status step_all(vme_context *context, const step_job *job, unique_keys *unique)
{
    int64_t first[SHARDS + 1];
    unique_sort(unique, first);
    embedding_note_step(job->table, job->version);
    int64_t each = unique->dim <= 64 ? PIECE : 1 + PIECE * 64 / unique->dim;
    if (job->table->log != NULL && each > job->table->rows_max)
        each = job->table->rows_max;
    for (int s = 0; s < SHARDS; s++)
        for (int64_t i = first[s], n; i < first[s + 1]; i += n) {
            if (vme_stopping(context))
                return vme_stopped_here(context);
            n = first[s + 1] - i < each ? first[s + 1] - i : each;
            const vme_status status = step_some(job, &job->table->shards[s], unique, unique->order + i, n);
            if (status != VME_OK)
                return status;
        }
    return VME_OK;
}

/* Whether to check the stop flag at this row. */
static inline bool polls(int64_t row, int64_t dim) { return row % (1 + GRADIENTS_PIECE / dim) == 0; }

vme_status vme_embedding_update(vme_context *context, vme_embedding *table, const vme_embedding_rates *rates,
                                const vme_tensor *ids, const vme_tensor *gradients)
{
    const int64_t n = vme_elements(ids), dim = table->options.dim;
    if (ids->dtype != VME_INT64 || !vme_is_contiguous(ids))
        return vme_fail(VME_BAD_VALUE, "ids: expected contiguous numbers of int64");
    vme_status status = embedding_expect("gradients", gradients, VME_FLOAT32, n, dim);
    step_job job;
    unique_keys unique;
    if (status != VME_OK || (status = start_job(table, rates, &job)) != VME_OK
        || (status = unique_start(context, n, dim, &unique)) != VME_OK)
        return status;
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    VME_FLUSHING(context);
    const embedding_row_kernels *kernels = vme_kernels_current()->embedding;
    const int64_t *keys = (const int64_t *)ids->data;
    const float *rows = (const float *)gradients->data;
    for (int64_t i = 0; i < n && status == VME_OK; i++) {
        if (polls(i, dim) && vme_stopping(context))
            status = vme_stopped_here(context);
        else
            kernels->add(dim, rows + i * dim, 1, unique.sums + unique_add(table, &unique, keys[i]) * dim);
    }
    if (status == VME_OK)
        status = step_all(context, &job, &unique);
    vme_scratch_free(context, unique.scratch, unique.bytes);
    return status;
}

/* ---- bags */
typedef struct bag_gradients {
    const int64_t *ids, *offsets;
    const float *weights;
    const char *dense;
    int64_t step, default_id;
    int combiner;
} bag_gradients;

static vme_status add_bag(vme_context *context, const vme_embedding *table, const bag_gradients *of, int64_t bag,
                          unique_keys *unique)
{
    const embedding_row_kernels *kernels = vme_kernels_current()->embedding;
    const int64_t dim = unique->dim, begin = of->offsets[bag], end = of->offsets[bag + 1];
    const float *gradient = (const float *)(const void *)(of->dense + bag * of->step);
    int64_t kept = 0;
    double sum = 0, squares = 0;
    for (int64_t i = begin; i < end; i++) {
        const float weight = of->weights == NULL ? 1 : of->weights[i];
        if (of->ids[i] >= 0 && weight > 0) {
            kept++;
            sum += (double)weight;
            squares += (double)weight * (double)weight;
        }
    }
    if (kept == 0) {
        if (of->default_id >= 0)
            kernels->add(dim, gradient, 1, unique->sums + unique_add(table, unique, of->default_id) * dim);
        return VME_OK;
    }
    const float factor = embedding_bag_factor(of->combiner, kept, sum, squares);
    for (int64_t i = begin; i < end; i++) {
        const float weight = of->weights == NULL ? 1 : of->weights[i];
        if (polls(i, dim) && vme_stopping(context))
            return vme_stopped_here(context);
        if (of->ids[i] >= 0 && weight > 0)
            kernels->add(dim, gradient, weight * factor, unique->sums + unique_add(table, unique, of->ids[i]) * dim);
    }
    return VME_OK;
}

typedef struct tables_job {
    vme_context *context;
    int count;
    const vme_embedding_bags *bags;
    const vme_embedding_rates *rates;
} tables_job;

/* Makes one step for all sets of bags of bags[i]'s table. Does nothing if an earlier index has the same table. */
static vme_status update_table(const tables_job *all, int i)
{
    vme_embedding *table = all->bags[i].table;
    vme_context *context = all->context;
    int64_t ids = 0;
    for (int k = 0; k < all->count; k++) {
        if (all->bags[k].table != table)
            continue;
        if (k < i)
            return VME_OK;
        ids += all->bags[k].ids->shape[0] + all->bags[k].offsets->shape[0]; /* an empty bag has one id: the default */
    }
    step_job job;
    unique_keys unique;
    vme_status status = start_job(table, all->rates, &job);
    if (status == VME_OK)
        status = unique_start(context, ids, table->options.dim, &unique);
    if (status != VME_OK)
        return status;
    for (int k = i; k < all->count && status == VME_OK; k++) {
        const vme_embedding_bags *bags = &all->bags[k];
        if (bags->table != table)
            continue;
        const bag_gradients of = {(const int64_t *)bags->ids->data,
                                  (const int64_t *)bags->offsets->data,
                                  bags->weights == NULL ? NULL : (const float *)bags->weights->data,
                                  bags->dense->data,
                                  bags->dense->strides[0],
                                  bags->default_id,
                                  bags->combiner};
        for (int64_t bag = 0; bag < bags->offsets->shape[0] - 1 && status == VME_OK; bag++)
            status = add_bag(context, table, &of, bag, &unique);
    }
    if (status == VME_OK)
        status = step_all(context, &job, &unique);
    vme_scratch_free(context, unique.scratch, unique.bytes);
    return status;
}

static vme_status update_some(void *argument, int64_t begin, int64_t end)
{
    const tables_job *job = argument;
    vme_status status = VME_OK;
    VME_FLUSHING(job->context);
    for (int64_t i = begin; i < end && status == VME_OK; i++)
        status = update_table(job, (int)i);
    return status;
}

vme_status vme_embedding_update_bags(vme_context *context, int count, const vme_embedding_bags *bags,
                                     const vme_embedding_rates *rates)
{
    for (int i = 0; i < count; i++) { /* checks all sets before any row changes */
        int64_t bag_count, id_count;
        bool singles;
        step_job job;
        vme_status status = embedding_bags_check(&bags[i], false, &bag_count, &id_count, &singles);
        if (status != VME_OK || (status = start_job(bags[i].table, rates, &job)) != VME_OK)
            return status;
    }
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    tables_job job = {context, count, bags, rates};
    return vme_parallel(context, count, 1, update_some, &job);
}
