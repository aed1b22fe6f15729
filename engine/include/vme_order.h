/* Partial sorting, in addition to vme.h's sort and argsort: for partition, medians, quantiles and the largest few. */
#ifndef VME_ORDER_H
#define VME_ORDER_H

#include "vme.h"

/* Partitions lines along `axis`: the elements with indices kth[0] < kth[1] < … (`count` of them, each below the line's
 * length) are at their sorted positions, none before them is greater, none after them is less. `indices`: the indices
 * of such an order, int64. Complex numbers are sorted completely. */
VME_API vme_status vme_partition(vme_context *context, const vme_tensor *in, int axis, int count, const int64_t *kth,
                                 bool indices, const vme_tensor *out);

/* The first indices of each line that argsort would give, as many as `out` is long along `axis`. */
VME_API vme_status vme_top(vme_context *context, const vme_tensor *in, int axis, bool descending,
                           const vme_tensor *out);

#endif
