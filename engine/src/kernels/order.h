/* Sorting and selecting keys in whole vectors: quicksort that partitions by compression, and sorting networks for what
 * fits in registers.
 *
 * Keys are signed integers of 32 or 64 bits (sort.c converts elements). After Bingmann, Eberle and Wassenberg,
 * Vectorized and performance-portable Quicksort, 2022: partitions in place, with a few vectors held back at both ends
 * so that whole vectors can be stored; a matrix of registers is sorted by columns, and the columns are merged in pairs,
 * bitonically. */
#include "loops.h"

#include <immintrin.h>

/* Permutations that move the lanes whose bit is set in the index to the front: byte i of an entry is the source lane of
 * lane i. */
#define RANK(mask, lane) __builtin_popcount((mask) & ((1 << (lane)) - 1))
#define LANE(mask, lane) \
    ((u64)(lane) << 8 \
                        * ((mask) >> (lane) & 1 ? RANK(mask, lane) \
                                                : __builtin_popcount((mask) & 255) + RANK(~(mask), lane)))
#define PARTITION1(mask) \
    (LANE(mask, 0) | LANE(mask, 1) | LANE(mask, 2) | LANE(mask, 3) | LANE(mask, 4) | LANE(mask, 5) | LANE(mask, 6) \
     | LANE(mask, 7))
#define PARTITION4(mask)  PARTITION1(mask), PARTITION1(mask + 1), PARTITION1(mask + 2), PARTITION1(mask + 3)
#define PARTITION16(mask) PARTITION4(mask), PARTITION4(mask + 4), PARTITION4(mask + 8), PARTITION4(mask + 12)
#define PARTITION64(mask) PARTITION16(mask), PARTITION16(mask + 16), PARTITION16(mask + 32), PARTITION16(mask + 48)
static const u64 partition_lanes[256] = {PARTITION64(0), PARTITION64(64), PARTITION64(128), PARTITION64(192)};

#define LIST4(X, argument) X(0, argument), X(1, argument), X(2, argument), X(3, argument)
#define LIST8(X, argument) LIST4(X, argument), X(4, argument), X(5, argument), X(6, argument), X(7, argument)
#define LIST16(X, argument) \
    LIST8(X, argument), X(8, argument), X(9, argument), X(10, argument), X(11, argument), X(12, argument), \
        X(13, argument), X(14, argument), X(15, argument)
#define LANE_XOR(lane, mask) ((lane) ^ (mask))

#ifdef __AVX512F__
typedef i32 vector32 __attribute__((vector_size(64)));
typedef i64 vector64 __attribute__((vector_size(64)));
typedef i32 vector32_at __attribute__((vector_size(64), aligned(1), may_alias));
typedef i64 vector64_at __attribute__((vector_size(64), aligned(1), may_alias));

/* The minima and the maxima of each lane. */
static inline void order32(vector32 a, vector32 b, vector32 *lowest, vector32 *highest)
{
    *lowest = (vector32)_mm512_min_epi32((__m512i)a, (__m512i)b);
    *highest = (vector32)_mm512_max_epi32((__m512i)a, (__m512i)b);
}

static inline void order64(vector64 a, vector64 b, vector64 *lowest,
                           vector64 *highest) /* min_epi64 and max_epi64 take two steps each */
{
    __mmask8 swapped = _mm512_cmpgt_epi64_mask((__m512i)a, (__m512i)b);
    *lowest = (vector64)_mm512_mask_blend_epi64(swapped, (__m512i)a, (__m512i)b);
    *highest = (vector64)_mm512_mask_blend_epi64(swapped, (__m512i)b, (__m512i)a);
}

/* The maximum in lanes that are -1 in `upper`, the minimum in lanes that are 0. */
static inline vector32 select32(vector32 a, vector32 b, vector32 upper)
{
    return (vector32)_mm512_mask_max_epi32(_mm512_min_epi32((__m512i)a, (__m512i)b),
                                           _mm512_movepi32_mask((__m512i)upper), (__m512i)a, (__m512i)b);
}

static inline vector64 select64(vector64 a, vector64 b, vector64 upper)
{
    __mmask8 swapped = _mm512_cmpgt_epi64_mask((__m512i)a, (__m512i)b),
             from_b = (__mmask8)(swapped ^ _mm512_movepi64_mask((__m512i)upper));
    return (vector64)_mm512_mask_blend_epi64(from_b, (__m512i)a, (__m512i)b);
}

