/* Indexing: gather, scatter (which may also combine elements), and the indices of true elements.
 *
 * Index tensors are first converted to one list of byte offsets. Negative indices and bounds are resolved there, so
 * that scatter writes nothing if an index is out of bounds. Then, for each index into the leading dimensions and each
 * entry of the list, the block of trailing dimensions is copied. */
#include <string.h>

#include "operators/elements.h"
#include "operators/index.h"
#include "operators/nest.h"
#include "operators/raster.h"

enum { PIECE_BYTES = 1 << 16, OFFSETS_PIECE = 16384 };

/* ---- offsets */
typedef struct offsets {
    vme_nest nest;      /* over the list and an index tensor */
    int64_t size, step; /* of the indexed dimension */
    int axis;
    bool overwrite; /* offsets replace the list's entries; otherwise they are added */
} offsets;

static vme_status bad_index(const offsets *o, int64_t index)
{
    return vme_fail(VME_BAD_INDEX, "index %lld is out of bounds for axis %d with size %lld", (long long)index, o->axis,
                    (long long)o->size);
}

static vme_status add_offsets(void *argument, int64_t begin, int64_t end)
{
    const offsets *o = argument;
    vme_cursor at;
    int64_t n;
    vme_nest_seek(&o->nest, begin, &at);
    for (int64_t i = begin; i < end; i += n, vme_nest_advance(&o->nest, &at, n)) {
        n = vme_nest_run(&o->nest, &at, end - i);
        int64_t *list = (int64_t *)at.data[0], list_step = o->nest.loops[0].step[0] / 8,
                index_step = o->nest.loops[0].step[1];
        for (int64_t j = 0; j < n; j++) {
            int64_t index = *(const e_i64 *)(at.data[1] + j * index_step),
                    position = index < 0 ? index + o->size : index;
            if ((uint64_t)position >= (uint64_t)o->size)
                return bad_index(o, index);
            list[j * list_step] = (o->overwrite ? 0 : list[j * list_step]) + position * o->step;
        }
    }
    return VME_OK;
}

/* Computes the byte offsets that `count` index tensors, broadcast to `shape`, select in dimensions first, first + 1, …
 * of `tensor`. `*list` is scratch memory of `*bytes`, in C order. */
static vme_status offsets_new(vme_context *context, const vme_tensor *tensor, int first, int count,
                              const vme_tensor *const *indices, int rank, const int64_t *shape, int64_t **list,
                              size_t *bytes)
{
    int64_t list_strides[VME_RANK_MAX], strides[VME_RANK_MAX];
    vme_status status = vme_shape_bytes(VME_INT64, rank, shape, list_strides, bytes);
    if (status != VME_OK)
        return status;
    *list = vme_scratch_new(context, *bytes);
    if (*list == NULL)
        return VME_NO_MEMORY;
    vme_tensor full = {.shape = shape, .rank = rank, .dtype = VME_INT64};
    for (int i = 0; i < count && status == VME_OK; i++) {
        offsets o = {.size = tensor->shape[first + i],
                     .step = tensor->strides[first + i],
                     .axis = first + i,
                     .overwrite = i == 0};
        status = vme_broadcast_strides(indices[i], &full, strides);
        if (status != VME_OK)
            break;
        vme_nest_make(&o.nest, VME_NEST_ANY, rank, shape, 2, (const int64_t *const[]){list_strides, strides},
                      (char *const[]){(char *)*list, indices[i]->data});
        status = vme_parallel(context, o.nest.elements, OFFSETS_PIECE, add_offsets, &o);
    }
    if (status != VME_OK)
        vme_scratch_free(context, *list, *bytes);
    return status;
}

/* ---- transfer between the indexed tensor and the values (gather's output, scatter's input)
 * The shape of the values is lead + middle + tail, where the middle dimensions are the list's. */
typedef struct transfer {
    vme_nest middle;            /* over the values and the list */
    vme_nest lead, tail;        /* over the values and the indexed tensor */
    const char *values_origin;  /* first element of the values, where all nests over them start */
    const char *indexed_origin; /* first element of the indexed tensor */
    int element;
    bool scatter;
    vme_loop2 *combine; /* for scatter: combines the old element with the value; NULL: the value replaces it */
    int sum_dtype;      /* the dtype in which `combine` adds; -1: it is another operation */
    vme_loop1 *strided;
} transfer;

