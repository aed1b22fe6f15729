/* Loop nests over several operands: dropping, ordering and merging dimensions. */
#include "operators/nest.h"

static uint64_t magnitude(int64_t step) { return step < 0 ? -(uint64_t)step : (uint64_t)step; }

/* Sort key of a loop: loops with larger steps belong further out. Saturates, because strides may be anything. */
static uint64_t weight(const vme_loop *loop, int operands)
{
    uint64_t sum = 0;
    for (int o = 0; o < operands; o++) {
        uint64_t bytes = magnitude(loop->step[o]);
        if (__builtin_add_overflow(sum, bytes, &sum) || (o == 0 && __builtin_add_overflow(sum, bytes, &sum)))
            return UINT64_MAX;
    }
    return sum;
}

/* Reverses a loop if that makes every step positive or zero. */
static void make_forward(vme_nest *nest, vme_loop *loop)
{
    bool backwards = false;
    for (int o = 0; o < nest->operands; o++) {
        if (loop->step[o] > 0)
            return;
        backwards = backwards || loop->step[o] < 0;
    }
    if (!backwards)
        return;
    for (int o = 0; o < nest->operands; o++) {
        nest->data[o] += loop->step[o] * (loop->size - 1);
        loop->step[o] = -loop->step[o];
    }
}

static bool mergeable(const vme_loop *inner, const vme_loop *outer, int operands)
{
    for (int o = 0; o < operands; o++)
        if (outer->step[o] != inner->step[o] * inner->size)
            return false;
    return true;
}

void vme_nest_make(vme_nest *nest, int flags, int rank, const int64_t *shape, int operands,
                   const int64_t *const *strides, char *const *data)
{
    nest->operands = operands;
    nest->rank = 0;
    nest->elements = 1;
    for (int o = 0; o < operands; o++)
        nest->data[o] = data[o];
    for (int i = 0; i < rank; i++)
        nest->elements *= shape[i];
    /* insertion sort from the last dimension, which stays innermost among equal weights */
    for (int i = nest->elements == 0 ? -1 : rank - 1; i >= 0; i--) {
        if (shape[i] == 1)
            continue;
        vme_loop loop = {.size = shape[i]};
        for (int o = 0; o < operands; o++)
            loop.step[o] = strides[o][i];
        int at = nest->rank++;
        if (flags != VME_NEST_ORDERED) {
            make_forward(nest, &loop);
            for (uint64_t loop_weight = weight(&loop, operands);
                 at > 0 && weight(&nest->loops[at - 1], operands) > loop_weight; at--)
                nest->loops[at] = nest->loops[at - 1];
        }
        nest->loops[at] = loop;
    }
    if (nest->rank == 0) {
        nest->rank = 1;
        nest->loops[0] = (vme_loop){.size = nest->elements};
        return;
    }
    int last = 0;
    for (int i = 1; i < nest->rank; i++) {
        vme_loop *inner = &nest->loops[last], *outer = &nest->loops[i];
        if (mergeable(inner, outer, operands))
            inner->size *= outer->size;
        else
            nest->loops[++last] = *outer;
    }
    nest->rank = last + 1;
}

void vme_nest_seek(const vme_nest *nest, int64_t element, vme_cursor *cursor)
{
    for (int o = 0; o < nest->operands; o++)
        cursor->data[o] = nest->data[o];
    for (int i = 0; i < nest->rank; i++) {
        const vme_loop *loop = &nest->loops[i];
        int64_t index = element == 0 ? 0 : element % loop->size;
        element = element == 0 ? 0 : element / loop->size;
        cursor->index[i] = index;
        for (int o = 0; o < nest->operands; o++)
            cursor->data[o] += index * loop->step[o];
    }
}

void vme_nest_carry(const vme_nest *nest, vme_cursor *cursor)
{
    for (int i = 0;; i++) {
        const vme_loop *loop = &nest->loops[i];
        cursor->index[i] = 0;
        for (int o = 0; o < nest->operands; o++)
            cursor->data[o] -= loop->size * loop->step[o];
        if (i + 1 == nest->rank)
            return; /* the end of the walk, which wraps to its beginning */
        loop++;
        for (int o = 0; o < nest->operands; o++)
            cursor->data[o] += loop->step[o];
        if (++cursor->index[i + 1] < loop->size)
            return;
    }
}
