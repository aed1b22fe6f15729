/* Pools a window's pixels into one: the maximum of each channel, or a multiple of the sum. */
#include "vectors_f32.h"

enum { POOLING_VECTORS = 4 };

VME_INLINE void pool_vectors(const vme_pooling *window, int64_t channel, const int vectors, const bool sums)
{
    vec value[POOLING_VECTORS];
    const float *row = window->in + channel;
    for (int v = 0; v < vectors; v++)
        value[v] = !sums ? load(row + v * LANES) : window->more ? load(window->out + channel + v * LANES) : (vec){0};
    for (int64_t h = 0; h < window->rows; h++, row += window->row_step) {
        const float *pixel = row;
        for (int64_t w = 0; w < window->columns; w++, pixel += window->column_step)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                const vec seen = load(pixel + v * LANES);
                value[v] = sums ? value[v] + seen : larger_of(value[v], seen);
            }
    }
    for (int v = 0; v < vectors; v++)
        store(window->out + channel + v * LANES, sums ? value[v] * all(window->factor) : value[v]);
}

VME_INLINE void pool(const vme_pooling *window, const bool sums)
{
    int64_t channel = 0;
    for (; channel + POOLING_VECTORS * LANES <= window->channels; channel += POOLING_VECTORS * LANES)
        pool_vectors(window, channel, POOLING_VECTORS, sums);
    for (; channel + LANES <= window->channels; channel += LANES)
        pool_vectors(window, channel, 1, sums);
    if (channel < window->channels && window->channels >= LANES && !window->more) /* the last vector overlaps the one
                                                                                   * before it */
        pool_vectors(window, window->channels - LANES, 1, sums);
    else
        for (; channel < window->channels; channel++) {
            float value = !sums ? window->in[channel] : window->more ? window->out[channel] : 0;
            for (int64_t h = 0; h < window->rows; h++)
                for (int64_t w = 0; w < window->columns; w++) {
                    float seen = window->in[channel + h * window->row_step + w * window->column_step];
                    value = sums ? value + seen : value > seen ? value : seen;
                }
            window->out[channel] = sums ? value * window->factor : value;
        }
}

static void largest(const vme_pooling *window) { pool(window, false); }
static void sum(const vme_pooling *window) { pool(window, true); }
