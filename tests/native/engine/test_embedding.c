/* Embedding tables: keys that grow through many splits and go again; every allocation made to fail once; lookups,
 * training, saving, eviction and stops at once, where each row that anybody sees must be whole. All of it with rows in
 * memory, and then with most of them on disk, where each read and write is made to fail once, too.
 *
 * All gradients are 1, so that a row tells of itself: after k steps Adagrad's squares are k, and every weight of the
 * row is the same number that only k decides. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "embedding/table.h"

enum { DIM = 20, STEPS = 4096 };
static const vme_embedding_rates rates = {.learning_rate = 0.5, .eps = 1e-8};
static float weights_after[STEPS], zeros[DIM];
static bool on_disk; /* whether tables have rows there; some 300 are in memory then */

static void fill_weights_after(void)
{
    float weight = 0, squares = 0;
    for (int k = 1; k < STEPS; k++) {
        squares = squares + 1;
        weight = weight - 0.5f / (sqrtf(squares) + 1e-8f);
        weights_after[k] = weight;
    }
}

typedef struct numbers {
    int64_t shape[2], strides[2];
    vme_tensor tensor;
} numbers;

static vme_tensor *tensor_of(numbers *of, vme_context *context, vme_dtype dtype, int64_t n, int64_t width)
{
    const int64_t size = vme_dtype_size(dtype);
    vme_buffer *buffer;
    CHECK(vme_buffer_new(context, (size_t)(n * (width ? width : 1) * size), true, &buffer) == VME_OK);
    *of = (numbers){.shape = {n, width}, .strides = {size * (width ? width : 1), size}};
    of->tensor = (vme_tensor){buffer, vme_buffer_data(buffer), of->shape, of->strides, width ? 2 : 1, (int32_t)dtype};
    return &of->tensor;
}

static void drop(numbers *of) { vme_buffer_unref(of->tensor.buffer); }

static vme_embedding_options options_for(int64_t filter, int64_t steps_to_live)
{
    return (vme_embedding_options){.dim = DIM,
                                   .optimizer = VME_EMBEDDING_ADAGRAD,
                                   .filter_freq = filter,
                                   .steps_to_live = steps_to_live,
                                   .default_rows = 1,
                                   .defaults = zeros,
                                   .seed = 7,
                                   .disk_folder = on_disk ? "." : NULL,
                                   .disk_memory_bytes = 80000,
                                   .disk_quota_bytes = 16 << 20,
                                   .disk_cache = VME_EMBEDDING_LFU};
}

static vme_status train(vme_context *context, vme_embedding *table, int64_t step, int64_t n, const int64_t *keys)
{
    vme_embedding_rates now = rates;
    now.step = step;
    const int64_t shapes[2][2] = {{n, 0}, {n, DIM}}, strides[2][2] = {{8, 0}, {4 * DIM, 4}};
    static _Thread_local float ones[STEPS * DIM];
    CHECK(n <= STEPS);
    for (int64_t i = 0; i < n * DIM; i++)
        ones[i] = 1;
    const vme_tensor ids = {NULL, (char *)(uintptr_t)keys, shapes[0], strides[0], 1, VME_INT64},
                     gradients = {NULL, (char *)ones, shapes[1], strides[1], 2, VME_FLOAT32};
    return vme_embedding_update(context, table, &now, &ids, &gradients);
}

static void check_row(int64_t k, const float *weights, const float *squares)
{
    CHECK(k >= 0 && k < STEPS);
    for (int d = 0; d < DIM; d++) {
        CHECK(weights[d] == weights_after[k]);
        CHECK(squares == NULL || squares[d] == (float)k);
    }
}

/* Reads a whole snapshot; every row is whole: it made as many steps as it was counted, but for `before` of them (below
 * 0: steps that failed counted it, too). How
 * many rows, and how many keys wait. VME_NO_MEMORY: it failed. */
