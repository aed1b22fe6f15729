/* Products with narrow weights, for each backend. The including file defines VME_TARGET. */
#include "half.h"
#include "models/narrow_kernels.h"
#include "vectors_f32.h"

#include <string.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)
#define INLINE      static inline __attribute__((always_inline))

enum { VECTORS = NARROW_COLUMNS / LANES, CHAINS = 4 }; /* independent sums, to hide latency */
typedef int32_t vec_i32 __attribute__((vector_size(VEC_BYTES)));

INLINE vec load_halves(const uint8_t *from)
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

INLINE vec to_floats(vec_i32 v) { return __builtin_convertvector(v, vec); }

INLINE vec_i32 load_words(const uint8_t *from)
{
    vec_i32 v;
    memcpy(&v, from, sizeof v);
    return v;
}

/* ---- float16 weights */
INLINE void half_rows_of(const int rows, const narrow_sliver *sliver, const float *a, int64_t a_row, float *out)
{
    const int chains = CHAINS / rows;
    vec sum[CHAINS][VECTORS];
#pragma GCC unroll 4
    for (int chain = 0; chain < CHAINS; chain++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++)
            sum[chain][v] = splat(0);
    int64_t k = 0;
    for (; k + chains <= sliver->k; k += chains)
#pragma GCC unroll 4
        for (int chain = 0; chain < chains; chain++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) {
                const vec weights = load_halves(sliver->weights + 2 * ((k + chain) * NARROW_COLUMNS + v * LANES));
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    vec *of = &sum[r * chains + chain][v];
                    *of = add_product(*of, weights, splat(a[r * a_row + k + chain]));
                }
            }
    for (; k < sliver->k; k++)
        for (int v = 0; v < VECTORS; v++) {
            const vec weights = load_halves(sliver->weights + 2 * (k * NARROW_COLUMNS + v * LANES));
            for (int r = 0; r < rows; r++)
                sum[r * chains][v] = add_product(sum[r * chains][v], weights, splat(a[r * a_row + k]));
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
/* The factor for a part's elements; *scale receives its inverse. Both are 0 if all elements are below 2^-100. If an
 * element is not finite, the factor is 0 and *scale is NaN. */
INLINE float quantization_factor(int64_t count, const float *from, float *scale)
{
    vec lane_maxima = splat(0), nan_or_zero = splat(0);
    float largest = 0, nan_sum = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const vec v = load(from + i), magnitude = maximum(v, -v);
        lane_maxima = maximum(lane_maxima, magnitude);
        nan_or_zero += v * splat(0);
    }
    for (int lane = 0; lane < LANES; lane++) {
        largest = lane_maxima[lane] > largest ? lane_maxima[lane] : largest;
        nan_sum += nan_or_zero[lane];
    }
    for (; i < count; i++) {
        const float magnitude = from[i] < 0 ? -from[i] : from[i];
        largest = magnitude > largest ? magnitude : largest;
        nan_sum += from[i] * 0;
    }
    *scale = largest < 0x1p-100f ? nan_sum : largest / LARGEST + nan_sum;
    return largest < 0x1p-100f || nan_sum != 0 ? 0 : LARGEST / largest;
}

INLINE vec_i32 round_to_integers(vec v)
{
#ifdef __AVX512F__
    return (vec_i32)_mm512_cvtps_epi32((__m512)v);
#else
    return (vec_i32)_mm256_cvtps_epi32((__m256)v);
#endif
}

INLINE vec_i32 quantize_vector(const float *from, float factor)
{
    const vec v = load(from);
    return factor == 0 ? (vec_i32){0} : round_to_integers(v * splat(factor));
}

/* Stores each number as 256 * high + low, both of 16 bits: of every four numbers the high halves, then the low halves,
 * in the order 0, 2, 1, 3. */
INLINE void store_pairs(vec_i32 v, uint8_t *to)
{
    const __m128i order = _mm_set_epi8(15, 14, 11, 10, 13, 12, 9, 8, 7, 6, 3, 2, 5, 4, 1, 0);
    const vec_i32 high = v >> 8, low = v & 255;
    for (int i = 0; i < (int)(sizeof v / 16); i += 2) {
        __m128i parts[4], packed;
        memcpy(parts, (const char *)&high + 16 * i, 32);
        memcpy(parts + 2, (const char *)&low + 16 * i, 32);
        const __m128i left = _mm_shuffle_epi8(_mm_packs_epi32(parts[0], parts[1]), order),
                      right = _mm_shuffle_epi8(_mm_packs_epi32(parts[2], parts[3]), order);
        packed = _mm_unpacklo_epi64(left, right);
        memcpy(to + 16 * i, &packed, sizeof packed);
        packed = _mm_unpackhi_epi64(left, right);
        memcpy(to + 16 * i + 16, &packed, sizeof packed);
    }
}

