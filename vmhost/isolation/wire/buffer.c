#include "wire/buffer.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    vmh_storage *storage; /* one reference */
    vmh_view view;
    Py_ssize_t shape[VMH_DIMENSIONS_MAX], strides[VMH_DIMENSIONS_MAX];
} buffer;

static void derive(buffer *self)
{
    Py_ssize_t stride = self->view.item_size;
    for (int i = self->view.dimensions - 1; i >= 0; i--) {
        self->shape[i] = (Py_ssize_t)self->view.shape[i];
        self->strides[i] = stride;
        stride *= self->shape[i];
    }
}

PyObject *vmh_buffer_new(PyTypeObject *type, vmh_storage *storage, const vmh_view *view)
{
    buffer *self = (buffer *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->storage = vmh_storage_ref(storage);
    self->view = *view;
    derive(self);
    return (PyObject *)self;
}

vmh_storage *vmh_buffer_storage(PyObject *self) { return ((buffer *)self)->storage; }
const vmh_view *vmh_buffer_view(PyObject *self) { return &((buffer *)self)->view; }

static int item_size(const char *format)
{
    static const struct {
        char code;
        int size;
    } sizes[] = {
        {'?', 1},
        {'b', 1},
        {'B', 1},
        {'c', 1},
        {'h', 2},
        {'H', 2},
        {'e', 2},
        {'i', 4},
        {'I', 4},
        {'f', 4},
        {'l', sizeof(long)},
        {'L', sizeof(long)},
        {'q', 8},
        {'Q', 8},
        {'n', sizeof(size_t)},
        {'N', sizeof(size_t)},
        {'d', 8},
    };
    if (format[0] == '@')
        format++;
    if (format[0] == 'Z' && (format[1] == 'f' || format[1] == 'd') && format[2] == 0)
        return format[1] == 'f' ? 8 : 16;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && format[0] != 0 && format[1] == 0; i++)
        if (sizes[i].code == format[0])
            return sizes[i].size;
    return 0;
}

/* Fills `view`; returns the total size in bytes, or -1 with an error set. Without its dimensions of size 0 a shape must
 * fit into memory too, as in NumPy: strides are products of some of its sizes. */
static Py_ssize_t describe(vmh_view *view, const char *format, int dimensions, const Py_ssize_t *shape)
{
    memset(view, 0, sizeof *view);
    int size = strlen(format) < sizeof view->format ? item_size(format) : 0;
    if (size == 0) {
        PyErr_Format(PyExc_ValueError, "items of format '%s' cannot cross; numbers and bool of native order can",
                     format);
        return -1;
    }
    if (dimensions > VMH_DIMENSIONS_MAX) {
        PyErr_Format(PyExc_ValueError, "%d dimensions; the limit is %d", dimensions, VMH_DIMENSIONS_MAX);
        return -1;
    }
    strcpy(view->format, format);
    view->item_size = size;
    view->dimensions = dimensions;
    Py_ssize_t total = size;
    bool empty = false;
    for (int i = 0; i < dimensions; i++) {
        if (shape[i] < 0) {
            PyErr_Format(PyExc_ValueError, "dimension %d is negative (%zd)", i, shape[i]);
            return -1;
        }
        empty = empty || shape[i] == 0;
        if (shape[i] != 0 && total > PY_SSIZE_T_MAX / shape[i]) {
            PyErr_SetString(PyExc_ValueError, "the shape is too large for memory");
            return -1;
        }
        total *= shape[i] == 0 ? 1 : shape[i];
        view->shape[i] = shape[i];
    }
    return empty ? 0 : total;
}

