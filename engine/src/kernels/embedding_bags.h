/* Bags of rows of an embedding table, pipelined by groups of eight keys: while one bag is summed, the rows of later
 * keys are prefetched, and the entries of still later keys. Two things would stall the pipeline:
 *   - a chain of dependent operations from key to row that exceeds the processor's reorder window. Therefore each stage
 *     is a short part of the chain, and passes its results to the next stage through memory some turns later;
 *   - an unpredictable branch. Therefore keys that are not in their own bucket are deferred: they are looked up when
 *     the next bucket has arrived. */
#include "embedding/table.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

enum {
    GROUP = 8,
    /* Turns at which the stages of a group of keys run. In turn 0 keys are hashed and the directory is prefetched. A
     * stage that reads many small results as one vector runs two turns later, when they have left the store queue. */
    TURN_BUCKETS = 3,  /* prefetches the buckets */
    TURN_ENTRIES = 11, /* reads the entries */
    TURN_CHUNKS = 13,  /* finds the rows' chunks */
    TURN_ROWS = 14,    /* prefetches the rows */
    KEYS_AHEAD = 16,   /* cache lines of keys that are prefetched before they are hashed */
    RING = 16,         /* groups of eight keys in the pipeline; a power of two */
    /* Rows are prefetched this many cache lines before they are read, within bounds in keys. */
    LINES_IN_FLIGHT = 2 * EMBEDDING_BYTES, /* AVX2: 64, AVX-512: 128 */
    ROWS_AHEAD_MIN = 16,
    ROWS_AHEAD_MAX = 64,
    ROWS_RING = 256,   /* rows that were found but not yet read; a power of two */
    ROWS_SUMMED = 128, /* maximum rows summed at once */
    LINES_AHEAD = 8,   /* lines of a row that are prefetched; the hardware prefetcher does the rest */
    BAGS_COPIED = 16,  /* bags of single keys that are copied at once */
};

/* The fields of the table's shards that lookups need, close together. */
typedef struct bags_table {
    _Alignas(64) uint64_t directory[SHARDS]; /* addresses */
    uint64_t shift[SHARDS];                  /* shift of (hash >> 1) that leaves the directory index */
    uint64_t chunks[SHARDS];                 /* addresses */
    uint64_t seed, row_bytes;
    int steps;
} bags_table;

static void view_table(const vme_embedding *table, bags_table *view)
{
    view->seed = table->seed;
    view->row_bytes = (uint64_t)table->stride * sizeof(float);
    view->steps = table->chunk_steps;
    for (int i = 0; i < SHARDS; i++) {
        const embedding_shard *shard = &table->shards[i];
        view->directory[i] = (uintptr_t)shard->directory;
        view->shift[i] = 63 - (uint64_t)shard->depth;
        view->chunks[i] = (uintptr_t)shard->chunks;
    }
}

/* GROUP keys in the pipeline. Only the last group has fewer: its other slots hold key 0 and no entry. */
typedef struct key_group {
    _Alignas(64) uint64_t hash[GROUP];
    uint64_t address[GROUP]; /* address of the segment in the directory; later of the row's chunk */
    uint64_t bucket[GROUP];  /* the bucket's address; later the row's offset in bytes from its shard's origin */
    _Alignas(32) uint32_t where[GROUP]; /* the entry's row; ENTRY_WAITING and above: deferred */
} key_group;

#ifdef __AVX512F__
/* Returns whether one of the keys is below 0. */
static inline bool hash_keys(const bags_table *view, const int64_t *keys, int64_t count, key_group *group)
{
    const __m512i factor = _mm512_set1_epi64((long long)UINT64_C(0xd6e8feb86659fd93));
    __m512i h = _mm512_maskz_loadu_epi64((__mmask8)(0xff >> (GROUP - count)), keys);
    const bool negative = _mm512_movepi64_mask(h) != 0;
    h = _mm512_xor_si512(h, _mm512_set1_epi64((long long)view->seed)); /* the same as embedding_hash */
    h = _mm512_mullo_epi64(_mm512_xor_si512(h, _mm512_srli_epi64(h, 32)), factor);
    h = _mm512_mullo_epi64(_mm512_xor_si512(h, _mm512_srli_epi64(h, 32)), factor);
    h = _mm512_xor_si512(h, _mm512_srli_epi64(h, 32));
    /* permutations use the low three bits, which are the shard number */
    const __m512i directory = _mm512_permutexvar_epi64(h, _mm512_load_si512(view->directory));
    const __m512i shift = _mm512_permutexvar_epi64(h, _mm512_load_si512(view->shift));
    const __m512i number = _mm512_srlv_epi64(_mm512_srli_epi64(h, 1), shift);
    _mm512_store_si512(group->hash, h);
    _mm512_store_si512(group->address, _mm512_add_epi64(directory, _mm512_slli_epi64(number, 3)));
    return negative;
}