#define SPLIT(name, store_, attributes) \
    attributes static void name(int64_t count, const float *from, uint8_t *numbers, float *scale, float *sum) \
    { \
        const float factor = quantization_factor(count, from, scale); \
        vec_i32 total = {0}; \
        int64_t i = 0, element_sum = 0; \
        for (; i + LANES <= count; i += LANES) { \
            const vec_i32 v = quantize_vector(from + i, factor); \
            total += v; \
            store_(v, numbers + 4 * i); \
        } \
        if (i < count) { \
            float tail[LANES] = {0}; \
            uint8_t packed[4 * LANES]; \
            memcpy(tail, from + i, (size_t)(count - i) * sizeof *tail); \
            const vec_i32 v = quantize_vector(tail, factor); \
            total += v; \
            store_(v, packed); \
            memcpy(numbers + 4 * i, packed, (size_t)(count - i) * 4); \
        } \
        for (int lane = 0; lane < LANES; lane++) \
            element_sum += total[lane]; \
        *sum = (float)element_sum; \
    }
SPLIT(split_pairs, store_pairs, )

enum { COLUMN_GROUPS = NARROW_COLUMNS / 8 }; /* vectors of sums of 8 columns */

/* Adds four elements of each row times weights of 8 columns to the sums of their high and of their low halves. */
INLINE void add_pairs(const int rows, __m256i weights, const uint8_t *a, int64_t a_row, __m256i sum[][2])
{
    const __m256i even = _mm256_and_si256(weights, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(weights, 8);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        int32_t pairs[4];
        memcpy(pairs, a + r * a_row, sizeof pairs);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const __m256i left = _mm256_madd_epi16(even, _mm256_set1_epi32(pairs[2 * half])),
                          right = _mm256_madd_epi16(odd, _mm256_set1_epi32(pairs[2 * half + 1]));
            sum[r][half] = _mm256_add_epi32(sum[r][half], _mm256_add_epi32(left, right));
        }
    }
}

/* Sums of a part fit in 32 bits: they are at most 128 * 255 * 32,512, below 2^30. */
INLINE void pairs_part(const narrow_kind kind, const int rows, int64_t count, const uint8_t *weights, const uint8_t *a,
                       int64_t a_row, float *sums)
{
    const __m256i nibble_mask = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int v = 0; v < COLUMN_GROUPS; v++) {
        __m256i sum[NARROW_ROWS][2];
        const uint8_t *from = a, *packed = weights + 32 * v;
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            sum[r][0] = sum[r][1] = _mm256_setzero_si256();
        for (int64_t k = 0; k < count; packed += QUAD_BYTES) {
            const __m256i bytes = _mm256_loadu_si256((const __m256i *)packed);
            if (kind == NARROW_BYTES) {
                add_pairs(rows, bytes, from, a_row, sum);
                k += 4, from += SPLIT_QUAD;
                continue;
            }
            add_pairs(rows, _mm256_and_si256(bytes, nibble_mask), from, a_row, sum);
            add_pairs(rows, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble_mask), from + SPLIT_QUAD, a_row, sum);
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

INLINE void floats_part(const narrow_kind kind, const int rows, int64_t count, const uint8_t *weights, const uint8_t *a,
                        int64_t a_row, float *sums)
{
    memset(sums, 0, (size_t)rows * NARROW_COLUMNS * sizeof *sums);
    for (int64_t k = 0; k < count; k += kind == NARROW_NIBBLES ? 8 : 4, weights += QUAD_BYTES)
        for (int v = 0; v < VECTORS; v++) {
            const vec_i32 bytes = load_words(weights + 4 * v * LANES);
            for (int i = 0; i < (kind == NARROW_NIBBLES ? 8 : 4); i++) {
                const vec weight =
                    to_floats(kind == NARROW_BYTES ? bytes >> 8 * i & 255 : bytes >> (8 * (i % 4) + 4 * (i / 4)) & 15);
                for (int r = 0; r < rows; r++) {
                    float number, *to = sums + r * NARROW_COLUMNS + v * LANES;
                    memcpy(&number, a + r * a_row + (k + i) * 4, sizeof number);
                    store(to, add_product(load(to), weight, splat(number)));
                }
            }
        }
}
#endif

#ifdef __AVX512F__
#define VNNI __attribute__((target("avx512vnni,avx512bw,avx512vl,avx512dq")))
enum { NUMBER_BYTES = 3 };

/* Stores each number as 65,536 * high + 256 * middle + low, signed bytes: of every four numbers the high bytes, the
 * middle ones, the low ones, and four unused bytes. */
VNNI INLINE void store_bytes(vec_i32 v, uint8_t *to)
{
    const vec_i32 upper = (v + 128) >> 8, high = (upper + 128) >> 8;
    const __m128i a = _mm512_cvtepi32_epi8((__m512i)high), b = _mm512_cvtepi32_epi8((__m512i)(upper - high * 256)),
                  c = _mm512_cvtepi32_epi8((__m512i)(v - upper * 256)), zero = _mm_setzero_si128();
    const __m128i left_low = _mm_unpacklo_epi32(a, b), right_low = _mm_unpacklo_epi32(c, zero),
                  left_high = _mm_unpackhi_epi32(a, b), right_high = _mm_unpackhi_epi32(c, zero);
    _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi64(left_low, right_low));
    _mm_storeu_si128((__m128i *)(to + 16), _mm_unpackhi_epi64(left_low, right_low));
    _mm_storeu_si128((__m128i *)(to + 32), _mm_unpacklo_epi64(left_high, right_high));
    _mm_storeu_si128((__m128i *)(to + 48), _mm_unpackhi_epi64(left_high, right_high));
}
SPLIT(split_bytes, store_bytes, VNNI)

