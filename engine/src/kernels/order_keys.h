/* order.h's sort, once for each key width: BITS is 32 or 64. */
#if BITS == 32
#define NAME(x)   x##32
#define KEY       i32
#define KEY_AT    i32_at
#define KEY_MAX   INT32_MAX
#define VECTOR    vector32
#define VECTOR_AT vector32_at
#else
#define NAME(x)   x##64
#define KEY       i64
#define KEY_AT    i64_at
#define KEY_MAX   INT64_MAX
#define VECTOR    vector64
#define VECTOR_AT vector64_at
#endif
#ifdef __AVX512F__
#define VECTOR_BYTES 64
#else
#define VECTOR_BYTES 32
#endif
#define LANES (VECTOR_BYTES * 8 / BITS)
#if VECTOR_BYTES * 8 / BITS == 16
#define LIST LIST16
#elif VECTOR_BYTES * 8 / BITS == 8
#define LIST LIST8
#else
#define LIST LIST4
#endif

#if VECTOR_BYTES * 8 / BITS == 16
#define MERGED MERGED16
#elif VECTOR_BYTES * 8 / BITS == 8
#define MERGED MERGED8
#else
#define MERGED MERGED4
#endif

/* Sorts LANES * rows keys, aligned. */
#define NETWORK(rows) \
    static __attribute__((noinline)) void NAME(network##rows##_)(KEY * keys) \
    { \
        VECTOR v[rows]; \
        EACH##rows(LOAD_ROW, 0) COLUMNS##rows(PAIR) MERGED(ROWS##rows, EACH##rows) EACH##rows(STORE_ROW, 0) \
    }
NETWORK(1)
NETWORK(2)
NETWORK(4)
NETWORK(8)
NETWORK(16)
#undef NETWORK

/* Sorts at most 16 * LANES keys. */
static void NAME(sort_small)(KEY_AT *keys, int64_t n)
{
    _Alignas(VECTOR_BYTES) KEY buffer[16 * LANES];
    int64_t rows = n <= LANES ? 1 : n <= 2 * LANES ? 2 : n <= 4 * LANES ? 4 : n <= 8 * LANES ? 8 : 16;
    if (n < 2)
        return;
    int64_t whole = n / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        *(VECTOR *)(buffer + i) = *(const VECTOR_AT *)(keys + i);
    for (int64_t i = whole; i < rows * LANES; i += LANES)
        *(VECTOR *)(buffer + i) = (VECTOR){0} + KEY_MAX;
    for (int64_t i = whole; i < n; i++)
        buffer[i] = keys[i];
    if (rows == 1)
        NAME(network1_)(buffer);
    else if (rows == 2)
        NAME(network2_)(buffer);
    else if (rows == 4)
        NAME(network4_)(buffer);
    else if (rows == 8)
        NAME(network8_)(buffer);
    else
        NAME(network16_)(buffer);
    for (int64_t i = 0; i < whole; i += LANES)
        *(VECTOR_AT *)(keys + i) = *(const VECTOR *)(buffer + i);
    for (int64_t i = whole; i < n; i++)
        keys[i] = buffer[i];
}

enum { NAME(SMALL) = 16 * LANES, NAME(KEPT) = 4 };

/* Moves the keys below the pivot to the front of `n` keys, more than SMALL, and returns their number. -1: stopped. */
static int64_t NAME(partition_keys)(const vme_context *context, KEY_AT *keys, int64_t n, KEY pivot)
{
    enum { BLOCK = NAME(KEPT) * LANES };
    VECTOR kept[2 * NAME(KEPT)], pivots = (VECTOR){0} + pivot;
    KEY_AT *from = keys + BLOCK, *end = keys + n - BLOCK, *low = keys, *high = keys + n;
    _Alignas(VECTOR_BYTES) KEY tail[BLOCK];
    int64_t below;
    for (int i = 0; i < NAME(KEPT); i++) {
        kept[i] = *(const VECTOR_AT *)(keys + i * LANES);
        kept[NAME(KEPT) + i] = *(const VECTOR_AT *)(end + i * LANES);
    }
    /* Memory that was read may be overwritten: [low, from) and [end, high). The next block is read from the side with
     * less free room, without a branch, and one block before it is written: then both sides have room for a whole
     * block. */
#define PUT(vector) \
    do { \
        VECTOR result = NAME(partition)(vector, pivots, &below); \
        *(VECTOR_AT *)low = result; \
        *(VECTOR_AT *)(high - LANES) = result; \
        low += below; \
        high -= LANES - below; \
    } while (0)
#define READ(a, b, c, d) \
    do { \
        bool from_front = from - low <= high - end; \
        const KEY_AT *next = from_front ? from : end - BLOCK; \
        from += from_front ? BLOCK : 0; \
        end -= from_front ? 0 : BLOCK; \
        a = *(const VECTOR_AT *)next; \
        b = *(const VECTOR_AT *)(next + LANES); \
        c = *(const VECTOR_AT *)(next + 2 * LANES); \
        d = *(const VECTOR_AT *)(next + 3 * LANES); \
    } while (0)
    VECTOR a, b, c, d, e, f, g, h;
    READ(a, b, c, d);
    while (end - from >= BLOCK) {
        READ(e, f, g, h);
        PUT(a);
        PUT(b);
        PUT(c);
        PUT(d);
        a = e, b = f, c = g, d = h;
        if (vme_stopping(context))
            return -1;
    }
    int64_t remaining = end - from, whole = remaining / LANES * LANES;
    for (int64_t i = 0; i < remaining; i++)
        tail[i] = from[i];
    for (int64_t i = whole; i < remaining; i++) {
        bool less = tail[i] < pivot;
        *low = high[-1] = tail[i];
        low += less;
        high -= !less;
    }
    for (int64_t i = 0; i < whole; i += LANES)
        PUT(*(const VECTOR *)(tail + i));
    PUT(a);
    PUT(b);
    PUT(c);
    PUT(d);
    for (int i = 0; i < 2 * NAME(KEPT); i++)
        PUT(kept[i]);
#undef READ
#undef PUT
    return low - keys;
}

/* A pivot near the median of more than SMALL keys: the median of a sample. The sample has SAMPLE_SIZE single keys if
 * there are many keys, otherwise four vectors. */
static KEY NAME(choose_pivot)(const KEY_AT *keys, int64_t n)
{
    enum { SAMPLE_SIZE = 8 * LANES };
    _Alignas(VECTOR_BYTES) KEY sample[SAMPLE_SIZE];
    if (n < 64 * SAMPLE_SIZE) {
        for (int i = 0; i < 4; i++)
            *(VECTOR *)(sample + i * LANES) = *(const VECTOR_AT *)(keys + (n - LANES) * (2 * i + 1) / 8);
        NAME(network4_)(sample);
        return sample[2 * LANES];
    }
    u64 random = (u64)n * UINT64_C(0x9E3779B97F4A7C15), step = (u64)n / SAMPLE_SIZE;
    for (u64 i = 0; i < SAMPLE_SIZE; i++) {
        random = random * UINT64_C(6364136223846793005) + 1;
        sample[i] = keys[i * step + ((random >> 32) * step >> 32)];
    }
    NAME(network8_)(sample);
    return sample[SAMPLE_SIZE / 2];
}

/* Heapsort, the fallback when too many partitions were unbalanced. False: stopped. */
static bool NAME(sort_heap)(const vme_context *context, KEY_AT *keys, int64_t n)
{
    for (int64_t begin = n / 2, end = n; end > 1;) {
        KEY key;
        if (begin > 0)
            key = keys[--begin];
        else {
            key = keys[--end];
            keys[end] = keys[0];
        }
        int64_t hole = begin;
        for (int64_t child; (child = 2 * hole + 1) < end; hole = child) {
            child += child + 1 < end && keys[child] < keys[child + 1];
            if (keys[child] <= key)
                break;
            keys[hole] = keys[child];
        }
        keys[hole] = key;
        if (vme_stopping(context))
            return false;
    }
    return true;
}

/* Partitions more than SMALL keys: the first *low keys are all lower than the others, or, with *alike, all equal. */
static bool NAME(partition_by_pivot)(const vme_context *context, int64_t n, void *memory, int64_t *low, bool *alike)
{
    KEY_AT *keys = memory;
    KEY pivot = NAME(choose_pivot)(keys, n);
    *alike = false;
    *low = NAME(partition_keys)(context, keys, n, pivot);
    if (*low == 0) { /* the pivot is the minimum, which may occur many times */
        *alike = true;
        *low = pivot == KEY_MAX ? n : NAME(partition_keys)(context, keys, n, (KEY)(pivot + 1));
    }
    return *low >= 0;
}

static bool NAME(sort_keys)(const vme_context *context, int64_t n, void *memory)
{
    struct {
        KEY_AT *keys;
        int64_t n;
    } pending[64]; /* the larger part waits, so each is at most half as long as the one before */
    int count = 0;
    int64_t imbalance_budget = 16 * n; /* keys that unbalanced partitions may process before heapsort takes over */
    KEY_AT *keys = memory;
    for (;;) {
        while (n > NAME(SMALL)) {
            int64_t low;
            bool alike;
            if (imbalance_budget < 0) {
                if (!NAME(sort_heap)(context, keys, n))
                    return false;
                n = 0;
                break;
            }
            if (!NAME(partition_by_pivot)(context, n, keys, &low, &alike))
                return false;
            if (low < n / 8 || low > n - n / 8)
                imbalance_budget -= n;
            if (alike) {
                keys += low;
                n -= low;
            } else if (low < n - low) {
                pending[count].keys = keys + low;
                pending[count++].n = n - low;
                n = low;
            } else {
                pending[count].keys = keys;
                pending[count++].n = low;
                keys += low;
                n -= low;
            }
        }
        NAME(sort_small)(keys, n);
        if (vme_stopping(context))
            return false;
        if (count == 0)
            return true;
        keys = pending[--count].keys;
        n = pending[count].n;
    }
}

static bool NAME(select_keys)(const vme_context *context, int64_t n, void *memory, int64_t kth)
{
    KEY_AT *keys = memory;
    int64_t imbalance_budget = 16 * n;
    while (n > NAME(SMALL)) {
        int64_t low;
        bool alike;
        if (imbalance_budget < 0)
            return NAME(sort_heap)(context, keys, n);
        if (!NAME(partition_by_pivot)(context, n, keys, &low, &alike))
            return false;
        if (low < n / 8 || low > n - n / 8)
            imbalance_budget -= n;
        if (kth < low) {
            if (alike)
                return true;
            n = low;
        } else {
            keys += low;
            n -= low;
            kth -= low;
        }
    }
    NAME(sort_small)(keys, n);
    return true;
}

#undef NAME
#undef KEY
#undef KEY_AT
#undef KEY_MAX
#undef VECTOR
#undef VECTOR_AT
#undef VECTOR_BYTES
#undef LANES
#undef LIST
#undef MERGED
