/* Counting (bincount, histograms) and linear interpolation; used by the engine's arrays only. See vme.h for contexts,
 * tensors and statuses. */
#ifndef VME_TABLES_H
#define VME_TABLES_H

#include "vme.h"

/* table[indices[i]] += weights[i], or += 1 if `weights` is NULL, in order. `indices`: int64. `table`: int64, or float64
 * like the weights. All are of rank 1 and contiguous. VME_BAD_INDEX: an index is outside the table. */
VME_API vme_status vme_count(vme_context *context, const vme_tensor *indices, const vme_tensor *weights,
                             const vme_tensor *table);
/* out[i] is the linear interpolation at x[i] between the points (xp, fp), of which there is at least one, with xp
 * ascending; `left` below the first point, `right` above the last one. NaN stays NaN. All are float64 and contiguous:
 * xp and fp of rank 1 and one length, x and out of one shape. */
VME_API vme_status vme_interpolate(vme_context *context, const vme_tensor *x, const vme_tensor *xp,
                                   const vme_tensor *fp, double left, double right, const vme_tensor *out);

#endif