static vme_status read_all(vme_context *context, vme_embedding_snapshot *snapshot, int64_t before, int64_t *rows,
                           int64_t *waiting)
{
    enum { ROOM = 2048 };
    static _Thread_local int64_t notes[3][ROOM];
    static _Thread_local float weights[ROOM * DIM], squares[ROOM * DIM];
    static const int64_t shape[2] = {ROOM, DIM}, steps[2] = {4 * DIM, 4}, note = 8;
    const vme_tensor keys = {NULL, (char *)notes[0], shape, &note, 1, VME_INT64},
                     freqs = {NULL, (char *)notes[1], shape, &note, 1, VME_INT64},
                     versions = {NULL, (char *)notes[2], shape, &note, 1, VME_INT64},
                     values = {NULL, (char *)weights, shape, steps, 2, VME_FLOAT32},
                     slots = {NULL, (char *)squares, shape, steps, 2, VME_FLOAT32};
    int64_t read;
    vme_status status;
    *rows = *waiting = 0;
    while ((status = vme_embedding_snapshot_read(context, snapshot, &keys, &freqs, &versions, &values, &slots, &read))
               == VME_OK
           && read > 0) {
        for (int64_t i = 0; i < read; i++)
            check_row(before < 0 ? (int64_t)squares[i * DIM] : notes[1][i] - before, weights + i * DIM,
                      squares + i * DIM);
        *rows += read;
    }
    while (status == VME_OK
           && (status = vme_embedding_snapshot_waiting(context, snapshot, &keys, &freqs, &versions, &read)) == VME_OK
           && read > 0)
        *waiting += read;
    return status;
}

/* ---- keys: many, negative ones too, found again after all splits; then all evicted, and the rows used again */
static void test_keys(vme_context *context)
{
    enum { MANY = 20000 };
    vme_embedding *table;
    vme_embedding_statistics counts;
    int64_t evicted, *keys = malloc(MANY * sizeof *keys);
    vme_embedding_options options = options_for(0, 5);
    CHECK(keys != NULL && vme_embedding_new(context, &options, &table) == VME_OK);
    for (int round = 0; round < 2; round++) {
        for (int64_t i = 0; i < MANY; i++)
            keys[i] = i % 3 == 0 ? -i : i % 3 == 1 ? i * INT64_C(0x100000001) : INT64_MIN + i * (round + 1);
        for (int64_t i = 0; i < MANY; i += 2000)
            CHECK(train(context, table, 10 * round, 2000, keys + i) == VME_OK);
        vme_embedding_statistics_of(table, &counts);
        CHECK(counts.rows == MANY && counts.waiting == 0 && counts.changed == MANY);
        const int64_t bytes = counts.bytes;
        numbers ids, out;
        tensor_of(&ids, context, VME_INT64, MANY, 0);
        tensor_of(&out, context, VME_FLOAT32, MANY, DIM);
        memcpy(ids.tensor.data, keys, MANY * sizeof *keys);
        CHECK(vme_embedding_lookup(context, table, &ids.tensor, &out.tensor) == VME_OK);
        for (int64_t i = 0; i < MANY; i++)
            check_row(1, (float *)(void *)out.tensor.data + i * DIM, NULL);
        drop(&ids);
        drop(&out);
        CHECK(vme_embedding_evict(context, table, 10 * round + 5, &evicted) == VME_OK && evicted == 0);
        CHECK(vme_embedding_evict(context, table, 10 * round + 6, &evicted) == VME_OK && evicted == MANY);
        vme_embedding_statistics_of(table, &counts);
        CHECK(counts.rows == 0 && counts.changed == 0 && counts.bytes == bytes && counts.disk_rows == 0);
    }
    vme_embedding_unref(table);
    free(keys);
}

/* ---- every allocation fails once. One thread does that: the thread sanitizer would take minutes for nothing. */
#ifndef __SANITIZE_THREAD__
enum { N = 7200, BAGS = 1200 };

/* What two bags tables and their steps allocate, one of them with a Bloom filter; then the first one's rows in another
 * table. */
