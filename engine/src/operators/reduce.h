/* Accumulators of reductions, shared by reduce.c and the kernels.
 *
 * For sum and prod: int64 or uint64 for bool and integers, the element type for floats and complex. For max and min:
 * the element type. For all and any: bool. For count_nonzero: int64. For argmax and argmin: a vme_arg_accumulator. */
#ifndef VME_REDUCE_H
#define VME_REDUCE_H

#include "runtime/internal.h"

typedef struct vme_arg_accumulator {
    int64_t best;   /* index of the maximum or minimum, counted from the first element folded */
    int64_t seen;   /* elements folded so far */
    char value[16]; /* the maximum or minimum; undefined while `seen` is 0 */
} vme_arg_accumulator;

#endif
