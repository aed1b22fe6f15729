/* Kernels on rows of embedding tables: sums of rows, and the optimizers' steps. The steps perform the same operations
 * in the same order as vmhost.engine.optim, so that results are equal on every backend. */
#include "embedding/row_kernels.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* As wide as the backend's registers: compilers spill wider vectors to memory, which takes three times as long. */
#if defined __AVX512F__
enum { EMBEDDING_BYTES = 64, EMBEDDING_SUMS = 4 };
#elif defined __AVX__
enum { EMBEDDING_BYTES = 32, EMBEDDING_SUMS = 8 };
#else
enum { EMBEDDING_BYTES = 16, EMBEDDING_SUMS = 8 };
#endif
typedef float embedding_vector __attribute__((vector_size(EMBEDDING_BYTES), aligned(4), may_alias));
enum { EMBEDDING_LANES = EMBEDDING_BYTES / 4 };

/* A macro, because some backends cannot return such a vector in a register. */
#define EMBEDDING_AT(from) (*(embedding_vector *)(uintptr_t)(from))

/* Sums of rows for `vectors` vectors of columns from column d on. The sums stay in registers. `accumulate`: adds to the
 * contents of `out`. */
static inline __attribute__((always_inline)) void sum_vectors(const int vectors, int64_t count, int64_t d,
                                                              const float *const *rows, const float *weights,
                                                              bool accumulate, float *out)
{
    embedding_vector sum[EMBEDDING_SUMS];
    const embedding_vector zero = {0};
    for (int k = 0; k < vectors; k++)
        sum[k] = accumulate ? EMBEDDING_AT(out + d + k * EMBEDDING_LANES) : zero;
    if (weights == NULL)
        for (int64_t i = 0; i < count; i++)
            for (int k = 0; k < vectors; k++)
                sum[k] += EMBEDDING_AT(rows[i] + d + k * EMBEDDING_LANES);
    else
        for (int64_t i = 0; i < count; i++)
            for (int k = 0; k < vectors; k++)
                sum[k] += EMBEDDING_AT(rows[i] + d + k * EMBEDDING_LANES) * weights[i];
    for (int k = 0; k < vectors; k++)
        EMBEDDING_AT(out + d + k * EMBEDDING_LANES) = sum[k];
}

static void sum(int64_t count, int64_t n, const float *const *rows, const float *weights, bool accumulate, float *out)
{
    int64_t d = 0;
    for (; d + EMBEDDING_SUMS * EMBEDDING_LANES <= n; d += EMBEDDING_SUMS * EMBEDDING_LANES)
        sum_vectors(EMBEDDING_SUMS, count, d, rows, weights, accumulate, out);
    for (; d + EMBEDDING_LANES <= n; d += EMBEDDING_LANES)
        sum_vectors(1, count, d, rows, weights, accumulate, out);
    const int remaining = (int)(n - d); /* less than EMBEDDING_LANES */
    if (remaining == 0)
        return;
    out += d;
    if (!accumulate)
        memset(out, 0, (size_t)remaining * sizeof *out);
    for (int64_t i = 0; i < count; i++)
        for (int k = 0; k < remaining; k++)
            out[k] += weights == NULL ? rows[i][d + k] : rows[i][d + k] * weights[i];
}

static void scale(int64_t n, float factor, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] *= factor;
}

static void add(int64_t n, const float *restrict in, float factor, float *restrict out)
{
    if (factor == 1)
        for (int64_t i = 0; i < n; i++)
            out[i] += in[i];
    else
        for (int64_t i = 0; i < n; i++)
            out[i] += in[i] * factor;
}

#include "../kernels/embedding_bags.h"

static void sgd(int64_t n, const embedding_factors *f, const float *restrict g, float *restrict w,
                float *restrict first, float *restrict second)
{
    (void)first, (void)second;
    for (int64_t i = 0; i < n; i++)
        w[i] = w[i] - g[i] * f->rate;
}

static void adagrad(int64_t n, const embedding_factors *f, const float *restrict g, float *restrict w,
                    float *restrict squares, float *restrict second)
{
    (void)second;
    for (int64_t i = 0; i < n; i++) {
        squares[i] = squares[i] + g[i] * g[i];
        w[i] = w[i] - g[i] * f->rate / (sqrtf(squares[i]) + f->eps);
    }
}

static void adam(int64_t n, const embedding_factors *f, const float *restrict g, float *restrict w,
                 float *restrict mean, float *restrict squares)
{
    for (int64_t i = 0; i < n; i++) {
        mean[i] = mean[i] * f->keep1 + g[i] * f->add1;
        squares[i] = squares[i] * f->keep2 + g[i] * g[i] * f->add2;
        w[i] = w[i] - mean[i] * f->rate / (sqrtf(squares[i]) / f->root + f->eps);
    }
}

static inline float sign_of(float number) { return (float)((number > 0) - (number < 0)); }

/* z is that of the weight before the step, whatever the rates were; the slot is read for weights that are 0. */
static void ftrl(int64_t n, const embedding_factors *f, const float *restrict g, float *restrict w, float *restrict z,
                 float *restrict squares)
{
    for (int64_t i = 0; i < n; i++) {
        squares[i] = squares[i] + g[i] * g[i];
        const float scaled = (sqrtf(squares[i]) + f->beta) / f->rate + f->l2;
        const float next_z = w[i] == 0 ? z[i] + g[i] : g[i] - sign_of(w[i]) * f->l1 - scaled * w[i];
        z[i] = next_z;
        w[i] = fabsf(next_z) <= f->l1 ? 0 : (sign_of(next_z) * f->l1 - next_z) / scaled;
    }
}

#define EMBEDDING_ROW_KERNELS \
    { \
        sum_bags, sum, scale, add, { sgd, adagrad, adam, ftrl } \
    }
