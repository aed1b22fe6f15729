/* Depthwise convolution, one row of outputs: channels are contiguous, so a vector holds channels, and a few
 * neighbouring outputs share weights and pixels. Whole vectors only: the last vector of a row of channels overlaps the
 * one before it. */
#include "vectors_f32.h"

enum { DEPTHWISE_OUTPUTS = LANES == 16 ? 7 : 4, FEW_CHANNELS_OUTPUTS = 6 };

/* Computes `outputs` neighbouring outputs. `stride` and `kernel_w` are constants, and then windows are `stride` pixels
 * apart; or 0: both are read from `row`. */
VME_INLINE void depthwise_outputs(const vme_depthwise *row, const float *in, const float *addend, float *out,
                                  const int outputs, const int stride, const int kernel_w)
{
    const char *base = (const char *)in;
    int64_t step1 = row->in_column * 4, step3 = 3 * step1, step5 = 5 * step1, step7 = 7 * step1;
    const int64_t next_row = row->in_row * 4, stride_bytes = row->in_stride * 4,
                  weights_row = row->kernel_w * row->channels;
    const vec low = splat(row->bounds.low), high = splat(row->bounds.high);
    /* The empty __asm__ hides that the distances are multiples of each other. Otherwise the compiler keeps a pointer
     * for each pixel, for which it has too few registers. */
    __asm__("" : "+r"(step1), "+r"(step3), "+r"(step5), "+r"(step7));
#define PIXEL(from, n) \
    load((const float *)((n) == 0   ? (from) \
                         : (n) == 1 ? (from) + step1 \
                         : (n) == 2 ? (from) + 2 * step1 \
                         : (n) == 3 ? (from) + step3 \
                         : (n) == 4 ? (from) + 4 * step1 \
                         : (n) == 5 ? (from) + step5 \
                         : (n) == 6 ? (from) + 2 * step3 \
                                    : (from) + step7))
    for (int64_t channel = 0;;) {
        vec sum[DEPTHWISE_OUTPUTS];
        const vec bias = load(row->bias + channel);
#pragma GCC unroll 8
        for (int i = 0; i < outputs; i++)
            sum[i] = bias;
        const char *from = base + channel * 4;
        const float *weights = row->weights + channel;
        for (int64_t h = 0; h < row->kernel_h; h++, from += next_row, weights += weights_row) {
            if (kernel_w != 0) {
                vec factor[5];
                const char *eighth = from + 8 * step1;
#pragma GCC unroll 5
                for (int w = 0; w < kernel_w; w++)
                    factor[w] = load(weights + w * row->channels);
#pragma GCC unroll 20
                for (int p = 0; p < (outputs - 1) * stride + kernel_w; p++) {
                    const vec pixel = p < 8    ? PIXEL(from, p)
                                      : p < 16 ? PIXEL(eighth, p - 8)
                                               : PIXEL(eighth + 8 * step1, p - 16);
#pragma GCC unroll 8
                    for (int i = 0; i < outputs; i++)
                        if (p - i * stride >= 0 && p - i * stride < kernel_w)
                            sum[i] = add_product(sum[i], pixel, factor[p - i * stride]);
                }
            } else
                for (int64_t w = 0; w < row->kernel_w; w++) {
                    const vec factor = load(weights + w * row->channels);
                    const char *pixel = from + w * step1;
#pragma GCC unroll 8
                    for (int i = 0; i < outputs; i++)
                        sum[i] = add_product(sum[i], load((const float *)(pixel + i * stride_bytes)), factor);
                }
        }
#pragma GCC unroll 8
        for (int i = 0; i < outputs; i++) {
            if (addend != NULL)
                sum[i] += load(addend + i * row->addend_pixel + channel);
            store(out + i * row->out_pixel + channel, clamp(sum[i], low, high));
        }
        if (channel + LANES >= row->channels)
            break;
        channel = channel + 2 * LANES <= row->channels ? channel + LANES : row->channels - LANES;
    }
#undef PIXEL
}

