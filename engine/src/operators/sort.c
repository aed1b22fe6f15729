/* Sorting lines along an axis, and searching in sorted arrays.
 *
 * Every element is converted to an unsigned key in NumPy's order (NaN last). Backends with vectors sort keys directly
 * (kernels/order.h); for argsort, a key and its index share a word. On other backends, and if a word is too short, keys
 * are radix sorted from the lowest digit, and argsort moves indices along. Radix sort is stable and takes 2 ns for each
 * element and digit of 11 bits; digits that are equal in all keys are skipped. Complex numbers are sorted by imaginary
 * part, by real part, and then by which of the two are NaN (none, imaginary, real, both: NumPy's order).
 *
 * If only a few first indices of a long line are needed, they come from a heap of the best elements so far. */
#include <string.h>

#include "operators/elements.h"
#include "operators/nest.h"
#include "operators/raster.h"
#include "runtime/numbers.h"
#include "vme_order.h"

/* ---- keys. `sign`: the top bit at the element's width. */
static inline uint64_t float_key(uint64_t bits, uint64_t sign, uint64_t infinity)
{
    uint64_t ones = sign | (sign - 1);
    if ((bits & ~sign) > infinity)
        return ones;
    return bits & sign ? ~bits & ones : bits | sign;
}

static inline uint64_t float_from_key(uint64_t key, uint64_t sign)
{
    return key & sign ? key & ~sign : ~key & (sign | (sign - 1));
}

enum { SIGN8 = 0x80, SIGN16 = 0x8000, INFINITY16 = 0x7c00, INFINITY32 = 0x7f800000 };
#define SIGN32     UINT64_C(0x80000000)
#define SIGN64     UINT64_C(0x8000000000000000)
#define INFINITY64 UINT64_C(0x7ff0000000000000)

/* The dtype of a key; the two components of a complex number have a key each. */
static vme_dtype component_dtype(vme_dtype dtype)
{
    return dtype == VME_COMPLEX64 ? VME_FLOAT32 : dtype == VME_COMPLEX128 ? VME_FLOAT64 : dtype;
}

static uint64_t all_ones(vme_dtype dtype) { return UINT64_MAX >> (64 - 8 * vme_dtype_size(dtype)); }

static bool has_nans(vme_dtype dtype) { return dtype >= VME_FLOAT16; }

#define LOAD(type, key) \
    for (int64_t i = 0; i < n; i++) { \
        uint64_t bits = *(const type *)(in + i * step); \
        keys[i] = (key); \
    } \
    break

/* Keys of `n` elements. -0.0 sorts before 0.0, or equal to it if `zeros_equal`. */
static void load_keys(vme_dtype dtype, int64_t n, const char *in, int64_t step, bool descending, bool zeros_equal,
                      uint64_t *keys)
{
    switch (dtype) {
    case VME_BOOL: LOAD(e_u8, bits != 0);
    case VME_UINT8: LOAD(e_u8, bits);
    case VME_UINT16: LOAD(e_u16, bits);
    case VME_UINT32: LOAD(e_u32, bits);
    case VME_UINT64: LOAD(e_u64, bits);
    case VME_INT8: LOAD(e_u8, bits ^ SIGN8);
    case VME_INT16: LOAD(e_u16, bits ^ SIGN16);
    case VME_INT32: LOAD(e_u32, bits ^ SIGN32);
    case VME_INT64: LOAD(e_u64, bits ^ SIGN64);
    case VME_FLOAT16: LOAD(e_u16, float_key(bits, SIGN16, INFINITY16));
    case VME_FLOAT32: LOAD(e_u32, float_key(bits, SIGN32, INFINITY32));
    default: LOAD(e_u64, float_key(bits, SIGN64, INFINITY64));
    }
    uint64_t ones = all_ones(dtype), zero = (ones >> 1) + 1;
    bool floats = has_nans(dtype);
    for (int64_t i = 0; floats && zeros_equal && i < n; i++)
        keys[i] += keys[i] == zero - 1;
    for (int64_t i = 0; descending && i < n; i++)
        keys[i] = floats && keys[i] == ones ? ones : ones - keys[i];
}

#define STORE(type, bits) \
    for (int64_t i = 0; i < n; i++) { \
        uint64_t key = keys[i]; \
        *(type *)(out + i * step) = (type)(bits); \
    } \
    break

/* Converts keys back to elements. Overwrites `keys`. */
static void store_keys(vme_dtype dtype, int64_t n, uint64_t *keys, bool descending, char *out, int64_t step)
{
    uint64_t ones = all_ones(dtype);
    bool floats = has_nans(dtype);
    for (int64_t i = 0; descending && i < n; i++)
        keys[i] = floats && keys[i] == ones ? ones : ones - keys[i];
    switch (dtype) {
    case VME_BOOL: STORE(e_u8, key & 1);
    case VME_UINT8: STORE(e_u8, key);
    case VME_UINT16: STORE(e_u16, key);
    case VME_UINT32: STORE(e_u32, key);
    case VME_UINT64: STORE(e_u64, key);
    case VME_INT8: STORE(e_u8, key ^ SIGN8);
    case VME_INT16: STORE(e_u16, key ^ SIGN16);
    case VME_INT32: STORE(e_u32, key ^ SIGN32);
    case VME_INT64: STORE(e_u64, key ^ SIGN64);
    case VME_FLOAT16: STORE(e_u16, float_from_key(key, SIGN16));
    case VME_FLOAT32: STORE(e_u32, float_from_key(key, SIGN32));
    default: STORE(e_u64, float_from_key(key, SIGN64));
    }
}

/* A key of three words for any dtype: which components are NaN, the element or its real part, the imaginary part. */
static void load_key(vme_dtype dtype, const char *at, uint64_t key[3])
{
    vme_dtype part = component_dtype(dtype);
    load_keys(part, 1, at, 0, false, true, key + 1);
    key[0] = key[2] = 0;
    if (part != dtype) {
        load_keys(part, 1, at + vme_dtype_size(part), 0, false, true, key + 2);
        key[0] = 2 * (key[1] == all_ones(part)) + (key[2] == all_ones(part));
    }
}

static bool key_less(const uint64_t *a, const uint64_t *b)
{
    if (a[0] != b[0])
        return a[0] < b[0];
    return a[1] < b[1] || (a[1] == b[1] && a[2] < b[2]);
}

/* ---- radix sort */
enum { INSERTION_MAX = 24, PIECE = 65536, DIGIT_MAX = 11 };

/* Scratch memory of one thread, for lines of `length`. `indices` is NULL if only keys are sorted. */
typedef struct work {
    uint64_t *keys, *spare_keys;
    int64_t *indices, *spare_indices;
    int64_t *counts; /* for each value of each pass's digit */
    void *block;
    size_t bytes;
} work;

