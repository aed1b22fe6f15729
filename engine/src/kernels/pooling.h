/* Pools a window's pixels into one: the maximum of each channel, or a multiple of the sum. */
#include "vectors_f32.h"

enum { POOLING_VECTORS = 4 };

VME_INLINE void pool_vectors(const vme_pooling *window, int64_t channel, const int vectors, const bool sums)
{
    vec pooled[POOLING_VECTORS];
    const float *row = window->in + channel;
    for (int v = 0; v < vectors; v++)
        pooled[v] = !sums ? load(row + v * LANES) : window->more ? load(window->out + channel + v * LANES) : (vec){0};
    for (int64_t h = 0; h < window->rows; h++, row += window->row_step) {
        const float *pixel = row;
        for (int64_t w = 0; w < window->columns; w++, pixel += window->column_step)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                const vec element = load(pixel + v * LANES);
                pooled[v] = sums ? pooled[v] + element : maximum(pooled[v], element);
            }
    }
    for (int v = 0; v < vectors; v++)
        store(window->out + channel + v * LANES, sums ? pooled[v] * splat(window->factor) : pooled[v]);
}

VME_INLINE void pool(const vme_pooling *window, const bool sums)
{
    int64_t channel = 0;
    for (; channel + POOLING_VECTORS * LANES <= window->channels; channel += POOLING_VECTORS * LANES)
        pool_vectors(window, channel, POOLING_VECTORS, sums);
    for (; channel + LANES <= window->channels; channel += LANES)
        pool_vectors(window, channel, 1, sums);
    /* the last vector overlaps the one before it, unless it adds to `out`: some elements would be added twice */
    if (channel < window->channels && window->channels >= LANES && !window->more)
        pool_vectors(window, window->channels - LANES, 1, sums);
    else
        for (; channel < window->channels; channel++) {
            float pooled = !sums ? window->in[channel] : window->more ? window->out[channel] : 0;
            for (int64_t h = 0; h < window->rows; h++)
                for (int64_t w = 0; w < window->columns; w++) {
                    float element = window->in[channel + h * window->row_step + w * window->column_step];
                    pooled = sums ? pooled + element : pooled > element ? pooled : element;
                }
            window->out[channel] = sums ? pooled * window->factor : pooled;
        }
}

static void largest(const vme_pooling *window) { pool(window, false); }
static void sum(const vme_pooling *window) { pool(window, true); }