#define DEPTHWISE_ROW(name, stride, kernel_w) \
    static void name(const vme_depthwise *row) \
    { \
        const float *in = row->in, *addend = row->addend; \
        float *out = row->out; \
        for (int64_t remaining = row->outputs; remaining > 0;) { \
            const int64_t count = remaining < DEPTHWISE_OUTPUTS ? remaining : DEPTHWISE_OUTPUTS; \
            switch (count) { \
            case 7: depthwise_outputs(row, in, addend, out, DEPTHWISE_OUTPUTS >= 7 ? 7 : 1, stride, kernel_w); break; \
            case 6: depthwise_outputs(row, in, addend, out, DEPTHWISE_OUTPUTS >= 6 ? 6 : 1, stride, kernel_w); break; \
            case 5: depthwise_outputs(row, in, addend, out, DEPTHWISE_OUTPUTS >= 5 ? 5 : 1, stride, kernel_w); break; \
            case 4: depthwise_outputs(row, in, addend, out, 4, stride, kernel_w); break; \
            case 3: depthwise_outputs(row, in, addend, out, 3, stride, kernel_w); break; \
            case 2: depthwise_outputs(row, in, addend, out, 2, stride, kernel_w); break; \
            default: depthwise_outputs(row, in, addend, out, 1, stride, kernel_w); break; \
            } \
            remaining -= count; \
            in += count * row->in_stride; \
            out += count * row->out_pixel; \
            addend = addend == NULL ? NULL : addend + count * row->addend_pixel; \
        } \
    }
DEPTHWISE_ROW(depthwise_3, 1, 3)
DEPTHWISE_ROW(depthwise_3_stride_2, 2, 3)
DEPTHWISE_ROW(depthwise_5, 1, 5)
DEPTHWISE_ROW(depthwise_any, 0, 0)
#undef DEPTHWISE_ROW

/* `outputs` outputs from `x` on, of fewer channels than a vector has lanes. */
VME_INLINE void few_channels_outputs(const vme_depthwise *row, int64_t x, const int outputs)
{
    const int64_t channels = row->channels;
    const float *in = row->in + x * row->in_stride, *weights = row->weights;
    const vec low = splat(row->bounds.low), high = splat(row->bounds.high), bias = load_partial(row->bias, channels);
    vec sum[FEW_CHANNELS_OUTPUTS];
#pragma GCC unroll 8
    for (int i = 0; i < outputs; i++)
        sum[i] = bias;
    for (int64_t h = 0; h < row->kernel_h; h++)
        for (int64_t w = 0; w < row->kernel_w; w++, weights += channels) {
            const vec factor = load_partial(weights, channels);
            const float *pixel = in + h * row->in_row + w * row->in_column;
#pragma GCC unroll 8
            for (int i = 0; i < outputs; i++)
                sum[i] = add_product(sum[i], load_partial(pixel + i * row->in_stride, channels), factor);
        }
#pragma GCC unroll 8
    for (int i = 0; i < outputs; i++) {
        if (row->addend != NULL)
            sum[i] += load_partial(row->addend + (x + i) * row->addend_pixel, channels);
        store_partial(row->out + (x + i) * row->out_pixel, clamp(sum[i], low, high), channels);
    }
}

static void depthwise_few_channels(const vme_depthwise *row)
{
    int64_t x = 0;
    for (; x + FEW_CHANNELS_OUTPUTS <= row->outputs; x += FEW_CHANNELS_OUTPUTS)
        few_channels_outputs(row, x, FEW_CHANNELS_OUTPUTS);
    for (; x < row->outputs; x++)
        few_channels_outputs(row, x, 1);
}

static void depthwise(const vme_depthwise *row)
{
    if (row->channels < LANES)
        depthwise_few_channels(row);
    else if (row->kernel_w == 3 && row->in_stride == row->in_column)
        depthwise_3(row);
    else if (row->kernel_w == 3 && row->in_stride == 2 * row->in_column)
        depthwise_3_stride_2(row);
    else if (row->kernel_w == 5 && row->in_stride == row->in_column)
        depthwise_5(row);
    else
        depthwise_any(row);
}