/* Stable insertion sort. Returns false if it stopped after `max_moves` moves. Equal keys are in their original order
 * even then, so that another stable sort can continue. */
static bool insertion_sort(int64_t n, uint64_t *restrict keys, int64_t *restrict indices, int64_t max_moves)
{
    for (int64_t i = 1; i < n; i++) {
        if (keys[i - 1] <= keys[i])
            continue;
        uint64_t key = keys[i];
        int64_t index = indices == NULL ? 0 : indices[i], at = i;
        for (; at > 0 && keys[at - 1] > key; at--) {
            keys[at] = keys[at - 1];
            if (indices != NULL)
                indices[at] = indices[at - 1];
        }
        keys[at] = key;
        if (indices != NULL)
            indices[at] = index;
        max_moves -= i - at;
        if (max_moves < 0)
            return false;
    }
    return true;
}

/* Bits of a digit: short lines use small digits, with fewer counts to clear and sum. */
static int digit_bits(int64_t n) { return n <= 2048 ? 8 : DIGIT_MAX; }

static void scatter_keys(int64_t n, const uint64_t *restrict keys, uint64_t *restrict to, int64_t *restrict counts,
                         int shift, uint64_t mask)
{
    for (int64_t i = 0; i < n; i++)
        to[counts[keys[i] >> shift & mask]++] = keys[i];
}

static void scatter_both(int64_t n, const uint64_t *restrict keys, const int64_t *restrict indices,
                         uint64_t *restrict to, int64_t *restrict indices_to, int64_t *restrict counts, int shift,
                         uint64_t mask)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t at = counts[keys[i] >> shift & mask]++;
        to[at] = keys[i];
        indices_to[at] = indices[i];
    }
}

/* Counts the values of `passes` digits from bit `low` on. */
static inline __attribute__((always_inline)) void count_digit_values(int64_t n, const uint64_t *restrict keys,
                                                                     int64_t *restrict counts, int low, int bits,
                                                                     int passes)
{
    uint64_t mask = (UINT64_C(1) << bits) - 1;
    for (int64_t i = 0; i < n; i++) {
        uint64_t key = keys[i] >> low;
        for (int pass = 0; pass < passes; pass++, key >>= bits)
            counts[((int64_t)pass << bits) + (int64_t)(key & mask)]++;
    }
}

static void count_digits(int64_t n, const uint64_t *keys, int64_t *counts, int low, int bits, int passes)
{
    if (bits == DIGIT_MAX && passes == 3) /* the case of long lines of floats */
        count_digit_values(n, keys, counts, low, DIGIT_MAX, 3);
    else
        count_digit_values(n, keys, counts, low, bits, passes);
}

/* Sorts by the bits from `low` up to but not including `high`. */
static vme_status radix_passes(vme_context *context, work *w, int64_t n, int low, int high)
{
    int bits = digit_bits(n), passes = (high - low + bits - 1) / bits;
    uint64_t mask = (UINT64_C(1) << bits) - 1;
    memset(w->counts, 0, sizeof *w->counts * (size_t)passes << bits);
    for (int64_t begin = 0; begin < n; begin += PIECE) {
        count_digits(n - begin < PIECE ? n - begin : PIECE, w->keys + begin, w->counts, low, bits, passes);
        if (vme_stopping(context))
            return vme_stopped_here(context);
    }
    for (int pass = 0; pass < passes; pass++) {
        int64_t *counts = w->counts + ((int64_t)pass << bits), at = 0;
        int shift = low + pass * bits;
        if (counts[w->keys[0] >> shift & mask] == n)
            continue;
        for (uint64_t value = 0; value <= mask; value++) {
            int64_t count = counts[value];
            counts[value] = at;
            at += count;
        }
        for (int64_t begin = 0; begin < n; begin += PIECE) {
            int64_t piece = n - begin < PIECE ? n - begin : PIECE;
            if (w->indices != NULL)
                scatter_both(piece, w->keys + begin, w->indices + begin, w->spare_keys, w->spare_indices, counts, shift,
                             mask);
            else
                scatter_keys(piece, w->keys + begin, w->spare_keys, counts, shift, mask);
            if (vme_stopping(context))
                return vme_stopped_here(context);
        }
        uint64_t *keys = w->keys;
        int64_t *indices = w->indices;
        w->keys = w->spare_keys;
        w->spare_keys = keys;
        w->indices = w->spare_indices;
        w->spare_indices = indices;
    }
    return VME_OK;
}

/* Sorts w->keys, and w->indices along with them.
 *
 * Only bits that differ between keys matter. If there are many, keys are sorted by just enough upper bits to separate
 * most of `n` keys, and insertion sort repairs the few pairs that are left out of order. If there are too many of
 * these, keys are sorted by all differing bits. */
static vme_status radix_sort(vme_context *context, work *w, int64_t n)
{
    if (n <= INSERTION_MAX) {
        insertion_sort(n, w->keys, w->indices, INT64_MAX);
        return VME_OK;
    }
    uint64_t differing = 0;
    bool sorted = true;
    for (int64_t begin = 0; begin < n; begin += PIECE) {
        int64_t end = n - begin < PIECE ? n : begin + PIECE;
        uint64_t first = w->keys[0], previous = w->keys[begin == 0 ? 0 : begin - 1];
        int64_t descents = 0;
        for (int64_t i = begin; i < end; i++) {
            uint64_t key = w->keys[i];
            differing |= key ^ first;
            descents += key < previous;
            previous = key;
        }
        sorted = sorted && descents == 0;
        if (vme_stopping(context))
            return vme_stopped_here(context);
    }
    if (sorted)
        return VME_OK;
    int low = __builtin_ctzll(differing), high = 64 - __builtin_clzll(differing),
        separating_bits = 64 - __builtin_clzll((uint64_t)n) + 14;
    int bits = digit_bits(n), passes = (separating_bits + bits - 1) / bits;
    if (high - low > (passes + 1) * bits) {
        vme_status status = radix_passes(context, w, n, high - passes * bits, high);
        if (status != VME_OK)
            return status;
        bool repaired = true;
        /* by pieces that do not split a run of equal upper bits */
        for (int64_t begin = 0; begin < n && repaired; begin += PIECE) {
            int64_t end = begin + PIECE, shift = high - passes * bits;
            while (end < n && end - begin < 2 * PIECE && w->keys[end] >> shift == w->keys[end - 1] >> shift)
                end++;
            end = end < n ? end : n;
            repaired = end - begin < 2 * PIECE
                       && insertion_sort(end - begin, w->keys + begin, w->indices == NULL ? NULL : w->indices + begin,
                                         4 * PIECE);
            begin = end - PIECE;
            if (vme_stopping(context))
                return vme_stopped_here(context);
        }
        if (repaired)
            return VME_OK;
    }
    return radix_passes(context, w, n, low, high);
}

