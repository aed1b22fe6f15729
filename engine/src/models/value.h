/* A value of a prepared model, and where it lies in the arena.
 *
 * A value is a plain tensor, contiguous, of any rank and dtype, or a view of one. Values of rank 4 and float32 that
 * operators of images make or read lie as images instead, with channels last and a margin of zeros as wide as the
 * convolutions that read them want; for those operators plain values of rank 2 are images of one pixel. An image
 * can lie within another's channels: what is put together is written where it belongs, and a part is read where it
 * lies. Whatever its layout, a value is also a tensor with strides (model_tensor). */
#ifndef VME_MODEL_VALUE_H
#define VME_MODEL_VALUE_H

#include "models/file.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct model_value {
    char *name; /* owned; of inputs and outputs only */
    int kind, dtype, rank;
    int64_t shape[MODEL_RANK];   /* as ONNX has it */
    int64_t strides[MODEL_RANK]; /* bytes, in the layout that it has */
    bool plain;                  /* never an image: views see it, or rows of it are read */
    bool channels_last;          /* an image; else plain */
    bool may_be_apart;           /* its rows of c numbers may have gaps */
    /* of float32 of rank 2 or 4 */
    int64_t n, h, w, c;
    int64_t top, left, bottom, right; /* the margin */
    int64_t pixel, row, image;        /* elements from a pixel, a row of pixels and an image to the next */
    int64_t bytes, offset;            /* in the arena; of a constant in the model's packed block, -1: not there */
    int64_t start;                    /* bytes from there to the element at index 0: a margin */
    int first, last;                  /* steps that write and last read it */
    int within;                       /* the value whose bytes these are too, or -1 */
    int64_t inside;                   /* bytes from that one's place to this one's */
    /* of an image whose pixels lie apart in the one that it is within: every spread_h-th row from place_h on, every
     * spread_w-th column from place_w on; 0: it has all of them. Others are not within such a one. */
    int spread_h, spread_w, place_h, place_w;
    bool holds;  /* other values are within it */
    int outside; /* 1 ..: it lies in the caller's memory, that of a cache (caches.c) of this number; 0: in the arena */
    int readers; /* nodes and outputs, 2 at most */
    /* bands.c: only so many rows of it are there, so far into a slot; 0: all of it is */
    int64_t strip, strip_at;
} model_value;

static inline float *model_pixel(const model_value *value, char *arena, int64_t n, int64_t y, int64_t x)
{
    return (float *)(arena + value->offset) + n * value->image + (value->top + y) * value->row
           + (value->left + x) * value->pixel;
}

#endif
