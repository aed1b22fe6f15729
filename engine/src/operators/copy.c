/* out = in: copies, transposes, broadcasts, fills and casts of any two views. */
#include "operators/raster.h"

#include <string.h>

/* Copies `in`, before broadcasting, to contiguous scratch memory. `strides` receives the strides of the copy. */
static vme_status copy_to_scratch(vme_context *context, const vme_tensor *in, int64_t *strides, void **scratch,
                                  size_t *bytes)
{
    int element = vme_dtype_size((vme_dtype)in->dtype);
    vme_status status = vme_shape_bytes((vme_dtype)in->dtype, in->rank, in->shape, strides, bytes);
    if (status != VME_OK)
        return status;
    *scratch = vme_scratch_new(context, *bytes);
    if (*scratch == NULL)
        return VME_NO_MEMORY;
    status = vme_move(context, in->rank, in->shape, (vme_side){in->data, in->strides, element},
                      (vme_side){*scratch, strides, element}, NULL);
    if (status != VME_OK)
        vme_scratch_free(context, *scratch, *bytes);
    return status;
}

vme_status vme_copy(vme_context *context, const vme_tensor *in, const vme_tensor *out)
{
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    if (vme_same_view(in, out))
        return VME_OK;
    vme_loop1 *cast = NULL;
    if (in->dtype != out->dtype) {
        cast = vme_kernels_current()->elementwise.cast[in->dtype][out->dtype];
        if (cast == NULL)
            return vme_fail(VME_BAD_DTYPE, "no cast from %s to %s is supported", vme_dtype_name((vme_dtype)in->dtype),
                            vme_dtype_name((vme_dtype)out->dtype));
    }
    int64_t strides[VME_RANK_MAX], scratch_strides[VME_RANK_MAX];
    vme_tensor source = *in;
    void *scratch = NULL;
    size_t bytes = 0;
    status = vme_broadcast_strides(&source, out, strides); /* checked before anything is allocated */
    if (status != VME_OK)
        return status;
    if (vme_overlap(in, out)) {
        status = copy_to_scratch(context, in, scratch_strides, &scratch, &bytes);
        if (status != VME_OK)
            return status;
        source.data = scratch;
        source.strides = scratch_strides;
        status = vme_broadcast_strides(&source, out, strides);
    }
    if (status == VME_OK)
        status = vme_move(context, out->rank, out->shape,
                          (vme_side){source.data, strides, vme_dtype_size((vme_dtype)in->dtype)},
                          (vme_side){out->data, out->strides, vme_dtype_size((vme_dtype)out->dtype)}, cast);
    vme_scratch_free(context, scratch, bytes);
    return status;
}

vme_status vme_temporary_new(vme_context *context, const vme_tensor *like, int64_t strides[VME_RANK_MAX],
                             vme_tensor *temporary)
{
    size_t bytes;
    vme_buffer *buffer;
    vme_status status = vme_shape_bytes((vme_dtype)like->dtype, like->rank, like->shape, strides, &bytes);
    if (status == VME_OK)
        status = vme_buffer_new(context, bytes, false, &buffer);
    if (status != VME_OK)
        return status;
    *temporary = *like;
    temporary->buffer = buffer;
    temporary->data = vme_buffer_data(buffer);
    temporary->strides = strides;
    return VME_OK;
}
