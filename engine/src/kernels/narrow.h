/* Products with narrow weights, for each backend. The including file defines VME_TARGET. */
#include "half.h"
#include "models/narrow_kernels.h"
#include "vectors_f32.h"

#include <string.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)
#define ALWAYS      static inline __attribute__((always_inline))

enum { VECTORS = NARROW_COLUMNS / LANES, CHAINS = 4 }; /* independent sums, to hide latency */
typedef int32_t integers __attribute__((vector_size(VEC_BYTES)));

ALWAYS vec halves(const uint8_t *from)
{
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__AVX2__)
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#else
    vec v;
    for (int i = 0; i < LANES; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        v[i] = f32_of_half(half);
    }
    return v;
#endif
}

ALWAYS vec floats(integers v) { return __builtin_convertvector(v, vec); }

ALWAYS integers words(const uint8_t *from)
{
    integers v;
    memcpy(&v, from, sizeof v);
    return v;
}

/* ---- float16 weights */
ALWAYS void half_rows_of(const int rows, const narrow_sliver *sliver, const float *a, int64_t a_row, float *out)
{
    const int chains = CHAINS / rows;
    vec sum[CHAINS][VECTORS];
#pragma GCC unroll 4
    for (int chain = 0; chain < CHAINS; chain++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++)
            sum[chain][v] = all(0);
    int64_t k = 0;
    for (; k + chains <= sliver->k; k += chains)
#pragma GCC unroll 4
        for (int chain = 0; chain < chains; chain++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) {
                const vec weights = halves(sliver->weights + 2 * ((k + chain) * NARROW_COLUMNS + v * LANES));
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    vec *of = &sum[r * chains + chain][v];
                    *of = add_product(*of, weights, all(a[r * a_row + k + chain]));
                }
            }
    for (; k < sliver->k; k++)
        for (int v = 0; v < VECTORS; v++) {
            const vec weights = halves(sliver->weights + 2 * (k * NARROW_COLUMNS + v * LANES));
            for (int r = 0; r < rows; r++)
                sum[r * chains][v] = add_product(sum[r * chains][v], weights, all(a[r * a_row + k]));
        }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) {
            vec total = sum[r * chains][v];
            for (int chain = 1; chain < chains; chain++)
                total += sum[r * chains + chain][v];
            store(out + r * NARROW_COLUMNS + v * LANES, total);
        }
}

static void half_rows(int rows, const narrow_sliver *sliver, const float *a, int64_t a_row, float *out)
{
    for (; rows > 0; rows -= 2, a += 2 * a_row, out += 2 * NARROW_COLUMNS) {
        if (rows == 1) {
            half_rows_of(1, sliver, a, a_row, out);
        } else if (rows < 4) {
            half_rows_of(2, sliver, a, a_row, out);
        } else {
            half_rows_of(4, sliver, a, a_row, out);
            return;
        }
    }
}

/* ---- integers: quantization of rows
 *
 * The elements of a part become integers of at most LARGEST, with float32's precision relative to the largest of them,
 * and sums of their products with weights are exact. Without instructions for such integers they stay floats. */
enum { LARGEST = 127 << 16, QUAD_BYTES = 4 * NARROW_COLUMNS, SPLIT_QUAD = 16 };

#ifdef __AVX2__
/* The factor for a part's elements; `scale` receives its inverse. Non-finite elements make it NaN. */
ALWAYS float factor_of(int64_t count, const float *from, float *scale)
{
    vec largest = all(0), total = all(0);
    float high = 0, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const vec v = load(from + i), size = larger_of(v, -v);
        largest = larger_of(largest, size);
        total += v * all(0);
    }
    for (int lane = 0; lane < LANES; lane++) {
        high = largest[lane] > high ? largest[lane] : high;
        sum += total[lane];
    }
    for (; i < count; i++) {
        const float size = from[i] < 0 ? -from[i] : from[i];
        high = size > high ? size : high;
        sum += from[i] * 0;
    }
    *scale = high < 0x1p-100f ? sum : high / LARGEST + sum;
    return high < 0x1p-100f || sum != 0 ? 0 : LARGEST / high;
}

ALWAYS integers nearest(vec v)
{
#ifdef __AVX512F__
    return (integers)_mm512_cvtps_epi32((__m512)v);
#else
    return (integers)_mm256_cvtps_epi32((__m256)v);
#endif
}

