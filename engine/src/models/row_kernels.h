/* Kernels of fused operators on rows of float32: each backend has a table of them (kernels/rows.h). */
#ifndef VME_MODEL_ROW_KERNELS_H
#define VME_MODEL_ROW_KERNELS_H

#include <stdint.h>

/* a model_curve; `out` may be `in` */
typedef void model_curve_kernel(int curve, int64_t n, const float *in, float *out);
typedef struct model_row_kernels {
    /* out = in * factor + addend, which may be NULL; returns the most of out, whatever NaNs are there */
    float (*weigh)(int64_t n, const float *in, float factor, const float *addend, float *out);
    float (*weigh_here)(int64_t n, float factor, const float *addend, float *out); /* the same of out */
    void (*shift)(int64_t n, float by, float *out);
    void (*scale)(int64_t n, float by, float *out);
    float (*sum)(int64_t n, const float *in);
    /* out = in + by; returns the sum of its squares */
    float (*centre)(int64_t n, const float *in, float by, float *out);
    /* out = out * factor * scale + bias, which may be NULL */
    void (*normalize)(int64_t n, float factor, const float *scale, const float *bias, float *out);
    /* out = exp(out + by), where no sum is above 0; returns their sum */
    float (*exponentials)(int64_t n, float by, float *out);
    model_curve_kernel *curve;
} model_row_kernels;

#endif