static vme_status work_new(vme_context *context, int64_t length, bool with_indices, work *w)
{
    size_t column = (size_t)length * 8;
    int bits = digit_bits(length);
    size_t counts = (sizeof *w->counts * (size_t)((64 + bits - 1) / bits)) << bits;
    w->bytes = counts + column * (with_indices ? 4 : 2);
    w->block = vme_scratch_new(context, w->bytes);
    if (w->block == NULL)
        return VME_NO_MEMORY;
    w->counts = w->block;
    w->keys = (uint64_t *)((char *)w->block + counts);
    w->spare_keys = w->keys + length;
    w->indices = with_indices ? (int64_t *)w->spare_keys + length : NULL;
    w->spare_indices = with_indices ? w->indices + length : NULL;
    return VME_OK;
}

/* ---- selection */

/* Partitions keys begin to end - 1 by the digit at `shift`, stably: below `pivot`, equal to it, above it. `below` and
 * `equal` are the numbers of keys of the first two. */
static vme_status split_by_digit(vme_context *context, work *w, int64_t begin, int64_t end, int shift, uint64_t mask,
                                 uint64_t pivot, int64_t below, int64_t equal)
{
    int64_t at[3] = {begin, begin + below, begin + below + equal};
    for (int64_t from = begin; from < end; from += PIECE) {
        int64_t to = end - from < PIECE ? end : from + PIECE;
        for (int64_t i = from; i < to; i++) {
            uint64_t key = w->keys[i], digit = key >> shift & mask;
            int64_t index = at[(digit >= pivot) + (digit > pivot)]++;
            w->spare_keys[index] = key;
            if (w->indices != NULL)
                w->spare_indices[index] = w->indices[i];
        }
        if (vme_stopping(context))
            return vme_stopped_here(context);
    }
    memcpy(w->keys + begin, w->spare_keys + begin, (size_t)(end - begin) * sizeof *w->keys);
    if (w->indices != NULL)
        memcpy(w->indices + begin, w->spare_indices + begin, (size_t)(end - begin) * sizeof *w->indices);
    return VME_OK;
}

/* Moves the key that sorting would put at `kth` there, among keys begin to end - 1. Partitions them by the highest
 * digit that differs, and continues with the keys that have the same digit as the kth. */
static vme_status select_key(vme_context *context, work *w, int64_t begin, int64_t end, int64_t kth)
{
    while (end - begin > INSERTION_MAX) {
        uint64_t differing = 0;
        for (int64_t from = begin; from < end; from += PIECE) {
            int64_t to = end - from < PIECE ? end : from + PIECE;
            for (int64_t i = from; i < to; i++)
                differing |= w->keys[i] ^ w->keys[begin];
            if (vme_stopping(context))
                return vme_stopped_here(context);
        }
        if (differing == 0)
            return VME_OK;
        int bits = digit_bits(end - begin), high = 64 - __builtin_clzll(differing),
            shift = high > bits ? high - bits : 0;
        uint64_t mask = (UINT64_C(1) << bits) - 1, pivot = 0;
        memset(w->counts, 0, sizeof *w->counts << bits);
        for (int64_t from = begin; from < end; from += PIECE) {
            count_digit_values(end - from < PIECE ? end - from : PIECE, w->keys + from, w->counts, shift, bits, 1);
            if (vme_stopping(context))
                return vme_stopped_here(context);
        }
        int64_t below = 0;
        while (begin + below + w->counts[pivot] <= kth)
            below += w->counts[pivot++];
        int64_t equal = w->counts[pivot];
        vme_status status = split_by_digit(context, w, begin, end, shift, mask, pivot, below, equal);
        if (status != VME_OK)
            return status;
        begin += below;
        end = begin + equal;
    }
    insertion_sort(end - begin, w->keys + begin, w->indices == NULL ? NULL : w->indices + begin, INT64_MAX);
    return VME_OK;
}

static vme_status select_keys(vme_context *context, work *w, int64_t n, int count, const int64_t *kth)
{
    int64_t begin = 0;
    for (int i = 0; i < count; i++) {
        vme_status status = select_key(context, w, begin, n, kth[i]);
        if (status != VME_OK)
            return status;
        begin = kth[i] + 1;
    }
    return VME_OK;
}

/* ---- sorting by the backend's kernels, with keys of the element's width in NumPy's order */

static bool key_is_wide(vme_dtype dtype) { return vme_dtype_size(dtype) == 8; }

/* Makes the keys of a line. They are incomplete if the result is VME_STOPPED. */
static vme_status make_keys(vme_context *context, const vme_order_kernels *kernels, vme_dtype dtype, int64_t n,
                            const char *in, int64_t step, bool descending, bool zeros_equal, void *keys)
{
    bool wide = key_is_wide(dtype);
    for (int64_t begin = 0; begin < n; begin += PIECE) {
        kernels->keys[wide](dtype, n - begin < PIECE ? n - begin : PIECE, in + begin * step, step, descending,
                            zeros_equal, (char *)keys + begin * (wide ? 8 : 4));
        if (vme_stopping(context))
            return vme_stopped_here(context);
    }
    return VME_OK;
}

enum {
    ROUNDS = 3,          /* maximum rounds of partitioning */
    DIVIDED_MIN = 16384, /* minimum keys of a part, few enough that threads without a part wait only briefly */
};

/* Keys that several threads sort: they are partitioned in rounds, in each of which every part is split in two. Then
 * each part is sorted. */
typedef struct divided_sort {
    vme_context *context;
    const vme_order_kernels *kernels;
    char *keys;
    bool wide;
    int step;                         /* in this round, parts start at every `step`-th entry of `begin` */
    int64_t begin[(1 << ROUNDS) + 1]; /* after all rounds, part i is from begin[i] to begin[i + 1] */
} divided_sort;

static vme_status partition_parts(void *argument, int64_t first, int64_t last)
{
    divided_sort *d = argument;
    for (int64_t i = first; i < last; i++) {
        int64_t *at = d->begin + i * d->step, n = at[d->step] - at[0], below = n;
        bool all_equal = false;
        if (n > VME_PART_MIN
            && !d->kernels->part[d->wide](d->context, n, d->keys + at[0] * (d->wide ? 8 : 4), &below, &all_equal))
            return vme_stopped_here(d->context);
        at[d->step / 2] = at[0] + below; /* if these are all equal, sort_parts detects it at once */
    }
    return VME_OK;
}

static vme_status sort_parts(void *argument, int64_t first, int64_t last)
{
    const divided_sort *d = argument;
    for (int64_t i = first; i < last; i++)
        if (!d->kernels->sort[d->wide](d->context, d->begin[i + 1] - d->begin[i],
                                       d->keys + d->begin[i] * (d->wide ? 8 : 4)))
            return vme_stopped_here(d->context);
    return VME_OK;
}

