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

static void box_whole(box *result, const vme_tensor *tensor)
{
    result->view = *tensor;
    result->view.shape = result->shape;
    result->view.strides = result->strides;
    for (int i = 0; i < tensor->rank; i++) {
        result->shape[i] = tensor->shape[i];
        result->strides[i] = tensor->strides[i];
    }
}

/* Takes `size` elements begin, begin + step, … of one dimension. */
static void box_cut(box *result, int dimension, int64_t begin, int64_t size, int64_t step)
{
    result->view.data += begin * result->strides[dimension];
    result->strides[dimension] *= step;
    result->shape[dimension] = size;
}

/* Copies between boxes of one tensor, which have one shape and share no element. */
static vme_status move_within(vme_context *context, const box *from, const box *to)
{
    int element = vme_dtype_size((vme_dtype)to->view.dtype);
    return vme_move(context, to->view.rank, to->shape, (vme_side){from->view.data, from->strides, element},
                    (vme_side){to->view.data, to->strides, element}, NULL);
}

/* ---- concatenate: copies each input to its box of the output */
static vme_status check_inputs(int count, const vme_tensor *const *inputs, int axis, const vme_tensor *out)
{
    if (count == 0)
        return vme_fail(VME_BAD_VALUE, "need at least one array to concatenate");
    if (inputs[0]->rank == 0)
        return vme_fail(VME_BAD_VALUE, "zero-dimensional arrays cannot be concatenated");
    if (axis < 0 || axis >= inputs[0]->rank)
        return vme_fail(VME_BAD_AXIS, "axis %d is out of bounds for array of dimension %d", axis, inputs[0]->rank);
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        if (inputs[i]->rank != inputs[0]->rank)
            return vme_fail(
                VME_BAD_SHAPE,
                "all the input array dimensions except for the concatenation axis must match exactly, but along "
                "dimension 0, the array at index 0 has %d dimension(s) and the array at index %d has %d dimension(s)",
                inputs[0]->rank, i, inputs[i]->rank);
        for (int d = 0; d < inputs[0]->rank; d++)
            if (d != axis && inputs[i]->shape[d] != inputs[0]->shape[d])
                return vme_fail(
                    VME_BAD_SHAPE,
                    "all the input array dimensions except for the concatenation axis must match exactly, but along "
                    "dimension %d, the array at index 0 has size %lld and the array at index %d has size %lld",
                    d, (long long)inputs[0]->shape[d], i, (long long)inputs[i]->shape[d]);
        total += inputs[i]->shape[axis];
    }
    bool fits = out->rank == inputs[0]->rank;
    for (int d = 0; fits && d < out->rank; d++)
        fits = out->shape[d] == (d == axis ? total : inputs[0]->shape[d]);
    return fits ? VME_OK : vme_fail(VME_BAD_SHAPE, "Output array is the wrong shape");
}

static vme_status concatenate(vme_context *context, int count, const vme_tensor *const *inputs, int axis,
                              const vme_tensor *out)
{
    vme_status status = VME_OK;
    for (int64_t i = 0, begin = 0; i < count && status == VME_OK; begin += inputs[i++]->shape[axis]) {
        box to;
        box_whole(&to, out);
        box_cut(&to, axis, begin, inputs[i]->shape[axis], 1);
        status = vme_copy(context, inputs[i], &to.view);
    }
    return status;
}

vme_status vme_concatenate(vme_context *context, int count, const vme_tensor *const *inputs, int axis,
                           const vme_tensor *out)
{
    vme_status status = check_inputs(count, inputs, axis, out);
    if (status == VME_OK)
        status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    bool overlap = false;
    for (int i = 0; i < count; i++)
        overlap = overlap || vme_overlap(inputs[i], out);
    if (!overlap)
        return concatenate(context, count, inputs, axis, out);
    int64_t strides[VME_RANK_MAX];
    vme_tensor temporary;
    status = vme_temporary_new(context, out, strides, &temporary);
    if (status != VME_OK)
        return status;
    status = concatenate(context, count, inputs, axis, &temporary);
    if (status == VME_OK)
        status = vme_copy(context, &temporary, out);
    vme_buffer_unref(temporary.buffer);
    return status;
}

/* ---- pad: copies the input to the middle, then the borders, one dimension after the other */
typedef struct padding {
    vme_pad_mode mode;
    const int64_t *before;
    const int64_t *middle; /* the input's shape */
    const void *value;
} padding;

/* A box of `out` that is limited to the middle in the dimensions after `dimension` (`whole_first`) or before it, and
 * spans `dimension` and the others. */
static void border_box(box *result, const padding *p, const vme_tensor *out, int dimension, bool whole_first)
{
    box_whole(result, out);
    for (int d = 0; d < out->rank; d++)
        if (d != dimension && (d < dimension) != whole_first)
            box_cut(result, d, p->before[d], p->middle[d], 1);
}

static vme_status pad_constant(vme_context *context, const padding *p, const vme_tensor *out, int dimension)
{
    vme_tensor value = {.data = (char *)p->value, .dtype = out->dtype};
    int64_t end = p->before[dimension] + p->middle[dimension];
    box border;
    border_box(&border, p, out, dimension, false);
    box_cut(&border, dimension, 0, p->before[dimension], 1);
    vme_status status = vme_copy(context, &value, &border.view);
    if (status != VME_OK)
        return status;
    border_box(&border, p, out, dimension, false);
    box_cut(&border, dimension, end, out->shape[dimension] - end, 1);
    return vme_copy(context, &value, &border.view);
}

