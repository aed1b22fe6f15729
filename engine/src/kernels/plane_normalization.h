/* Batch normalization of one channel, and its gradient, for elements PLANE_TYPE. Included once for each type, after
 * plane_depthwise.h.
 *
 * A channel is `examples` pieces of `n` elements, `step` apart. All passes over a channel run consecutively, while it
 * is in the cache. Sums are kept in vectors; each lane is added to a float64 after at most PLANE(summed) elements. */
enum { PLANE(summed) = 256 };

/* The sum over the channel of term(i), a PLANE_TYPE, or vector_term(i), a vector of them. */
#define PLANE_SUM(result, vector_term, term) \
    do { \
        enum { LANES = PLANE_BYTES / sizeof(PLANE_TYPE) }; \
        PLANE(wide_vector) sum_vector = {0}; \
        double sum_total = 0; \
        int64_t sum_count = 0; \
        for (int64_t sum_e = 0; sum_e < examples; sum_e++) { \
            int64_t i = sum_e * step; \
            const int64_t end = i + n; \
            for (; i + LANES <= end; i += LANES) { \
                sum_vector += (vector_term); \
                if (++sum_count == PLANE(summed)) { \
                    for (int l = 0; l < LANES; l++) \
                        sum_total += (double)sum_vector[l]; \
                    sum_vector = (PLANE(wide_vector)){0}; \
                    sum_count = 0; \
                } \
            } \
            for (; i < end; i++) \
                sum_total += (double)(term); \
        } \
        for (int l = 0; l < LANES; l++) \
            sum_total += (double)sum_vector[l]; \
        (result) = sum_total; \
    } while (0)
#define PLANE_VECTOR(from) (*(const PLANE(wide_vector) *)(uintptr_t)(from))

static void PLANE(normalize)(int64_t examples, int64_t step, int64_t n, const void *channel, const void *weight,
                             const void *bias, double eps, void *result, void *mean_to, void *var_to)
{
    const PLANE_TYPE *x = channel;
    PLANE_TYPE *y = result;
    const double count = (double)(examples * n);
    double sum;
    PLANE_SUM(sum, PLANE_VECTOR(x + i), x[i]);
    const PLANE_TYPE mean = (PLANE_TYPE)(sum / count);
    PLANE_SUM(sum, (PLANE_VECTOR(x + i) - mean) * (PLANE_VECTOR(x + i) - mean), (x[i] - mean) * (x[i] - mean));
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
    const double inverse_std = 1 / sqrt((double)*(const PLANE_TYPE *)var_of + eps);
    double gradient_sum, gradient_dot;
    PLANE_SUM(gradient_sum, PLANE_VECTOR(g + i), g[i]);
    PLANE_SUM(gradient_dot, PLANE_VECTOR(g + i) * (PLANE_VECTOR(x + i) - mean), g[i] * (x[i] - mean));
    gradient_dot *= inverse_std;
    const PLANE_TYPE factor = (PLANE_TYPE)((double)*(const PLANE_TYPE *)weight * inverse_std);
    const PLANE_TYPE slope = (PLANE_TYPE)(gradient_dot * inverse_std / count),
                     gradient_mean = (PLANE_TYPE)(gradient_sum / count);
    for (int64_t e = 0; e < examples; e++)
        for (int64_t i = e * step; i < e * step + n; i++)
            out[i] = (g[i] - (x[i] - mean) * slope - gradient_mean) * factor;
    *(PLANE_TYPE *)weight_to = (PLANE_TYPE)gradient_dot;
    *(PLANE_TYPE *)bias_to = (PLANE_TYPE)gradient_sum;
}

#undef PLANE_SUM
#undef PLANE_VECTOR