static vme_status sort_in_parts(vme_context *context, const vme_order_kernels *kernels, bool wide, int64_t n,
                                void *keys)
{
    int rounds = n >= DIVIDED_MIN << ROUNDS ? ROUNDS : ROUNDS - 1, parts = 1 << rounds;
    divided_sort d = {.context = context, .kernels = kernels, .keys = keys, .wide = wide};
    d.begin[parts] = n;
    vme_status status = VME_OK;
    for (int done = 1; done < parts && status == VME_OK; done *= 2) {
        d.step = parts / done;
        status = vme_parallel(context, done, 1, partition_parts, &d);
    }
    return status == VME_OK ? vme_parallel(context, parts, 1, sort_parts, &d) : status;
}

/* Sorts keys, or partitions them at `count` indices `kth`. `may_divide`: no other line is sorted at the same time, so
 * this one may be divided among threads. */
static vme_status order_keys(vme_context *context, const vme_order_kernels *kernels, bool wide, int64_t n, void *keys,
                             int count, const int64_t *kth, bool may_divide)
{
    if (count == 0 && may_divide && n >= DIVIDED_MIN << (ROUNDS - 1))
        return sort_in_parts(context, kernels, wide, n, keys);
    if (count == 0)
        return kernels->sort[wide](context, n, keys) ? VME_OK : vme_stopped_here(context);
    int64_t begin = 0, size = wide ? 8 : 4;
    for (int i = 0; i < count; i++) {
        if (!kernels->select[wide](context, n - begin, (char *)keys + begin * size, kth[i] - begin))
            return vme_stopped_here(context);
        begin = kth[i] + 1;
    }
    return VME_OK;
}

/* Sorts a line in place. `keys`: memory for its keys, or NULL if the line itself can hold them. */
static vme_status sort_by_keys(vme_context *context, const vme_order_kernels *kernels, vme_dtype dtype, int64_t n,
                               char *line, int64_t step, bool descending, int count, const int64_t *kth, void *keys,
                               bool may_divide)
{
    bool wide = key_is_wide(dtype);
    if (keys == NULL)
        keys = line;
    vme_status status = make_keys(context, kernels, dtype, n, line, step, descending, false, keys);
    if (status == VME_OK)
        status = order_keys(context, kernels, wide, n, keys, count, kth, may_divide);
    for (int64_t begin = 0; status == VME_OK && begin < n; begin += PIECE) {
        kernels->elements[wide](dtype, n - begin < PIECE ? n - begin : PIECE, (char *)keys + begin * (wide ? 8 : 4),
                                descending, line + begin * step, step);
        if (vme_stopping(context))
            status = vme_stopped_here(context);
    }
    return status;
}

/* Sorts one-byte elements in place, by counting. */
static vme_status sort_bytes(vme_context *context, vme_dtype dtype, int64_t n, char *line, int64_t step,
                             bool descending)
{
    int64_t counts[256] = {0}, at = 0;
    unsigned flip = (dtype == VME_INT8 ? SIGN8 : 0) ^ (descending ? 0xff : 0);
    for (int64_t i = 0; i < n; i++) {
        unsigned value = *(const e_u8 *)(line + i * step);
        counts[(dtype == VME_BOOL ? value != 0 : value) ^ flip]++;
        if (i % PIECE == 0 && vme_stopping(context))
            return vme_stopped_here(context);
    }
    for (unsigned key = 0; key < 256; key++) {
        if (step == 1)
            memset(line + at, (int)(key ^ flip), (size_t)counts[key]);
        else
            for (int64_t i = 0; i < counts[key]; i++) {
                *(e_u8 *)(line + (at + i) * step) = (uint8_t)(key ^ flip);
                if (i % PIECE == PIECE - 1 && vme_stopping(context))
                    return vme_stopped_here(context);
            }
        at += counts[key];
    }
    return VME_OK;
}

/* Sorts each run of words that are equal above the index bits by the whole keys. Sets *repaired to false if a run is
 * too long or too far out of order. */
static vme_status repair_indices(vme_context *context, work *w, int64_t n, int index_bits, bool *repaired)
{
    const uint64_t *words = w->spare_keys, mask = (UINT64_C(1) << index_bits) - 1;
    uint64_t *run = (uint64_t *)w->spare_indices;
    *repaired = true;
    for (int64_t begin = 0, end, checked = 0; begin < n; begin = end) {
        for (end = begin + 1;
             end < n && end - begin <= PIECE && words[end] >> index_bits == words[begin] >> index_bits;)
            end++;
        if (end - begin > PIECE) { /* too long for the time between two checks of the stop flag */
            *repaired = false;
            return VME_OK;
        }
        if (end - begin > 1) {
            for (int64_t i = begin; i < end; i++)
                run[i] = w->keys[words[i] & mask] ^ SIGN64;
            if (!insertion_sort(end - begin, run + begin, w->indices + begin, 8 * (end - begin) + 256)) {
                *repaired = false;
                return VME_OK;
            }
        }
        if (end - checked >= PIECE) {
            checked = end;
            if (vme_stopping(context))
                return vme_stopped_here(context);
        }
    }
    return VME_OK;
}

/* Writes the stably sorted indices of a line (or partitions them at `count` indices `kth`) to w->indices. A word holds
 * an element's index below as many upper bits of its key as fit, so that sorting words sorts both. Sets *done to false
 * if these bits did not suffice. */
