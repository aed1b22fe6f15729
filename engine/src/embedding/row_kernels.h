/* The kernels for rows of embedding tables; each backend has a table of them (kernels/embedding.h). */
#ifndef VME_EMBEDDING_ROW_KERNELS_H
#define VME_EMBEDDING_ROW_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

/* The factors of an optimizer step, each rounded to float32 once (update.c). A step reads those of its optimizer. */
typedef struct embedding_factors {
    float rate, eps;                      /* all; Adam's rate includes the first bias correction. eps: Adagrad, Adam */
    float keep1, add1, keep2, add2, root; /* Adam: beta, 1 - beta; the square root of the second bias correction */
    float l1, l2, beta;                   /* FTRL */
} embedding_factors;

typedef void embedding_step(int64_t n, const embedding_factors *factors, const float *gradient, float *weights,
                            float *first, float *second);

/* Consecutive bags of keys of one table, read under shared locks. Keys of a plain table are row indices. */
enum { EMBEDDING_PIECE = 4096 }; /* maximum keys */
typedef struct embedding_bags_piece {
    const struct vme_embedding *table; /* NULL: a plain table, given by the next three fields */
    const char *rows;
    int64_t row_step, row_count; /* row_step: bytes between rows */
    int64_t dim;
    int64_t n, bags;
    const int64_t *keys;  /* n of them */
    bool any_key;         /* keys may be below 0 (not in a plain table); otherwise the kernel stops at such a key */
    const int16_t *ends;  /* the end of each bag among the keys; NULL: each bag has one key, of weight and factor 1 */
    const float *weights; /* of each key; NULL: 1 */
    const float *factors; /* of each bag; NULL: 1 */
    char *out;            /* the first bag's result; results are out_step bytes apart */
    int64_t out_step;
} embedding_bags_piece;

typedef struct embedding_row_kernels {
    /* Returns -1 when all bags are done. Otherwise some bags may be missing. In a plain table the result is the index
     * of the first key that is no row index; that row was not read. In other tables it is the index of the first of
     * eight consecutive keys, one of which is below 0. */
    int64_t (*sum_bags)(const embedding_bags_piece *piece);
    /* out = sum of `count` rows, each times its weight (NULL: 1). `more`: adds to the contents of out. */
    void (*sum)(int64_t count, int64_t n, const float *const *rows, const float *weights, bool more, float *out);
    void (*scale)(int64_t n, float by, float *out);
    /* out += in * by */
    void (*add)(int64_t n, const float *in, float by, float *out);
    embedding_step *step[4]; /* indexed by vme_embedding_optimizer */
} embedding_row_kernels;

#endif
