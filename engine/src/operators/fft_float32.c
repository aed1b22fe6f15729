/* Fourier transforms in float: fft_rows.h. */
#define real    float
#define NAME(x) vme_fft_##x##_f32
#include "operators/fft_rows.h"