/* _mm512_dpbusd_epi32 in place: if compilers choose the registers, they copy sums between products. */
VNNI INLINE void add_dots(__m512i *sum, __m512i weights, __m512i a)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(weights), "v"(a));
}

/* Adds the bytes of four elements of each row times weights of 32 columns, to the independent sums number `chain`. */
VNNI INLINE void add_quads(const int rows, const int chains, int chain, const __m512i weights[2], const uint8_t *a,
                           int64_t a_row, __m512i sum[][NUMBER_BYTES][2])
{
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int byte = 0; byte < NUMBER_BYTES; byte++) {
            int32_t quad;
            memcpy(&quad, a + r * a_row + 4 * byte, sizeof quad);
            const __m512i factors = _mm512_set1_epi32(quad);
            add_dots(&sum[r * chains + chain][byte][0], weights[0], factors);
            add_dots(&sum[r * chains + chain][byte][1], weights[1], factors);
        }
}

VNNI INLINE void bytes_part(const narrow_kind kind, const int rows, int64_t count, const uint8_t *weights,
                            const uint8_t *a, int64_t a_row, float *sums)
{
    const int chains = rows == 1 ? 2 : 1;
    const __m512i nibble_mask = _mm512_set1_epi8(15);
    __m512i sum[NARROW_ROWS][NUMBER_BYTES][2];
#pragma GCC unroll 4
    for (int i = 0; i < rows * chains; i++)
#pragma GCC unroll 3
        for (int byte = 0; byte < NUMBER_BYTES; byte++)
            sum[i][byte][0] = sum[i][byte][1] = _mm512_setzero_si512();
    int64_t k = 0;
    for (; k + 8 <= count;
         k += 8, weights += kind == NARROW_NIBBLES ? QUAD_BYTES : 2 * QUAD_BYTES, a += 2 * SPLIT_QUAD) {
        const __m512i first = _mm512_loadu_si512(weights), second = _mm512_loadu_si512(weights + 64);
        if (kind == NARROW_NIBBLES) {
            const __m512i low[2] = {_mm512_and_si512(first, nibble_mask), _mm512_and_si512(second, nibble_mask)};
            const __m512i high[2] = {_mm512_and_si512(_mm512_srli_epi16(first, 4), nibble_mask),
                                     _mm512_and_si512(_mm512_srli_epi16(second, 4), nibble_mask)};
            add_quads(rows, chains, 0, low, a, a_row, sum);
            add_quads(rows, chains, chains - 1, high, a + SPLIT_QUAD, a_row, sum);
        } else {
            const __m512i quad0[2] = {first, second};
            const __m512i quad1[2] = {_mm512_loadu_si512(weights + QUAD_BYTES),
                                      _mm512_loadu_si512(weights + QUAD_BYTES + 64)};
            add_quads(rows, chains, 0, quad0, a, a_row, sum);
            add_quads(rows, chains, chains - 1, quad1, a + SPLIT_QUAD, a_row, sum);
        }
    }
    if (kind == NARROW_BYTES && k < count) {
        const __m512i quad0[2] = {_mm512_loadu_si512(weights), _mm512_loadu_si512(weights + 64)};
        add_quads(rows, chains, 0, quad0, a, a_row, sum);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            __m512 total = _mm512_setzero_ps();
#pragma GCC unroll 3
            for (int byte = 0; byte < NUMBER_BYTES; byte++) {
                __m512i byte_sum = sum[r * chains][byte][v];
                if (chains == 2)
                    byte_sum = _mm512_add_epi32(byte_sum, sum[1][byte][v]);
                total = _mm512_fmadd_ps(total, _mm512_set1_ps(256), _mm512_cvtepi32_ps(byte_sum));
            }
            _mm512_storeu_ps(sums + r * NARROW_COLUMNS + 16 * v, total);
        }
}
#endif