ALWAYS integers split_vector(const float *from, float factor)
{
    const vec v = load(from);
    return factor == 0 ? (integers){0} : nearest(v * all(factor));
}

/* Numbers as 256 * high + low, of 16 bits; for each four the high halves, then the low halves, in the order 0, 2, 1, 3.
 */
ALWAYS void store_pairs(integers v, uint8_t *to)
{
    const __m128i order = _mm_set_epi8(15, 14, 11, 10, 13, 12, 9, 8, 7, 6, 3, 2, 5, 4, 1, 0);
    const integers high = v >> 8, low = v & 255;
    for (int i = 0; i < (int)(sizeof v / 16); i += 2) {
        __m128i four[4], both;
        memcpy(four, (const char *)&high + 16 * i, 32);
        memcpy(four + 2, (const char *)&low + 16 * i, 32);
        const __m128i left = _mm_shuffle_epi8(_mm_packs_epi32(four[0], four[1]), order),
                      right = _mm_shuffle_epi8(_mm_packs_epi32(four[2], four[3]), order);
        both = _mm_unpacklo_epi64(left, right);
        memcpy(to + 16 * i, &both, sizeof both);
        both = _mm_unpackhi_epi64(left, right);
        memcpy(to + 16 * i + 16, &both, sizeof both);
    }
}

#define SPLIT(name, store_, attributes) \
    attributes static void name(int64_t count, const float *from, uint8_t *numbers, float *scale, float *sum) \
    { \
        const float factor = factor_of(count, from, scale); \
        integers total = {0}; \
        int64_t i = 0, all_of = 0; \
        for (; i + LANES <= count; i += LANES) { \
            const integers v = split_vector(from + i, factor); \
            total += v; \
            store_(v, numbers + 4 * i); \
        } \
        if (i < count) { \
            float rest[LANES] = {0}; \
            uint8_t packed[4 * LANES]; \
            memcpy(rest, from + i, (size_t)(count - i) * sizeof *rest); \
            const integers v = split_vector(rest, factor); \
            total += v; \
            store_(v, packed); \
            memcpy(numbers + 4 * i, packed, (size_t)(count - i) * 4); \
        } \
        for (int lane = 0; lane < LANES; lane++) \
            all_of += total[lane]; \
        *sum = (float)all_of; \
    }
SPLIT(split_pairs, store_pairs, )

enum { EIGHTS = NARROW_COLUMNS / 8 }; /* vectors of sums of 8 columns */

/* Adds four elements of each row times weights of 8 columns to the sums of their high and of their low halves. */
ALWAYS void add_pairs(const int rows, __m256i numbers, const uint8_t *a, int64_t a_row, __m256i sum[][2])
{
    const __m256i even = _mm256_and_si256(numbers, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(numbers, 8);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        int32_t two[4];
        memcpy(two, a + r * a_row, sizeof two);
#pragma GCC unroll 2
        for (int low = 0; low < 2; low++) {
            const __m256i left = _mm256_madd_epi16(even, _mm256_set1_epi32(two[2 * low])),
                          right = _mm256_madd_epi16(odd, _mm256_set1_epi32(two[2 * low + 1]));
            sum[r][low] = _mm256_add_epi32(sum[r][low], _mm256_add_epi32(left, right));
        }
    }
}

/* The sums of a part are at most 128 * 255 * 32,512, twice: below 2^31. */
ALWAYS void pairs_part(const narrow_kind kind, const int rows, int64_t count, const uint8_t *weights, const uint8_t *a,
                       int64_t a_row, float *sums)
{
    const __m256i nibble = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int v = 0; v < EIGHTS; v++) {
        __m256i sum[NARROW_ROWS][2];
        const uint8_t *from = a, *packed = weights + 32 * v;
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            sum[r][0] = sum[r][1] = _mm256_setzero_si256();
        for (int64_t k = 0; k < count; packed += QUAD_BYTES) {
            const __m256i both = _mm256_loadu_si256((const __m256i *)packed);
            if (kind == NARROW_BYTES) {
                add_pairs(rows, both, from, a_row, sum);
                k += 4, from += SPLIT_QUAD;
                continue;
            }
            add_pairs(rows, _mm256_and_si256(both, nibble), from, a_row, sum);
            add_pairs(rows, _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble), from + SPLIT_QUAD, a_row, sum);
            k += 8, from += 2 * SPLIT_QUAD;
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            _mm256_storeu_ps(
                sums + r * NARROW_COLUMNS + 8 * v,
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][0]), _mm256_set1_ps(256), _mm256_cvtepi32_ps(sum[r][1])));
    }
}
#else
static void split_floats(int64_t count, const float *from, uint8_t *numbers, float *scale, float *sum)
{
    float total = 0;
    memcpy(numbers, from, (size_t)count * sizeof *from);
    for (int64_t i = 0; i < count; i++)
        total += from[i];
    *scale = 1;
    *sum = total;
}

