/* The data-movement primitive inside the engine: everything that copies, casts or rearranges elements uses it. */
#ifndef VME_RASTER_H
#define VME_RASTER_H

#include "runtime/internal.h"

/* One side of a move: the element at index 0, 0, … and steps in bytes of any sign. */
typedef struct vme_side {
    const char *data;
    const int64_t *strides;
    int element; /* bytes */
} vme_side;

/* out[i] = in[i] for every index i below `shape` (rank 0 to VME_RANK_MAX). The two sides must not overlap. `cast` NULL:
 * both have one element size and elements are copied unchanged; otherwise it converts them. Divided among threads if
 * large. */
vme_status vme_move(vme_context *context, int rank, const int64_t *shape, vme_side in, vme_side out, vme_loop1 *cast);

/* Makes a contiguous tensor of the shape and dtype of `like`, in a new buffer, for operators whose output overlaps an
 * input. `strides` is the memory for its strides. The caller releases the buffer. */
vme_status vme_temporary_new(vme_context *context, const vme_tensor *like, int64_t strides[VME_RANK_MAX],
                             vme_tensor *temporary);

#endif
