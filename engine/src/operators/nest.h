/* Walks several operands of one shape together: a loop nest with as few and as long loops as their strides allow.
 *
 * Dimensions of size 1 are dropped, the others are ordered by strides (smallest innermost), and neighbours are merged
 * if every operand steps through both as through one. Two contiguous operands, or two of the same permuted layout,
 * become one loop. A nest is a value on the caller's stack (2.7 KiB) and owns nothing. A cursor walks any range of its
 * elements, so threads can share a nest.
 *
 *     vme_cursor at;
 *     int64_t n, left = end - begin;
 *     for (vme_nest_seek(&nest, begin, &at); left > 0; left -= n, vme_nest_advance(&nest, &at, n)) {
 *         n = vme_nest_run(&nest, &at, left);
 *         kernel(n, at.data[1], nest.loops[0].step[1], at.data[0], nest.loops[0].step[0]);
 *     } */
#ifndef VME_NEST_H
#define VME_NEST_H

#include "runtime/internal.h"

enum { VME_NEST_OPERANDS = 4 };

/* How far the order of elements may change. */
enum {
    VME_NEST_ANY = 0,     /* freely: dimensions are permuted, and reversed if every operand walks backwards */
    VME_NEST_ORDERED = 1, /* not at all: C order of the shape; dimensions are only dropped and merged */
};

typedef struct vme_loop {
    int64_t size;                    /* at least 2, except in the only loop of a nest of one element */
    int64_t step[VME_NEST_OPERANDS]; /* bytes */
} vme_loop;

typedef struct vme_nest {
    int operands, rank;            /* rank: loops, at least 1 */
    int64_t elements;              /* product of the sizes; 0: nothing to walk, a single loop of size 0 */
    char *data[VME_NEST_OPERANDS]; /* where the walk starts */
    vme_loop loops[VME_RANK_MAX];  /* loops[0] is the innermost */
} vme_nest;

typedef struct vme_cursor {
    char *data[VME_NEST_OPERANDS];
    int64_t index[VME_RANK_MAX]; /* of each loop, as nest.loops */
} vme_cursor;

/* `strides[o]`: the `rank` steps in bytes of operand o through `shape` (0 where it is broadcast). Operand 0, the
 * output, counts double in the choice of the innermost dimension. */
void vme_nest_make(vme_nest *nest, int flags, int rank, const int64_t *shape, int operands,
                   const int64_t *const *strides, char *const *data);

/* Moves the cursor to element number `element` (below nest->elements) of the walk. */
void vme_nest_seek(const vme_nest *nest, int64_t element, vme_cursor *cursor);

/* Advances the outer loops; vme_nest_advance calls it at the end of the innermost one. */
void vme_nest_carry(const vme_nest *nest, vme_cursor *cursor);

/* The elements left in the innermost loop, at most `limit`. */
static inline int64_t vme_nest_run(const vme_nest *nest, const vme_cursor *cursor, int64_t limit)
{
    int64_t left = nest->loops[0].size - cursor->index[0];
    return left < limit ? left : limit;
}

/* Advances by `n` elements, at most what vme_nest_run returned. */
static inline void vme_nest_advance(const vme_nest *nest, vme_cursor *cursor, int64_t n)
{
    for (int o = 0; o < nest->operands; o++)
        cursor->data[o] += n * nest->loops[0].step[o];
    cursor->index[0] += n;
    if (cursor->index[0] == nest->loops[0].size)
        vme_nest_carry(nest, cursor);
}

#endif