ALWAYS void floats_part(const narrow_kind kind, const int rows, int64_t count, const uint8_t *weights, const uint8_t *a,
                        int64_t a_row, float *sums)
{
    memset(sums, 0, (size_t)rows * NARROW_COLUMNS * sizeof *sums);
    for (int64_t k = 0; k < count; k += kind == NARROW_NIBBLES ? 8 : 4, weights += QUAD_BYTES)
        for (int v = 0; v < VECTORS; v++) {
            const integers both = words(weights + 4 * v * LANES);
            for (int i = 0; i < (kind == NARROW_NIBBLES ? 8 : 4); i++) {
                const vec weight =
                    floats(kind == NARROW_BYTES ? both >> 8 * i & 255 : both >> (8 * (i % 4) + 4 * (i / 4)) & 15);
                for (int r = 0; r < rows; r++) {
                    float number, *to = sums + r * NARROW_COLUMNS + v * LANES;
                    memcpy(&number, a + r * a_row + (k + i) * 4, sizeof number);
                    store(to, add_product(load(to), weight, all(number)));
                }
            }
        }
}
#endif

#ifdef __AVX512F__
#define VNNI __attribute__((target("avx512vnni,avx512bw,avx512vl,avx512dq")))
enum { BYTES = 3 };

/* Numbers as 65,536 * high + 256 * middle + low, signed bytes; for each four the high ones, the middle ones, the low
 * ones, and four unused bytes. */
VNNI ALWAYS void store_bytes(integers v, uint8_t *to)
{
    const integers upper = (v + 128) >> 8, high = (upper + 128) >> 8;
    const __m128i a = _mm512_cvtepi32_epi8((__m512i)high), b = _mm512_cvtepi32_epi8((__m512i)(upper - high * 256)),
                  c = _mm512_cvtepi32_epi8((__m512i)(v - upper * 256)), none = _mm_setzero_si128();
    const __m128i left = _mm_unpacklo_epi32(a, b), right = _mm_unpacklo_epi32(c, none),
                  left_behind = _mm_unpackhi_epi32(a, b), right_behind = _mm_unpackhi_epi32(c, none);
    _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi64(left, right));
    _mm_storeu_si128((__m128i *)(to + 16), _mm_unpackhi_epi64(left, right));
    _mm_storeu_si128((__m128i *)(to + 32), _mm_unpacklo_epi64(left_behind, right_behind));
    _mm_storeu_si128((__m128i *)(to + 48), _mm_unpackhi_epi64(left_behind, right_behind));
}
SPLIT(split_bytes, store_bytes, VNNI)

/* _mm512_dpbusd_epi32 in place: when compilers choose the registers, they move sums between products. */
VNNI ALWAYS void add_dots(__m512i *sum, __m512i weights, __m512i a)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(weights), "v"(a));
}

/* The bytes of four elements of each row, times weights of 32 columns; `chain` selects one of several independent sums.
 */
VNNI ALWAYS void add_quads(const int rows, const int chains, int chain, const __m512i weights[2], const uint8_t *a,
                           int64_t a_row, __m512i sum[][BYTES][2])
{
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int byte = 0; byte < BYTES; byte++) {
            int32_t four;
            memcpy(&four, a + r * a_row + 4 * byte, sizeof four);
            const __m512i factors = _mm512_set1_epi32(four);
            add_dots(&sum[r * chains + chain][byte][0], weights[0], factors);
            add_dots(&sum[r * chains + chain][byte][1], weights[1], factors);
        }
}

