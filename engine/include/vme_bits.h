/* Bits, and the parts of floats, a part of the engine that only its arrays call: see vme.h for contexts, tensors and
 * statuses. */
#ifndef VME_BITS_H
#define VME_BITS_H

#include "vme.h"

/* Rows of truths to rows of bytes, eight to one, what is missing false; the first one in the highest bit (`big`) or the
 * lowest. Both C-contiguous, of one rank. */
VME_API vme_status vme_bits_pack(vme_context *context, bool big, const vme_tensor *in, const vme_tensor *out);
/* And back, to uint8 of 0 and 1, as many as the rows of `out` are long: zeros behind the last byte. */
VME_API vme_status vme_bits_unpack(vme_context *context, bool big, const vme_tensor *in, const vme_tensor *out);

/* Floats taken apart, all C-contiguous, of float32 or float64 and of one shape. `second` of int32: mantissas in [0.5,
 * 1) with the sign and exponents, so that in[i] = first[i] * 2 ** second[i]; zeros, infinities and NaNs are themselves
 * and 0. `second` of in's dtype: fractional and whole parts, both with the sign. */
VME_API vme_status vme_split(vme_context *context, const vme_tensor *in, const vme_tensor *first,
                             const vme_tensor *second);

#endif
