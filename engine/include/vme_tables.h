/* Tables that numbers are counted into and looked up in, a part of the engine that only its arrays call: see vme.h for
 * contexts, tensors and statuses. */
#ifndef VME_TABLES_H
#define VME_TABLES_H

#include "vme.h"

/* table[places[i]] += weights[i], or 1 without weights, in order: `indices` int64, `table` int64, or float64 as the
 * weights, all of rank 1 and contiguous. A place outside of the table is VME_BAD_INDEX. */
VME_API vme_status vme_count(vme_context *context, const vme_tensor *indices, const vme_tensor *weights,
                             const vme_tensor *table);
/* out[i]: the value at x[i] on straight lines between the points (xp, fp), xp rising, at least one; `left` below the
 * first, `right` above the last; a NaN stays itself. All float64 and contiguous, xp and fp of rank 1 and one length, x
 * and out of one shape. */
VME_API vme_status vme_interpolate(vme_context *context, const vme_tensor *x, const vme_tensor *xp,
                                   const vme_tensor *fp, double left, double right, const vme_tensor *out);

#endif