VNNI ALWAYS void bytes_part(const narrow_kind kind, const int rows, int64_t count, const uint8_t *weights,
                            const uint8_t *a, int64_t a_row, float *sums)
{
    const int chains = rows == 1 ? 2 : 1;
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i sum[NARROW_ROWS][BYTES][2];
#pragma GCC unroll 4
    for (int i = 0; i < rows * chains; i++)
#pragma GCC unroll 3
        for (int byte = 0; byte < BYTES; byte++)
            sum[i][byte][0] = sum[i][byte][1] = _mm512_setzero_si512();
    int64_t k = 0;
    for (; k + 8 <= count;
         k += 8, weights += kind == NARROW_NIBBLES ? QUAD_BYTES : 2 * QUAD_BYTES, a += 2 * SPLIT_QUAD) {
        const __m512i first = _mm512_loadu_si512(weights), second = _mm512_loadu_si512(weights + 64);
        if (kind == NARROW_NIBBLES) {
            const __m512i low[2] = {_mm512_and_si512(first, nibble), _mm512_and_si512(second, nibble)};
            const __m512i high[2] = {_mm512_and_si512(_mm512_srli_epi16(first, 4), nibble),
                                     _mm512_and_si512(_mm512_srli_epi16(second, 4), nibble)};
            add_quads(rows, chains, 0, low, a, a_row, sum);
            add_quads(rows, chains, chains - 1, high, a + SPLIT_QUAD, a_row, sum);
        } else {
            const __m512i here[2] = {first, second};
            const __m512i behind[2] = {_mm512_loadu_si512(weights + QUAD_BYTES),
                                       _mm512_loadu_si512(weights + QUAD_BYTES + 64)};
            add_quads(rows, chains, 0, here, a, a_row, sum);
            add_quads(rows, chains, chains - 1, behind, a + SPLIT_QUAD, a_row, sum);
        }
    }
    if (kind == NARROW_BYTES && k < count) {
        const __m512i last[2] = {_mm512_loadu_si512(weights), _mm512_loadu_si512(weights + 64)};
        add_quads(rows, chains, 0, last, a, a_row, sum);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            __m512 total = _mm512_setzero_ps();
#pragma GCC unroll 3
            for (int byte = 0; byte < BYTES; byte++) {
                __m512i one = sum[r * chains][byte][v];
                if (chains == 2)
                    one = _mm512_add_epi32(one, sum[1][byte][v]);
                total = _mm512_fmadd_ps(total, _mm512_set1_ps(256), _mm512_cvtepi32_ps(one));
            }
            _mm512_storeu_ps(sums + r * NARROW_COLUMNS + 16 * v, total);
        }
}
#endif

/* ---- integers: products */
/* Adds a part's sums to the totals: (sum - zero * sum of the row's elements) * both scales. */
ALWAYS void add_part(const int rows, const narrow_sliver *sliver, int64_t block, const narrow_rows *a, int64_t part,
                     const float *sums, vec total[NARROW_ROWS][VECTORS])
{
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) {
        const int64_t at = block * NARROW_COLUMNS + v * LANES;
        const vec scale = load(sliver->scales + at),
                  zero = sliver->zeros == NULL ? all(sliver->zero) : load(sliver->zeros + at);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const vec above = load(sums + r * NARROW_COLUMNS + v * LANES) - zero * all(a->sums[r * a->parts + part]);
            total[r][v] = add_product(total[r][v], above, scale * all(a->scales[r * a->parts + part]));
        }
    }
}

/* clang-format off */
#define ROWS_OF(name, sums_of, attributes) \
    attributes ALWAYS void name##_of(const narrow_kind kind, const int rows, const narrow_sliver *sliver, \
                                     const narrow_rows *a, float *out) \
    { \
        vec total[NARROW_ROWS][VECTORS]; \
        const uint8_t *weights = sliver->weights, *numbers = a->numbers; \
        for (int r = 0; r < rows; r++) \
            for (int v = 0; v < VECTORS; v++) \
                total[r][v] = all(0); \
        for (int64_t k = 0, block = 0, part = 0; k < sliver->k; k += sliver->block, block++) \
            for (int64_t at = 0, count; at < sliver->block; at += count, part++) { \
                float sums[NARROW_ROWS * NARROW_COLUMNS]; \
                count = sliver->block - at < NARROW_PART ? sliver->block - at : NARROW_PART; \
                sums_of(kind, rows, count, weights, numbers, a->row, sums); \
                add_part(rows, sliver, block, a, part, sums, total); \
                weights += count / (kind == NARROW_NIBBLES ? 8 : 4) * QUAD_BYTES; \
                numbers += count / 4 * SPLIT_QUAD; \
            } \
        for (int r = 0; r < rows; r++) \
            for (int v = 0; v < VECTORS; v++) \
                store(out + r * NARROW_COLUMNS + v * LANES, total[r][v]); \
    } \
    attributes static void name(int rows, const narrow_sliver *sliver, const narrow_rows *a, float *out) \
    { \
        const bool bytes = sliver->kind == NARROW_BYTES; \
        switch (rows) { \
        case 1: bytes ? name##_of(NARROW_BYTES, 1, sliver, a, out) : name##_of(NARROW_NIBBLES, 1, sliver, a, out); break; \
        case 2: bytes ? name##_of(NARROW_BYTES, 2, sliver, a, out) : name##_of(NARROW_NIBBLES, 2, sliver, a, out); break; \
        case 3: bytes ? name##_of(NARROW_BYTES, 3, sliver, a, out) : name##_of(NARROW_NIBBLES, 3, sliver, a, out); break; \
        default: bytes ? name##_of(NARROW_BYTES, 4, sliver, a, out) : name##_of(NARROW_NIBBLES, 4, sliver, a, out); \
        } \
    }
