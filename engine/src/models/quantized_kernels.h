/* Kernels of quantized operators: each backend has a table of them (kernels/quantized.h).
 *
 * All bytes are read as unsigned: of int8 the caller says `flip` 0x80, which makes of each number that plus 128, and
 * zero points are those plus 128. Results are as well, and flipped back. */
#ifndef VME_MODEL_QUANTIZED_KERNELS_H
#define VME_MODEL_QUANTIZED_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    QUANTIZED_COLUMNS = 32,
    QUANTIZED_QUAD = 4,
    QUANTIZED_ROWS = 14
}; /* of a tile; numbers that are added at once */

enum { QUANTIZED_SPILL = 64 };

/* clamp(round(value) + zero): to bytes. Halves are rounded to even. */
typedef struct quantized_result {
    int32_t zero, low, high; /* low and high: what comes out at least and most */
    uint8_t flip;
} quantized_result;

/* Windows of 3x3, of single channels, along a row of the result. */
typedef struct quantized_row {
    const uint8_t *in[3]; /* rows that the window sees, channels last; `in_step` bytes lie between pixels */
    int64_t in_step[3];
    int64_t width, out_width, channels, stride,
        pad;               /* pad: columns before the first, which are `zero` as those after */
    const int8_t *weights; /* [3][3][channels] */
    const int32_t *more;   /* that is added to each sum */
    const float *factors;
    quantized_result to;
    uint8_t zero;
} quantized_row;

typedef struct model_quantized_kernels {
    /* out[r][c] = sum over 4 * quads numbers of a[r][k] * b[k / 4][c][k % 4], with as many rows as QUANTIZED_ROWS at
     * most; rows of a are `a_row` bytes apart and read to a whole quad */
    void (*tile)(int rows, int64_t quads, const uint8_t *a, int64_t a_row, const int8_t *b, int32_t *out);
    /* The same of the first `columns` as bytes, out_row apart: round((sum + more) * factors) */
    void (*tile_bytes)(int rows, int columns, int64_t quads, const uint8_t *a, int64_t a_row, const int8_t *b,
                       const int32_t *more, const float *factors, quantized_result to, uint8_t *out, int64_t out_row);
    /* Windows of single channels: out[pixel][c] = sum over taps of in[pixel][tap][c] * weights[tap][c], where `in` has
     * places of channels */
    void (*windows)(int64_t pixels, int64_t channels, int taps, const uint8_t *const *in, const int8_t *weights,
                    int32_t *out);
    bool (*row3)(const quantized_row *, uint8_t *out); /* false: this backend, or machine, has none for it */
    /* round((sums + add) * factors) */
    void (*finish)(int64_t n, const int32_t *sums, const int32_t *add, const float *factors, quantized_result to,
                   uint8_t *out);
    /* up to QUANTIZED_SPILL bytes more are read and written */
    void (*copy)(int64_t n, const uint8_t *in, uint8_t *out);
    void (*flip)(int64_t n, const uint8_t *in, uint8_t *out);
    /* a * factors[0] + b * factors[1] + factors[2] */
    void (*add)(int64_t n, const uint8_t *a, uint8_t a_flip, const uint8_t *b, uint8_t b_flip, const float *factors,
                quantized_result to, uint8_t *out);
    /* (a - zeros[0]) * (b - zeros[1]) * factor */
    void (*multiply)(int64_t n, const uint8_t *a, uint8_t a_flip, const uint8_t *b, uint8_t b_flip,
                     const int32_t *zeros, float factor, quantized_result to, uint8_t *out);
    void (*quantize)(int64_t n, const float *in, float scale, quantized_result to, uint8_t *out); /* in / scale */
    void (*dequantize)(int64_t n, const uint8_t *in, uint8_t flip, int32_t zero, float scale, float *out);
    void (*look_up)(int64_t n, const uint8_t *in, const uint8_t *table, uint8_t *out);
} model_quantized_kernels;

#endif