#define TRANSFER_EACH(type) \
    for (int64_t i = 0; i < n; i++) { \
        type *indexed = (type *)(base + *(const int64_t *)(list + i * list_step)), \
             *value = (type *)(values + i * values_step); \
        if (t->scatter) \
            *indexed = *value; \
        else \
            *value = *indexed; \
    } \
    return

#define ADD_EACH(type) \
    for (int64_t i = 0; i < n; i++) \
        *(type *)(base + *(const int64_t *)(list + i * list_step)) += *(type *)(values + i * values_step); \
    return

/* Transfers single elements. */
static void transfer_elements(const transfer *t, int64_t n, char *base, const char *list, int64_t list_step,
                              char *values, int64_t values_step)
{
    if (t->combine != NULL) {
        switch (t->sum_dtype) { /* the most frequent sums; others call the kernel for each element */
        case VME_INT64:
        case VME_UINT64: ADD_EACH(e_u64);
        case VME_FLOAT32: ADD_EACH(e_f32);
        case VME_FLOAT64: ADD_EACH(e_f64);
        }
        for (int64_t i = 0; i < n; i++) {
            char *indexed = base + *(const int64_t *)(list + i * list_step);
            t->combine(1, indexed, 0, values + i * values_step, 0, indexed, 0);
        }
        return;
    }
    switch (t->element) {
    case 1: TRANSFER_EACH(e_u8);
    case 2: TRANSFER_EACH(e_u16);
    case 4: TRANSFER_EACH(e_u32);
    case 8: TRANSFER_EACH(e_u64);
    default: TRANSFER_EACH(e_c128);
    }
}

/* Transfers a run of the trailing dimensions. */
static void transfer_run(const transfer *t, int64_t n, char *indexed, int64_t indexed_step, char *values,
                         int64_t values_step)
{
    if (t->combine != NULL)
        t->combine(n, indexed, indexed_step, values, values_step, indexed, indexed_step);
    else if (indexed_step == t->element && values_step == t->element)
        memcpy(t->scatter ? indexed : values, t->scatter ? values : indexed, (size_t)(n * t->element));
    else if (t->scatter)
        t->strided(n, values, values_step, indexed, indexed_step);
    else
        t->strided(n, indexed, indexed_step, values, values_step);
}

static void transfer_block(const transfer *t, char *indexed, char *values)
{
    const vme_nest *tail = &t->tail;
    const vme_loop *inner = &tail->loops[0];
    if (tail->rank == 1) {
        transfer_run(t, inner->size, indexed + (tail->data[1] - t->indexed_origin), inner->step[1],
                     values + (tail->data[0] - t->values_origin), inner->step[0]);
        return;
    }
    vme_cursor at;
    vme_nest_seek(tail, 0, &at);
    for (int64_t left = tail->elements; left > 0; left -= inner->size, vme_nest_advance(tail, &at, inner->size))
        transfer_run(t, inner->size, indexed + (at.data[1] - t->indexed_origin), inner->step[1],
                     values + (at.data[0] - t->values_origin), inner->step[0]);
}

/* Transfers blocks `begin` to `end` - 1: one for each leading index and each entry of the list, which is the inner
 * loop. */
static vme_status transfer_positions(void *argument, int64_t begin, int64_t end)
{
    const transfer *t = argument;
    vme_cursor lead, at;
    int64_t positions = t->middle.elements, from = begin % positions;
    vme_nest_seek(&t->lead, begin / positions, &lead);
    for (int64_t left = end - begin, to; left > 0; left -= to - from, from = 0, vme_nest_advance(&t->lead, &lead, 1)) {
        to = positions - from < left ? positions : from + left;
        int64_t n;
        vme_nest_seek(&t->middle, from, &at);
        for (int64_t i = from; i < to; i += n, vme_nest_advance(&t->middle, &at, n)) {
            n = vme_nest_run(&t->middle, &at, to - i);
            char *values = at.data[0] + (lead.data[0] - t->values_origin);
            int64_t values_step = t->middle.loops[0].step[0], list_step = t->middle.loops[0].step[1];
            if (t->tail.elements == 1)
                transfer_elements(t, n, lead.data[1], at.data[1], list_step, values, values_step);
            else
                for (int64_t j = 0; j < n; j++)
                    transfer_block(t, lead.data[1] + *(const int64_t *)(at.data[1] + j * list_step),
                                   values + j * values_step);
        }
    }
    return VME_OK;
}