static vme_status use_bags(vme_context *context, vme_embedding *tables[3])
{
    static float sums[BAGS * DIM];
    static int64_t keys[BAGS], offsets[BAGS + 1];
    static uint16_t counters[1 << 12];
    static const int64_t bags = BAGS, ends = BAGS + 1, whole = 8, shape[2] = {BAGS, DIM}, steps[2] = {4 * DIM, 4};
    const vme_tensor ids = {NULL, (char *)keys, &bags, &whole, 1, VME_INT64},
                     at = {NULL, (char *)offsets, &ends, &whole, 1, VME_INT64},
                     dense = {NULL, (char *)sums, shape, steps, 2, VME_FLOAT32};
    vme_embedding_rates now = rates;
    for (int i = 0; i < BAGS; i++) {
        keys[i] = i % 7 == 0 ? -1 : i % 1000;
        offsets[i + 1] = i + 1;
    }
    for (int64_t i = 0; i < BAGS * DIM; i++)
        sums[i] = 1;
    vme_status status = VME_OK;
    for (int t = 0; t < 3 && status == VME_OK; t++) {
        vme_embedding_options options = options_for(t == 1 ? 2 : 0, 0);
        options.bloom_elements = t == 1 ? 100 : 0;
        options.bloom_error = 0.1;
        options.disk_folder = t == 1 ? NULL : options.disk_folder;
        if (tables[t] == NULL)
            status = vme_embedding_new(context, &options, &tables[t]);
    }
    if (status != VME_OK)
        return status;
    const vme_embedding_bags sets[3] = {{tables[0], &ids, &at, NULL, 5, VME_EMBEDDING_SUM, &dense, NULL},
                                        {tables[1], &ids, &at, NULL, -1, VME_EMBEDDING_MEAN, &dense, NULL},
                                        {tables[0], &ids, &at, NULL, -1, VME_EMBEDDING_SQRTN, &dense, NULL}};
    if ((status = vme_embedding_update_bags(context, 3, sets, &now)) != VME_OK)
        return status;
    vme_embedding_statistics counts;
    vme_embedding_statistics_of(tables[1], &counts);
    const int64_t n = counts.bloom_counters;
    const vme_tensor bloom = {NULL, (char *)counters, &n, (const int64_t[]){2}, 1, VME_UINT16};
    vme_embedding_snapshot *snapshots[2];
    CHECK(n > 0 && n <= 1 << 12);
    if ((status = vme_embedding_snapshot_new(context, 2, tables, false, snapshots)) != VME_OK)
        return status;
    static int64_t notes[3][1000];
    static float weights[1000 * DIM], squares[1000 * DIM];
    int64_t read = 0;
    const int64_t rows = vme_embedding_snapshot_rows(snapshots[0]), rows_shape[2] = {rows, DIM};
    const vme_tensor row_keys = {NULL, (char *)notes[0], rows_shape, &whole, 1, VME_INT64},
                     freqs = {NULL, (char *)notes[1], rows_shape, &whole, 1, VME_INT64},
                     versions = {NULL, (char *)notes[2], rows_shape, &whole, 1, VME_INT64},
                     values = {NULL, (char *)weights, rows_shape, steps, 2, VME_FLOAT32},
                     slots = {NULL, (char *)squares, rows_shape, steps, 2, VME_FLOAT32};
    CHECK(rows <= 1000);
    status = vme_embedding_snapshot_read(context, snapshots[0], &row_keys, &freqs, &versions, &values, &slots, &read);
    CHECK(status != VME_OK || read == rows);
    if (status == VME_OK)
        status = vme_embedding_snapshot_bloom(context, snapshots[1], &bloom);
    vme_embedding_snapshot_end(snapshots[0], status == VME_OK);
    vme_embedding_snapshot_end(snapshots[1], false);
    vme_embedding_ref(tables[2]);
    if (status == VME_OK)
        status = vme_embedding_put(context, tables[2], &row_keys, &freqs, &versions, &values, &slots);
    vme_embedding_unref(tables[2]);
    if (status == VME_OK)
        status = vme_embedding_put_waiting(context, tables[2], &row_keys, &freqs, &versions); /* they have rows */
    vme_embedding_statistics_of(tables[2], &counts);
    CHECK(status != VME_OK || (counts.rows == rows && counts.waiting == 0 && counts.changed == 0));
    CHECK(vme_embedding_dim(tables[2]) == DIM && vme_embedding_slots(tables[2]) == 1
          && vme_embedding_optimizer_of(tables[2]) == VME_EMBEDDING_ADAGRAD);
    return status == VME_OK ? vme_embedding_put_bloom(context, tables[1], &bloom) : status;
}

