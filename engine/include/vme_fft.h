/* Fourier transforms of rows, a part of the engine that only its arrays call: see vme.h for contexts, tensors and
 * statuses. */
#ifndef VME_FFT_H
#define VME_FFT_H

#include "vme.h"

typedef enum vme_fft_kind {
    VME_FFT_FORWARD,
    VME_FFT_BACKWARD,      /* complex to complex */
    VME_FFT_REAL_FORWARD,  /* real to the first n/2+1 complex ones */
    VME_FFT_REAL_BACKWARD, /* and back */
} vme_fft_kind;

/* Transforms of length n along the last dimension, times `factor`. Rows of `in` that are longer are cut, shorter ones
 * are filled with zeros; `out` has rows of n (n/2+1 for REAL_FORWARD). Both C-contiguous, of one precision: float32 and
 * complex64, or float64 and complex128. A stop arrives between two rows, and leaves a long one to the thread that it
 * was handed to. */
VME_API vme_status vme_fft(vme_context *context, vme_fft_kind kind, int64_t n, double factor, const vme_tensor *in,
                           const vme_tensor *out);

#endif