/* Runs the transfer. `values` has strides for the whole shape lead + middle + tail. */
static vme_status run(vme_context *context, transfer *t, const vme_tensor *indexed, int first, int count, int middle,
                      const int64_t *shape, const int64_t *values_strides, char *values, int64_t *list)
{
    int64_t list_strides[VME_RANK_MAX];
    size_t bytes;
    int tail = indexed->rank - first - count, flags = t->scatter ? VME_NEST_ORDERED : VME_NEST_ANY;
    vme_status status = vme_shape_bytes(VME_INT64, middle, shape + first, list_strides, &bytes);
    if (status != VME_OK)
        return status;
    t->element = vme_dtype_size((vme_dtype)indexed->dtype);
    t->strided = vme_kernels_current()->move.strided[__builtin_ctz((unsigned)t->element)];
    t->values_origin = values;
    t->indexed_origin = indexed->data;
    vme_nest_make(&t->middle, flags, middle, shape + first, 2,
                  (const int64_t *const[]){values_strides + first, list_strides},
                  (char *const[]){values, (char *)list});
    vme_nest_make(&t->lead, VME_NEST_ANY, first, shape, 2, (const int64_t *const[]){values_strides, indexed->strides},
                  (char *const[]){values, indexed->data});
    vme_nest_make(&t->tail, VME_NEST_ANY, tail, shape + first + middle, 2,
                  (const int64_t *const[]){values_strides + first + middle, indexed->strides + first + count},
                  (char *const[]){values, indexed->data});
    int64_t block = t->tail.elements * t->element, blocks = t->lead.elements * t->middle.elements;
    if (block == 0 || blocks == 0)
        return VME_OK;
    int64_t grain = block >= PIECE_BYTES ? 1 : PIECE_BYTES / block;
    if (!t->scatter)
        return vme_parallel(context, blocks, grain, transfer_positions, t);
    /* indices may repeat: one thread, so that the last value wins and values are combined in order */
    for (int64_t begin = 0; begin < blocks && status == VME_OK; begin += grain) {
        if (vme_stopping(context))
            return vme_stopped_here(context);
        status = transfer_positions(t, begin, begin + grain < blocks ? begin + grain : blocks);
    }
    return status;
}

/* The shape of the result: lead + broadcast indices + tail. */
static vme_status indexed_shape(const vme_tensor *indexed, int first, int count, const vme_tensor *const *indices,
                                int *rank, int *middle, int64_t *shape)
{
    if (first < 0 || count < 1 || first + count > indexed->rank)
        return vme_fail(VME_BAD_INDEX, "too many indices for array: array is %d-dimensional, but %d were indexed",
                        indexed->rank, first + count);
    for (int i = 0; i < count; i++)
        if (indices[i]->dtype != VME_INT64)
            return vme_fail(VME_BAD_DTYPE, "arrays used as indices must be of integer (or boolean) type");
    int64_t broadcast[VME_RANK_MAX];
    vme_status status = vme_shape_broadcast(count, indices, middle, broadcast);
    if (status != VME_OK)
        return vme_fail(VME_BAD_INDEX, "shape mismatch: indexing arrays could not be broadcast together");
    *rank = indexed->rank - count + *middle;
    if (*rank > VME_RANK_MAX)
        return vme_fail(VME_BAD_INDEX, "number of dimensions must be within [0, %d], indexing result would have %d",
                        VME_RANK_MAX, *rank);
    for (int d = 0; d < first; d++)
        shape[d] = indexed->shape[d];
    for (int d = 0; d < *middle; d++)
        shape[first + d] = broadcast[d];
    for (int d = first + count; d < indexed->rank; d++)
        shape[d - count + *middle] = indexed->shape[d];
    return VME_OK;
}