static inline uint32_t matching_entries(const key_entry *bucket, int64_t key)
{
    const __m512i entries = _mm512_load_si512((const void *)bucket);
    return _mm512_mask_cmpeq_epi64_mask(0x55, entries, _mm512_set1_epi64(key));
}
enum { ENTRY_BITS = 2 }; /* bits of the result of matching_entries for each entry */

/* The same as embedding_row, up to the chunk's origin. */
static inline void find_chunks(const bags_table *view, key_group *group)
{
    const __m256i where = _mm256_load_si256((const void *)group->where);
    const __m512i row = _mm512_cvtepu32_epi64(_mm256_andnot_si256(_mm256_srai_epi32(where, 31), where));
    const __m512i row_group = _mm512_add_epi64(_mm512_srli_epi64(row, FIRST_ROWS_BITS), _mm512_set1_epi64(1));
    const __m512i past_growing = _mm512_srli_epi64(row_group, (unsigned)view->steps);
    const __m512i growing = _mm512_cvttpd_epi64(_mm512_getexp_pd(_mm512_cvtepi64_pd(row_group)));
    const __m512i unadjusted =
        _mm512_add_epi64(_mm512_min_epi64(growing, _mm512_set1_epi64(view->steps)), past_growing);
    const __m512i chunk = _mm512_mask_sub_epi64(unadjusted, _mm512_test_epi64_mask(past_growing, past_growing),
                                                unadjusted, _mm512_set1_epi64(1));
    const __m512i chunks = _mm512_permutexvar_epi64(_mm512_load_si512(group->hash), _mm512_load_si512(view->chunks));
    _mm512_store_si512(group->address, _mm512_add_epi64(chunks, _mm512_slli_epi64(chunk, 5)));
    _mm512_store_si512(group->bucket, _mm512_mul_epu32(row, _mm512_set1_epi64((long long)view->row_bytes)));
}
_Static_assert(SHARDS == 8 && sizeof(row_chunk) == 32 && sizeof(key_segment *) == 8,
               "the layout that find_chunks reads");
#else
static inline bool hash_keys(const bags_table *view, const int64_t *keys, int64_t count, key_group *group)
{
    int64_t signs = 0;
    for (int64_t i = 0; i < GROUP; i++) {
        const int64_t key = i < count ? keys[i] : 0;
        signs |= key;
        const uint64_t hash = embedding_mixed((uint64_t)key ^ view->seed);
        const int shard = embedding_shard_of(hash);
        group->hash[i] = hash;
        group->address[i] = view->directory[shard] + ((hash >> 1) >> view->shift[shard]) * sizeof(key_segment *);
    }
    return signs < 0;
}

#ifdef __AVX2__
static inline uint32_t matching_entries(const key_entry *bucket, int64_t key)
{
    const __m256i wanted = _mm256_set1_epi64x(key), *entries = (const __m256i *)(const void *)bucket;
    const __m256i low = _mm256_cmpeq_epi64(_mm256_load_si256(entries), wanted);
    const __m256i high = _mm256_cmpeq_epi64(_mm256_load_si256(entries + 1), wanted);
    const int bits = _mm256_movemask_pd(_mm256_castsi256_pd(low)) | _mm256_movemask_pd(_mm256_castsi256_pd(high)) << 4;
    return (uint32_t)bits & 0x55;
}
enum { ENTRY_BITS = 2 };
_Static_assert(BUCKET == 4 && sizeof(key_entry) == 16, "the layout that matching_entries reads");
#else
static inline uint32_t matching_entries(const key_entry *bucket, int64_t key)
{
    uint32_t matches = 0;
    for (int i = 0; i < BUCKET; i++)
        matches |= (uint32_t)(bucket[i].key == key) << i;
    return matches;
}
enum { ENTRY_BITS = 1 };
#endif

