/* A value of a prepared model, and its layout and place in the arena.
 *
 * A value is a plain contiguous tensor of any rank and dtype, or a view of one. Values of rank 4 and float32 that image
 * operators write or read have an image's layout instead: channels last, with a margin of zeros as wide as the
 * convolutions that read it need. Those operators treat plain values of rank 2 as images of one pixel. An image can be
 * a range of another image's channels, so that concatenations are written in place and slices are read in place. With
 * any layout, a value is also a tensor with strides (model_tensor). */
#ifndef VME_MODEL_VALUE_H
#define VME_MODEL_VALUE_H

#include "models/file.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct model_value {
    char *name; /* owned; of inputs and outputs only */
    int kind, dtype, rank;
    int64_t shape[MODEL_RANK];   /* in ONNX's order */
    int64_t strides[MODEL_RANK]; /* in bytes, for its layout */
    unsigned empty_dims;         /* bit d: dimension d has size 0, and 1 while the plan is prepared (empty.c) */
    bool plain;                  /* never an image: views use it, or its rows are read in place */
    bool channels_last;          /* an image; otherwise plain */
    bool may_be_padded;          /* its rows of c elements may be padded */
    /* of float32 values of rank 2 or 4 */
    int64_t n, h, w, c;               /* images, rows, columns and channels */
    int64_t top, left, bottom, right; /* the margin in pixels */
    /* in elements, from a pixel, a row of pixels and an image to the next one */
    int64_t pixel_stride, row_stride, image_stride;
    int64_t bytes;            /* of its memory, with margin and padding */
    int64_t offset;           /* in the arena, in bytes; of a constant in the model's packed block, -1: not packed */
    int64_t margin_bytes;     /* from `offset` to the element at index 0 */
    int first_step;           /* that uses it; -1: none does */
    int last_step;            /* that uses it */
    int container;            /* the value that contains it, or -1 */
    int64_t container_offset; /* in bytes, from the start of that value */
    /* of an image interleaved with others in its container: it has every interleave_h-th row from phase_h on, and every
     * interleave_w-th column from phase_w on; 0: it has all pixels. Such an image contains no other value. */
    int interleave_h, interleave_w, phase_h, phase_w;
    bool is_container; /* other values are within it */
    int outside;       /* number of its address in the caller's memory, from 1 on (outside.c); 0: it is in the arena */
    int readers;       /* number of nodes and outputs that read it, at most 2 */
    /* bands.c: only this many of its rows are present, at this offset in bytes in a slot; 0: the whole value is */
    int64_t strip_rows, strip_offset;
} model_value;

/* The address of a pixel of a float32 image; row or column numbers outside the image are in its margin. */
static inline float *model_pixel(const model_value *value, char *arena, int64_t n, int64_t y, int64_t x)
{
    return (float *)(arena + value->offset) + n * value->image_stride + (value->top + y) * value->row_stride
           + (value->left + x) * value->pixel_stride;
}

#endif
