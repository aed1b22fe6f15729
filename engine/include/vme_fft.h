/* Fourier transforms of rows; used by the engine's arrays only. See vme.h for contexts, tensors and statuses. */
#ifndef VME_FFT_H
#define VME_FFT_H

#include "vme.h"

typedef enum vme_fft_kind {
    VME_FFT_FORWARD,
    VME_FFT_BACKWARD,      /* complex to complex */
    VME_FFT_REAL_FORWARD,  /* real to the first n/2+1 complex numbers */
    VME_FFT_REAL_BACKWARD, /* the inverse of it */
} vme_fft_kind;

/* Transforms of length n along the last dimension, times `factor`. Longer rows of `in` are cut, shorter ones are
 * zero-padded. `out` has rows of n elements (n/2+1 for REAL_FORWARD). Both are C-contiguous and of one precision:
 * float32 and complex64, or float64 and complex128. The stop flag is checked between rows; a long row runs on a
 * separate thread, which a stop abandons. */
VME_API vme_status vme_fft(vme_context *context, vme_fft_kind kind, int64_t n, double factor, const vme_tensor *in,
                           const vme_tensor *out);

#endif
