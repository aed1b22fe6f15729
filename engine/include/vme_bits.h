/* Bits of integers and of floats, a part of the engine that only its arrays call: see vme.h for contexts, tensors and statuses. */
#ifndef VME_BITS_H
#define VME_BITS_H

#include "vme.h"

/* How many bits are set in the absolute values of integers (or truths), uint8 of the same shape; any strides. */
VME_API vme_status vme_bit_count(vme_context *context, const vme_tensor *in, const vme_tensor *out);
/* Rows of truths to rows of bytes, eight to one, what is missing false; the first one in the highest bit (`big`) or the lowest. Both
 * C-contiguous, of one rank. */
VME_API vme_status vme_bits_pack(vme_context *context, bool big, const vme_tensor *in, const vme_tensor *out);
/* And back, to uint8 of 0 and 1, as many as the rows of `out` are long: zeros behind the last byte. */
VME_API vme_status vme_bits_unpack(vme_context *context, bool big, const vme_tensor *in, const vme_tensor *out);

/* Floats taken apart: mantissas in [0.5, 1) with the sign and exponents (int32) so that in[i] = mantissas[i] * 2 ** exponents[i]; zeros,
 * infinities and NaNs themselves and 0. float32 or float64, all C-contiguous and of one shape. */
VME_API vme_status vme_split(vme_context *context, const vme_tensor *in, const vme_tensor *mantissas, const vme_tensor *exponents);

#endif