static inline void find_chunks(const bags_table *view, key_group *group)
{
    for (int i = 0; i < GROUP; i++) {
        const uint32_t row = group->where[i] < ENTRY_WAITING ? group->where[i] : 0;
        group->address[i] =
            view->chunks[embedding_shard_of(group->hash[i])] + embedding_chunk(row, view->steps) * sizeof(row_chunk);
        group->bucket[i] = row * view->row_bytes;
    }
}
#endif

static inline void prefetch_directory(const key_group *group)
{
    for (int i = 0; i < GROUP; i++)
        __builtin_prefetch((const void *)(uintptr_t)group->address[i]);
}

static inline void prefetch_buckets(key_group *group)
{
    for (int i = 0; i < GROUP; i++) {
        const key_segment *segment = *(key_segment *const *)(uintptr_t)group->address[i];
        const key_entry *bucket = &segment->entries[embedding_slot(group->hash[i])];
        __builtin_prefetch(bucket);
        group->bucket[i] = (uintptr_t)bucket;
    }
}

static inline void read_entries(const int64_t *keys, int64_t count, key_group *group)
{
    for (int64_t i = 0; i < count; i++) {
        const key_entry *bucket = (const key_entry *)(uintptr_t)group->bucket[i];
        const uint32_t matches = matching_entries(bucket, keys[i]);
        if (__builtin_expect(matches != 0, 1))
            group->where[i] = bucket[__builtin_ctz(matches) / ENTRY_BITS].where;
        else { /* after a segment's last bucket: the prefetch is useless but harmless */
            __builtin_prefetch(bucket + BUCKET);
            group->where[i] = ENTRY_EMPTY;
        }
    }
    for (int64_t i = count; i < GROUP; i++)
        group->where[i] = ENTRY_EMPTY;
}

typedef struct bags_pipeline {
    bags_table view;
    key_group groups[RING];
    const float *rows[ROWS_RING]; /* by key number */
    uint32_t deferred[ROWS_RING]; /* the numbers of deferred keys */
    uint32_t deferred_begin, deferred_end;
} bags_pipeline;

static inline void prefetch_row(const float *row, int lines)
{
    for (int line = 0; line < lines; line++)
        __builtin_prefetch(row + (ptrdiff_t)line * 16);
}

/* Prefetches the rows of the keys from `begin` on; defers keys whose entry was not found. */
static inline void prefetch_rows(bags_pipeline *pipeline, const key_group *group, int64_t begin, int64_t count,
                                 int lines)
{
    const float **rows = &pipeline->rows[begin % ROWS_RING];
    uint32_t combined = 0;
    for (int i = 0; i < GROUP; i++)
        combined |= group->where[i];
    if (__builtin_expect(combined < ENTRY_WAITING, 1)) {
        for (int i = 0; i < GROUP; i++) {
            rows[i] = (const float *)(((const row_chunk *)(uintptr_t)group->address[i])->origin + group->bucket[i]);
            prefetch_row(rows[i], lines);
        }
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        if (group->where[i] < ENTRY_WAITING) {
            rows[i] = (const float *)(((const row_chunk *)(uintptr_t)group->address[i])->origin + group->bucket[i]);
            prefetch_row(rows[i], lines);
        } else
            pipeline->deferred[pipeline->deferred_end++ % ROWS_RING] = (uint32_t)(begin + i);
    }
}

static inline void copy_row(int64_t dim, const float *row, float *out)
{
    int64_t d = 0;
    for (; d + EMBEDDING_LANES <= dim; d += EMBEDDING_LANES)
        EMBEDDING_AT(out + d) = EMBEDDING_AT(row + d);
    for (; d < dim; d++)
        out[d] = row[d];
}

_Static_assert(ROWS_SUMMED + ROWS_AHEAD_MAX + GROUP <= ROWS_RING,
               "the ring has room for the rows that were not yet read");

static inline int64_t group_size(int64_t n, int64_t group)
{
    return n - group * GROUP < GROUP ? n - group * GROUP : GROUP;
}

