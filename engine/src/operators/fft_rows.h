/* Transforms one row in the precision `real` by pocketfft; included with `real` and NAME(x) defined. `in` may be the
 * memory in which the transform works: `out` for complex rows, and `row`, if it is not NULL, for real rows forward. */
#include "operators/fft.h"

#define pocketfft_new  vme_fft_new
#define pocketfft_free vme_fft_free
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wunused-function"
#include "vendor/pocketfft/pocketfft.h"
#pragma GCC diagnostic pop

void *NAME(plan)(bool of_reals, size_t n) { return of_reals ? (void *)make_rfft_plan(n) : (void *)make_cfft_plan(n); }

void NAME(free_plan)(bool of_reals, void *plan)
{
    if (of_reals)
        destroy_rfft_plan(plan);
    else
        destroy_cfft_plan(plan);
}

int NAME(row)(vme_fft_kind kind, void *plan, int64_t n, double factor, const real *in, int64_t in_length, real *out,
              real *row)
{
    size_t size = (size_t)n, copied = (size_t)(in_length < n ? in_length : n);
    int rc = 0;
    switch (kind) {
    case VME_FFT_FORWARD:
    case VME_FFT_BACKWARD:
        if (in != out)
            memcpy(out, in, 2 * copied * sizeof *in);
        memset(out + 2 * copied, 0, 2 * (size - copied) * sizeof *in);
        rc = kind == VME_FFT_FORWARD ? cfft_forward(plan, out, (real)factor) : cfft_backward(plan, out, (real)factor);
        break;
    case VME_FFT_REAL_FORWARD:
        /* halfcomplex r0 r1 i1 r2 i2 … written one element later becomes r0 0 r1 i1 … */
        if (row == NULL)
            row = out + 1;
        if (in != row)
            memcpy(row, in, copied * sizeof *in);
        memset(row + copied, 0, (size - copied) * sizeof *in);
        rc = rfft_forward(plan, row, (real)factor);
        out[0] = row[0];
        if (row != out + 1)
            memcpy(out + 2, row + 1, (size - 1) * sizeof *in);
        out[1] = 0;
        if (size % 2 == 0)
            out[size + 1] = 0;
        break;
    case VME_FFT_REAL_BACKWARD: {
        size_t half = size / 2 + 1, available = (size_t)in_length < half ? (size_t)in_length : half,
               pairs = available == 0 ? 0 : available - 1;
        out[0] = available > 0 ? in[0] : 0;
        size_t reals =
            2 * pairs < size - 1 ? 2 * pairs : size - 1; /* the last value of an even length has no imaginary part */
        memcpy(out + 1, in + 2, reals * sizeof *in);
        memset(out + 1 + reals, 0, (size - 1 - reals) * sizeof *in);
        rc = rfft_backward(plan, out, (real)factor);
        break;
    }
    }
    return rc;
}