/* ---- fast path without a list: gathers single elements of a vector or a matrix by contiguous indices */
typedef struct direct_gather {
    int count; /* number of indices: 1 or 2 */
    struct {
        int64_t size, step; /* of the indexed dimension */
        const e_i64 *list;
    } index[2];
    const char *in;
    char *out;
    int element;
} direct_gather;

/* The position of element `i` along dimension `d`. Stops if it is out of bounds: the checked path reports which index
 * it was. */
#define POSITION(position, d, i) \
    int64_t position = index##d[i]; \
    if (__builtin_expect((uint64_t)position >= (uint64_t)size##d, 0)) { \
        if (position >= 0 || position < -size##d) \
            return VME_BAD_INDEX; \
        position += size##d; \
    }
#define GATHER(type) \
    if (p->count == 1) \
        for (int64_t i = begin; i < end; i++) { \
            POSITION(first, 0, i) \
            ((type *)out)[i] = *(const type *)(in + first * step0); \
        } \
    else \
        for (int64_t i = begin; i < end; i++) { \
            POSITION(first, 0, i) \
            POSITION(second, 1, i) \
            ((type *)out)[i] = *(const type *)(in + first * step0 + second * step1); \
        } \
    return VME_OK

static vme_status gather_range(void *argument, int64_t begin, int64_t end)
{
    const direct_gather *p = argument;
    const int64_t size0 = p->index[0].size, step0 = p->index[0].step, size1 = p->index[1].size,
                  step1 = p->index[1].step;
    const e_i64 *index0 = p->index[0].list, *index1 = p->index[1].list;
    const char *in = p->in;
    char *out = p->out;
    switch (p->element) {
    case 1: GATHER(e_u8);
    case 2: GATHER(e_u16);
    case 4: GATHER(e_u32);
    case 8: GATHER(e_u64);
    default: GATHER(e_c128);
    }
}

static bool can_gather_directly(const vme_tensor *in, int count, const vme_tensor *const *indices,
                                const vme_tensor *out)
{
    bool simple = in->rank == count && count <= 2 && vme_is_contiguous(out);
    for (int d = 0; d < count && simple; d++)
        simple = vme_is_contiguous(indices[d]) && indices[d]->rank == out->rank
                 && memcmp(indices[d]->shape, out->shape, (size_t)out->rank * sizeof *out->shape) == 0;
    return simple;
}

/* Returns VME_BAD_INDEX without a message if an index is out of bounds: the checked path reports which one. */
static vme_status gather_directly(vme_context *context, const vme_tensor *in, int count,
                                  const vme_tensor *const *indices, const vme_tensor *out)
{
    direct_gather p = {
        .count = count, .in = in->data, .out = out->data, .element = vme_dtype_size((vme_dtype)in->dtype)};
    for (int d = 0; d < count; d++) {
        p.index[d].size = in->shape[d];
        p.index[d].step = in->strides[d];
        p.index[d].list = (const e_i64 *)(void *)indices[d]->data;
    }
    return vme_parallel(context, vme_elements(out), OFFSETS_PIECE, gather_range, &p);
}

vme_status vme_gather(vme_context *context, const vme_tensor *in, int first, int count,
                      const vme_tensor *const *indices, const vme_tensor *out)
{
    int rank, middle;
    int64_t shape[VME_RANK_MAX];
    vme_status status = vme_check_output(out);
    if (status == VME_OK)
        status = indexed_shape(in, first, count, indices, &rank, &middle, shape);
    if (status != VME_OK)
        return status;
    if (rank != out->rank || memcmp(shape, out->shape, (size_t)rank * sizeof *shape) != 0)
        return vme_fail(VME_BAD_SHAPE, "the output of gather has another shape than its result");
    bool needs_copy = in->dtype != out->dtype || vme_overlap(in, out);
    for (int i = 0; i < count; i++)
        needs_copy = needs_copy || vme_overlap(indices[i], out);
    if (needs_copy) {
        int64_t strides[VME_RANK_MAX];
        vme_tensor like = *out, copy;
        like.dtype = in->dtype;
        status = vme_temporary_new(context, &like, strides, &copy);
        if (status != VME_OK)
            return status;
        status = vme_gather(context, in, first, count, indices, &copy);
        if (status == VME_OK)
            status = vme_copy(context, &copy, out);
        vme_buffer_unref(copy.buffer);
        return status;
    }
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    if (can_gather_directly(in, count, indices, out)) {
        status = gather_directly(context, in, count, indices, out);
        if (status != VME_BAD_INDEX)
            return status;
    }
    int64_t *list;
    size_t bytes;
    status = offsets_new(context, in, first, count, indices, middle, shape + first, &list, &bytes);
    if (status != VME_OK)
        return status;
    transfer t = {.scatter = false};
    status = run(context, &t, in, first, count, middle, shape, out->strides, out->data, list);
    vme_scratch_free(context, list, bytes);
    return status;
}

/* Adds float16 one element at a time, because each sum is rounded, as in the other dtypes. */
static void add_halves(int64_t n, const char *a, int64_t a_step, const char *b, int64_t b_step, char *out,
                       int64_t out_step)
{
    const vme_elementwise_kernels *kernels = &vme_kernels_current()->elementwise;
    vme_loop1 *widen = kernels->cast[VME_FLOAT16][VME_FLOAT32], *narrow = kernels->cast[VME_FLOAT32][VME_FLOAT16];
    for (int64_t i = 0; i < n; i++) {
        float x, y;
        widen(1, a + i * a_step, 0, (char *)&x, 0);
        widen(1, b + i * b_step, 0, (char *)&y, 0);
        x += y;
        narrow(1, (const char *)&x, 0, out + i * out_step, 0);
    }
}

static vme_loop2 *combine_kernel(int op, int dtype)
{
    return op == VME_ADD && dtype == VME_FLOAT16 ? add_halves : vme_kernels_current()->elementwise.binary[op][dtype];
}

bool vme_scatters_by(int op, int dtype)
{
    return (op == VME_ADD || op == VME_MULTIPLY || op == VME_MAXIMUM || op == VME_MINIMUM)
           && combine_kernel(op, dtype) != NULL;
}

vme_status vme_scatter(vme_context *context, const vme_tensor *values, int first, int count,
                       const vme_tensor *const *indices, bool add, const vme_tensor *target)
{
    return vme_scatter_by(context, values, first, count, indices, add ? VME_ADD : -1, target);
}

vme_status vme_scatter_by(vme_context *context, const vme_tensor *values, int first, int count,
                          const vme_tensor *const *indices, int op, const vme_tensor *target)
{
    int rank, middle;
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX];
    vme_status status = vme_check_output(target);
    if (status == VME_OK)
        status = indexed_shape(target, first, count, indices, &rank, &middle, shape);
    if (status != VME_OK)
        return status;
    vme_tensor full = {.shape = shape, .rank = rank, .dtype = target->dtype};
    status = vme_broadcast_strides(values, &full, strides);
    if (status != VME_OK)
        return status;
    if (values->dtype != target->dtype || vme_overlap(values, target)) {
        vme_tensor like = *values, copy;
        like.dtype = target->dtype;
        status = vme_temporary_new(context, &like, strides, &copy);
        if (status != VME_OK)
            return status;
        status = vme_copy(context, values, &copy);
        if (status == VME_OK)
            status = vme_scatter_by(context, &copy, first, count, indices, op, target);
        vme_buffer_unref(copy.buffer);
        return status;
    }
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    transfer t = {.scatter = true};
    if (op >= 0) {
        t.combine = combine_kernel(op, target->dtype);
        t.sum_dtype = op == VME_ADD ? target->dtype : -1;
    }
    int64_t *list;
    size_t bytes;
    status = offsets_new(context, target, first, count, indices, middle, shape + first, &list, &bytes);
    if (status != VME_OK)
        return status;
    status = run(context, &t, target, first, count, middle, shape, strides, values->data, list);
    vme_scratch_free(context, list, bytes);
    return status;
}

/* ---- masks */
static vme_status count_true(vme_context *context, const vme_tensor *mask, int64_t *count)
{
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX];
    for (int d = 0; d < mask->rank; d++)
        shape[d] = 1, strides[d] = 8;
    vme_tensor out = {
        .data = (char *)count, .shape = shape, .strides = strides, .rank = mask->rank, .dtype = VME_INT64};
    uint64_t axes = mask->rank == 64 ? UINT64_MAX : ((uint64_t)1 << mask->rank) - 1;
    return vme_reduce(context, VME_COUNT_NONZERO, VME_BOOL, mask, axes, NULL, &out);
}