static vme_status use(vme_context *context, vme_embedding **made, int *phase)
{
    static int64_t keys[N];
    vme_embedding_options options = options_for(2, 3);
    vme_embedding_snapshot *snapshot = NULL;
    int64_t rows, waiting, evicted;
    for (int i = 0; i < N; i++)
        keys[i] = i;
    vme_status status = VME_OK;
    if (*made == NULL && (status = vme_embedding_new(context, &options, made)) != VME_OK)
        return status;
    for (; *phase < 4; ++*phase) { /* each key once, then a third of them again: admitted */
        const int part = *phase % 3;
        if ((status = train(context, *made, *phase, N / 3, keys + (*phase < 3 ? part * (N / 3) : 0))) != VME_OK)
            return status;
    }
    if ((status = vme_embedding_snapshot_new(context, 1, made, false, &snapshot)) != VME_OK)
        return status;
    status = train(context, *made, 4, 500, keys); /* what the snapshot has to keep */
    if (status == VME_OK)
        status = read_all(context, snapshot, 1, &rows, &waiting);
    CHECK(status != VME_OK || (rows == N / 3 && waiting == N - N / 3));
    vme_embedding_snapshot_end(snapshot, status == VME_OK);
    if (status == VME_OK)
        status = vme_embedding_evict(context, *made, 20, &evicted);
    return status;
}

static void test_failing(vme_context *context)
{
    for (long after = 0;; after++) {
        vme_embedding *table = NULL, *tables[3] = {NULL};
        int phase = 0;
        failing_malloc(after);
        vme_status status = use(context, &table, &phase);
        if (status == VME_OK)
            status = use_bags(context, tables);
        const bool failed = failing_malloc(-1);
        for (int t = 0; t < 3; t++)
            vme_embedding_unref(tables[t]);
        if (!failed) {
            CHECK(status == VME_OK);
            vme_embedding_unref(table);
            break;
        }
        CHECK(status == VME_OK /* no slab: the table did without */
              || (status == VME_NO_MEMORY && vme_message()[0] != 0));
        if (table != NULL && phase >= 4) { /* all rows are whole, and the table works on */
            vme_embedding_snapshot *snapshot;
            int64_t rows, waiting;
            CHECK(vme_embedding_snapshot_new(context, 1, &table, false, &snapshot) == VME_OK);
            CHECK(read_all(context, snapshot, 1, &rows, &waiting) == VME_OK);
            vme_embedding_snapshot_end(snapshot, true);
        }
        vme_embedding_unref(table);
    }
}

/* Every read and write of rows on disk fails once: steps, lookups, saves and evictions say so, no row is lost, and the
 * table works on. */
static vme_status use_disk(vme_context *context, vme_embedding *table, int *phase)
{
    static int64_t keys[N];
    static float found[N * DIM];
    static const int64_t shape[2] = {N, DIM}, each = 8, row[2] = {4 * DIM, 4};
    const vme_tensor ids = {NULL, (char *)keys, shape, &each, 1, VME_INT64},
                     out = {NULL, (char *)found, shape, row, 2, VME_FLOAT32};
    int64_t rows, waiting, evicted;
    for (int i = 0; i < N; i++)
        keys[i] = i;
    vme_status status = VME_OK;
    for (; *phase < 6 && status == VME_OK; *phase += status == VME_OK)
        status = train(context, table, *phase, N / 3, keys + *phase % 3 * (N / 3));
    if (*phase == 7) /* it failed behind here */
        return vme_embedding_evict(context, table, 10, &evicted);
    if (status == VME_OK && (status = vme_embedding_lookup(context, table, &ids, &out)) == VME_OK)
        for (int i = 0; i < N; i++) /* a phase that failed and was made again has steps of some rows twice */
            CHECK(found[i * DIM] == found[i * DIM + DIM - 1] && found[i * DIM] <= weights_after[2]);
    vme_embedding_snapshot *snapshot = NULL;
    if (status == VME_OK && (status = vme_embedding_snapshot_new(context, 1, &table, true, &snapshot)) == VME_OK) {
        status = train(context, table, 7, 300, keys);
        if (status == VME_OK)
            status = read_all(context, snapshot, -1, &rows, &waiting);
        CHECK(status != VME_OK || rows == N);
        vme_embedding_snapshot_end(snapshot, status == VME_OK);
    }
    if (status != VME_OK)
        return status;
    *phase = 7;
    return vme_embedding_evict(context, table, 10, &evicted);
}