int vmh_buffer_from_object(PyObject *object, vmh_vm *vm, vmh_storage **storage, vmh_view *view)
{
    Py_buffer *source = PyMem_RawCalloc(1, sizeof *source);
    if (source == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (PyObject_GetBuffer(object, source, PyBUF_FORMAT | PyBUF_STRIDES) < 0) {
        PyMem_RawFree(source);
        return -1;
    }
    if (!PyBuffer_IsContiguous(source, 'C')) {
        PyErr_Format(PyExc_ValueError,
                     "the memory of this `%s` is not contiguous; make it so (numpy.ascontiguousarray) before "
                     "it crosses",
                     Py_TYPE(object)->tp_name);
        goto failed;
    }
    Py_ssize_t size = describe(view, source->format == NULL ? "B" : source->format, source->ndim, source->shape);
    if (size < 0)
        goto failed;
    if (size != source->len || view->item_size != source->itemsize) {
        PyErr_Format(PyExc_ValueError,
                     "the buffer of this `%s` has %zd bytes in items of %zd, where its shape and format make %zd of %d",
                     Py_TYPE(object)->tp_name, source->len, source->itemsize, size, (int)view->item_size);
        goto failed;
    }
    if (vm == NULL) {
        *storage = vmh_storage_lend(source->buf, (size_t)size, source);
        if (*storage == NULL)
            goto no_memory;
        return 0;
    }
    *storage = vmh_storage_new((size_t)size, vmh_vm_meter(vm));
    if (*storage == NULL)
        goto no_memory;
    memcpy((*storage)->data, source->buf, (size_t)size);
    PyBuffer_Release(source);
    PyMem_RawFree(source);
    return 0;
no_memory:
    PyErr_NoMemory();
failed:
    PyBuffer_Release(source);
    PyMem_RawFree(source);
    return -1;
}

vmh_storage *vmh_buffer_lend(PyObject *owner, void *data, Py_ssize_t size)
{
    Py_buffer *lender = PyMem_RawCalloc(1, sizeof *lender);
    if (lender == NULL || PyBuffer_FillInfo(lender, owner, data, size, 1, PyBUF_SIMPLE) < 0) {
        PyMem_RawFree(lender);
        PyErr_NoMemory();
        return NULL;
    }
    vmh_storage *storage = vmh_storage_lend(data, (size_t)size, lender);
    if (storage == NULL) {
        PyBuffer_Release(lender);
        PyMem_RawFree(lender);
        PyErr_NoMemory();
    }
    return storage;
}

void vmh_buffer_release_lent(void)
{
    vmh_storage *storage = vmh_storage_take_released();
    while (storage != NULL) {
        vmh_storage *next = storage->next;
        PyBuffer_Release(storage->lender);
        PyMem_RawFree(storage->lender);
        free(storage);
        storage = next;
    }
}

static PyObject *buffer_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"shape", "format", NULL};
    PyObject *shape;
    const char *format = "B";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|s:Buffer", names, &shape, &format))
        return NULL;
    Py_ssize_t sizes[VMH_DIMENSIONS_MAX];
    Py_ssize_t dimensions = 1;
    if (PyTuple_Check(shape) || PyList_Check(shape)) {
        PyObject *items = PySequence_Tuple(shape); /* which neither an item's code nor that of a subclass changes */
        if (items == NULL)
            return NULL;
        dimensions = PyTuple_GET_SIZE(items);
        bool fits = dimensions <= VMH_DIMENSIONS_MAX;
        if (!fits)
            PyErr_Format(PyExc_ValueError, "Buffer: %zd dimensions; the limit is %d", dimensions, VMH_DIMENSIONS_MAX);
        for (Py_ssize_t i = 0; fits && i < dimensions; i++) {
            sizes[i] = PyNumber_AsSsize_t(PyTuple_GET_ITEM(items, i), PyExc_OverflowError);
            fits = sizes[i] != -1 || !PyErr_Occurred();
        }
        Py_DECREF(items);
        if (!fits)
            return NULL;
    } else {
        sizes[0] = PyNumber_AsSsize_t(shape, PyExc_OverflowError);
        if (sizes[0] == -1 && PyErr_Occurred())
            return NULL;
    }
    vmh_view view;
    Py_ssize_t size = describe(&view, format, (int)dimensions, sizes);
    if (size < 0)
        return NULL;
    vmh_vm *vm = vmh_current();
    vmh_storage *storage = vmh_storage_new((size_t)size, vm == NULL ? NULL : vmh_vm_meter(vm));
    if (storage == NULL)
        return PyErr_NoMemory();
    PyObject *self = vmh_buffer_new(type, storage, &view);
    vmh_storage_unref(storage);
    return self;
}

static void buffer_dealloc(PyObject *object)
{
    buffer *self = (buffer *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->storage != NULL)
        vmh_storage_unref(self->storage);
    type->tp_free(object);
    Py_DECREF(type);
}