/* Stores the columns from `begin` to `end` - 1 in which a row is true, in entries `found` to `count` - 1 of `out`.
 * Returns the next free entry. Every column is stored, and the next one overwrites it if it is false, so there is no
 * branch on the mask except to skip eight false columns. */
static int64_t store_true_columns(const char *row, int64_t step, int64_t begin, int64_t end, const vme_tensor *out,
                                  int64_t found, int64_t count)
{
    char *positions = out->data;
    int64_t position_step = out->strides[0], c = begin;
    for (; step == 1 && c + 8 <= end && found + 8 <= count; c += 8) {
        uint64_t eight;
        memcpy(&eight, row + c, 8);
        if (eight == 0)
            continue;
        for (int i = 0; i < 8; i++) {
            *(e_i64 *)(positions + found * position_step) = c + i;
            found += row[c + i] != 0;
        }
    }
    for (; c < end && found < count; c++) {
        *(e_i64 *)(positions + found * position_step) = c;
        found += row[c * step] != 0;
    }
    return found;
}

vme_status vme_nonzero(vme_context *context, const vme_tensor *mask, int64_t *count, const vme_tensor *const *out)
{
    if (mask->dtype != VME_BOOL)
        return vme_fail(VME_BAD_DTYPE, "a mask is bool, not %s", vme_dtype_name((vme_dtype)mask->dtype));
    if (out == NULL)
        return count_true(context, mask, count);
    int rank = mask->rank;
    if (rank == 0)
        return vme_fail(VME_BAD_VALUE, "Calling nonzero on 0d arrays is not allowed.");
    for (int d = 0; d < rank; d++) {
        vme_status status = vme_check_output(out[d]);
        if (status != VME_OK)
            return status;
        if (out[d]->rank != 1 || out[d]->dtype != VME_INT64 || out[d]->shape[0] != *count || vme_overlap(out[d], mask))
            return vme_fail(VME_BAD_SHAPE, "nonzero needs an int64 array of %lld elements for each dimension",
                            (long long)*count);
    }
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    int64_t index[VME_RANK_MAX] = {0}, found = 0, last = rank - 1, rows = 1, since_check = 0;
    for (int d = 0; d < last; d++)
        rows *= mask->shape[d];
    const char *row = mask->data;
    int64_t columns = mask->shape[last], step = mask->strides[last];
    for (int64_t r = 0; r < rows && columns > 0; r++) {
        for (int64_t begin = 0; begin < columns; begin += 65536) {
            int64_t end = columns - begin < 65536 ? columns : begin + 65536, before = found;
            found = store_true_columns(row, step, begin, end, out[last], found, *count);
            for (int d = 0; d < last; d++)
                for (int64_t i = before; i < found; i++)
                    *(e_i64 *)(out[d]->data + i * out[d]->strides[0]) = index[d];
            since_check += end - begin;
            if (since_check >= 65536) {
                since_check = 0;
                if (vme_stopping(context))
                    return vme_stopped_here(context);
            }
        }
        for (int d = (int)last - 1; d >= 0; d--) {
            row += mask->strides[d];
            if (++index[d] < mask->shape[d])
                break;
            row -= mask->shape[d] * mask->strides[d];
            index[d] = 0;
        }
    }
    if (found != *count)
        return vme_fail(VME_BAD_VALUE, "the mask has %lld true elements now, not %lld", (long long)found,
                        (long long)*count);
    return VME_OK;
}