static void test_failing_files(vme_context *context)
{
    for (long after = 0;; after = after < 40 ? after + 1 : after + after / 8) {
        vme_embedding *table;
        vme_embedding_options options = options_for(0, 3);
        int phase = 0;
        CHECK(vme_embedding_new(context, &options, &table) == VME_OK);
        failing_files(after);
        vme_status status = use_disk(context, table, &phase);
        const bool failed = failing_files(-1);
        CHECK(status == VME_OK /* a lookup can do without a place in memory */
              || (failed && status == VME_IO_ERROR && vme_message()[0] != 0));
        CHECK(status == VME_OK || use_disk(context, table, &phase) == VME_OK);
        vme_embedding_unref(table);
        if (!failed)
            break;
    }
}

/* A table that is large from the start, so that keys and rows lie in slabs: where the system has none, they lie
 * elsewhere. */
static void test_failing_slabs(vme_context *context)
{
    enum { MANY = 1 << 14 };
    static float defaults[MANY * DIM];
    static int64_t keys[N];
    for (int i = 0; i < N; i++)
        keys[i] = i;
    for (long after = 0;; after++) {
        vme_embedding *table = NULL;
        vme_embedding_options options = options_for(0, 0);
        options.default_rows = MANY;
        options.defaults = defaults;
        failing_malloc(after);
        vme_status status = vme_embedding_new(context, &options, &table);
        for (int step = 1; step < 3 && status == VME_OK; step++)
            for (int64_t i = 0; i < N && status == VME_OK; i += 1000)
                status = train(context, table, step, N - i < 1000 ? N - i : 1000, keys + i);
        const bool failed = failing_malloc(-1);
        CHECK(status == VME_OK || (failed && status == VME_NO_MEMORY && vme_message()[0] != 0));
        if (table != NULL) {
            vme_embedding_statistics counts;
            CHECK(train(context, table, 3, 1, keys) == VME_OK);
            vme_embedding_statistics_of(table, &counts);
            CHECK(status != VME_OK || (counts.rows == N && counts.bytes > (3 << 20)));
            vme_embedding_unref(table);
        }
        if (!failed)
            break;
    }
}
#endif

/* ---- all at once */
enum { TABLES = 2, KEYS = 1200, BATCH = 120, ROUNDS = 200 };
typedef struct stage {
    vme_embedding *tables[TABLES];
    atomic_int training, stops;
    atomic_llong step;
} stage;

static void *trainer(void *argument)
{
    stage *on = argument;
    vme_context *context;
    CHECK(vme_context_new(NULL, 0, &context) == VME_OK);
    uint64_t seed = (uint64_t)(uintptr_t)&context;
    int64_t keys[BATCH];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BATCH; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            keys[i] = (int64_t)(seed >> 33) % KEYS;
        }
        /* a key that is there twice makes one step and is counted twice: freq would not tell the steps */
        for (int i = 0; i < BATCH; i++)
            for (int k = 0; k < i; k++)
                if (keys[i] == keys[k])
                    keys[i] = KEYS + round * BATCH + i;
        if (round % 10 == 9) { /* a stop: what was begun stays whole */
            vme_context_stop(context, true);
            CHECK(train(context, on->tables[round % TABLES], on->step, BATCH, keys) == VME_STOPPED);
            vme_context_stop(context, false);
        }
        CHECK(train(context, on->tables[round % TABLES], on->step, BATCH, keys) == VME_OK);
        atomic_fetch_add(&on->step, 1);
    }
    atomic_fetch_sub(&on->training, 1);
    vme_context_unref(context);
    return NULL;
}