/* ---- integers: products */
/* Adds a part's sums to the totals: (sum - zero * sum of the row's elements) * both scales. */
INLINE void add_part(const int rows, const narrow_sliver *sliver, int64_t block, const narrow_rows *a, int64_t part,
                     const float *sums, vec total[NARROW_ROWS][VECTORS])
{
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) {
        const int64_t index = block * NARROW_COLUMNS + v * LANES;
        const vec scale = load(sliver->scales + index),
                  zero = sliver->zeros == NULL ? splat(sliver->zero) : load(sliver->zeros + index);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const vec shifted =
                load(sums + r * NARROW_COLUMNS + v * LANES) - zero * splat(a->sums[r * a->parts + part]);
            total[r][v] = add_product(total[r][v], shifted, scale * splat(a->scales[r * a->parts + part]));
        }
    }
}

#define BYTES_OR_NIBBLES(name, n) \
    (bytes ? name##_of(NARROW_BYTES, n, sliver, a, out) : name##_of(NARROW_NIBBLES, n, sliver, a, out))
/* clang-format off */
#define ROWS_OF(name, sums_of, attributes) \
    attributes INLINE void name##_of(const narrow_kind kind, const int rows, const narrow_sliver *sliver, \
                                     const narrow_rows *a, float *out) \
    { \
        vec total[NARROW_ROWS][VECTORS]; \
        const uint8_t *weights = sliver->weights, *numbers = a->numbers; \
        for (int r = 0; r < rows; r++) \
            for (int v = 0; v < VECTORS; v++) \
                total[r][v] = splat(0); \
        for (int64_t k = 0, block = 0, part = 0; k < sliver->k; k += sliver->block, block++) \
            for (int64_t offset = 0, count; offset < sliver->block; offset += count, part++) { \
                float sums[NARROW_ROWS * NARROW_COLUMNS]; \
                count = sliver->block - offset < NARROW_PART ? sliver->block - offset : NARROW_PART; \
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
        case 1: BYTES_OR_NIBBLES(name, 1); break; \
        case 2: BYTES_OR_NIBBLES(name, 2); break; \
        case 3: BYTES_OR_NIBBLES(name, 3); break; \
        default: BYTES_OR_NIBBLES(name, 4); \
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
/* Converts one vector of columns of `count` elements from `first` on; results are `step` floats apart. */
INLINE void unpack_vector(const narrow_kind kind, const narrow_sliver *sliver, int64_t first, int64_t count,
                          int64_t column, float *to, int64_t step)
{
    if (kind == NARROW_HALF) {
        for (int64_t k = first; k < first + count; k++, to += step)
            store(to, load_halves(sliver->weights + 2 * (k * NARROW_COLUMNS + column)));
        return;
    }
    const int elements = kind == NARROW_NIBBLES ? 8 : 4, mask = kind == NARROW_NIBBLES ? 15 : 255;
    const uint8_t *from = sliver->weights + first / elements * QUAD_BYTES + 4 * column;
    int64_t k = first;
    for (int64_t block = first / sliver->block; k < first + count; block++) {
        const int64_t index = block * NARROW_COLUMNS + column, block_end = (block + 1) * sliver->block,
                      end = block_end < first + count ? block_end : first + count;
        const vec scale = load(sliver->scales + index),
                  zero = sliver->zeros == NULL ? splat(sliver->zero) : load(sliver->zeros + index);
        for (; k < end; k += elements, from += QUAD_BYTES) {
            const vec_i32 quads = load_words(from);
#pragma GCC unroll 8
            for (int i = 0; i < elements; i++, to += step)
                store(to, (to_floats(quads >> (i % 4 * 8 + i / 4 * 4) & mask) - zero) * scale);
        }
    }
}

INLINE void unpack_of(const narrow_kind kind, const narrow_sliver *sliver, int64_t first, int64_t count,
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