static vme_status order_indices(vme_context *context, const vme_order_kernels *kernels, work *w, vme_dtype dtype,
                                int64_t n, const char *in, int64_t step, bool descending, int count, const int64_t *kth,
                                bool may_divide, bool *done)
{
    int index_bits = 64 - __builtin_clzll((uint64_t)n - 1), dropped_bits = 0;
    int64_t *keys = (int64_t *)w->keys, range[3] = {INT64_MAX, INT64_MIN, 0};
    uint64_t *words = w->spare_keys;
    for (int64_t begin = 0; begin < n; begin += PIECE) {
        kernels->index_keys(dtype, n - begin < PIECE ? n - begin : PIECE, in + begin * step, step, descending, keys,
                            keys + begin, range);
        if (vme_stopping(context))
            return vme_stopped_here(context);
    }
    uint64_t span = (uint64_t)range[1] - (uint64_t)range[0], differing = (uint64_t)range[2];
    int key_bits = span == 0 ? 1 : 64 - __builtin_clzll(span);
    if (key_bits + index_bits > 64)
        dropped_bits = key_bits + index_bits - 64;
    for (int64_t begin = 0; begin < n; begin += PIECE) {
        kernels->index_words(n - begin < PIECE ? n - begin : PIECE, keys + begin, range[0], dropped_bits, index_bits,
                             begin, (int64_t *)words + begin);
        if (vme_stopping(context))
            return vme_stopped_here(context);
    }
    vme_status status = order_keys(context, kernels, true, n, words, count, kth, may_divide);
    if (status != VME_OK)
        return status;
    for (int64_t begin = 0; begin < n; begin += PIECE) {
        kernels->indices(n - begin < PIECE ? n - begin : PIECE, (const int64_t *)words + begin, index_bits,
                         w->indices + begin);
        if (vme_stopping(context))
            return vme_stopped_here(context);
    }
    *done = dropped_bits == 0 || (differing & ((UINT64_C(1) << dropped_bits) - 1)) == 0;
    if (*done)
        return VME_OK;
    if (count == 0)
        return repair_indices(context, w, n, index_bits, done);
    *done = true;
    /* a partition is correct unless another key has the same upper bits as a selected one */
    for (int k = 0; k < count && *done; k++) {
        uint64_t selected = words[kth[k]] >> index_bits;
        int64_t equal = 0;
        for (int64_t begin = 0; begin < n; begin += PIECE) {
            int64_t end = n - begin < PIECE ? n : begin + PIECE;
            for (int64_t i = begin; i < end; i++)
                equal += words[i] >> index_bits == selected;
            if (vme_stopping(context))
                return vme_stopped_here(context);
        }
        *done = equal == 1;
    }
    return VME_OK;
}

/* ---- lines */
enum { OUT, IN };
enum { TOP_SHARE = 8 };                  /* a heap is used for up to 1 / TOP_SHARE of a line */
enum { TOP_BLOCK = 64, TOP_GROUP = 16 }; /* elements that are compared with the heap's worst one at once */
enum { SHORT_MAX = 256 };                /* elements up to which a line's setup takes a relevant part of the time */

typedef struct sort {
    vme_context *context;
    const vme_order_kernels *kernels; /* NULL: radix sort, always for complex numbers */
    vme_nest lines;
    vme_dtype dtype;
    int64_t length, in_step, out_step;
    int64_t out_length;       /* of a line of the output: `length`, or less for the first indices */
    bool descending, indices; /* indices: the output is argsort's */
    bool may_divide;          /* there is one line, which threads may share */
    int kth_count;            /* 0: sorts whole lines */
    const int64_t *kth;
} sort;

typedef struct sorted_line {
    const sort *s;
    work *w;
    const char *in;
    char *out;
} sorted_line;

/* Processes a piece of a line, [begin, end), between two checks of the stop flag. */
typedef void piece_work(const sorted_line *l, int64_t begin, int64_t end);

static vme_status each_piece(const sorted_line *l, piece_work *run)
{
    for (int64_t begin = 0, end; begin < l->s->length; begin = end) {
        end = l->s->length - begin < PIECE ? l->s->length : begin + PIECE;
        run(l, begin, end);
        if (vme_stopping(l->s->context))
            return vme_stopped_here(l->s->context);
    }
    return VME_OK;
}

static void init_indices(const sorted_line *l, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++)
        l->w->indices[i] = i;
}

static void read_keys(const sorted_line *l, int64_t begin, int64_t end)
{
    load_keys(l->s->dtype, end - begin, l->in + begin * l->s->in_step, l->s->in_step, l->s->descending, l->s->indices,
              l->w->keys + begin);
}

static void write_elements(const sorted_line *l, int64_t begin, int64_t end)
{
    store_keys(l->s->dtype, end - begin, l->w->keys + begin, l->s->descending, l->out + begin * l->s->out_step,
               l->s->out_step);
}

static void write_indices(const sorted_line *l, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end && i < l->s->out_length; i++)
        *(e_i64 *)(l->out + i * l->s->out_step) = l->w->indices[i];
}

/* Keys of complex numbers in the order of w->indices: of the imaginary parts, of the real parts, and of which parts are
 * NaN. `offset`: the component's, in bytes. */
static void read_parts(const sorted_line *l, int64_t begin, int64_t end, int offset)
{
    vme_dtype part = component_dtype(l->s->dtype);
    for (int64_t i = begin; i < end; i++)
        load_keys(part, 1, l->in + l->w->indices[i] * l->s->in_step + offset, 0, l->s->descending, true,
                  l->w->keys + i);
}

static void read_imaginary_keys(const sorted_line *l, int64_t begin, int64_t end)
{
    read_parts(l, begin, end, vme_dtype_size(component_dtype(l->s->dtype)));
}
static void read_real_keys(const sorted_line *l, int64_t begin, int64_t end) { read_parts(l, begin, end, 0); }

static void read_nan_keys(const sorted_line *l, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        uint64_t key[3];
        load_key(l->s->dtype, l->in + l->w->indices[i] * l->s->in_step, key);
        l->w->keys[i] = key[0];
    }
}

/* Memory for a sorted line of complex numbers, which may not be written to the output while it is read from there: both
 * arrays of keys, which are adjacent. */
static char *gathered_line(const sorted_line *l)
{
    return (char *)(l->w->keys < l->w->spare_keys ? l->w->keys : l->w->spare_keys);
}

static void gather_elements(const sorted_line *l, int64_t begin, int64_t end)
{
    int bytes = vme_dtype_size(l->s->dtype);
    char *to = gathered_line(l);
    for (int64_t i = begin; i < end; i++)
        memcpy(to + i * bytes, l->in + l->w->indices[i] * l->s->in_step, (size_t)bytes);
}

static void write_gathered(const sorted_line *l, int64_t begin, int64_t end)
{
    int bytes = vme_dtype_size(l->s->dtype);
    const char *from = gathered_line(l);
    for (int64_t i = begin; i < end; i++)
        memcpy(l->out + i * l->s->out_step, from + i * bytes, (size_t)bytes);
}

/* Writes the sorted indices of a line of complex numbers to w->indices. */
static vme_status order_complex(const sorted_line *l)
{
    piece_work *const keys[] = {read_imaginary_keys, read_real_keys, read_nan_keys};
    vme_status status = each_piece(l, init_indices);
    for (int i = 0; i < 3 && status == VME_OK; i++) {
        status = each_piece(l, keys[i]);
        if (status == VME_OK)
            status = radix_sort(l->s->context, l->w, l->s->length);
    }
    return status;
}

/* Sorts the indices of a line of real numbers, or only its keys if only values are needed. */
static vme_status order_line(const sorted_line *l)
{
    const sort *s = l->s;
    bool done = false;
    vme_status status = VME_OK;
    if (s->indices && s->kernels != NULL && s->length > INSERTION_MAX)
        status = order_indices(s->context, s->kernels, l->w, s->dtype, s->length, l->in, s->in_step, s->descending,
                               s->kth_count, s->kth, s->may_divide, &done);
    if (status != VME_OK || done)
        return status;
    if (s->indices)
        status = each_piece(l, init_indices);
    if (status == VME_OK)
        status = each_piece(l, read_keys);
    if (status != VME_OK)
        return status;
    return s->kth_count > 0 ? select_keys(s->context, l->w, s->length, s->kth_count, s->kth)
                            : radix_sort(s->context, l->w, s->length);
}