static int buffer_get(PyObject *object, Py_buffer *view, int flags)
{
    buffer *self = (buffer *)object;
    bool frozen = atomic_load(&self->storage->frozen);
    if (frozen && (flags & PyBUF_WRITABLE) == PyBUF_WRITABLE) {
        PyErr_SetString(PyExc_BufferError, "this Buffer has crossed to another VM: it is read-only; copy it to write");
        view->obj = NULL;
        return -1;
    }
    if (!frozen)
        atomic_fetch_add(&self->storage->writers, 1);
    view->obj = Py_NewRef(object);
    view->buf = self->storage->data;
    view->len = (Py_ssize_t)self->storage->size;
    view->readonly = frozen;
    view->itemsize = self->view.item_size;
    view->format = (flags & PyBUF_FORMAT) == PyBUF_FORMAT ? self->view.format : NULL;
    view->ndim = self->view.dimensions;
    view->shape = (flags & PyBUF_ND) == PyBUF_ND ? self->shape : NULL;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->strides : NULL;
    view->suboffsets = NULL;
    view->internal = frozen ? NULL : self->storage;
    return 0;
}

static void buffer_release(PyObject *Py_UNUSED(object), Py_buffer *view)
{
    if (view->internal != NULL)
        atomic_fetch_sub(&((vmh_storage *)view->internal)->writers, 1);
}

static PyObject *buffer_shape(PyObject *object, void *Py_UNUSED(closure))
{
    buffer *self = (buffer *)object;
    PyObject *shape = PyTuple_New(self->view.dimensions);
    for (int i = 0; shape != NULL && i < self->view.dimensions; i++) {
        PyObject *size = PyLong_FromSsize_t(self->shape[i]);
        if (size == NULL)
            Py_CLEAR(shape);
        else
            PyTuple_SET_ITEM(shape, i, size);
    }
    return shape;
}

static PyObject *buffer_format(PyObject *object, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(((buffer *)object)->view.format);
}

static PyObject *buffer_nbytes(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(((buffer *)object)->storage->size);
}

static PyObject *buffer_readonly(PyObject *object, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(atomic_load(&((buffer *)object)->storage->frozen));
}

static PyObject *buffer_repr(PyObject *object)
{
    PyObject *shape = buffer_shape(object, NULL);
    if (shape == NULL)
        return NULL;
    PyObject *text = PyUnicode_FromFormat("Buffer(shape=%R, format='%s')", shape, ((buffer *)object)->view.format);
    Py_DECREF(shape);
    return text;
}

static Py_ssize_t buffer_length(PyObject *object)
{
    buffer *self = (buffer *)object;
    if (self->view.dimensions == 0) {
        PyErr_SetString(PyExc_TypeError, "a Buffer of no dimensions has no len()");
        return -1;
    }
    return self->shape[0];
}

static PyGetSetDef buffer_getset[] = {
    {"shape", buffer_shape, NULL, PyDoc_STR("Sizes of the dimensions, in items."), NULL},
    {"format", buffer_format, NULL, PyDoc_STR("The format of one item, as in the struct module."), NULL},
    {"nbytes", buffer_nbytes, NULL, PyDoc_STR("Size in bytes."), NULL},
    {"readonly", buffer_readonly, NULL, PyDoc_STR("True once it has crossed between interpreters."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot buffer_slots[] = {
    {Py_tp_doc,
     (void *)PyDoc_STR("Buffer(shape, format='B')\n--\n\nZeroed memory of the process that crosses between "
                       "interpreters without a copy; use memoryview(buffer). Writable until it has crossed.")},
    {Py_tp_new, buffer_make},
    {Py_tp_dealloc, buffer_dealloc},
    {Py_tp_repr, buffer_repr},
    {Py_tp_getset, buffer_getset},
    {Py_sq_length, buffer_length},
    {Py_bf_getbuffer, buffer_get},
    {Py_bf_releasebuffer, buffer_release},
    {0, NULL},
};

static PyType_Spec buffer_spec = {
    .name = "vmhost.Buffer",
    .basicsize = sizeof(buffer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = buffer_slots,
};

PyTypeObject *vmh_buffer_type_new(void) { return (PyTypeObject *)PyType_FromSpec(&buffer_spec); }
