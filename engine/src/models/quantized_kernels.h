/* Kernels of quantized operators: each backend has a table of them (kernels/quantized.h).
 *
 * All bytes are read as unsigned. For int8 the caller passes `flip` 0x80, which adds 128 to each number, and zero
 * points with 128 added. Results are flipped back the same way. */
#ifndef VME_MODEL_QUANTIZED_KERNELS_H
#define VME_MODEL_QUANTIZED_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    QUANTIZED_COLUMNS = 32, /* of a tile */
    QUANTIZED_QUAD = 4,     /* products summed by one instruction */
    QUANTIZED_ROWS = 14,    /* of a tile */
    QUANTIZED_SPILL = 64,   /* bytes that copies may read and write beyond their end */
};

/* clamp(round(value) + zero), as a byte. Rounds half to even. */
typedef struct quantized_result {
    int32_t zero, low, high; /* low and high: bounds of the result */
    uint8_t flip;
} quantized_result;

/* A row of results of depthwise 3x3 windows. */
typedef struct quantized_row {
    const uint8_t *in[3]; /* the rows under the window, channels last; pixels are `in_step` bytes apart */
    int64_t in_step[3];
    int64_t width, out_width, channels, stride,
        pad;               /* columns of padding before the first one; these and those after the last one are `zero` */
    const int8_t *weights; /* [3][3][channels] */
    const int32_t *more;   /* added to each sum */
    const float *factors;
    quantized_result to;
    uint8_t zero;
} quantized_row;

/* Windows of pixels of a row, with contiguous lines. */
typedef struct quantized_windows {
    const uint8_t *in;              /* the first window's first line */
    int64_t lines, line_step;       /* line_step: from a line to the next, in bytes */
    int64_t line_bytes, pixel_step; /* pixel_step: from a window to the next, in bytes */
    uint8_t flip;
} quantized_windows;

typedef struct model_quantized_kernels {
    /* out[r][c] = sum over 4 * quads elements of a[r][k] * b[k / 4][c][k % 4], for at most QUANTIZED_ROWS rows; rows of
     * a are `a_row` bytes apart and read in whole quads */
    void (*tile)(int rows, int64_t quads, const uint8_t *a, int64_t a_row, const int8_t *b, int32_t *out);
    /* The same for the first `columns`, as bytes, out_row apart: round((sum + more) * factors). Each factor is
     * between -1 and 1. */
    void (*tile_bytes)(int rows, int columns, int64_t quads, const uint8_t *a, int64_t a_row, const int8_t *b,
                       const int32_t *more, const float *factors, quantized_result to, uint8_t *out, int64_t out_row);
    /* Depthwise windows: out[pixel][c] = sum over taps of in[pixel][tap][c] * weights[tap][c]; `in` holds addresses of
     * pixels */
    void (*windows)(int64_t pixels, int64_t channels, int taps, const uint8_t *const *in, const int8_t *weights,
                    int32_t *out);
    bool (*row3)(const quantized_row *, uint8_t *out); /* false: not supported by this backend or machine */
    /* round((sums + add) * factors) */
    void (*finish)(int64_t n, const int32_t *sums, const int32_t *add, const float *factors, quantized_result to,
                   uint8_t *out);
    /* reads and writes up to QUANTIZED_SPILL bytes more */
    void (*copy)(int64_t n, const uint8_t *in, uint8_t *out);
    void (*flip)(int64_t n, const uint8_t *in, uint8_t *out);
    /* The bytes of each of `pixels` windows, one line after the other; rows of `out` are `out_row` apart. Reads and
     * writes up to QUANTIZED_SPILL bytes more than each line. */
    void (*copy_windows)(const quantized_windows *windows, int64_t pixels, uint8_t *out, int64_t out_row);
    /* a * factors[0] + b * factors[1] + factors[2] */
    void (*add)(int64_t n, const uint8_t *a, uint8_t a_flip, const uint8_t *b, uint8_t b_flip, const float *factors,
                quantized_result to, uint8_t *out);
    /* (a - zeros[0]) * (b - zeros[1]) * factor */
    void (*multiply)(int64_t n, const uint8_t *a, uint8_t a_flip, const uint8_t *b, uint8_t b_flip,
                     const int32_t *zeros, float factor, quantized_result to, uint8_t *out);
    void (*quantize)(int64_t n, const float *in, float scale, quantized_result to, uint8_t *out); /* in / scale */
    void (*dequantize)(int64_t n, const uint8_t *in, uint8_t flip, int32_t zero, float scale, float *out);
    /* out[i] = the largest of in[0][i] to in[count - 1][i], for i from `begin` to `end`; count >= 1 */
    void (*largest)(int64_t begin, int64_t end, int count, const uint8_t *const *in, uint8_t flip, uint8_t *out);
    void (*look_up)(int64_t n, const uint8_t *in, const uint8_t *table, uint8_t *out);
} model_quantized_kernels;

#endif
