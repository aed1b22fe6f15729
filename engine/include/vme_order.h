/* Partial sorting, in addition to vme.h's sort and argsort: for partition, medians, quantiles and top-k. */
#ifndef VME_ORDER_H
#define VME_ORDER_H

#include "vme.h"

/* Partitions lines along `axis`: the elements at the `count` positions kth[0] < kth[1] < … (each below the line's
 * length) are those of the sorted line. No element before such a position is greater, and none after it is less.
 * `indices`: writes the indices of the elements, int64, instead. Complex numbers are sorted completely. */
VME_API vme_status vme_partition(vme_context *context, const vme_tensor *in, int axis, int count, const int64_t *kth,
                                 bool indices, const vme_tensor *out);

/* The first indices that argsort returns for each line; `out`'s size along `axis` is their number. */
VME_API vme_status vme_top(vme_context *context, const vme_tensor *in, int axis, bool descending,
                           const vme_tensor *out);

#endif
