/* Scatter with more operations than the public function has, for models. */
#ifndef VME_INDEX_H
#define VME_INDEX_H

#include "runtime/internal.h"

/* Like vme_scatter, but stores the result of `op` on the old element and the value, in order if an index repeats. `op`
 * is a vme_binary_op that vme_scatters_by accepts, or -1 to store the value itself. */
vme_status vme_scatter_by(vme_context *context, const vme_tensor *values, int first, int count,
                          const vme_tensor *const *indices, int op, const vme_tensor *target);
bool vme_scatters_by(int op, int dtype);

#endif
