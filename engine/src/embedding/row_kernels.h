/* Kernels on rows of embedding tables: each backend has a table of them (kernels/embedding.h). */
#ifndef VME_EMBEDDING_ROW_KERNELS_H
#define VME_EMBEDDING_ROW_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

/* What a step multiplies with, rounded to float32 once: embedding/update.c fills what its optimizer reads. */
typedef struct embedding_factors {
    float rate, eps;                      /* SGD, Adagrad, Adam (its rate with the first bias corrected) */
    float keep1, add1, keep2, add2, root; /* Adam: beta, 1 - beta; the root of the second bias */
    float l1, l2, beta;                   /* FTRL */
} embedding_factors;

typedef void embedding_step(int64_t n, const embedding_factors *factors, const float *gradient, float *weights,
                            float *first, float *second);

typedef struct embedding_row_kernels {
    /* out = the sum of `count` rows, each times its weight (NULL: 1); `more`: added to what out holds */
    void (*sum)(int64_t count, int64_t n, const float *const *rows, const float *weights, bool more, float *out);
    void (*scale)(int64_t n, float by, float *out);
    /* out += in * by */
    void (*add)(int64_t n, const float *in, float by, float *out);
    embedding_step *step[4]; /* by vme_embedding_optimizer */
} embedding_row_kernels;

#endif
