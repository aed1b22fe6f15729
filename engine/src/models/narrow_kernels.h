/* Kernels of products with narrow weights: each backend has a table of them (kernels/narrow.h). */
#ifndef VME_MODEL_NARROW_KERNELS_H
#define VME_MODEL_NARROW_KERNELS_H

#include <stdint.h>

/* How weights lie, of a sliver of columns for each number k that is added up: float16; uint8; two numbers of 4 bits in
 * a byte, of an even k the low ones and of the next k the high ones. */
typedef enum narrow_kind { NARROW_HALF, NARROW_BYTES, NARROW_NIBBLES, NARROW_KINDS } narrow_kind;
enum { NARROW_COLUMNS = 32, NARROW_ROWS = 4 };

/* Integers q of a block of numbers stand for (q - zero) * scale; scales and zero points are [blocks][columns]. */
typedef struct narrow_sliver {
    narrow_kind kind;
    int64_t k, block; /* of integers: a multiple of block, which is even */
    const uint8_t *weights;
    const float *scales, *zeros;
} narrow_sliver;

typedef struct model_narrow_kernels {
    /* out[r][c] = sum over k of a[r][k] * weight[k][c], of NARROW_ROWS rows at most; `a_sums` has for each block the
     * sum of a's numbers, rows lie `a_row` and `sums_row` apart; of float16 it may be NULL */
    void (*rows)(int rows, const narrow_sliver *sliver, const float *a, int64_t a_row, const float *a_sums,
                 int64_t sums_row, float *out);
    /* Weights of `count` numbers from `first` on (both even, and of one block or whole ones) as slivers of `columns`,
     * which 32 is a multiple of: out[32 / columns][count][columns] */
    void (*unpack)(const narrow_sliver *sliver, int64_t first, int64_t count, int64_t columns, float *out);
} model_narrow_kernels;

#endif
