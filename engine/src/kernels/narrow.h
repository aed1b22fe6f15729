/* Products with narrow weights, for each backend. The file that includes this names VME_TARGET. */
#include "half.h"
#include "models/narrow_kernels.h"
#include "vectors_f32.h"

#include <string.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)
#define ALWAYS      static inline __attribute__((always_inline))

enum { VECTORS = NARROW_COLUMNS / LANES, CHAINS = 4 }; /* sums that do not wait for each other */
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

ALWAYS integers bytes(const uint8_t *from)
{
#if defined(__AVX512F__)
    return (integers)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
#elif defined(__AVX2__)
    return (integers)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
#else
    integers v;
    for (int i = 0; i < LANES; i++)
        v[i] = from[i];
    return v;
#endif
}

ALWAYS vec floats(integers v) { return __builtin_convertvector(v, vec); }

/* Numbers k and k + 1 of a sliver's vector v, as they lie. */
ALWAYS void weights_of(const narrow_kind kind, const uint8_t *weights, int64_t k, int v, vec out[2])
{
    if (kind == NARROW_HALF) {
        out[0] = halves(weights + 2 * (k * NARROW_COLUMNS + v * LANES));
        out[1] = halves(weights + 2 * ((k + 1) * NARROW_COLUMNS + v * LANES));
    } else if (kind == NARROW_BYTES) {
        out[0] = floats(bytes(weights + k * NARROW_COLUMNS + v * LANES));
        out[1] = floats(bytes(weights + (k + 1) * NARROW_COLUMNS + v * LANES));
    } else {
        const integers both = bytes(weights + k / 2 * NARROW_COLUMNS + v * LANES);
        out[0] = floats(both & 15);
        out[1] = floats(both >> 4);
    }
}

/* Adds the products of numbers from `begin` to `end`, an even count, to sums of some chains. */
ALWAYS void add_products(const narrow_kind kind, const int rows, const uint8_t *weights, const float *a, int64_t a_row,
                         int64_t begin, int64_t end, vec sums[CHAINS][VECTORS])
{
    const int chains = CHAINS / rows;
    int64_t k = begin;
    for (; k + 2 * chains <= end; k += 2 * chains)
#pragma GCC unroll 4
        for (int chain = 0; chain < chains; chain++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) {
                vec two[2];
                weights_of(kind, weights, k + 2 * chain, v, two);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    vec *sum = &sums[r * chains + chain][v];
                    *sum = add_product(*sum, two[0], all(a[r * a_row + k + 2 * chain]));
                    *sum = add_product(*sum, two[1], all(a[r * a_row + k + 2 * chain + 1]));
                }
            }
    for (; k < end; k += 2)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            vec two[2];
            weights_of(kind, weights, k, v, two);
            for (int r = 0; r < rows; r++) {
                vec *sum = &sums[r * chains][v];
                *sum = add_product(*sum, two[0], all(a[r * a_row + k]));
                *sum = add_product(*sum, two[1], all(a[r * a_row + k + 1]));
            }
        }
}

ALWAYS vec of_chains(const int rows, vec sums[CHAINS][VECTORS], int r, int v)
{
    const int chains = CHAINS / rows;
    vec sum = sums[r * chains][v];
#pragma GCC unroll 4
    for (int chain = 1; chain < chains; chain++)
        sum += sums[r * chains + chain][v];
    return sum;
}

ALWAYS void rows_of(const narrow_kind kind, const int rows, const narrow_sliver *sliver, const float *a, int64_t a_row,
                    const float *a_sums, int64_t sums_row, float *out)
{
    const int64_t block = kind == NARROW_HALF ? sliver->k & ~(int64_t)1 : sliver->block;
    vec total[CHAINS][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            total[r][v] = all(0);
    for (int64_t k = 0, b = 0; k < (sliver->k & ~(int64_t)1); k += block, b++) {
        vec sums[CHAINS][VECTORS];
#pragma GCC unroll 4
        for (int chain = 0; chain < CHAINS; chain++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++)
                sums[chain][v] = all(0);
        add_products(kind, rows, sliver->weights, a, a_row, k, k + block, sums);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) {
                const vec sum = of_chains(rows, sums, r, v);
                if (kind == NARROW_HALF) {
                    total[r][v] += sum;
                    continue;
                }
                const int64_t at = b * NARROW_COLUMNS + v * LANES;
                const vec above = sum - load(sliver->zeros + at) * all(a_sums[r * sums_row + b]);
                total[r][v] = add_product(total[r][v], above, load(sliver->scales + at));
            }
    }
    if (kind == NARROW_HALF && sliver->k % 2 != 0)
        for (int v = 0; v < VECTORS; v++) {
            const int64_t k = sliver->k - 1;
            const vec one = halves(sliver->weights + 2 * (k * NARROW_COLUMNS + v * LANES));
            for (int r = 0; r < rows; r++)
                total[r][v] = add_product(total[r][v], one, all(a[r * a_row + k]));
        }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            store(out + r * NARROW_COLUMNS + v * LANES, total[r][v]);
}

/* clang-format off */
#define KINDS(rows) \
    switch (sliver->kind) { \
    case NARROW_HALF: rows_of(NARROW_HALF, rows, sliver, a, a_row, a_sums, sums_row, out); break; \
    case NARROW_BYTES: rows_of(NARROW_BYTES, rows, sliver, a, a_row, a_sums, sums_row, out); break; \
    default: rows_of(NARROW_NIBBLES, rows, sliver, a, a_row, a_sums, sums_row, out); break; \
    }
/* clang-format on */
static void few_rows(int rows, const narrow_sliver *sliver, const float *a, int64_t a_row, const float *a_sums,
                     int64_t sums_row, float *out)
{
    for (; rows > 0; rows -= 2, a += 2 * a_row, a_sums += 2 * sums_row, out += 2 * NARROW_COLUMNS) {
        if (rows == 1) {
            KINDS(1)
        } else if (rows < 4) {
            KINDS(2)
        } else {
            KINDS(4)
            return;
        }
    }
}

ALWAYS void unpack_of(const narrow_kind kind, const narrow_sliver *sliver, int64_t first, int64_t count,
                      int64_t columns, float *out)
{
    for (int64_t k = 0; k < count; k += 2)
        for (int v = 0; v < VECTORS; v++) {
            const int64_t column = v * LANES;
            vec two[2];
            if (kind == NARROW_HALF && first + k + 1 == sliver->k)
                two[0] = two[1] = halves(sliver->weights + 2 * ((first + k) * NARROW_COLUMNS + column));
            else
                weights_of(kind, sliver->weights, first + k, v, two);
            for (int i = 0; i < 2 && k + i < count; i++) {
                if (kind != NARROW_HALF) {
                    const int64_t at = (first + k) / sliver->block * NARROW_COLUMNS + column;
                    two[i] = (two[i] - load(sliver->zeros + at)) * load(sliver->scales + at);
                }
                if (columns >= LANES)
                    store(out + (column / columns * count + k + i) * columns + column % columns, two[i]);
                else
                    for (int lane = 0; lane < LANES; lane++)
                        out[((column + lane) / columns * count + k + i) * columns + (column + lane) % columns] =
                            two[i][lane];
            }
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

const model_narrow_kernels JOIN(model_narrow_, VME_TARGET) = {.rows = few_rows, .unpack = unpack};
