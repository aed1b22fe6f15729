/* What fft.c uses of fft_float32.c and fft_float64.c, which compile pocketfft for one precision each. */
#ifndef VME_FFT_PARTS_H
#define VME_FFT_PARTS_H

#include "runtime/internal.h"
#include "vme_fft.h"

/* pocketfft's allocator: charged to the context that the calling thread works for (NULL: the process). */
void *vme_fft_new(size_t bytes);
void vme_fft_free(void *memory);

/* NULL: no memory. */
void *vme_fft_plan_f32(bool of_reals, size_t n);
void *vme_fft_plan_f64(bool of_reals, size_t n);
void vme_fft_free_plan_f32(bool of_reals, void *plan);
void vme_fft_free_plan_f64(bool of_reals, void *plan);
/* Transforms one row of `in_length` elements, truncated or padded with zeros to length n. `row` is memory for n reals;
 * NULL: works in `out`. Returns 0, or -1 if there is no memory. */
int vme_fft_row_f32(vme_fft_kind kind, void *plan, int64_t n, double factor, const float *in, int64_t in_length,
                    float *out, float *row);
int vme_fft_row_f64(vme_fft_kind kind, void *plan, int64_t n, double factor, const double *in, int64_t in_length,
                    double *out, double *row);

#endif
