/* Transform operators, each lowered to copies between boxes of its input and its output: to the raster primitive, whose
 * kernels serve all of them. New transforms belong here; they need no kernel.
 *
 * Each accepts inputs of any strides and dtype (cast on the way). If an output overlaps an input, it is written to
 * other memory first. */
#include "operators/raster.h"

/* A box of a tensor: a view with its own shape and strides. */
typedef struct box {
    vme_tensor view;
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX];
} box;

static void box_whole(box *copy, const vme_tensor *tensor)
{
    copy->view = *tensor;
    copy->view.shape = copy->shape;
    copy->view.strides = copy->strides;
    for (int i = 0; i < tensor->rank; i++) {
        copy->shape[i] = tensor->shape[i];
        copy->strides[i] = tensor->strides[i];
    }
}

/* Takes `size` elements begin, begin + step, … of one dimension. */
static void box_cut(box *copy, int dimension, int64_t begin, int64_t size, int64_t step)
{
    copy->view.data += begin * copy->strides[dimension];
    copy->strides[dimension] *= step;
    copy->shape[dimension] = size;
}

/* Copies between boxes of one tensor, which have one shape and share no element. */
static vme_status move_within(vme_context *context, const box *from, const box *to)
{
    int element = vme_dtype_size((vme_dtype)to->view.dtype);
    return vme_move(context, to->view.rank, to->shape, (vme_side){from->view.data, from->strides, element},
                    (vme_side){to->view.data, to->strides, element}, NULL);
}

/* ---- concatenate: a box for each part */
static vme_status check_parts(int count, const vme_tensor *const *parts, int axis, const vme_tensor *out)
{
    if (count == 0)
        return vme_fail(VME_BAD_VALUE, "need at least one array to concatenate");
    if (parts[0]->rank == 0)
        return vme_fail(VME_BAD_VALUE, "zero-dimensional arrays cannot be concatenated");
    if (axis < 0 || axis >= parts[0]->rank)
        return vme_fail(VME_BAD_AXIS, "axis %d is out of bounds for array of dimension %d", axis, parts[0]->rank);
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        if (parts[i]->rank != parts[0]->rank)
            return vme_fail(
                VME_BAD_SHAPE,
                "all the input array dimensions except for the concatenation axis must match exactly, but along "
                "dimension 0, the array at index 0 has %d dimension(s) and the array at index %d has %d dimension(s)",
                parts[0]->rank, i, parts[i]->rank);
        for (int d = 0; d < parts[0]->rank; d++)
            if (d != axis && parts[i]->shape[d] != parts[0]->shape[d])
                return vme_fail(
                    VME_BAD_SHAPE,
                    "all the input array dimensions except for the concatenation axis must match exactly, but along "
                    "dimension %d, the array at index 0 has size %lld and the array at index %d has size %lld",
                    d, (long long)parts[0]->shape[d], i, (long long)parts[i]->shape[d]);
        total += parts[i]->shape[axis];
    }
    bool fits = out->rank == parts[0]->rank;
    for (int d = 0; fits && d < out->rank; d++)
        fits = out->shape[d] == (d == axis ? total : parts[0]->shape[d]);
    return fits ? VME_OK : vme_fail(VME_BAD_SHAPE, "Output array is the wrong shape");
}

static vme_status concatenate(vme_context *context, int count, const vme_tensor *const *parts, int axis,
                              const vme_tensor *out)
{
    vme_status status = VME_OK;
    for (int64_t i = 0, begin = 0; i < count && status == VME_OK; begin += parts[i++]->shape[axis]) {
        box to;
        box_whole(&to, out);
        box_cut(&to, axis, begin, parts[i]->shape[axis], 1);
        status = vme_copy(context, parts[i], &to.view);
    }
    return status;
}

vme_status vme_concatenate(vme_context *context, int count, const vme_tensor *const *parts, int axis,
                           const vme_tensor *out)
{
    vme_status status = check_parts(count, parts, axis, out);
    if (status == VME_OK)
        status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    bool overlap = false;
    for (int i = 0; i < count; i++)
        overlap = overlap || vme_overlap(parts[i], out);
    if (!overlap)
        return concatenate(context, count, parts, axis, out);
    int64_t strides[VME_RANK_MAX];
    vme_tensor aside;
    status = vme_aside_new(context, out, strides, &aside);
    if (status != VME_OK)
        return status;
    status = concatenate(context, count, parts, axis, &aside);
    if (status == VME_OK)
        status = vme_copy(context, &aside, out);
    vme_buffer_unref(aside.buffer);
    return status;
}