static void *reader(void *argument)
{
    stage *on = argument;
    vme_context *context;
    CHECK(vme_context_new(NULL, 0, &context) == VME_OK);
    numbers ids, out, offsets, sums;
    tensor_of(&ids, context, VME_INT64, KEYS, 0);
    tensor_of(&out, context, VME_FLOAT32, KEYS, DIM);
    tensor_of(&offsets, context, VME_INT64, KEYS + 1, 0);
    tensor_of(&sums, context, VME_FLOAT32, KEYS, DIM);
    for (int64_t i = 0; i < KEYS; i++)
        ((int64_t *)(void *)ids.tensor.data)[i] = ((int64_t *)(void *)offsets.tensor.data)[i] = i;
    ((int64_t *)(void *)offsets.tensor.data)[KEYS] = KEYS;
    while (atomic_load(&on->training) > 0)
        for (int t = 0; t < TABLES; t++) {
            const vme_embedding_bags bags = {on->tables[t], &ids.tensor, &offsets.tensor, NULL, -1, VME_EMBEDDING_SUM,
                                             &sums.tensor,  NULL};
            CHECK(vme_embedding_lookup(context, on->tables[t], &ids.tensor, &out.tensor) == VME_OK);
            CHECK(vme_embedding_lookup_bags(context, 1, &bags) == VME_OK);
            for (int64_t i = 0; i < 2 * KEYS; i++) {
                const float *row = (float *)(void *)(i < KEYS ? out.tensor.data : sums.tensor.data) + i % KEYS * DIM;
                for (int d = 1; d < DIM; d++)
                    CHECK(row[d] == row[0]);
            }
        }
    drop(&ids);
    drop(&out);
    drop(&offsets);
    drop(&sums);
    vme_context_unref(context);
    return NULL;
}

static void *saver(void *argument)
{
    stage *on = argument;
    vme_context *context;
    CHECK(vme_context_new(NULL, 0, &context) == VME_OK);
    for (int round = 0; atomic_load(&on->training) > 0; round++) {
        vme_embedding_snapshot *snapshots[TABLES];
        int64_t rows, waiting, evicted;
        const bool full = round % 3 == 0;
        for (int t = 0; full && t < TABLES; t++)
            CHECK(vme_embedding_evict(context, on->tables[t], on->step, &evicted) == VME_OK);
        CHECK(vme_embedding_snapshot_new(context, TABLES, on->tables, !full, snapshots) == VME_OK);
        CHECK(vme_embedding_evict(context, on->tables[0], on->step, &evicted) == VME_BAD_VALUE);
        for (int t = 0; t < TABLES; t++) {
            CHECK(read_all(context, snapshots[t], 0, &rows, &waiting) == VME_OK);
            CHECK(rows == vme_embedding_snapshot_rows(snapshots[t]));
            vme_embedding_snapshot_end(snapshots[t], round % 2 == 0);
        }
    }
    vme_context_unref(context);
    return NULL;
}

static void test_at_once(vme_context *context)
{
    stage on = {.training = 2};
    for (int t = 0; t < TABLES; t++) {
        vme_embedding_options options = options_for(0, 40);
        CHECK(vme_embedding_new(context, &options, &on.tables[t]) == VME_OK);
    }
    void *(*const roles[])(void *) = {trainer, trainer, reader, saver};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, roles[i], &on) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int t = 0; t < TABLES; t++) {
        vme_embedding_snapshot *snapshot;
        int64_t rows, waiting;
        vme_embedding_statistics counts;
        vme_embedding_statistics_of(on.tables[t], &counts);
        CHECK(vme_embedding_snapshot_new(context, 1, &on.tables[t], true, &snapshot) == VME_OK);
        CHECK(read_all(context, snapshot, 0, &rows, &waiting) == VME_OK && rows == counts.changed);
        vme_embedding_snapshot_end(snapshot, true);
        vme_embedding_statistics_of(on.tables[t], &counts);
        CHECK(counts.changed == 0);
        vme_embedding_unref(on.tables[t]);
    }
}

#ifndef __SANITIZE_THREAD__
typedef struct scribbler {
    int64_t *ids;
    atomic_bool done;
} scribbler;