/* Prefetches the rows of a plain table's keys, from *begin to `end`. Reads each key once, because other threads may
 * write keys meanwhile. False: the key with number *begin has no row. */
static inline bool prefetch_plain_rows(const embedding_bags_piece *piece, const float **rows, int64_t *begin,
                                       int64_t end, int lines)
{
    for (int64_t line = *begin; line < end; line += GROUP)
        __builtin_prefetch(piece->keys + line + KEYS_AHEAD * GROUP);
    for (; *begin < end; ++*begin) {
        const int64_t key = __atomic_load_n(&piece->keys[*begin], __ATOMIC_RELAXED);
        if (__builtin_expect((uint64_t)key >= (uint64_t)piece->row_count, 0))
            return false;
        const float *row = (const float *)(const void *)(piece->rows + key * piece->row_step);
        rows[*begin % ROWS_RING] = row;
        prefetch_row(row, lines);
    }
    return true;
}

/* Like sum, for a plain table's bags without weights, whose rows are as wide as the sums that fit in registers.
 * Prefetches a later row with each row that it reads, which spreads prefetches over the time of the sums. Stops
 * prefetching at a key without a row: prefetch_plain_rows reports it later. */
static inline __attribute__((always_inline)) void sum_and_prefetch(const embedding_bags_piece *piece,
                                                                   const float **ring, int64_t from, int64_t to,
                                                                   int64_t *prefetched, bool accumulate, float *out)
{
    const embedding_vector zero = {0};
    embedding_vector sum[EMBEDDING_SUMS];
    for (int k = 0; k < EMBEDDING_SUMS; k++)
        sum[k] = accumulate ? EMBEDDING_AT(out + k * EMBEDDING_LANES) : zero;
    int64_t next = *prefetched;
    for (int64_t i = from; i < to; i++) {
        const int64_t key = __atomic_load_n(&piece->keys[next < piece->n ? next : piece->n - 1], __ATOMIC_RELAXED);
        const bool known = (uint64_t)key < (uint64_t)piece->row_count && next < piece->n;
        const float *row = (const float *)(const void *)(piece->rows + (known ? key : 0) * piece->row_step);
        ring[next % ROWS_RING] = row;
        next += known;
        prefetch_row(row, EMBEDDING_SUMS * EMBEDDING_LANES / 16);
        for (int k = 0; k < EMBEDDING_SUMS; k++)
            sum[k] += EMBEDDING_AT(ring[i % ROWS_RING] + k * EMBEDDING_LANES);
    }
    *prefetched = next;
    for (int k = 0; k < EMBEDDING_SUMS; k++)
        EMBEDDING_AT(out + k * EMBEDDING_LANES) = sum[k];
}