/* Moves the lanes below the pivot to the front; *below is their number. */
static inline vector32 partition32(vector32 v, vector32 pivot, int64_t *below)
{
    static const i32 ramp[32] = {LIST16(LANE_XOR, 0), LIST16(LANE_XOR, 0)};
    __mmask16 less = _mm512_cmplt_epi32_mask((__m512i)v, (__m512i)pivot);
    int64_t n = *below = __builtin_popcountll(less);
    __m512i lower = _mm512_maskz_compress_epi32(less, (__m512i)v),
            higher = _mm512_maskz_compress_epi32((__mmask16)~less, (__m512i)v);
    return (vector32)_mm512_mask_permutexvar_epi32(lower, (__mmask16)(0xffffu << n), _mm512_loadu_si512(ramp + 16 - n),
                                                   higher);
}

static inline vector64 partition64(vector64 v, vector64 pivot, int64_t *below)
{
    __mmask8 less = _mm512_cmplt_epi64_mask((__m512i)v, (__m512i)pivot);
    *below = __builtin_popcountll(less);
    __m512i lanes = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(partition_lanes + less)));
    return (vector64)_mm512_permutexvar_epi64(lanes, (__m512i)v);
}
#else
typedef i32 vector32 __attribute__((vector_size(32)));
typedef i64 vector64 __attribute__((vector_size(32)));
typedef i32 vector32_at __attribute__((vector_size(32), aligned(1), may_alias));
typedef i64 vector64_at __attribute__((vector_size(32), aligned(1), may_alias));

static inline void order32(vector32 a, vector32 b, vector32 *lowest, vector32 *highest)
{
    *lowest = (vector32)_mm256_min_epi32((__m256i)a, (__m256i)b);
    *highest = (vector32)_mm256_max_epi32((__m256i)a, (__m256i)b);
}

static inline void order64(vector64 a, vector64 b, vector64 *lowest, vector64 *highest)
{
    __m256i swapped = (__m256i)(a > b);
    *lowest = (vector64)_mm256_blendv_epi8((__m256i)a, (__m256i)b, swapped);
    *highest = (vector64)_mm256_blendv_epi8((__m256i)b, (__m256i)a, swapped);
}

static inline vector32 select32(vector32 a, vector32 b, vector32 upper)
{
    return (vector32)_mm256_blendv_epi8(_mm256_min_epi32((__m256i)a, (__m256i)b),
                                        _mm256_max_epi32((__m256i)a, (__m256i)b), (__m256i)upper);
}

static inline vector64 select64(vector64 a, vector64 b, vector64 upper)
{
    return (vector64)_mm256_blendv_epi8((__m256i)a, (__m256i)b, (__m256i)((a > b) ^ upper));
}

/* The same for 32-bit lanes; `less` is -1 in the lanes below the pivot, and *halves receives their number. */
static inline __m256i partition_vector(__m256i v, __m256i less, int64_t *halves)
{
    unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(less));
    *halves = __builtin_popcountll(mask);
    return _mm256_permutevar8x32_epi32(
        v, _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(partition_lanes + mask))));
}

static inline vector32 partition32(vector32 v, vector32 pivot, int64_t *below)
{
    return (vector32)partition_vector((__m256i)v, _mm256_cmpgt_epi32((__m256i)pivot, (__m256i)v), below);
}

static inline vector64 partition64(vector64 v, vector64 pivot, int64_t *below)
{
    /* both halves of a 64-bit lane move together */
    vector64 result = (vector64)partition_vector((__m256i)v, _mm256_cmpgt_epi64((__m256i)pivot, (__m256i)v), below);
    *below /= 2;
    return result;
}
#endif

/* ---- networks of compare-and-exchange steps: v[0..15] are rows. A pair (a, b) leaves the minima in row a. */
#define COLUMNS1(X)
#define COLUMNS2(X) X(0, 1)
#define COLUMNS4(X) X(0, 1) X(2, 3) X(0, 2) X(1, 3) X(1, 2)
/* clang-format off */
#define COLUMNS8(X) \
    X(0, 2) X(1, 3) X(4, 6) X(5, 7) X(0, 4) X(1, 5) X(2, 6) X(3, 7) X(0, 1) X(2, 3) X(4, 5) X(6, 7) X(2, 4) X(3, 5) \
    X(1, 4) X(3, 6) X(1, 2) X(3, 4) X(5, 6)
