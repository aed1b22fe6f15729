/* Kernels of products with narrow weights: each backend has a table of them (kernels/narrow.h). */
#ifndef VME_MODEL_NARROW_KERNELS_H
#define VME_MODEL_NARROW_KERNELS_H

#include <stdint.h>

/* How weights of a sliver of columns lie: float16, columns beside each other for each number k that is added up; uint8,
 * [k / 4][columns][4]; numbers of 4 bits, [k / 8][columns][4] bytes, of eight numbers the first four in the low bits.
 * 1 and 2 are layouts of older compilers, which are refused. */
typedef enum narrow_kind { NARROW_HALF, NARROW_BYTES = 3, NARROW_NIBBLES } narrow_kind;
enum { NARROW_COLUMNS = 32, NARROW_ROWS = 4 };
/* Numbers of a row that have one scale, and are of one block of weights */
enum { NARROW_PART = 128 };

/* Integers q of a block of numbers stand for (q - zero) * scale; scales and zero points are [blocks][columns].
 * `zeros` NULL: all of them are `zero`. */
typedef struct narrow_sliver {
    narrow_kind kind;
    int64_t k, block; /* of integers: a multiple of block, which is one of 4, of 4 bits of 8 */
    const uint8_t *weights;
    const float *scales, *zeros;
    float zero;
} narrow_sliver;

/* Rows of a product with integers, made ready by `split`: what stands for a number is q * the scale of its part. */
typedef struct narrow_rows {
    const uint8_t *numbers;     /* 4 bytes for each */
    const float *scales, *sums; /* of each part; sums are those of q */
    int64_t row, parts;         /* bytes, and parts, from one row to the next */
} narrow_rows;

typedef struct model_narrow_kernels {
    /* out[r][c] = sum over k of a[r][k] * weight[k][c], of NARROW_ROWS rows at most, which lie `a_row` apart; weights
     * are float16 */
    void (*half_rows)(int rows, const narrow_sliver *sliver, const float *a, int64_t a_row, float *out);
    /* A part of a row: `count` numbers, a multiple of 4 */
    void (*split)(int64_t count, const float *from, uint8_t *numbers, float *scale, float *sum);
    /* As half_rows, of integers */
    void (*rows)(int rows, const narrow_sliver *sliver, const narrow_rows *a, float *out);
    /* Weights of `count` numbers from `first` on (both even, of integers multiples of 8, and of one block or whole
     * ones) as slivers of `columns`, whole vectors, which 32 is a multiple of: out[32 / columns][count][columns] */
    void (*unpack)(const narrow_sliver *sliver, int64_t first, int64_t count, int64_t columns, float *out);
} model_narrow_kernels;

#endif
