/* Kernels on rows of embedding tables: each backend has a table of them (kernels/embedding.h). */
#ifndef VME_EMBEDDING_ROW_KERNELS_H
#define VME_EMBEDDING_ROW_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

/* The factors of an optimizer step, rounded to float32 once; embedding/update.c sets those that its optimizer reads. */
typedef struct embedding_factors {
    float rate, eps;                      /* SGD, Adagrad, Adam (with the first bias correction included in the rate) */
    float keep1, add1, keep2, add2, root; /* Adam: beta, 1 - beta; the square root of the second bias correction */
    float l1, l2, beta;                   /* FTRL */
} embedding_factors;

typedef void embedding_step(int64_t n, const embedding_factors *factors, const float *gradient, float *weights,
                            float *first, float *second);

/* Consecutive bags of keys of one table; called under shared locks. Keys of a plain table are row numbers. */
enum { EMBEDDING_PIECE = 4096 }; /* maximum keys */
typedef struct embedding_bags_piece {
    const struct vme_embedding *table; /* NULL: the plain table `rows`, */
    const char *rows;                  /* whose rows are `row_step` bytes apart */
    int64_t row_step, row_count;
    int64_t dim;
    int64_t n, bags;
    const int64_t *keys;  /* n */
    bool any_key;         /* keys below 0 are keys too (not in a plain table); else the kernel stops at one */
    const int16_t *ends;  /* the end of each bag among the keys; NULL: each bag has one key, of weight and factor 1 */
    const float *weights; /* of each key; NULL: 1 */
    const float *factors; /* of each bag; NULL: 1 */
    char *out;            /* the first bag's result; results are out_step bytes apart */
    int64_t out_step;
} embedding_bags_piece;

typedef struct embedding_row_kernels {
    /* Returns -1 when all bags are done; else the index of the first key without a row in the plain table, where
     * nothing was read, or that of a key below 0 or one of the seven before it. */
    int64_t (*sum_bags)(const embedding_bags_piece *piece);
    /* out = sum of `count` rows, each times its weight (NULL: 1); `more`: adds to out instead */
    void (*sum)(int64_t count, int64_t n, const float *const *rows, const float *weights, bool more, float *out);
    void (*scale)(int64_t n, float by, float *out);
    /* out += in * by */
    void (*add)(int64_t n, const float *in, float by, float *out);
    embedding_step *step[4]; /* indexed by vme_embedding_optimizer */
} embedding_row_kernels;

#endif