#define COLUMNS16(X) /* M. W. Green's network: 60 pairs */ \
    X(0, 1) X(2, 3) X(4, 5) X(6, 7) X(8, 9) X(10, 11) X(12, 13) X(14, 15) X(0, 2) X(4, 6) X(8, 10) X(12, 14) X(1, 3) \
    X(5, 7) X(9, 11) X(13, 15) X(0, 4) X(8, 12) X(1, 5) X(9, 13) X(2, 6) X(10, 14) X(3, 7) X(11, 15) X(0, 8) X(1, 9) \
    X(2, 10) X(3, 11) X(4, 12) X(5, 13) X(6, 14) X(7, 15) X(5, 10) X(6, 9) X(3, 12) X(13, 14) X(4, 8) X(7, 11) X(1, 2) \
    X(1, 4) X(7, 13) X(2, 8) X(11, 14) X(2, 4) X(5, 6) X(9, 10) X(11, 13) X(3, 8) X(7, 12) X(6, 8) X(10, 12) X(3, 5) \
    X(7, 9) X(3, 4) X(5, 6) X(7, 8) X(9, 10) X(11, 12) X(6, 7) X(8, 9)
/* clang-format on */
/* Merges two sorted columns (or groups of columns): the first rows against the last ones reversed, then the same within
 * both halves, and so on. */
#define ROWS1(X, a)
#define ROWS2(X, a) X(a, a + 1)
#define ROWS4(X, a) X(a, a + 3) X(a + 1, a + 2) ROWS2(X, a) ROWS2(X, a + 2)
#define ROWS8(X, a) X(a, a + 7) X(a + 1, a + 6) X(a + 2, a + 5) X(a + 3, a + 4) ROWS4(X, a) ROWS4(X, a + 4)
/* clang-format off */
#define ROWS16(X, a) \
    X(a, a + 15) X(a + 1, a + 14) X(a + 2, a + 13) X(a + 3, a + 12) X(a + 4, a + 11) X(a + 5, a + 10) X(a + 6, a + 9) \
    X(a + 7, a + 8) ROWS8(X, a) ROWS8(X, a + 8)
/* clang-format on */
#define EACH1(X, a)  X(a)
#define EACH2(X, a)  X(a) X(a + 1)
#define EACH4(X, a)  X(a) X(a + 1) X(a + 2) X(a + 3)
#define EACH8(X, a)  EACH4(X, a) EACH4(X, a + 4)
#define EACH16(X, a) EACH8(X, a) EACH8(X, a + 8)

/* These macros use names that order_keys.h defines for its width: v, keys, LANES, VECTOR, NAME. */
/* Lane i takes lane i ^ mask: reverses groups of 2, 4, 8 or 16 lanes if `mask` is 1, 3, 7 or 15. */
#define ACROSS(v, mask)  __builtin_shuffle(v, (VECTOR){LIST(LANE_XOR, mask)})
#define UPPER(lane, bit) ((lane) & (bit) ? -1 : 0)
#define PAIR(a, b)       NAME(order)(v[a], v[b], v + (a), v + (b));
#define EXCHANGE_LANES(row, mask, bit) \
    { \
        VECTOR x = v[row], y = ACROSS(x, mask); \
        v[row] = NAME(select)(x, y, (VECTOR){LIST(UPPER, bit)}); \
    }
#define REVERSED(a, b, mask) NAME(order)(v[a], ACROSS(v[b], mask), v + (a), v + (b));
#define REVERSED1(a, b)      REVERSED(a, b, 1)
#define REVERSED3(a, b)      REVERSED(a, b, 3)
#define REVERSED7(a, b)      REVERSED(a, b, 7)
#define REVERSED15(a, b)     REVERSED(a, b, 15)
#define GROUPS2(row)         EXCHANGE_LANES(row, 1, 1)
#define GROUPS4(row)         EXCHANGE_LANES(row, 3, 2) EXCHANGE_LANES(row, 1, 1)
#define GROUPS8(row)         EXCHANGE_LANES(row, 7, 4) EXCHANGE_LANES(row, 2, 2) EXCHANGE_LANES(row, 1, 1)
#define GROUPS16(row) \
    EXCHANGE_LANES(row, 15, 8) EXCHANGE_LANES(row, 4, 4) EXCHANGE_LANES(row, 2, 2) EXCHANGE_LANES(row, 1, 1)
