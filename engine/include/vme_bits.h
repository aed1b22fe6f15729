/* Bits, and the parts of floats; used by the engine's arrays only. See vme.h for contexts, tensors and statuses. */
#ifndef VME_BITS_H
#define VME_BITS_H

#include "vme.h"

/* The bytes that hold so many bools. */
static inline int64_t vme_bits_bytes(int64_t bools) { return bools / 8 + (bools % 8 != 0); }

/* Packs rows of bools into rows of bytes, eight to a byte, padded with false. The first bool is the highest bit (`big`)
 * or the lowest. Both tensors are C-contiguous and of one rank. */
VME_API vme_status vme_bits_pack(vme_context *context, bool big, const vme_tensor *in, const vme_tensor *out);
/* The inverse: rows of `out` are uint8 of 0 and 1, with zeros after the last byte's bits. */
VME_API vme_status vme_bits_unpack(vme_context *context, bool big, const vme_tensor *in, const vme_tensor *out);

/* Splits float32 or float64; the dtype of `second` selects how. int32: signed mantissas with magnitudes in [0.5, 1),
 * and exponents, so that in[i] = first[i] * 2 ** second[i]; zeros, infinities and NaNs keep their value, with exponent
 * 0. The dtype of `in`: fractional and integer parts, both with the sign. All tensors are C-contiguous and of one
 * shape. */
VME_API vme_status vme_split(vme_context *context, const vme_tensor *in, const vme_tensor *first,
                             const vme_tensor *second);

#endif
