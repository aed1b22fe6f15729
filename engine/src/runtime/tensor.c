/* Views: shapes, strides, broadcasting, extents and overlaps. No function here reads or writes elements. */
#include "runtime/internal.h"

#include <stdio.h>
#include <string.h>

vme_status vme_shape_bytes(vme_dtype dtype, int rank, const int64_t *shape, int64_t *strides, size_t *bytes)
{
    if (rank < 0 || rank > VME_RANK_MAX)
        return vme_fail(VME_BAD_SHAPE, "maximum supported dimension for an ndarray is currently %d, found %d",
                        VME_RANK_MAX, rank);
    /* the other sizes of an empty array must not overflow either, as in NumPy: (0, 2**62, 2**62) is refused */
    int64_t step = vme_dtype_size(dtype);
    bool empty = false;
    for (int i = rank - 1; i >= 0; i--) {
        if (shape[i] < 0)
            return vme_fail(VME_BAD_SHAPE, "negative dimensions are not allowed");
        if (strides != NULL)
            strides[i] = step;
        if (shape[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(step, shape[i], &step))
            return vme_fail(
                VME_BAD_SHAPE,
                "array is too big; `arr.size * arr.dtype.itemsize` is larger than the maximum possible size.");
    }
    *bytes = empty ? 0 : (size_t)step;
    return VME_OK;
}

static const char *shape_text(const vme_tensor *tensor, char text[96])
{
    int at = snprintf(text, 96, "(");
    for (int i = 0; i < tensor->rank && at < 72; i++)
        at += snprintf(text + at, 96 - (size_t)at, i == 0 ? "%lld" : ",%lld", (long long)tensor->shape[i]);
    snprintf(text + at, 96 - (size_t)at, tensor->rank == 1 ? ",)" : ")");
    return text;
}

vme_status vme_shape_broadcast(int count, const vme_tensor *const *tensors, int *out_rank, int64_t *out_shape)
{
    int rank = 0;
    for (int t = 0; t < count; t++)
        if (tensors[t]->rank > rank)
            rank = tensors[t]->rank;
    for (int i = 0; i < rank; i++) {
        int64_t size = 1;
        for (int t = 0; t < count; t++) {
            int dimension = i - (rank - tensors[t]->rank);
            if (dimension < 0)
                continue;
            int64_t own = tensors[t]->shape[dimension];
            if (size == 1)
                size = own;
            else if (own != 1 && own != size) {
                char text[3][96] = {"", "", ""};
                for (int s = 0; s < count && s < 3; s++)
                    shape_text(tensors[s], text[s]);
                return vme_fail(VME_BAD_SHAPE, "operands could not be broadcast together with shapes %s %s %s", text[0],
                                text[1], text[2]);
            }
        }
        out_shape[i] = size;
    }
    *out_rank = rank;
    return VME_OK;
}

bool vme_is_contiguous(const vme_tensor *tensor)
{
    int64_t step = vme_dtype_size((vme_dtype)tensor->dtype);
    for (int i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] == 0)
            return true;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != step)
            return false;
        step *= tensor->shape[i];
    }
    return true;
}

void vme_extent(const vme_tensor *tensor, const char **begin, const char **end)
{
    const char *first = tensor->data, *last = tensor->data;
    *begin = *end = first;
    for (int i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] == 0) /* no elements: other sizes and strides may be arbitrary */
            return;
    for (int i = 0; i < tensor->rank; i++) {
        int64_t span = (tensor->shape[i] - 1) * tensor->strides[i];
        if (span < 0)
            first += span;
        else
            last += span;
    }
    *begin = first;
    *end = last + vme_dtype_size((vme_dtype)tensor->dtype);
}

bool vme_overlap(const vme_tensor *a, const vme_tensor *b)
{
    const char *a_begin, *a_end, *b_begin, *b_end;
    vme_extent(a, &a_begin, &a_end);
    vme_extent(b, &b_begin, &b_end);
    return a_begin < b_end && b_begin < a_end;
}

bool vme_same_view(const vme_tensor *a, const vme_tensor *b)
{
    if (a->data != b->data || a->rank != b->rank || a->dtype != b->dtype)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (a->shape[i] != b->shape[i] || (a->shape[i] > 1 && a->strides[i] != b->strides[i]))
            return false;
    return true;
}

vme_status vme_check_output(const vme_tensor *out)
{
    if (out->buffer != NULL && !vme_buffer_writable(out->buffer))
        return vme_fail(VME_READ_ONLY, "assignment destination is read-only");
    return VME_OK;
}

vme_status vme_broadcast_strides(const vme_tensor *in, const vme_tensor *out, int64_t strides[VME_RANK_MAX])
{
    int extra = out->rank - in->rank;
    bool fits = extra >= 0;
    for (int i = 0; fits && i < out->rank; i++) {
        int64_t size = i < extra ? 1 : in->shape[i - extra];
        fits = size == out->shape[i] || size == 1;
        strides[i] = size == 1 ? 0 : in->strides[i - extra];
    }
    if (!fits) {
        char from[96], to[96];
        return vme_fail(VME_BAD_SHAPE, "could not broadcast input array from shape %s into shape %s",
                        shape_text(in, from), shape_text(out, to));
    }
    return VME_OK;
}

vme_status vme_tensor_check(const vme_tensor *tensor)
{
    if (tensor->dtype < 0 || tensor->dtype >= VME_DTYPE_COUNT)
        return vme_fail(VME_BAD_DTYPE, "dtype number %d is unknown", tensor->dtype);
    size_t bytes;
    vme_status status = vme_shape_bytes((vme_dtype)tensor->dtype, tensor->rank, tensor->shape, NULL, &bytes);
    if (status != VME_OK)
        return status;
    /* overflow is checked, because strides from outside may be arbitrary */
    const char *base = vme_buffer_data(tensor->buffer);
    int64_t low = tensor->data - base, high = low;
    bool fits = true, empty = false;
    for (int i = 0; i < tensor->rank; i++) {
        int64_t span;
        if (tensor->shape[i] == 0)
            empty = true;
        else
            fits = fits && !__builtin_mul_overflow(tensor->shape[i] - 1, tensor->strides[i], &span)
                   && !__builtin_add_overflow(span < 0 ? low : high, span, span < 0 ? &low : &high);
    }
    fits = fits && !__builtin_add_overflow(high, vme_dtype_size((vme_dtype)tensor->dtype), &high);
    if (empty)
        return VME_OK;
    if (!fits || low < 0 || high > (int64_t)vme_buffer_size(tensor->buffer))
        return vme_fail(VME_BAD_SHAPE, "strides is incompatible with shape of requested array and size of buffer");
    return VME_OK;
}
