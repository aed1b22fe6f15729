/* What models do to rows of channels beside products: plain loops, for each backend. The file that includes this names VME_TARGET. */
#include "../internal.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

static void finish(int64_t rows, int64_t columns, float *restrict c, int64_t c_row, const float *restrict bias,
                   const float *restrict addend, bool relu)
{
    for (int64_t i = 0; i < rows; i++, c += c_row) {
        if (addend != NULL) {
            for (int64_t j = 0; j < columns; j++)
                c[j] += bias[j] + addend[j];
            addend += c_row;
        } else
            for (int64_t j = 0; j < columns; j++)
                c[j] += bias[j];
        if (relu)
            for (int64_t j = 0; j < columns; j++)
                c[j] = c[j] < 0 ? 0 : c[j];         /* NaN stays */
    }
}

static void add(int64_t n, const float *a, const float *b, float *out, bool relu)
{
    if (relu)
        for (int64_t i = 0; i < n; i++) {
            float sum = a[i] + b[i];
            out[i] = sum < 0 ? 0 : sum;
        }
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = a[i] + b[i];
}

static void relu_row(int64_t n, const float *in, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = in[i] < 0 ? 0 : in[i];
}

static void largest(int64_t n, const float *restrict in, float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = in[i] > out[i] ? in[i] : out[i];
}

static void scale(int64_t n, float factor, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] *= factor;
}

const vme_model_kernels JOIN(vme_model_, VME_TARGET) = {
    .finish = finish, .add = add, .relu = relu_row, .largest = largest, .scale = scale,
};