/* The source of the padding at `distance` (1, 2, …) from a middle of `size`, beyond its lower end (`low`) or its upper
 * one. `position` is the source's index in the middle. The next `run` elements outwards, this one included, have
 * neighbouring sources in `direction` (1 or -1), or all have the same one (0). */
static void pad_source(vme_pad_mode mode, int64_t size, int64_t distance, bool low, int64_t *position, int64_t *run,
                       int *direction)
{
    if (mode == VME_PAD_EDGE || (mode == VME_PAD_REFLECT && size == 1)) {
        *position = low ? 0 : size - 1;
        *direction = 0;
        *run = INT64_MAX;
        return;
    }
    /* the source's offset from the nearer end of the middle, growing inwards */
    int64_t period = mode == VME_PAD_REFLECT ? size - 1 : size, at = (distance - 1) % period,
            period_index = (distance - 1) / period;
    bool inwards = mode != VME_PAD_WRAP && period_index % 2 == 0;
    int64_t offset;
    if (mode == VME_PAD_WRAP)
        offset = size - 1 - at;
    else if (mode == VME_PAD_SYMMETRIC)
        offset = inwards ? at : size - 1 - at;
    else
        offset = inwards ? at + 1 : size - 2 - at;
    *run = period - at;
    *position = low ? offset : size - 1 - offset;
    *direction = inwards == low ? 1 : -1; /* in which the source moves as the target moves outwards */
}

static vme_status pad_from_middle(vme_context *context, const padding *p, const vme_tensor *out, int dimension)
{
    int64_t before = p->before[dimension], size = p->middle[dimension],
            sides[2] = {before, out->shape[dimension] - before - size};
    for (int side = 0; side < 2; side++)
        for (int64_t distance = 1, run; distance <= sides[side]; distance += run) {
            int64_t position;
            int direction;
            pad_source(p->mode, size, distance, side == 0, &position, &run, &direction);
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
    if ((int)mode < 0 || mode > VME_PAD_WRAP)
        return vme_fail(VME_BAD_VALUE, "pad: mode %d is unknown", (int)mode);
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
    vme_tensor temporary;
    status = vme_temporary_new(context, out, strides, &temporary);
    if (status != VME_OK)
        return status;
    status = pad(context, &p, in, &temporary);
    if (status == VME_OK)
        status = vme_copy(context, &temporary, out);
    vme_buffer_unref(temporary.buffer);
    return status;
}

/* ---- tile: one copy, in which each repeated dimension is two dimensions of the output; the outer one is broadcast */
vme_status vme_tile(vme_context *context, const vme_tensor *in, const vme_tensor *out)
{
    int64_t in_shape[VME_RANK_MAX], in_strides[VME_RANK_MAX], out_shape[VME_RANK_MAX], out_strides[VME_RANK_MAX];
    int rank = 0, extra = out->rank - in->rank;
    bool fits = extra >= 0;
    for (int d = 0; fits && d < out->rank; d++) {
        int64_t size = d < extra ? 1 : in->shape[d - extra], out_size = out->shape[d];
        fits = size == 0 ? out_size == 0 : out_size % size == 0;
        /* sizes of 1 are omitted, so that the rank never exceeds VME_RANK_MAX: every other size doubles the elements */
        if (fits && size != out_size && size > 0 && out_size > 0) {
            in_shape[rank] = 1;
            in_strides[rank] = 0;
            out_shape[rank] = out_size / size;
            out_strides[rank++] = out->strides[d] * size;
        }
        if (fits && (size != 1 || out_size == 0)) {
            in_shape[rank] = out_size == 0 ? 0 : size;
            in_strides[rank] = d < extra ? 0 : in->strides[d - extra];
            out_shape[rank] = out_size == 0 ? 0 : size;
            out_strides[rank++] = out->strides[d];
        }
    }
    if (!fits)
        return vme_fail(VME_BAD_SHAPE, "the output of tile is not a whole number of inputs in every dimension");
    vme_tensor from = {in->buffer, in->data, in_shape, in_strides, rank, in->dtype};
    vme_tensor to = {out->buffer, out->data, out_shape, out_strides, rank, out->dtype};
    return vme_copy(context, &from, &to);
}

/* ---- roll: each rolled dimension is split in two, and the two parts are swapped */
static vme_status roll(vme_context *context, const vme_tensor *in, const int64_t *shifts, const vme_tensor *out)
{
    int rolled = 0, dimension[VME_RANK_MAX];
    int64_t shift[VME_RANK_MAX];
    for (int d = 0; d < in->rank; d++) {
        int64_t amount = in->shape[d] == 0 ? 0 : shifts[d] % in->shape[d];
        if (amount != 0) {
            shift[rolled] = amount < 0 ? amount + in->shape[d] : amount;
            dimension[rolled++] = d;
        }
    }
    for (uint64_t block = 0; block < (uint64_t)1 << rolled; block++) { /* at most as many blocks as elements */
        box from, to;
        box_whole(&from, in);
        box_whole(&to, out);
        for (int i = 0; i < rolled; i++) {
            int d = dimension[i];
            int64_t size = in->shape[d], head = size - shift[i];
            if (block >> i & 1) {
                box_cut(&from, d, head, shift[i], 1);
                box_cut(&to, d, 0, shift[i], 1);
            } else {
                box_cut(&from, d, 0, head, 1);
                box_cut(&to, d, shift[i], head, 1);
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
    vme_tensor temporary;
    status = vme_temporary_new(context, out, strides, &temporary);
    if (status != VME_OK)
        return status;
    status = roll(context, in, shifts, &temporary);
    if (status == VME_OK)
        status = vme_copy(context, &temporary, out);
    vme_buffer_unref(temporary.buffer);
    return status;
}