/* ---- pad: copies the input to the middle, then the borders, one dimension after the other */
typedef struct padding {
    vme_pad_mode mode;
    const int64_t *before;
    const int64_t *middle; /* the input's shape */
    const void *value;
} padding;

/* The box whose dimensions before `dimension` are whole and whose later ones are the middle (or the other way round).
 */
static void border_box(box *copy, const padding *p, const vme_tensor *out, int dimension, bool whole_first)
{
    box_whole(copy, out);
    for (int d = 0; d < out->rank; d++)
        if (d != dimension && (d < dimension) != whole_first)
            box_cut(copy, d, p->before[d], p->middle[d], 1);
}

static vme_status pad_constant(vme_context *context, const padding *p, const vme_tensor *out, int dimension)
{
    vme_tensor value = {.data = (char *)p->value, .dtype = out->dtype};
    int64_t end = p->before[dimension] + p->middle[dimension];
    box side;
    border_box(&side, p, out, dimension, false);
    box_cut(&side, dimension, 0, p->before[dimension], 1);
    vme_status status = vme_copy(context, &value, &side.view);
    if (status != VME_OK)
        return status;
    border_box(&side, p, out, dimension, false);
    box_cut(&side, dimension, end, out->shape[dimension] - end, 1);
    return vme_copy(context, &value, &side.view);
}

/* The source of the element at `distance` (1, 2, …) outside of a middle of `size`: its position from the middle's
 * start, how many further elements have neighbouring sources, and in which direction (0: all have the same source).
 * `low`: outside of the lower end. */
static void source_of(vme_pad_mode mode, int64_t size, int64_t distance, bool low, int64_t *position, int64_t *run,
                      int *direction)
{
    if (mode == VME_PAD_EDGE || (mode == VME_PAD_REFLECT && size == 1)) {
        *position = low ? 0 : size - 1;
        *direction = 0;
        *run = INT64_MAX;
        return;
    }
    /* relative to the nearer end: 0 is the end itself, growing inwards */
    int64_t lap = mode == VME_PAD_REFLECT ? size - 1 : size, at = (distance - 1) % lap, number = (distance - 1) / lap;
    bool inwards = mode != VME_PAD_WRAP && number % 2 == 0;
    int64_t inner;
    if (mode == VME_PAD_WRAP)
        inner = size - 1 - at;
    else if (mode == VME_PAD_SYMMETRIC)
        inner = inwards ? at : size - 1 - at;
    else
        inner = inwards ? at + 1 : size - 2 - at;
    *run = lap - at;
    *position = low ? inner : size - 1 - inner;
    *direction = inwards == low ? 1 : -1; /* of the source, as the target moves outwards */
}

static vme_status pad_from_middle(vme_context *context, const padding *p, const vme_tensor *out, int dimension)
{
    int64_t before = p->before[dimension], size = p->middle[dimension],
            sides[2] = {before, out->shape[dimension] - before - size};
    for (int side = 0; side < 2; side++)
        for (int64_t distance = 1, run; distance <= sides[side]; distance += run) {
            int64_t position;
            int direction;
            source_of(p->mode, size, distance, side == 0, &position, &run, &direction);
            if (run > sides[side] - distance + 1)
                run = sides[side] - distance + 1;
            box from, to;
            border_box(&from, p, out, dimension, true);
            border_box(&to, p, out, dimension, true);
            box_cut(&from, dimension, before + position, run, direction);
            box_cut(&to, dimension, side == 0 ? before - distance : before + size - 1 + distance, run,
                    side == 0 ? -1 : 1);
            vme_status status = move_within(context, &from, &to);
            if (status != VME_OK)
                return status;
        }
    return VME_OK;
}

static vme_status pad(vme_context *context, const padding *p, const vme_tensor *in, const vme_tensor *out)
{
    box middle;
    box_whole(&middle, out);
    for (int d = 0; d < out->rank; d++)
        box_cut(&middle, d, p->before[d], p->middle[d], 1);
    vme_status status = vme_copy(context, in, &middle.view);
    for (int d = 0; d < out->rank && status == VME_OK; d++)
        status = p->mode == VME_PAD_CONSTANT ? pad_constant(context, p, out, d) : pad_from_middle(context, p, out, d);
    return status;
}