#define MERGED4(ROWS, EACH)  ROWS(REVERSED1, 0) EACH(GROUPS2, 0) ROWS(REVERSED3, 0) EACH(GROUPS4, 0)
#define MERGED8(ROWS, EACH)  MERGED4(ROWS, EACH) ROWS(REVERSED7, 0) EACH(GROUPS8, 0)
#define MERGED16(ROWS, EACH) MERGED8(ROWS, EACH) ROWS(REVERSED15, 0) EACH(GROUPS16, 0)
#define LOAD_ROW(row)        v[row] = *(const VECTOR *)(keys + LANES * (row));
#define STORE_ROW(row)       *(VECTOR *)(keys + LANES * (row)) = v[row];

#define BITS 32
#include "order_keys.h"
#undef BITS
#define BITS 64
#include "order_keys.h"

/* ---- conversion of elements to keys: any steps, in place if elements have a key's size */
#define TO_KEYS(K, BITS_TYPE, KEY) \
    VME_INDEPENDENT \
    for (int64_t i = 0; i < n; i++) { \
        K bits = (K) * (const BITS_TYPE##_at *)(in + i * step); \
        keys[i] = (KEY); \
    } \
    break

#define BOTH_STEPS(K, TYPE, KEY) \
    if (step == sizeof(TYPE)) { \
        step = sizeof(TYPE); \
        TO_KEYS(K, TYPE, KEY); \
    } else \
        TO_KEYS(K, TYPE, KEY)

/* Negative floats have larger bits for larger magnitudes: their bits are inverted. NaN becomes the largest key, which
 * no number has. */
static inline i32 key_of_f32(i32 bits, bool zeros_equal)
{
    i32 key = bits ^ (bits >> 31 & INT32_MAX);
    key += zeros_equal && key == -1;
    return (bits & INT32_MAX) > 0x7f800000 ? INT32_MAX : key;
}

static inline i32 key_of_f16(i32 bits, bool zeros_equal)
{
    i32 key = bits ^ (bits >> 31 & INT16_MAX);
    key += zeros_equal && key == -1;
    return (bits & INT16_MAX) > 0x7c00 ? INT32_MAX : key;
}

static inline i64 key_of_f64(i64 bits, bool zeros_equal)
{
    i64 key = bits ^ (bits >> 63 & INT64_MAX);
    key += zeros_equal && key == -1;
    return (bits & INT64_MAX) > INT64_C(0x7ff0000000000000) ? INT64_MAX : key;
}

static void keys32(vme_dtype dtype, int64_t n, const char *in, int64_t step, bool descending, bool zeros_equal,
                   void *out)
{
    i32_at *keys = out;
    switch (dtype) {
    case VME_BOOL: BOTH_STEPS(i32, u8, bits != 0);
    case VME_INT8: BOTH_STEPS(i32, i8, bits);
    case VME_UINT8: BOTH_STEPS(i32, u8, bits);
    case VME_INT16: BOTH_STEPS(i32, i16, bits);
    case VME_UINT16: BOTH_STEPS(i32, u16, bits);
    case VME_FLOAT16: BOTH_STEPS(i32, i16, key_of_f16(bits, zeros_equal));
    case VME_INT32: BOTH_STEPS(i32, i32, bits);
    case VME_UINT32: BOTH_STEPS(i32, i32, bits ^ INT32_MIN);
    default: BOTH_STEPS(i32, i32, key_of_f32(bits, zeros_equal));
    }
    bool floats = dtype == VME_FLOAT16 || dtype == VME_FLOAT32;
    for (int64_t i = 0; descending && i < n; i++)
        keys[i] = floats && keys[i] == INT32_MAX ? INT32_MAX : ~keys[i];
}

static void keys64(vme_dtype dtype, int64_t n, const char *in, int64_t step, bool descending, bool zeros_equal,
                   void *out)
{
    i64_at *keys = out;
    switch (dtype) {
    case VME_INT64: BOTH_STEPS(i64, i64, bits);
    case VME_UINT64: BOTH_STEPS(i64, i64, bits ^ INT64_MIN);
    default: BOTH_STEPS(i64, i64, key_of_f64(bits, zeros_equal));
    }
    for (int64_t i = 0; descending && i < n; i++)
        keys[i] = dtype == VME_FLOAT64 && keys[i] == INT64_MAX ? INT64_MAX : ~keys[i];
}

#define FROM_KEYS(K, BITS_TYPE, ELEMENT) \
    VME_INDEPENDENT \
    for (int64_t i = 0; i < n; i++) { \
        K key = keys[i]; \
        *(BITS_TYPE##_at *)(out + i * step) = (BITS_TYPE)(ELEMENT); \
    } \
    break

static void elements32(vme_dtype dtype, int64_t n, void *from, bool descending, char *out, int64_t step)
{
    i32_at *keys = from;
    bool floats = dtype == VME_FLOAT16 || dtype == VME_FLOAT32;
    for (int64_t i = 0; descending && i < n; i++)
        keys[i] = floats && keys[i] == INT32_MAX ? INT32_MAX : ~keys[i];
    switch (dtype) {
    case VME_INT16:
    case VME_UINT16: FROM_KEYS(i32, i16, key);
    case VME_FLOAT16: FROM_KEYS(i32, i16, key == INT32_MAX ? 0x7e00 : key ^ (key >> 31 & INT16_MAX));
    case VME_INT32: FROM_KEYS(i32, i32, key);
    case VME_UINT32: FROM_KEYS(i32, i32, key ^ INT32_MIN);
    default: FROM_KEYS(i32, i32, key == INT32_MAX ? 0x7fc00000 : key ^ (key >> 31 & INT32_MAX));
    }
}

static void elements64(vme_dtype dtype, int64_t n, void *from, bool descending, char *out, int64_t step)
{
    i64_at *keys = from;
    for (int64_t i = 0; descending && i < n; i++)
        keys[i] = dtype == VME_FLOAT64 && keys[i] == INT64_MAX ? INT64_MAX : ~keys[i];
    switch (dtype) {
    case VME_INT64: FROM_KEYS(i64, i64, key);
    case VME_UINT64: FROM_KEYS(i64, i64, key ^ INT64_MIN);
    default: FROM_KEYS(i64, i64, key == INT64_MAX ? INT64_C(0x7ff8000000000000) : key ^ (key >> 63 & INT64_MAX));
    }
}

/* ---- keys with indices */
static void index_keys(vme_dtype dtype, int64_t n, const char *in, int64_t step, bool descending, const int64_t *first,
                       int64_t *keys, int64_t range[3])
{
    enum { BLOCK = 256 };
    i32 narrow[BLOCK];
    if (vme_dtype_size(dtype) == 8)
        keys64(dtype, n, in, step, descending, true, keys);
    else
        for (int64_t begin = 0; begin < n; begin += BLOCK) {
            int64_t count = n - begin < BLOCK ? n - begin : BLOCK;
            keys32(dtype, count, in + begin * step, step, descending, true, narrow);
            for (int64_t i = 0; i < count; i++)
                keys[begin + i] = narrow[i];
        }
    int64_t lowest = range[0], highest = range[1], differing = range[2], first_key = *first;
    for (int64_t i = 0; i < n; i++) {
        int64_t key = keys[i];
        lowest = key < lowest ? key : lowest;
        highest = key > highest ? key : highest;
        differing |= key ^ first_key;
    }
    range[0] = lowest;
    range[1] = highest;
    range[2] = differing;
}

static void index_words(int64_t n, const int64_t *keys, int64_t lowest, int dropped_bits, int index_bits, int64_t begin,
                        int64_t *words)
{
    for (int64_t i = 0; i < n; i++)
        words[i] = (int64_t)((((((u64)keys[i] - (u64)lowest) >> dropped_bits) << index_bits) | (u64)(begin + i))
                             ^ (UINT64_C(1) << 63));
}

static void indices(int64_t n, const int64_t *words, int index_bits, int64_t *to)
{
    int64_t mask = (int64_t)((UINT64_C(1) << index_bits) - 1);
    for (int64_t i = 0; i < n; i++)
        to[i] = words[i] & mask;
}

/* ---- binary search: a step halves the range for all values of a vector. Four vectors are searched at once, to overlap
 * their memory latency. */
#ifdef __AVX512F__
#define SEARCH_STEP(number, half) \
    { \
        __m512i key = _mm512_i64gather_epi64(_mm512_add_epi64(base[number], _mm512_set1_epi64((half) - 1)), keys, 8); \
        __mmask8 advance = \
            right ? _mm512_cmple_epi64_mask(key, value[number]) : _mm512_cmplt_epi64_mask(key, value[number]); \
        base[number] = _mm512_mask_add_epi64(base[number], advance, base[number], _mm512_set1_epi64(half)); \
    }
typedef __m512i search_vector;
#define SEARCH_LOAD(from)   _mm512_loadu_si512(from)
#define SEARCH_STORE(to, v) _mm512_storeu_si512(to, v)
#define SEARCH_NONE         _mm512_setzero_si512()
#else
#define SEARCH_STEP(number, half) \
    { \
        __m256i key = _mm256_i64gather_epi64((const long long *)keys, \
                                             _mm256_add_epi64(base[number], _mm256_set1_epi64x((half) - 1)), 8); \
        __m256i advance = right ? _mm256_cmpgt_epi64(key, value[number]) : _mm256_cmpgt_epi64(value[number], key), \
                step = _mm256_set1_epi64x(half); \
        base[number] = _mm256_add_epi64(base[number], \
                                        right ? _mm256_andnot_si256(advance, step) : _mm256_and_si256(advance, step)); \
    }
typedef __m256i search_vector;
#define SEARCH_LOAD(from)   _mm256_loadu_si256((const __m256i *)(from))
#define SEARCH_STORE(to, v) _mm256_storeu_si256((__m256i *)(to), v)
#define SEARCH_NONE         _mm256_setzero_si256()
#endif
enum { SEARCH_LANES = sizeof(search_vector) / sizeof(int64_t) };

static inline __attribute__((always_inline)) void search_vectors(const int64_t *values, int64_t count,
                                                                 const int64_t *keys, bool right, int64_t *indices)
{
    search_vector base[4] = {SEARCH_NONE, SEARCH_NONE, SEARCH_NONE, SEARCH_NONE}, value[4];
    for (int i = 0; i < 4; i++)
        value[i] = SEARCH_LOAD(values + i * SEARCH_LANES);
    for (int64_t half; count > 1; count -= half) {
        half = count / 2;
        SEARCH_STEP(0, half);
        SEARCH_STEP(1, half);
        SEARCH_STEP(2, half);
        SEARCH_STEP(3, half);
    }
    SEARCH_STEP(0, 1);
    SEARCH_STEP(1, 1);
    SEARCH_STEP(2, 1);
    SEARCH_STEP(3, 1);
    for (int i = 0; i < 4; i++)
        SEARCH_STORE(indices + i * SEARCH_LANES, base[i]);
}

static void search(int64_t n, const int64_t *values, int64_t count, const int64_t *keys, bool right, int64_t *indices)
{
    int64_t i = 0;
    for (; right && i + 4 * SEARCH_LANES <= n; i += 4 * SEARCH_LANES)
        search_vectors(values + i, count, keys, true, indices + i);
    for (; i + 4 * SEARCH_LANES <= n; i += 4 * SEARCH_LANES)
        search_vectors(values + i, count, keys, false, indices + i);
    if (i < n) {
        int64_t padded[4 * SEARCH_LANES] = {0}, found[4 * SEARCH_LANES];
        memcpy(padded, values + i, (size_t)(n - i) * sizeof *padded);
        search_vectors(padded, count, keys, right, found);
        memcpy(indices + i, found, (size_t)(n - i) * sizeof *found);
    }
}

/* clang-format off */
const vme_order_kernels VME_TABLE(order) = {
    .keys = {keys32, keys64},
    .elements = {elements32, elements64},
    .sort = {sort_keys32, sort_keys64},
    .select = {select_keys32, select_keys64},
    .index_keys = index_keys,
    .index_words = index_words,
    .indices = indices,
    .search = search,
    .part = {partition_by_pivot32, partition_by_pivot64},
};
/* clang-format on */
