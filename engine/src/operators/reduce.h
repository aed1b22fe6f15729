/* What reduce.c and the kernels agree on.
 *
 * An accumulator of sum and prod is int64 or uint64 for bool and integers, the element's type for floats and complex;
 * of max and min the element's type; of all and any bool; of count_nonzero int64; of argmax and argmin a
 * vme_arg_accumulator. */
#ifndef VME_REDUCE_H
#define VME_REDUCE_H

#include "runtime/internal.h"

typedef struct vme_arg_accumulator {
    int64_t best;   /* where the extreme stands, counted from the first element folded */
    int64_t seen;   /* elements folded so far */
    char value[16]; /* the extreme; means nothing while `seen` is 0 */
} vme_arg_accumulator;

#endif
