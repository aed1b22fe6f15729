/* Batch normalization of one channel, and its gradient, for elements PLANE_TYPE. Included once for each type, after
 * plane_depthwise.h.
 *
 * A channel is `examples` pieces of `n` elements, `step` apart. All passes over a channel run consecutively, while it
 * is in the cache. Sums are kept in vectors and added in float64 after at most SUMMED elements of a lane. */
enum { PLANE(summed) = 256 };

/* The sum over the channel of term(i), a PLANE_TYPE, or line_term(i), a vector of them. */
#define PLANE_SUM(result, line_term, term) \
    do { \
        enum { LANES = PLANE_BYTES / sizeof(PLANE_TYPE) }; \
        PLANE(line) sum_line = {0}; \
        double sum_all = 0; \
        int64_t sum_held = 0; \
        for (int64_t sum_e = 0; sum_e < examples; sum_e++) { \
            int64_t i = sum_e * step; \
            const int64_t end = i + n; \
            for (; i + LANES <= end; i += LANES) { \
                sum_line += (line_term); \
                if (++sum_held == PLANE(summed)) { \
                    for (int l = 0; l < LANES; l++) \
                        sum_all += (double)sum_line[l]; \
                    sum_line = (PLANE(line)){0}; \
                    sum_held = 0; \
                } \
            } \
            for (; i < end; i++) \
                sum_all += (double)(term); \
        } \
        for (int l = 0; l < LANES; l++) \
            sum_all += (double)sum_line[l]; \
        (result) = sum_all; \
    } while (0)
#define PLANE_LINE(from) (*(const PLANE(line) *)(uintptr_t)(from))

static void PLANE(normalize)(int64_t examples, int64_t step, int64_t n, const void *channel, const void *weight,
                             const void *bias, double eps, void *result, void *mean_to, void *var_to)
{
    const PLANE_TYPE *x = channel;
    PLANE_TYPE *y = result;
    const double count = (double)(examples * n);
    double sum;
    PLANE_SUM(sum, PLANE_LINE(x + i), x[i]);
    const PLANE_TYPE mean = (PLANE_TYPE)(sum / count);
    PLANE_SUM(sum, (PLANE_LINE(x + i) - mean) * (PLANE_LINE(x + i) - mean), (x[i] - mean) * (x[i] - mean));
    const PLANE_TYPE var = (PLANE_TYPE)(sum / count);
    const PLANE_TYPE factor = *(const PLANE_TYPE *)weight / (PLANE_TYPE)sqrt((double)var + eps);
    const PLANE_TYPE shift = *(const PLANE_TYPE *)bias - mean * factor;
    for (int64_t e = 0; e < examples; e++)
        for (int64_t i = e * step; i < e * step + n; i++)
            y[i] = x[i] * factor + shift;
    *(PLANE_TYPE *)mean_to = mean;
    *(PLANE_TYPE *)var_to = var;
}

static void PLANE(normalize_gradient)(int64_t examples, int64_t step, int64_t n, const void *channel,
                                      const void *gradient, const void *mean_of, const void *var_of, const void *weight,
                                      double eps, void *result, void *weight_to, void *bias_to)
{
    const PLANE_TYPE *x = channel, *g = gradient, mean = *(const PLANE_TYPE *)mean_of;
    PLANE_TYPE *out = result;
    const double count = (double)(examples * n);
    const double root = 1 / sqrt((double)*(const PLANE_TYPE *)var_of + eps);
    double whole, along;
    PLANE_SUM(whole, PLANE_LINE(g + i), g[i]);
    PLANE_SUM(along, PLANE_LINE(g + i) * (PLANE_LINE(x + i) - mean), g[i] * (x[i] - mean));
    along *= root;
    const PLANE_TYPE factor = (PLANE_TYPE)((double)*(const PLANE_TYPE *)weight * root);
    const PLANE_TYPE turned = (PLANE_TYPE)(along * root / count), shift = (PLANE_TYPE)(whole / count);
    for (int64_t e = 0; e < examples; e++)
        for (int64_t i = e * step; i < e * step + n; i++)
            out[i] = (g[i] - (x[i] - mean) * turned - shift) * factor;
    *(PLANE_TYPE *)weight_to = (PLANE_TYPE)along;
    *(PLANE_TYPE *)bias_to = (PLANE_TYPE)whole;
}

#undef PLANE_SUM
#undef PLANE_LINE