/* `lines`: cache lines of a row to prefetch. `width`: numbers of a row if known at compile time; else 0. */
static inline __attribute__((always_inline)) int64_t sum_bags_with(const embedding_bags_piece *piece, const int lines,
                                                                   const int64_t width)
{
    const vme_embedding *table = piece->table;
    const int64_t n = piece->n, dim = width > 0 ? width : piece->dim, *keys = piece->keys;
    const int64_t group_count = (n + GROUP - 1) / GROUP, bags = piece->bags;
    const int64_t rows_in_flight = LINES_IN_FLIGHT / lines;
    const int64_t rows_ahead = rows_in_flight < ROWS_AHEAD_MIN   ? ROWS_AHEAD_MIN
                               : rows_in_flight > ROWS_AHEAD_MAX ? ROWS_AHEAD_MAX
                                                                 : rows_in_flight;
    bags_pipeline pipeline;
    pipeline.deferred_begin = pipeline.deferred_end = 0;
    if (table != NULL)
        view_table(table, &pipeline.view);
    const bool prefetch_in_sums =
        table == NULL && piece->ends != NULL && piece->weights == NULL && dim == EMBEDDING_SUMS * EMBEDDING_LANES;
    int64_t turn = 0, found = 0; /* turns started; keys of the turns that ended */
    for (int64_t bag = 0, from = 0, bag_begin = 0; bag < bags;) {
        /* the next rows to read, from `from` to `to`: whole bags of single keys, or part of a bag that began at
         * `bag_begin` */
        const int64_t end = piece->ends != NULL ? piece->ends[bag] : n;
        const int64_t rows_max = piece->ends != NULL ? ROWS_SUMMED : BAGS_COPIED;
        int64_t to = from + rows_max < end ? from + rows_max : end;
        if (to > (from / ROWS_RING + 1) * ROWS_RING)
            to = (from / ROWS_RING + 1) * ROWS_RING;
        const int64_t ahead = prefetch_in_sums && from > 0 ? 0 : rows_ahead;
        const int64_t found_end = to + ahead < n ? to + ahead : n;
        if (table == NULL && !prefetch_plain_rows(piece, pipeline.rows, &found, found_end, lines))
            return found;
        for (; found < found_end; turn++) {
            const int64_t bucket_group = turn - TURN_BUCKETS, entry_group = turn - TURN_ENTRIES,
                          chunk_group = turn - TURN_CHUNKS, row_group = turn - TURN_ROWS;
            if (turn < group_count) {
                __builtin_prefetch(keys + (turn + KEYS_AHEAD) * GROUP);
                key_group *group = &pipeline.groups[turn % RING];
                if (hash_keys(&pipeline.view, keys + turn * GROUP, group_size(n, turn), group) && !piece->any_key)
                    return turn * GROUP;
                prefetch_directory(group);
            }
            if (bucket_group >= 0 && bucket_group < group_count)
                prefetch_buckets(&pipeline.groups[bucket_group % RING]);
            if (entry_group >= 0 && entry_group < group_count)
                read_entries(keys + entry_group * GROUP, group_size(n, entry_group),
                             &pipeline.groups[entry_group % RING]);
            if (chunk_group >= 0 && chunk_group < group_count)
                find_chunks(&pipeline.view, &pipeline.groups[chunk_group % RING]);
            if (row_group >= 0) {
                prefetch_rows(&pipeline, &pipeline.groups[row_group % RING], row_group * GROUP,
                              group_size(n, row_group), lines);
                found = row_group * GROUP + GROUP;
            }
        }
        for (; pipeline.deferred_begin != pipeline.deferred_end; pipeline.deferred_begin++) {
            const int64_t number = pipeline.deferred[pipeline.deferred_begin % ROWS_RING];
            const uint64_t hash = embedding_hash(table, keys[number]);
            const embedding_shard *shard = &table->shards[embedding_shard_of(hash)];
            const key_entry *entry = embedding_find(shard, keys[number], hash);
            const float *row = embedding_weights(table, shard, keys[number], entry);
            pipeline.rows[number % ROWS_RING] = row;
            prefetch_row(row, lines);
        }
        const float *const *rows = &pipeline.rows[from % ROWS_RING];
        if (piece->ends == NULL) {
            for (; from < to; from++, bag++) {
                const int64_t later = bag + BAGS_COPIED < bags ? bag + BAGS_COPIED : bags - 1;
                __builtin_prefetch(piece->out + later * piece->out_step, 1);
                copy_row(dim, *rows++, (float *)(void *)(piece->out + bag * piece->out_step));
            }
            continue;
        }
        float *out = (float *)(void *)(piece->out + bag * piece->out_step);
        if (prefetch_in_sums)
            sum_and_prefetch(piece, pipeline.rows, from, to, &found, from > bag_begin, out);
        else
            sum(to - from, dim, rows, piece->weights == NULL ? NULL : piece->weights + from, from > bag_begin, out);
        from = to;
        if (to < end)
            continue;
        if (piece->factors != NULL && piece->factors[bag] != 1)
            scale(dim, piece->factors[bag], out);
        bag_begin = to;
        bag++;
    }
    return -1;
}

static int64_t sum_bags(const embedding_bags_piece *piece)
{
    const int64_t lines = (piece->dim + 15) / 16;
    if (piece->dim == 16)
        return sum_bags_with(piece, 1, 16);
    if (lines == 1)
        return sum_bags_with(piece, 1, 0);
    if (piece->dim == 64)
        return sum_bags_with(piece, 4, 64);
    return sum_bags_with(piece, lines < LINES_AHEAD ? (int)lines : LINES_AHEAD, 0);
}