/* Writes ids while they are looked up, which programs must not do, and which must not read beyond a table. */
static void *scribble(void *argument)
{
    scribbler *on = argument;
    for (int64_t i = 0; !atomic_load(&on->done); i = (i + 7) % KEYS) {
        __atomic_store_n(&on->ids[i], INT64_C(1) << 40, __ATOMIC_RELAXED);
        __atomic_store_n(&on->ids[i], i, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void test_plain_rows(vme_context *context)
{
    enum { WIDE = 64 }; /* which lookups have a path of their own for */
    numbers rows, ids, offsets, sums, weights;
    tensor_of(&rows, context, VME_FLOAT32, KEYS, WIDE);
    tensor_of(&ids, context, VME_INT64, KEYS, 0);
    tensor_of(&weights, context, VME_FLOAT32, KEYS, 0);
    tensor_of(&offsets, context, VME_INT64, KEYS + 1, 0);
    tensor_of(&sums, context, VME_FLOAT32, KEYS, WIDE);
    int64_t *const keys = (int64_t *)(void *)ids.tensor.data, *const ends = (int64_t *)(void *)offsets.tensor.data;
    float *const found = (float *)(void *)sums.tensor.data;
    scribbler other = {.ids = keys};
    pthread_t thread;
    for (int64_t i = 0; i < KEYS; i++) {
        keys[i] = i;
        ((float *)(void *)weights.tensor.data)[i] = 1;
        for (int d = 0; d < WIDE; d++)
            ((float *)(void *)rows.tensor.data)[i * WIDE + d] = (float)i;
    }
    /* bags of one id; of 7; all ids in one */
    const int64_t sizes[] = {1, 7, KEYS};
    for (int round = 0; round < 6; round++) {
        const int64_t each = sizes[round % 3], bags = (KEYS + each - 1) / each;
        for (int64_t i = 0; i <= bags; i++)
            ends[i] = i * each < KEYS ? i * each : KEYS;
        offsets.shape[0] = bags + 1;
        sums.shape[0] = bags;
        const vme_embedding_bags asked = {NULL, &ids.tensor,       &offsets.tensor, round < 3 ? NULL : &weights.tensor,
                                          -1,   VME_EMBEDDING_SUM, &sums.tensor,    &rows.tensor};
        CHECK(vme_embedding_lookup_bags(context, 1, &asked) == VME_OK);
        for (int64_t bag = 0; bag < bags; bag++) {
            float sum = 0;
            for (int64_t i = ends[bag]; i < ends[bag + 1]; i++)
                sum += (float)i;
            for (int d = 0; d < WIDE; d++)
                CHECK(found[bag * WIDE + d] == sum);
        }
        for (int64_t wrong = KEYS; wrong > 0; wrong *= 2) { /* each position of a wrong id, each size of it */
            const int64_t at = (wrong / KEYS * 37) % KEYS;
            keys[at] = wrong;
            CHECK(vme_embedding_lookup_bags(context, 1, &asked) == VME_BAD_VALUE);
            keys[at] = at;
            if (wrong > INT64_MAX / 2)
                break;
        }
        atomic_store(&other.done, false);
        CHECK(pthread_create(&thread, NULL, scribble, &other) == 0);
        for (int i = 0; i < 300; i++) {
            const vme_status status = vme_embedding_lookup_bags(context, 1, &asked);
            CHECK(status == VME_OK || status == VME_BAD_VALUE);
        }
        atomic_store(&other.done, true);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    offsets.shape[0] = sums.shape[0] = 0;
    const vme_embedding_bags trained = {NULL, &ids.tensor,       &offsets.tensor, NULL,
                                        -1,   VME_EMBEDDING_SUM, &sums.tensor,    &rows.tensor};
    CHECK(vme_embedding_update_bags(context, 1, &trained, &rates) != VME_OK); /* steps are the optimizer's */
    drop(&rows);
    drop(&ids);
    drop(&weights);
    drop(&offsets);
    drop(&sums);
}
#endif

int main(void)
{
    vme_context *context;
    vme_statistics statistics;
    fill_weights_after();
    CHECK(vme_context_new(NULL, 0, &context) == VME_OK);
#ifndef __SANITIZE_THREAD__
    test_plain_rows(context);
#endif
    for (int disk = 0; disk < 2; disk++) {
        on_disk = disk == 1;
        test_keys(context);
        test_at_once(context);
#ifndef __SANITIZE_THREAD__
        test_failing(context);
        if (on_disk)
            test_failing_files(context);
        else
            test_failing_slabs(context);
#endif
    }
    vme_context_statistics(context, &statistics);
    CHECK(statistics.live_bytes == 0);
    vme_context_unref(context);
    return 0;
}
