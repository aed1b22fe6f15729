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

/* Bags of keys of one table, one bag behind the other; under shared locks. Of a plain table keys are rows' numbers. */
enum { EMBEDDING_PIECE = 4096 }; /* keys at most */
typedef struct embedding_bags_piece {
    const struct vme_embedding *table; /* NULL: the plain table, ... */
    const char *rows;                  /* ... whose rows are `row_step` bytes behind each other */
    int64_t row_step, row_count;
    int64_t dim;
    int64_t n, bags;
    const int64_t *keys;  /* n */
    const int16_t *ends;  /* where each bag ends among the keys; NULL: each has one, of weight and factor 1 */
    const float *weights; /* of each key; NULL: 1 */
    const float *factors; /* of each bag; NULL: 1 */
    char *out;            /* the first bag's numbers; the others' are this many bytes behind each other: */
    int64_t out_step;
} embedding_bags_piece;

typedef struct embedding_row_kernels {
    /* -1, or the number of the first key which the plain table has no row for: nothing was read there */
    int64_t (*sum_bags)(const embedding_bags_piece *piece);
    /* out = the sum of `count` rows, each times its weight (NULL: 1); `more`: added to what out holds */
    void (*sum)(int64_t count, int64_t n, const float *const *rows, const float *weights, bool more, float *out);
    void (*scale)(int64_t n, float by, float *out);
    /* out += in * by */
    void (*add)(int64_t n, const float *in, float by, float *out);
    embedding_step *step[4]; /* by vme_embedding_optimizer */
} embedding_row_kernels;

#endif