vme_status vme_pad(vme_context *context, vme_pad_mode mode, const vme_tensor *in, const int64_t *before,
                   const void *value, const vme_tensor *out)
{
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    bool fits = in->rank == out->rank;
    for (int d = 0; fits && d < in->rank; d++)
        fits = before[d] >= 0 && before[d] <= out->shape[d] - in->shape[d];
    if (!fits)
        return vme_fail(VME_BAD_VALUE, "index can't contain negative values");
    for (int d = 0; mode != VME_PAD_CONSTANT && d < in->rank; d++)
        if (in->shape[d] == 0 && out->shape[d] != 0)
            return vme_fail(VME_BAD_VALUE, "can't extend empty axis %d using modes other than 'constant' or 'empty'",
                            d);
    padding p = {.mode = mode, .before = before, .middle = in->shape, .value = value};
    if (!vme_overlap(in, out))
        return pad(context, &p, in, out);
    int64_t strides[VME_RANK_MAX];
    vme_tensor aside;
    status = vme_aside_new(context, out, strides, &aside);
    if (status != VME_OK)
        return status;
    status = pad(context, &p, in, &aside);
    if (status == VME_OK)
        status = vme_copy(context, &aside, out);
    vme_buffer_unref(aside.buffer);
    return status;
}

/* ---- tile: one copy; each repeated dimension becomes two of the output, the outer one broadcast */
vme_status vme_tile(vme_context *context, const vme_tensor *in, const vme_tensor *out)
{
    int64_t in_shape[VME_RANK_MAX], in_strides[VME_RANK_MAX], out_shape[VME_RANK_MAX], out_strides[VME_RANK_MAX];
    int rank = 0, extra = out->rank - in->rank;
    bool fits = extra >= 0;
    for (int d = 0; fits && d < out->rank; d++) {
        int64_t size = d < extra ? 1 : in->shape[d - extra], whole = out->shape[d];
        fits = size == 0 ? whole == 0 : whole % size == 0;
        /* sizes of 1 are omitted, so that the rank never exceeds VME_RANK_MAX: every other size doubles the elements */
        if (fits && size != whole && size > 0 && whole > 0) {
            in_shape[rank] = 1;
            in_strides[rank] = 0;
            out_shape[rank] = whole / size;
            out_strides[rank++] = out->strides[d] * size;
        }
        if (fits && (size != 1 || whole == 0)) {
            in_shape[rank] = whole == 0 ? 0 : size;
            in_strides[rank] = d < extra ? 0 : in->strides[d - extra];
            out_shape[rank] = whole == 0 ? 0 : size;
            out_strides[rank++] = out->strides[d];
        }
    }
    if (!fits)
        return vme_fail(VME_BAD_SHAPE, "the output of tile is not a whole number of inputs in every dimension");
    vme_tensor from = {in->buffer, in->data, in_shape, in_strides, rank, in->dtype};
    vme_tensor to = {out->buffer, out->data, out_shape, out_strides, rank, out->dtype};
    return vme_copy(context, &from, &to);
}

/* ---- roll: each rolled dimension is split into two parts that change places */
static vme_status roll(vme_context *context, const vme_tensor *in, const int64_t *shifts, const vme_tensor *out)
{
    int rolled = 0, dimension[VME_RANK_MAX];
    int64_t shift[VME_RANK_MAX];
    for (int d = 0; d < in->rank; d++) {
        int64_t by = in->shape[d] == 0 ? 0 : shifts[d] % in->shape[d];
        if (by != 0) {
            shift[rolled] = by < 0 ? by + in->shape[d] : by;
            dimension[rolled++] = d;
        }
    }
    for (uint64_t corner = 0; corner < (uint64_t)1 << rolled; corner++) { /* at most as many corners as elements */
        box from, to;
        box_whole(&from, in);
        box_whole(&to, out);
        for (int i = 0; i < rolled; i++) {
            int d = dimension[i];
            int64_t size = in->shape[d], stays = size - shift[i];
            if (corner >> i & 1) {
                box_cut(&from, d, stays, shift[i], 1);
                box_cut(&to, d, 0, shift[i], 1);
            } else {
                box_cut(&from, d, 0, stays, 1);
                box_cut(&to, d, shift[i], stays, 1);
            }
        }
        vme_status status = vme_copy(context, &from.view, &to.view);
        if (status != VME_OK)
            return status;
    }
    return VME_OK;
}

vme_status vme_roll(vme_context *context, const vme_tensor *in, const int64_t *shifts, const vme_tensor *out)
{
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    bool fits = in->rank == out->rank;
    for (int d = 0; fits && d < in->rank; d++)
        fits = in->shape[d] == out->shape[d];
    if (!fits)
        return vme_fail(VME_BAD_SHAPE, "the output of roll has another shape than its input");
    if (!vme_overlap(in, out))
        return roll(context, in, shifts, out);
    int64_t strides[VME_RANK_MAX];
    vme_tensor aside;
    status = vme_aside_new(context, out, strides, &aside);
    if (status != VME_OK)
        return status;
    status = roll(context, in, shifts, &aside);
    if (status == VME_OK)
        status = vme_copy(context, &aside, out);
    vme_buffer_unref(aside.buffer);
    return status;
}
