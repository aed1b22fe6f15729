/* Bits, and the parts of floats; used by the engine's arrays only. See vme.h for contexts, tensors and statuses. */
#ifndef VME_BITS_H
#define VME_BITS_H

#include "vme.h"

/* Packs rows of bools into rows of bytes, eight to a byte, padded with false; the first one is the highest bit (`big`)
 * or the lowest. Both C-contiguous, of one rank. */
VME_API vme_status vme_bits_pack(vme_context *context, bool big, const vme_tensor *in, const vme_tensor *out);
/* Unpacks to uint8 of 0 and 1, as many as rows of `out` are long: zeros after the last byte. */
VME_API vme_status vme_bits_unpack(vme_context *context, bool big, const vme_tensor *in, const vme_tensor *out);

/* Splits floats; all tensors are C-contiguous, of float32 or float64 and of one shape. `second` of int32: signed
 * mantissas in [0.5, 1), and exponents, so that in[i] = first[i] * 2 ** second[i]; zeros, infinities and NaNs keep
 * their value, with exponent 0. `second` of in's dtype: fractional and integer parts, both with the sign. */
VME_API vme_status vme_split(vme_context *context, const vme_tensor *in, const vme_tensor *first,
                             const vme_tensor *second);

#endif
