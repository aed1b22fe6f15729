/* Fourier transforms in double: fft_rows.h. */
#define real    double
#define NAME(x) vme_fft_##x##_f64
#include "operators/fft_rows.h"
