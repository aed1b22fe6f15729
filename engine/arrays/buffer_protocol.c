/* The buffer protocol: arrays as buffers for others, and others' buffers as arrays, without copies.
 *
 * A foreign object's memory is *lent*: the array's buffer holds the Py_buffer until its last reference is released.
 * That may happen on a thread of another interpreter; objects of the main interpreter are then released by a pending
 * call there. */
#include "methods.h"

int array_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
    array *self = (array *)object;
    bool writable = array_writable(self), contiguous = self->flags & ARRAY_CONTIGUOUS;
    view->obj = NULL;
    if ((flags & PyBUF_WRITABLE) && !writable) {
        PyErr_SetString(PyExc_ValueError, "buffer source array is read-only");
        return -1;
    }
    bool c_order = (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS || (flags & PyBUF_STRIDES) != PyBUF_STRIDES;
    if (c_order && !contiguous) {
        PyErr_SetString(PyExc_ValueError, "ndarray is not C-contiguous");
        return -1;
    }
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS || (flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS) {
        int64_t step = vme_dtype_size((vme_dtype)self->t.dtype);
        bool fortran = true;
        for (int i = 0; i < self->t.rank; i++) {
            fortran = fortran && (self->t.shape[i] == 1 || self->t.strides[i] == step);
            step *= self->t.shape[i];
        }
        bool any = (flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS;
        if (!fortran && !(any && contiguous)) {
            PyErr_SetString(PyExc_ValueError, any ? "ndarray is not contiguous" : "ndarray is not Fortran contiguous");
            return -1;
        }
    }
    /* Without a shape a view is a row of bytes. Consumers take ndim as the length of `shape`; memoryview would read
     * NULL otherwise. */
    bool shaped = (flags & PyBUF_ND) == PyBUF_ND;
    if (!shaped && (flags & PyBUF_FORMAT)) {
        PyErr_SetString(PyExc_BufferError,
                        "ndarray: a format can only be asked for together with the shape (PyBUF_ND)");
        return -1;
    }
    *view = (Py_buffer){
        .buf = self->t.data,
        .len = self->size * vme_dtype_size((vme_dtype)self->t.dtype),
        .itemsize = shaped ? vme_dtype_size((vme_dtype)self->t.dtype) : 1,
        .readonly = !writable,
        .format = flags & PyBUF_FORMAT ? (char *)vme_dtype_format((vme_dtype)self->t.dtype) : NULL,
        .ndim = shaped ? self->t.rank : 1,
        .shape = shaped ? (Py_ssize_t *)self->t.shape : NULL,
        .strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? (Py_ssize_t *)self->t.strides : NULL,
        .obj = Py_NewRef(object),
        .internal = writable ? self->t.buffer : NULL,
    };
    if (writable)
        vme_buffer_open_window(self->t.buffer);
    return 0;
}
_Static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "sizes are handed over as they are");

void array_releasebuffer(PyObject *self, Py_buffer *view)
{
    if (view->internal != NULL)
        vme_buffer_close_window(view->internal);
}

/* ---- foreign memory */
typedef struct loan {
    Py_buffer view;
    PyInterpreterState *interpreter;
} loan;

static int loan_end(void *argument)
{
    loan *ended = argument;
    PyBuffer_Release(&ended->view);
    PyMem_RawFree(ended);
    return 0;
}

static void loan_drop(void *owner)
{
    loan *ended = owner;
    PyThreadState *thread = PyThreadState_GetUnchecked();
    if (thread != NULL && PyThreadState_GetInterpreter(thread) == ended->interpreter)
        loan_end(ended);
    else if (ended->interpreter == PyInterpreterState_Main())
        Py_AddPendingCall(loan_end, ended); /* if its queue is full, the loan never ends, which is safe */
    /* another interpreter may have ended, and the object with it: its memory must not be touched */
}

array *array_from_exporter(array_state *state, PyObject *object)
{
    loan *result = PyMem_RawCalloc(1, sizeof *result);
    if (result == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (PyObject_GetBuffer(object, &result->view, PyBUF_FULL_RO) < 0) {
        PyMem_RawFree(result);
        return NULL;
    }
    result->interpreter = PyInterpreterState_Get();
    Py_buffer *view = &result->view;
    vme_dtype dtype = VME_UINT8;
    vme_buffer *buffer;
    int64_t strides[VME_RANK_MAX], flat[1] = {view->itemsize > 0 ? view->len / view->itemsize : 0};
    const int64_t *shape = view->shape != NULL ? (int64_t *)view->shape : flat;
    int rank = view->shape != NULL ? view->ndim : view->ndim == 0 ? 0 : 1;
    if (view->format != NULL && !vme_dtype_from_format(view->format, &dtype)) {
        PyErr_Format(PyExc_TypeError,
                     "the buffer of '%.200s' has elements of format '%.100s', for which there is no dtype",
                     Py_TYPE(object)->tp_name, view->format);
        goto refused;
    }
    if (view->itemsize != vme_dtype_size(dtype) || view->suboffsets != NULL || rank > VME_RANK_MAX) {
        PyErr_Format(PyExc_ValueError,
                     "the buffer of '%.200s' has a layout that no array can have (item size %zd, %d dimensions)",
                     Py_TYPE(object)->tp_name, view->itemsize, view->ndim);
        goto refused;
    }
    size_t bytes;
    if (array_check_status(state, vme_shape_bytes(dtype, rank, shape, strides, &bytes)) < 0)
        goto refused;
    if (view->len < 0 || (size_t)view->len != bytes || (bytes != 0 && view->buf == NULL)) {
        PyErr_Format(PyExc_ValueError,
                     "the buffer of '%.200s' has %zd bytes at %p, where its shape and format make %zu",
                     Py_TYPE(object)->tp_name, view->len, view->buf, bytes);
        goto refused;
    }
    if (view->strides != NULL)
        memcpy(strides, view->strides, (size_t)rank * sizeof *strides);
    /* the buffer covers the range that the strides reach; sums that overflow are refused */
    int64_t low = 0, high = view->itemsize;
    bool fits = true;
    for (int i = 0; i < rank; i++) {
        int64_t span = 0;
        if (bytes != 0)
            fits = fits && !__builtin_mul_overflow(shape[i] - 1, strides[i], &span)
                   && !__builtin_add_overflow(span < 0 ? low : high, span, span < 0 ? &low : &high);
    }
    char *data = view->buf;
    if (bytes == 0)
        high = 0;
    uintptr_t lowest, behind;
    if (!fits || __builtin_sub_overflow(high, low, &high) || __builtin_add_overflow((uintptr_t)data, low, &lowest)
        || __builtin_add_overflow(lowest, high, &behind)) {
        PyErr_SetString(PyExc_ValueError, "strides is incompatible with shape of requested array and size of buffer");
        goto refused;
    }
    if (array_check_status(state, vme_buffer_wrap(state->context, data + low, (size_t)high, !view->readonly, result,
                                                  loan_drop, &buffer))
        < 0)
        goto refused;
    vme_tensor tensor = {buffer, data, shape, strides, rank, (int32_t)dtype};
    vme_status status = vme_tensor_check(&tensor);
    if (status != VME_OK) {
        array_fail(state, status);
        vme_buffer_unref(buffer);
        return NULL;
    }
    return array_on_buffer(state, buffer, (int)dtype, rank, shape, strides, data, ARRAY_LENT);
refused:
    PyBuffer_Release(view);
    PyMem_RawFree(result);
    return NULL;
}