static vme_status sort_line(const sort *s, work *w, const char *in, char *out)
{
    const sorted_line l = {s, w, in, out};
    bool complex = s->dtype >= VME_COMPLEX64;
    vme_status status = complex ? order_complex(&l) : order_line(&l);
    if (status == VME_OK && complex && !s->indices) {
        status = each_piece(&l, gather_elements);
        return status == VME_OK ? each_piece(&l, write_gathered) : status;
    }
    return status == VME_OK ? each_piece(&l, s->indices ? write_indices : write_elements) : status;
}

/* ---- the first indices of a line */
typedef struct top_element {
    uint64_t key;
    int64_t index;
} top_element;

static bool is_worse(const top_element *a, const top_element *b)
{
    return a->key > b->key || (a->key == b->key && a->index > b->index);
}

/* Restores the order of a heap of `count` elements, whose root is the worst one. Only element `at` may be better than
 * its children. */
static void sift_down(top_element *heap, int64_t count, int64_t at)
{
    const top_element moved = heap[at];
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && is_worse(&heap[child + 1], &heap[child]);
        if (!is_worse(&heap[child], &moved))
            break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

/* Whether one of `count` adjacent float32 elements is sorted before the element at `worst`. */
static inline bool any_before(int count, const float *elements, const char *worst, bool descending)
{
    const float limit = *(const e_f32 *)worst;
    int found = limit != limit; /* NaN is last */
    if (descending)
        for (int i = 0; i < count; i++)
            found |= elements[i] > limit;
    else
        for (int i = 0; i < count; i++)
            found |= elements[i] < limit;
    return found != 0;
}

/* Inserts those of `count` elements (at most TOP_BLOCK, from element `begin` of the line on) into the heap that belong
 * there. The heap has *filled elements. */
static void offer(const sort *s, top_element *heap, int64_t *filled, int64_t begin, int64_t count, const char *in,
                  int64_t in_step)
{
    uint64_t keys[TOP_BLOCK];
    load_keys(s->dtype, count, in, in_step, s->descending, true, keys);
    for (int64_t i = 0; i < count; i++) {
        const top_element element = {keys[i], begin + i};
        if (*filled < s->out_length) {
            heap[(*filled)++] = element;
            for (int64_t at = *filled == s->out_length ? s->out_length / 2 : 0; at-- > 0;)
                sift_down(heap, s->out_length, at);
        } else if (element.key < heap[0].key) {
            heap[0] = element;
            sift_down(heap, s->out_length, 0);
        }
    }
}

/* The same for TOP_BLOCK elements of float32 and a full heap. Skips groups of which no element belongs in the heap. */
static void offer_floats(const sort *s, top_element *heap, int64_t begin, const char *line)
{
    float block[TOP_BLOCK];
    const char *in = line + begin * s->in_step;
    if (s->in_step == (int64_t)sizeof(float))
        memcpy(block, in, sizeof block);
    else
        for (int i = 0; i < TOP_BLOCK; i++)
            block[i] = *(const e_f32 *)(in + i * s->in_step);
    if (!any_before(TOP_BLOCK, block, line + heap[0].index * s->in_step, s->descending))
        return;
    int64_t filled = s->out_length;
    for (int group = 0; group < TOP_BLOCK; group += TOP_GROUP)
        if (any_before(TOP_GROUP, block + group, line + heap[0].index * s->in_step, s->descending))
            offer(s, heap, &filled, begin + group, TOP_GROUP, (const char *)(block + group), sizeof(float));
}

static vme_status top_of_line(const sort *s, top_element *heap, const char *in, char *out)
{
    const int64_t count = s->out_length;
    int64_t filled = 0, checked = 0;
    for (int64_t begin = 0, size; begin < s->length; begin += size) {
        size = min(s->length - begin, filled < count ? min(TOP_BLOCK, count - filled) : TOP_BLOCK);
        if (begin - checked >= PIECE) {
            checked = begin;
            if (vme_stopping(s->context))
                return vme_stopped_here(s->context);
        }
        if (s->dtype == VME_FLOAT32 && filled == count && size == TOP_BLOCK)
            offer_floats(s, heap, begin, in);
        else
            offer(s, heap, &filled, begin, size, in + begin * s->in_step, s->in_step);
    }
    for (int64_t last = count - 1; last > 0; last--) {
        const top_element worst = heap[0];
        heap[0] = heap[last];
        heap[last] = worst;
        sift_down(heap, last, 0);
    }
    for (int64_t i = 0; i < count; i++)
        *(e_i64 *)(out + i * s->out_step) = heap[i].index;
    return VME_OK;
}

static vme_status top_of_lines(void *argument, int64_t begin, int64_t end)
{
    const sort *s = argument;
    const size_t bytes = (size_t)s->out_length * sizeof(top_element);
    top_element *heap = vme_scratch_new(s->context, bytes);
    if (heap == NULL)
        return VME_NO_MEMORY;
    vme_status status = VME_OK;
    vme_cursor at;
    vme_nest_seek(&s->lines, begin, &at);
    for (int64_t line = begin; line < end && status == VME_OK; line++, vme_nest_advance(&s->lines, &at, 1))
        status = top_of_line(s, heap, at.data[IN], at.data[OUT]);
    vme_scratch_free(s->context, heap, bytes);
    return status;
}

/* ---- many lines */
/* Sorts consecutive short lines. Makes the keys of many lines with one call. */
static vme_status sort_short_lines(const sort *s, int64_t begin, int64_t end)
{
    bool wide = key_is_wide(s->dtype);
    int64_t size = wide ? 8 : 4, line_bytes = s->length * size, max_lines = PIECE / 16 / s->length;
    char *lines = s->lines.data[OUT] + begin * line_bytes;
    for (int64_t count; begin < end; begin += count, lines += count * line_bytes) {
        count = end - begin < max_lines ? end - begin : max_lines;
        vme_status status =
            make_keys(s->context, s->kernels, s->dtype, count * s->length, lines, size, s->descending, false, lines);
        for (int64_t i = 0; i < count && status == VME_OK; i++)
            status = order_keys(s->context, s->kernels, wide, s->length, lines + i * line_bytes, s->kth_count, s->kth,
                                s->may_divide);
        if (status != VME_OK)
            return status;
        s->kernels->elements[wide](s->dtype, count * s->length, lines, s->descending, lines, size);
    }
    return VME_OK;
}

/* Sorts the values of lines by the backend's kernels. */
static vme_status sort_values_of_lines(const sort *s, int64_t begin, int64_t end)
{
    int size = vme_dtype_size(s->dtype);
    size_t bytes =
        size == 1 || (size >= 4 && s->out_step == size) ? 0 : (size_t)s->length * (size_t)(size == 8 ? 8 : 4);
    void *keys = NULL;
    vme_status status = VME_OK;
    vme_cursor at;
    if (bytes > 0 && (keys = vme_scratch_new(s->context, bytes)) == NULL)
        return VME_NO_MEMORY;
    if (size >= 4 && s->out_step == size && s->lines.rank == 1 && s->lines.loops[0].step[OUT] == s->length * size
        && s->length <= SHORT_MAX)
        return sort_short_lines(s, begin, end);
    vme_nest_seek(&s->lines, begin, &at);
    for (int64_t line = begin; line < end && status == VME_OK; line++, vme_nest_advance(&s->lines, &at, 1))
        status = size == 1 ? sort_bytes(s->context, s->dtype, s->length, at.data[OUT], s->out_step, s->descending)
                           : sort_by_keys(s->context, s->kernels, s->dtype, s->length, at.data[OUT], s->out_step,
                                          s->descending, s->kth_count, s->kth, keys, s->may_divide);
    vme_scratch_free(s->context, keys, bytes);
    return status;
}

static vme_status sort_lines(void *argument, int64_t begin, int64_t end)
{
    const sort *s = argument;
    if (!s->indices && (s->kernels != NULL || vme_dtype_size(s->dtype) == 1))
        return sort_values_of_lines(s, begin, end);
    work w;
    vme_status status = work_new(s->context, s->length, s->indices || s->dtype >= VME_COMPLEX64, &w);
    if (status != VME_OK)
        return status;
    vme_cursor at;
    vme_nest_seek(&s->lines, begin, &at);
    for (int64_t line = begin; line < end && status == VME_OK; line++, vme_nest_advance(&s->lines, &at, 1))
        status = sort_line(s, &w, at.data[IN], at.data[OUT]);
    vme_scratch_free(s->context, w.block, w.bytes);
    return status;
}

static vme_status sort_all(vme_context *context, const vme_tensor *in, int axis, bool descending, bool indices,
                           int kth_count, const int64_t *kth, const vme_tensor *out)
{
    int64_t shape[VME_RANK_MAX], in_strides[VME_RANK_MAX], out_strides[VME_RANK_MAX];
    int rank = 0;
    for (int d = 0; d < in->rank; d++)
        if (d != axis) {
            shape[rank] = in->shape[d];
            in_strides[rank] = in->strides[d];
            out_strides[rank++] = out->strides[d];
        }
    sort s = {.context = context,
              .dtype = (vme_dtype)in->dtype,
              .length = in->shape[axis],
              .in_step = in->strides[axis],
              .out_step = out->strides[axis],
              .out_length = out->shape[axis],
              .descending = descending,
              .indices = indices,
              .kth_count = kth_count,
              .kth = kth};
    vme_nest_make(&s.lines, VME_NEST_ANY, rank, shape, 2, (const int64_t *const[]){out_strides, in_strides},
                  (char *const[]){out->data, in->data});
    if (s.lines.elements == 0 || s.out_length == 0)
        return VME_OK;
    const vme_kernels *kernels = vme_kernels_current();
    if (kernels->order.sort[0] != NULL && s.dtype < VME_COMPLEX64)
        s.kernels = &kernels->order;
    s.may_divide = s.lines.elements == 1;
    vme_status (*run)(void *, int64_t, int64_t) =
        s.dtype < VME_COMPLEX64 && s.out_length <= s.length / TOP_SHARE ? top_of_lines : sort_lines;
    return s.may_divide ? run(&s, 0, 1) : vme_parallel(context, s.lines.elements, 4096 / s.length + 1, run, &s);
}

/* `may_be_shorter`: the output may be shorter along the axis. */
static vme_status check(const char *name, const vme_tensor *in, int axis, bool may_be_shorter, const vme_tensor *out)
{
    if (axis < 0 || axis >= in->rank)
        return vme_fail(VME_BAD_AXIS, "axis %d is out of bounds for array of dimension %d", axis, in->rank);
    bool fits = in->rank == out->rank;
    for (int d = 0; fits && d < in->rank; d++)
        fits = in->shape[d] == out->shape[d] || (may_be_shorter && d == axis && out->shape[d] < in->shape[d]);
    if (!fits)
        return vme_fail(VME_BAD_SHAPE, "the output of %s has another shape than its input", name);
    return vme_check_output(out);
}

static vme_status sort_values(vme_context *context, const vme_tensor *in, int axis, bool descending, int kth_count,
                              const int64_t *kth, const vme_tensor *out)
{
    vme_status status = check("sort", in, axis, false, out);
    if (status == VME_OK)
        status = vme_copy(context, in, out);
    return status == VME_OK ? sort_all(context, out, axis, descending, false, kth_count, kth, out) : status;
}

static vme_status sort_indices(vme_context *context, const vme_tensor *in, int axis, bool descending,
                               bool may_be_shorter, int kth_count, const int64_t *kth, const vme_tensor *out)
{
    vme_status status = check("argsort", in, axis, may_be_shorter, out);
    if (status != VME_OK)
        return status;
    if (out->dtype != VME_INT64)
        return vme_fail(VME_BAD_DTYPE, "the output of argsort is int64, not %s", vme_dtype_name((vme_dtype)out->dtype));
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    if (!vme_overlap(in, out))
        return sort_all(context, in, axis, descending, true, kth_count, kth, out);
    int64_t strides[VME_RANK_MAX];
    vme_tensor temporary;
    status = vme_temporary_new(context, out, strides, &temporary);
    if (status != VME_OK)
        return status;
    status = sort_all(context, in, axis, descending, true, kth_count, kth, &temporary);
    if (status == VME_OK)
        status = vme_copy(context, &temporary, out);
    vme_buffer_unref(temporary.buffer);
    return status;
}

vme_status vme_sort(vme_context *context, const vme_tensor *in, int axis, bool descending, const vme_tensor *out)
{
    return sort_values(context, in, axis, descending, 0, NULL, out);
}

vme_status vme_argsort(vme_context *context, const vme_tensor *in, int axis, bool descending, const vme_tensor *out)
{
    return sort_indices(context, in, axis, descending, false, 0, NULL, out);
}

vme_status vme_top(vme_context *context, const vme_tensor *in, int axis, bool descending, const vme_tensor *out)
{
    return sort_indices(context, in, axis, descending, true, 0, NULL, out);
}

vme_status vme_partition(vme_context *context, const vme_tensor *in, int axis, int count, const int64_t *kth,
                         bool indices, const vme_tensor *out)
{
    for (int i = 0; axis >= 0 && axis < in->rank && i < count; i++)
        if (kth[i] < (i == 0 ? 0 : kth[i - 1] + 1) || kth[i] >= in->shape[axis])
            return vme_fail(VME_BAD_VALUE, "kth(=%lld) out of bounds (%lld)", (long long)kth[i],
                            (long long)in->shape[axis]);
    return indices ? sort_indices(context, in, axis, false, false, count, kth, out)
                   : sort_values(context, in, axis, false, count, kth, out);
}

/* ---- searching */
enum { SEARCH_BLOCK = 128 };

typedef struct search {
    vme_nest nest; /* over results and values */
    vme_dtype dtype;
    const char *sorted;
    const vme_order_kernels *kernels; /* NULL: none in this backend */
    /* of the sorted array, in the kernels' format if there are kernels; NULL: computed one by one, because there are
     * few values or they are complex */
    const uint64_t *keys;
    int64_t count, step;
    bool right;
} search;

/* The number of keys below the value (`right`: or equal to it). Branch-free, because a misprediction would cost more
 * than a step. */
static inline int64_t search_position(const uint64_t *keys, int64_t count, uint64_t value, bool right)
{
    const uint64_t *base = keys;
    while (count > 1) {
        int64_t half = count / 2;
        base += half & -(int64_t)(right ? base[half - 1] <= value : base[half - 1] < value);
        count -= half;
    }
    return base - keys + (count == 1 && (right ? *base <= value : *base < value));
}

/* Makes keys of the sorted array, or of values. */
static void load_search_keys(const search *s, int64_t n, const char *in, int64_t step, uint64_t *keys)
{
    int64_t range[3] = {0};
    if (s->kernels != NULL)
        s->kernels->index_keys(s->dtype, n, in, step, false, (const int64_t *)keys, (int64_t *)keys, range);
    else
        load_keys(s->dtype, n, in, step, false, true, keys);
}

static vme_status search_keys(const search *s, int64_t begin, int64_t end)
{
    uint64_t values[SEARCH_BLOCK];
    int64_t indices[SEARCH_BLOCK];
    vme_cursor at;
    int64_t n, left = end - begin;
    for (vme_nest_seek(&s->nest, begin, &at); left > 0; left -= n, vme_nest_advance(&s->nest, &at, n)) {
        n = vme_nest_run(&s->nest, &at, left < SEARCH_BLOCK ? left : SEARCH_BLOCK);
        load_search_keys(s, n, at.data[IN], s->nest.loops[0].step[IN], values);
        char *out = at.data[OUT];
        int64_t step = s->nest.loops[0].step[OUT];
        if (s->kernels != NULL) {
            s->kernels->search(n, (const int64_t *)values, s->count, (const int64_t *)s->keys, s->right, indices);
            for (int64_t i = 0; i < n; i++)
                *(e_i64 *)(out + i * step) = indices[i];
        } else if (s->right)
            for (int64_t i = 0; i < n; i++)
                *(e_i64 *)(out + i * step) = search_position(s->keys, s->count, values[i], true);
        else
            for (int64_t i = 0; i < n; i++)
                *(e_i64 *)(out + i * step) = search_position(s->keys, s->count, values[i], false);
    }
    return VME_OK;
}

static vme_status search_indices(void *argument, int64_t begin, int64_t end)
{
    const search *s = argument;
    if (s->keys != NULL)
        return search_keys(s, begin, end);
    vme_cursor at;
    vme_nest_seek(&s->nest, begin, &at);
    for (int64_t i = begin; i < end; i++, vme_nest_advance(&s->nest, &at, 1)) {
        uint64_t value[3], mid_key[3];
        load_key(s->dtype, at.data[IN], value);
        int64_t low = 0, high = s->count;
        while (low < high) {
            int64_t mid = low + (high - low) / 2;
            load_key(s->dtype, s->sorted + mid * s->step, mid_key);
            if (s->right ? !key_less(value, mid_key) : key_less(mid_key, value))
                low = mid + 1;
            else
                high = mid;
        }
        *(e_i64 *)at.data[OUT] = low;
    }
    return VME_OK;
}

vme_status vme_searchsorted(vme_context *context, const vme_tensor *sorted, const vme_tensor *values, bool right,
                            const vme_tensor *out)
{
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    if (sorted->rank != 1)
        return vme_fail(VME_BAD_SHAPE, "object too deep for desired array");
    if (sorted->dtype != values->dtype || out->dtype != VME_INT64)
        return vme_fail(VME_BAD_DTYPE, "searchsorted takes values of the sorted array's dtype and gives int64");
    int64_t strides[VME_RANK_MAX];
    status = vme_broadcast_strides(values, out, strides);
    if (status != VME_OK)
        return status;
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    if (vme_overlap(sorted, out) || vme_overlap(values, out)) {
        int64_t temporary_strides[VME_RANK_MAX];
        vme_tensor temporary;
        status = vme_temporary_new(context, out, temporary_strides, &temporary);
        if (status != VME_OK)
            return status;
        status = vme_searchsorted(context, sorted, values, right, &temporary);
        if (status == VME_OK)
            status = vme_copy(context, &temporary, out);
        vme_buffer_unref(temporary.buffer);
        return status;
    }
    search s = {.dtype = (vme_dtype)sorted->dtype,
                .sorted = sorted->data,
                .count = sorted->shape[0],
                .step = sorted->strides[0],
                .right = right};
    vme_nest_make(&s.nest, VME_NEST_ANY, out->rank, out->shape, 2, (const int64_t *const[]){out->strides, strides},
                  (char *const[]){out->data, values->data});
    const vme_kernels *kernels = vme_kernels_current();
    if (kernels->order.search != NULL)
        s.kernels = &kernels->order;
    uint64_t *keys = NULL;
    size_t bytes = (size_t)s.count * sizeof *keys;
    if (s.dtype < VME_COMPLEX64 && s.count > 0 && s.nest.elements >= s.count / 8) {
        keys = vme_scratch_new(context, bytes);
        if (keys == NULL)
            return VME_NO_MEMORY;
        for (int64_t begin = 0; begin < s.count; begin += PIECE) {
            load_search_keys(&s, s.count - begin < PIECE ? s.count - begin : PIECE, s.sorted + begin * s.step, s.step,
                             keys + begin);
            if (vme_stopping(context)) {
                vme_scratch_free(context, keys, bytes);
                return vme_stopped_here(context);
            }
        }
        s.keys = keys;
    }
    status = vme_parallel(context, s.nest.elements, 1024, search_indices, &s);
    if (keys != NULL)
        vme_scratch_free(context, keys, bytes);
    return status;
}
