/* Partial order, beside vme.h's sort and argsort: what the array type calls for partition, medians and quantiles. */
#ifndef VME_ORDER_H
#define VME_ORDER_H

#include "vme.h"

/* Lines along `axis` with the elements numbered kth[0] < kth[1] < … (`count` of them, each below the line's length)
 * where sorting would put them, what is before not greater, what is behind not less. `indices`: the indices of such an
 * order, int64. Complex numbers are sorted altogether. */
VME_API vme_status vme_partition(vme_context *context, const vme_tensor *in, int axis, int count, const int64_t *kth,
                                 bool indices, const vme_tensor *out);

#endif