/* clang-format on */
#ifdef __AVX2__
ROWS_OF(rows_of_pairs, pairs_part, )
#else
ROWS_OF(rows_of_floats, floats_part, )
#endif
#ifdef __AVX512F__
ROWS_OF(rows_of_bytes, bytes_part, VNNI)

static void split_part(int64_t count, const float *from, uint8_t *numbers, float *scale, float *sum)
{
    if (__builtin_cpu_supports("avx512vnni"))
        split_bytes(count, from, numbers, scale, sum);
    else
        split_pairs(count, from, numbers, scale, sum);
}

static void rows_of(int rows, const narrow_sliver *sliver, const narrow_rows *a, float *out)
{
    if (__builtin_cpu_supports("avx512vnni"))
        rows_of_bytes(rows, sliver, a, out);
    else
        rows_of_pairs(rows, sliver, a, out);
}
#elif defined(__AVX2__)
#define split_part split_pairs
#define rows_of    rows_of_pairs
#else
#define split_part split_floats
#define rows_of    rows_of_floats
#endif

/* ---- weights converted to floats */
/* One vector of columns; consecutive elements are `step` floats apart. */
ALWAYS void unpack_vector(const narrow_kind kind, const narrow_sliver *sliver, int64_t first, int64_t count,
                          int64_t column, float *to, int64_t step)
{
    if (kind == NARROW_HALF) {
        for (int64_t k = first; k < first + count; k++, to += step)
            store(to, halves(sliver->weights + 2 * (k * NARROW_COLUMNS + column)));
        return;
    }
    const int each = kind == NARROW_NIBBLES ? 8 : 4, mask = kind == NARROW_NIBBLES ? 15 : 255;
    const uint8_t *from = sliver->weights + first / each * QUAD_BYTES + 4 * column;
    int64_t k = first;
    for (int64_t block = first / sliver->block; k < first + count; block++) {
        const int64_t at = block * NARROW_COLUMNS + column, ends = (block + 1) * sliver->block,
                      until = ends < first + count ? ends : first + count;
        const vec scale = load(sliver->scales + at),
                  zero = sliver->zeros == NULL ? all(sliver->zero) : load(sliver->zeros + at);
        for (; k < until; k += each, from += QUAD_BYTES) {
            const integers quads = words(from);
#pragma GCC unroll 8
            for (int i = 0; i < each; i++, to += step)
                store(to, (floats(quads >> (i % 4 * 8 + i / 4 * 4) & mask) - zero) * scale);
        }
    }
}

ALWAYS void unpack_of(const narrow_kind kind, const narrow_sliver *sliver, int64_t first, int64_t count,
                      int64_t columns, float *out)
{
    for (int v = 0; v < VECTORS; v++) {
        const int64_t column = v * LANES;
        unpack_vector(kind, sliver, first, count, column, out + column / columns * count * columns + column % columns,
                      columns);
    }
}

static void unpack(const narrow_sliver *sliver, int64_t first, int64_t count, int64_t columns, float *out)
{
    switch (sliver->kind) {
    case NARROW_HALF: unpack_of(NARROW_HALF, sliver, first, count, columns, out); break;
    case NARROW_BYTES: unpack_of(NARROW_BYTES, sliver, first, count, columns, out); break;
    default: unpack_of(NARROW_NIBBLES, sliver, first, count, columns, out); break;
    }
}

const model_narrow_kernels JOIN(model_narrow_, VME_TARGET) = {
    .half_rows = half_rows, .split = split_part, .rows = rows_of, .unpack = unpack};
