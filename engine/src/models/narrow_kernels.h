/* Kernels of products with narrow weights: each backend has a table of them (kernels/narrow.h). */
#ifndef VME_MODEL_NARROW_KERNELS_H
#define VME_MODEL_NARROW_KERNELS_H

#include <stdint.h>

/* Layout of the weights of a sliver: float16, [k][columns]; uint8, [k / 4][columns][4]; 4-bit integers, [k /
 * 8][columns][4] bytes, of eight numbers the first four in the low bits. 1 and 2 are layouts of older compilers, which
 * are refused. */
typedef enum narrow_kind { NARROW_HALF, NARROW_BYTES = 3, NARROW_NIBBLES } narrow_kind;
enum { NARROW_COLUMNS = 32, NARROW_ROWS = 4 };
/* Elements of a row that share one scale; they are in one block of weights */
enum { NARROW_PART = 128 };

/* An integer q of a block stands for (q - zero) * scale; scales and zero points are [blocks][columns]. `zeros` NULL:
 * all are `zero`. */
typedef struct narrow_sliver {
    narrow_kind kind;
    int64_t k, block; /* of integers k is a multiple of block, and block a multiple of 4, or of 8 for 4-bit integers */
    const uint8_t *weights;
    const float *scales, *zeros;
    float zero;
} narrow_sliver;

/* Rows of a product with integers, quantized by `split`: an element is q * the scale of its part. */
typedef struct narrow_rows {
    const uint8_t *numbers;     /* 4 bytes for each element */
    const float *scales, *sums; /* of each part; sums are those of q */
    int64_t row, parts;         /* distances between rows, in bytes and in parts */
} narrow_rows;

typedef struct model_narrow_kernels {
    /* out[r][c] = sum over k of a[r][k] * weight[k][c] for at most NARROW_ROWS rows, `a_row` apart; weights are float16
     */
    void (*half_rows)(int rows, const narrow_sliver *sliver, const float *a, int64_t a_row, float *out);
    /* One part of a row: `count` elements, a multiple of 4 */
    void (*split)(int64_t count, const float *from, uint8_t *numbers, float *scale, float *sum);
    /* The same as half_rows, for integers */
    void (*rows)(int rows, const narrow_sliver *sliver, const narrow_rows *a, float *out);
    /* Unpacks the weights of `count` elements from `first` on into slivers: out[32 / columns][count][columns]. `first`
     * and `count` are even; of integers they are multiples of 8, and the range is within one block or whole blocks.
     * `columns` fills whole vectors and divides 32. */
    void (*unpack)(const narrow_sliver *sliver, int64_t first, int64_t count, int64_t columns, float *out);
} model_narrow_kernels;

#endif
