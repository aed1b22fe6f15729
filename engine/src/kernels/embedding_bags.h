/* Bags of rows of an embedding table, pipelined by groups of eight keys: while one bag is summed, the rows of later
 * keys are prefetched, and the entries of still later keys. Two things would stall the pipeline:
 *   - a chain of dependent operations from key to row that exceeds the processor's reorder window: each stage is a
 *     short part of the chain and passes its results to the next one through memory some turns later;
 *   - an unpredictable branch: keys that are not in their own bucket are set aside, and looked up when the next bucket
 *     has arrived. */
#include "embedding/table.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

enum {
    EIGHT = 8,
    /* Turns at which the stages of eight keys run: hash and prefetch the directory, prefetch bucket, read entry, find
     * chunk, prefetch row. A stage that reads many small results as one vector runs two turns later, when they have
     * left the store queue. */
    ASKS = 3,
    READS = 11,
    PLACES = 13,
    ENDS = 14,
    KEYS_AHEAD = 16, /* cache lines of keys that are prefetched before they are hashed */
    RING = 16,       /* groups of eight keys in the pipeline; a power of two */
    /* Rows are prefetched this many cache lines before they are read, within bounds in keys. */
    LINES_UNDER_WAY = 2 * EMBEDDING_BYTES, /* AVX2: 64, AVX-512: 128 */
    ROWS_AHEAD_MIN = 16,
    ROWS_AHEAD_MAX = 64,
    ROWS_RING = 256,     /* rows that were found but not yet read; a power of two */
    ROWS_TOGETHER = 128, /* maximum rows summed at once */
    LINES_AHEAD = 8,     /* lines of a row that are prefetched; the hardware prefetcher does the rest */
    SINGLES = 16,        /* bags of single keys that are copied at once */
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

/* Eight keys in the pipeline. Only the last group has fewer: its other slots hold key 0 and no entry. */
typedef struct eight_keys {
    _Alignas(64) uint64_t hash[EIGHT];
    uint64_t place[EIGHT];  /* address of the segment in the directory; later of the row's chunk */
    uint64_t bucket[EIGHT]; /* the bucket's address; later the row's offset in bytes from its shard's origin */
    _Alignas(32) uint32_t where[EIGHT]; /* ENTRY_WAITING and above: set aside */
} eight_keys;

#ifdef __AVX512F__
/* Returns whether one of the keys is below 0. */
static inline bool hash_keys(const bags_table *view, const int64_t *keys, int64_t count, eight_keys *of)
{
    const __m512i factor = _mm512_set1_epi64((long long)UINT64_C(0xd6e8feb86659fd93));
    __m512i h = _mm512_maskz_loadu_epi64((__mmask8)(0xff >> (EIGHT - count)), keys);
    const bool below = _mm512_movepi64_mask(h) != 0;
    h = _mm512_xor_si512(h, _mm512_set1_epi64((long long)view->seed)); /* the same as embedding_hash */
    h = _mm512_mullo_epi64(_mm512_xor_si512(h, _mm512_srli_epi64(h, 32)), factor);
    h = _mm512_mullo_epi64(_mm512_xor_si512(h, _mm512_srli_epi64(h, 32)), factor);
    h = _mm512_xor_si512(h, _mm512_srli_epi64(h, 32));
    /* permutations use the low three bits, which are the shard number */
    const __m512i directory = _mm512_permutexvar_epi64(h, _mm512_load_si512(view->directory));
    const __m512i shift = _mm512_permutexvar_epi64(h, _mm512_load_si512(view->shift));
    const __m512i number = _mm512_srlv_epi64(_mm512_srli_epi64(h, 1), shift);
    _mm512_store_si512(of->hash, h);
    _mm512_store_si512(of->place, _mm512_add_epi64(directory, _mm512_slli_epi64(number, 3)));
    return below;
}

static inline uint32_t entry_with(const key_entry *bucket, int64_t key)
{
    const __m512i entries = _mm512_load_si512((const void *)bucket);
    return _mm512_mask_cmpeq_epi64_mask(0x55, entries, _mm512_set1_epi64(key));
}
enum { ENTRY_BITS = 2 }; /* bits of entry_with's result for each entry */

/* The same as embedding_row, up to the chunk's origin. */
static inline void find_chunks(const bags_table *view, eight_keys *of)
{
    const __m256i where = _mm256_load_si256((const void *)of->where);
    const __m512i row = _mm512_cvtepu32_epi64(_mm256_andnot_si256(_mm256_srai_epi32(where, 31), where));
    const __m512i group = _mm512_add_epi64(_mm512_srli_epi64(row, FIRST_ROWS_BITS), _mm512_set1_epi64(1));
    const __m512i behind = _mm512_srli_epi64(group, (unsigned)view->steps);
    const __m512i growing = _mm512_cvttpd_epi64(_mm512_getexp_pd(_mm512_cvtepi64_pd(group)));
    const __m512i all = _mm512_add_epi64(_mm512_min_epi64(growing, _mm512_set1_epi64(view->steps)), behind);
    const __m512i chunk = _mm512_mask_sub_epi64(all, _mm512_test_epi64_mask(behind, behind), all, _mm512_set1_epi64(1));
    const __m512i chunks = _mm512_permutexvar_epi64(_mm512_load_si512(of->hash), _mm512_load_si512(view->chunks));
    _mm512_store_si512(of->place, _mm512_add_epi64(chunks, _mm512_slli_epi64(chunk, 5)));
    _mm512_store_si512(of->bucket, _mm512_mul_epu32(row, _mm512_set1_epi64((long long)view->row_bytes)));
}
_Static_assert(SHARDS == 8 && sizeof(row_chunk) == 32 && sizeof(key_segment *) == 8, "as find_chunks has it");
#else
static inline bool hash_keys(const bags_table *view, const int64_t *keys, int64_t count, eight_keys *of)
{
    int64_t signs = 0;
    for (int64_t i = 0; i < EIGHT; i++) {
        const int64_t key = i < count ? keys[i] : 0;
        signs |= key;
        const uint64_t hash = embedding_mixed((uint64_t)key ^ view->seed);
        const int shard = embedding_shard_of(hash);
        of->hash[i] = hash;
        of->place[i] = view->directory[shard] + ((hash >> 1) >> view->shift[shard]) * sizeof(key_segment *);
    }
    return signs < 0;
}

#ifdef __AVX2__
static inline uint32_t entry_with(const key_entry *bucket, int64_t key)
{
    const __m256i wanted = _mm256_set1_epi64x(key), *entries = (const __m256i *)(const void *)bucket;
    const __m256i low = _mm256_cmpeq_epi64(_mm256_load_si256(entries), wanted);
    const __m256i high = _mm256_cmpeq_epi64(_mm256_load_si256(entries + 1), wanted);
    const int bits = _mm256_movemask_pd(_mm256_castsi256_pd(low)) | _mm256_movemask_pd(_mm256_castsi256_pd(high)) << 4;
    return (uint32_t)bits & 0x55;
}
enum { ENTRY_BITS = 2 };
_Static_assert(BUCKET == 4 && sizeof(key_entry) == 16, "as entry_with has it");
#else
static inline uint32_t entry_with(const key_entry *bucket, int64_t key)
{
    uint32_t same = 0;
    for (int i = 0; i < BUCKET; i++)
        same |= (uint32_t)(bucket[i].key == key) << i;
    return same;
}
enum { ENTRY_BITS = 1 };
#endif

static inline void find_chunks(const bags_table *view, eight_keys *of)
{
    for (int i = 0; i < EIGHT; i++) {
        const uint32_t row = of->where[i] < ENTRY_WAITING ? of->where[i] : 0;
        of->place[i] =
            view->chunks[embedding_shard_of(of->hash[i])] + embedding_chunk(row, view->steps) * sizeof(row_chunk);
        of->bucket[i] = row * view->row_bytes;
    }
}
#endif

static inline void ask_for_directory(const eight_keys *of)
{
    for (int i = 0; i < EIGHT; i++)
        __builtin_prefetch((const void *)(uintptr_t)of->place[i]);
}

static inline void ask_for_buckets(eight_keys *of)
{
    for (int i = 0; i < EIGHT; i++) {
        const key_segment *segment = *(key_segment *const *)(uintptr_t)of->place[i];
        const key_entry *bucket = &segment->entries[embedding_slot(of->hash[i])];
        __builtin_prefetch(bucket);
        of->bucket[i] = (uintptr_t)bucket;
    }
}

static inline void read_entries(const int64_t *keys, int64_t count, eight_keys *of)
{
    for (int64_t i = 0; i < count; i++) {
        const key_entry *bucket = (const key_entry *)(uintptr_t)of->bucket[i];
        const uint32_t same = entry_with(bucket, keys[i]);
        if (__builtin_expect(same != 0, 1))
            of->where[i] = bucket[__builtin_ctz(same) / ENTRY_BITS].where;
        else { /* after a segment's last bucket: the prefetch is useless but harmless */
            __builtin_prefetch(bucket + BUCKET);
            of->where[i] = ENTRY_EMPTY;
        }
    }
    for (int64_t i = count; i < EIGHT; i++)
        of->where[i] = ENTRY_EMPTY;
}

typedef struct bags_pipeline {
    bags_table view;
    eight_keys eights[RING];
    const float *rows[ROWS_RING]; /* by key number */
    uint32_t late[ROWS_RING];     /* keys that were set aside */
    uint32_t late_begin, late_end;
} bags_pipeline;

static inline void ask_for_row(const float *row, int lines)
{
    for (int line = 0; line < lines; line++)
        __builtin_prefetch(row + (ptrdiff_t)line * 16);
}

/* Prefetches the rows of keys from `begin` on, or sets keys aside. */
static inline void ask_for_rows(bags_pipeline *all, const eight_keys *of, int64_t begin, int64_t count, int lines)
{
    const float **rows = &all->rows[begin % ROWS_RING];
    uint32_t aside = 0;
    for (int i = 0; i < EIGHT; i++)
        aside |= of->where[i];
    if (__builtin_expect(aside < ENTRY_WAITING, 1)) {
        for (int i = 0; i < EIGHT; i++) {
            rows[i] = (const float *)(((const row_chunk *)(uintptr_t)of->place[i])->origin + of->bucket[i]);
            ask_for_row(rows[i], lines);
        }
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        if (of->where[i] < ENTRY_WAITING) {
            rows[i] = (const float *)(((const row_chunk *)(uintptr_t)of->place[i])->origin + of->bucket[i]);
            ask_for_row(rows[i], lines);
        } else
            all->late[all->late_end++ % ROWS_RING] = (uint32_t)(begin + i);
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

_Static_assert(ROWS_TOGETHER + ROWS_AHEAD_MAX + EIGHT <= ROWS_RING, "rows that wait have places");

static inline int64_t count_of(int64_t n, int64_t eight)
{
    return n - eight * EIGHT < EIGHT ? n - eight * EIGHT : EIGHT;
}

/* Prefetches the rows of a plain table's keys from `begin` on. Reads each key once, because others may write keys
 * meanwhile. False: a key, whose number is left in *begin, has no row. */
static inline bool ask_for_plain_rows(const embedding_bags_piece *piece, const float **rows, int64_t *begin,
                                      int64_t end, int lines)
{
    for (int64_t line = *begin; line < end; line += EIGHT)
        __builtin_prefetch(piece->keys + line + KEYS_AHEAD * EIGHT);
    for (; *begin < end; ++*begin) {
        const int64_t key = __atomic_load_n(&piece->keys[*begin], __ATOMIC_RELAXED);
        if (__builtin_expect((uint64_t)key >= (uint64_t)piece->row_count, 0))
            return false;
        const float *row = (const float *)(const void *)(piece->rows + key * piece->row_step);
        rows[*begin % ROWS_RING] = row;
        ask_for_row(row, lines);
    }
    return true;
}

/* Like sum, for a plain table's bags without weights, with rows as wide as the sums that fit in registers. With each
 * row that it reads it prefetches a later one, which spreads prefetches over the time of the sums. A key without a row
 * is not prefetched: ask_for_plain_rows reports it later. */
static inline __attribute__((always_inline)) void sum_and_ask(const embedding_bags_piece *piece, const float **ring,
                                                              int64_t from, int64_t to, int64_t *asked, bool more,
                                                              float *out)
{
    const embedding_vector zero = {0};
    embedding_vector all[EMBEDDING_SUMS];
    for (int k = 0; k < EMBEDDING_SUMS; k++)
        all[k] = more ? EMBEDDING_AT(out + k * EMBEDDING_LANES) : zero;
    int64_t next = *asked;
    for (int64_t i = from; i < to; i++) {
        const int64_t key = __atomic_load_n(&piece->keys[next < piece->n ? next : piece->n - 1], __ATOMIC_RELAXED);
        const bool known = (uint64_t)key < (uint64_t)piece->row_count && next < piece->n;
        const float *row = (const float *)(const void *)(piece->rows + (known ? key : 0) * piece->row_step);
        ring[next % ROWS_RING] = row;
        next += known;
        ask_for_row(row, EMBEDDING_SUMS * EMBEDDING_LANES / 16);
        for (int k = 0; k < EMBEDDING_SUMS; k++)
            all[k] += EMBEDDING_AT(ring[i % ROWS_RING] + k * EMBEDDING_LANES);
    }
    *asked = next;
    for (int k = 0; k < EMBEDDING_SUMS; k++)
        EMBEDDING_AT(out + k * EMBEDDING_LANES) = all[k];
}

/* `lines`: cache lines of a row to prefetch. `width`: numbers of a row if known at compile time; else 0. */
static inline __attribute__((always_inline)) int64_t sum_bags_of(const embedding_bags_piece *piece, const int lines,
                                                                 const int64_t width)
{
    const vme_embedding *table = piece->table;
    const int64_t n = piece->n, dim = width > 0 ? width : piece->dim, *keys = piece->keys;
    const int64_t eights = (n + EIGHT - 1) / EIGHT, bags = piece->bags;
    const int64_t fitting = LINES_UNDER_WAY / lines;
    const int64_t rows_ahead = fitting < ROWS_AHEAD_MIN   ? ROWS_AHEAD_MIN
                               : fitting > ROWS_AHEAD_MAX ? ROWS_AHEAD_MAX
                                                          : fitting;
    bags_pipeline all;
    all.late_begin = all.late_end = 0;
    if (table != NULL)
        view_table(table, &all.view);
    const bool spread =
        table == NULL && piece->ends != NULL && piece->weights == NULL && dim == EMBEDDING_SUMS * EMBEDDING_LANES;
    int64_t turn = 0, found = 0; /* turns started; keys of the turns that ended */
    for (int64_t bag = 0, from = 0, begun = 0; bag < bags;) {
        /* reads rows from..to next: whole bags of single keys, or part of a bag that began at `begun` */
        const int64_t end = piece->ends != NULL ? piece->ends[bag] : n;
        const int64_t together = piece->ends != NULL ? ROWS_TOGETHER : SINGLES;
        int64_t to = from + together < end ? from + together : end;
        if (to > (from / ROWS_RING + 1) * ROWS_RING)
            to = (from / ROWS_RING + 1) * ROWS_RING;
        const int64_t ahead = spread && from > 0 ? 0 : rows_ahead;
        const int64_t wanted = to + ahead < n ? to + ahead : n;
        if (table == NULL && !ask_for_plain_rows(piece, all.rows, &found, wanted, lines))
            return found;
        for (; found < wanted; turn++) {
            const int64_t asks = turn - ASKS, reads = turn - READS, places = turn - PLACES, ends = turn - ENDS;
            if (turn < eights) {
                __builtin_prefetch(keys + (turn + KEYS_AHEAD) * EIGHT);
                eight_keys *of = &all.eights[turn % RING];
                if (hash_keys(&all.view, keys + turn * EIGHT, count_of(n, turn), of) && !piece->any_key)
                    return turn * EIGHT;
                ask_for_directory(of);
            }
            if (asks >= 0 && asks < eights)
                ask_for_buckets(&all.eights[asks % RING]);
            if (reads >= 0 && reads < eights)
                read_entries(keys + reads * EIGHT, count_of(n, reads), &all.eights[reads % RING]);
            if (places >= 0 && places < eights)
                find_chunks(&all.view, &all.eights[places % RING]);
            if (ends >= 0) {
                ask_for_rows(&all, &all.eights[ends % RING], ends * EIGHT, count_of(n, ends), lines);
                found = ends * EIGHT + EIGHT;
            }
        }
        for (; all.late_begin != all.late_end; all.late_begin++) {
            const int64_t number = all.late[all.late_begin % ROWS_RING];
            const uint64_t hash = embedding_hash(table, keys[number]);
            const embedding_shard *shard = &table->shards[embedding_shard_of(hash)];
            const key_entry *entry = embedding_find(shard, keys[number], hash);
            const float *row = embedding_weights(table, shard, keys[number], entry);
            all.rows[number % ROWS_RING] = row;
            ask_for_row(row, lines);
        }
        const float *const *rows = &all.rows[from % ROWS_RING];
        if (piece->ends == NULL) {
            for (; from < to; from++, bag++) {
                const int64_t behind = bag + SINGLES < bags ? bag + SINGLES : bags - 1;
                __builtin_prefetch(piece->out + behind * piece->out_step, 1);
                copy_row(dim, *rows++, (float *)(void *)(piece->out + bag * piece->out_step));
            }
            continue;
        }
        float *out = (float *)(void *)(piece->out + bag * piece->out_step);
        if (spread)
            sum_and_ask(piece, all.rows, from, to, &found, from > begun, out);
        else
            sum(to - from, dim, rows, piece->weights == NULL ? NULL : piece->weights + from, from > begun, out);
        from = to;
        if (to < end)
            continue;
        if (piece->factors != NULL && piece->factors[bag] != 1)
            scale(dim, piece->factors[bag], out);
        begun = to;
        bag++;
    }
    return -1;
}

static int64_t sum_bags(const embedding_bags_piece *piece)
{
    const int64_t lines = (piece->dim + 15) / 16;
    if (piece->dim == 16)
        return sum_bags_of(piece, 1, 16);
    if (lines == 1)
        return sum_bags_of(piece, 1, 0);
    if (piece->dim == 64)
        return sum_bags_of(piece, 4, 64);
    return sum_bags_of(piece, lines < LINES_AHEAD ? (int)lines : LINES_AHEAD, 0);
}
