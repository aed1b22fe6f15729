/* Kernels of fused operators on rows of float32: each backend has a table of them (kernels/rows.h). */
#ifndef VME_MODEL_ROW_KERNELS_H
#define VME_MODEL_ROW_KERNELS_H

#include <stdint.h>

enum { VME_SLIVER = 64, VME_SLIVER_ROWS = 6 }; /* columns of a packed sliver; rows of one product */

/* a model_curve; `out` may be `in` */
typedef void model_curve_kernel(int curve, int64_t n, const float *in, float *out);
typedef struct model_row_kernels {
    /* out = in * factor + addend, which may be NULL; returns the maximum of out, ignoring NaN */
    float (*weigh)(int64_t n, const float *in, float factor, const float *addend, float *out);
    float (*weigh_here)(int64_t n, float factor, const float *addend, float *out); /* the same with in = out */
    void (*shift)(int64_t n, float by, float *out);
    void (*scale)(int64_t n, float by, float *out);
    float (*sum)(int64_t n, const float *in);
    /* out = in + by; returns the sum of squares of out */
    float (*centre)(int64_t n, const float *in, float by, float *out);
    /* out = out * factor * scale + bias, which may be NULL */
    void (*normalize)(int64_t n, float factor, const float *scale, const float *bias, float *out);
    /* out = exp(out + by), with out + by at most 0; returns the sum of out */
    float (*exponentials)(int64_t n, float by, float *out);
    model_curve_kernel *curve;
    /* Recurrent cells (kernels/cells.h). product: rows (1 to VME_SLIVER_ROWS) x k times a packed k x VME_SLIVER */
    void (*product)(int rows, int64_t k, const float *a, int64_t a_row, const float *b, float *out, int64_t out_row);
    /* One row's next state from the gates' products with the input, x, and with the state, p, written to h and y; c is
     * the cell. Gates use sigmoid, all other functions are tanh. */
    void (*lstm)(int64_t n, const float *x, const float *p, float *c, float *h, float *y);
    /* q: the candidate's product with the state. With a bias, it is added to q and the reset gate multiplies the sum;
     * otherwise the gate was already applied */
    void (*gru)(int64_t n, const float *x, const float *p, const float *q, const float *bias, float *h, float *y);
    void (*gru_reset)(int64_t n, const float *x, const float *p, const float *h, float *out); /* reset gate times h */
    void (*tanh)(int64_t n, const float *x, const float *p, float *h, float *y);
    void (*bend_tanh)(int64_t n, float *x); /* in place */
} model_row_kernels;

#endif
