/* Kernels of quantized operators: each backend has a table of them (kernels/quantized.h).
 *
 * All bytes are read as unsigned: of int8 the caller says `flip` 0x80, which makes of each number that plus 128, and
 * zero points are those plus 128. Results are as well, and flipped back. */
#ifndef VME_MODEL_QUANTIZED_KERNELS_H
#define VME_MODEL_QUANTIZED_KERNELS_H

#include <stdint.h>

enum {
    QUANTIZED_COLUMNS = 32,
    QUANTIZED_QUAD = 4,
    QUANTIZED_ROWS = 12
}; /* of a tile; numbers that are added at once */

/* clamp(round(value) + zero): to bytes. Halves are rounded to even. */
typedef struct quantized_result {
    int32_t zero, low, high; /* low and high: what comes out at least and most */
    uint8_t flip;
} quantized_result;

typedef struct model_quantized_kernels {
    /* out[r][c] = sum over 4 * quads numbers of a[r][k] * b[k / 4][c][k % 4], with as many rows as QUANTIZED_ROWS at
     * most; rows of a are `a_row` bytes apart and read to a whole quad */
    void (*tile)(int rows, int64_t quads, const uint8_t *a, int64_t a_row, const int8_t *b, int32_t *out);
    /* Windows of single channels: out[pixel][c] = sum over taps of in[pixel][tap][c] * weights[tap][c], where `in` has
     * places of channels */
    void (*windows)(int64_t pixels, int64_t channels, int taps, const uint8_t *const *in, const int8_t *weights,
                    int32_t *out);
    /* round((sums + add) * factors) */
    void (*finish)(int64_t n, const int32_t *sums, const int32_t *add, const float *factors, quantized_result to,
                   uint8_t *out);
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
