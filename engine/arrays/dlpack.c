/* DLPack 1.0 (https://dmlc.github.io/dlpack): arrays to and from other libraries without a copy, CPU memory only.
 *
 * An export holds a reference to the engine's buffer and no Python objects, so its deleter may run anywhere. */
#include "methods.h"

typedef struct {
    int32_t device_type, device_id;
} dl_device;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} dl_dtype;
typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape, *strides; /* strides in elements; NULL: C order */
    uint64_t byte_offset;
} dl_tensor;
typedef struct dl_managed {
    dl_tensor tensor;
    void *manager;
    void (*deleter)(struct dl_managed *);
} dl_managed;
typedef struct dl_versioned {
    struct {
        uint32_t major, minor;
    } version;
    void *manager;
    void (*deleter)(struct dl_versioned *);
    uint64_t flags;
    dl_tensor tensor;
} dl_versioned;

enum {
    DL_CPU = 1,
    DL_INT = 0,
    DL_UINT = 1,
    DL_FLOAT = 2,
    DL_COMPLEX = 5,
    DL_BOOL = 6,
    DL_READ_ONLY = 1,
    DL_COPIED = 2
};

/* An exported tensor, in one block. */
typedef struct export {
    union {
        dl_managed plain;
        dl_versioned versioned;
    } as;
    vme_buffer *buffer;
    bool writable; /* a window on the buffer is open */
    int64_t dims[];
} export;

static void drop_export(export *given)
{
    if (given->writable)
        vme_buffer_close_window(given->buffer);
    vme_buffer_unref(given->buffer);
    PyMem_RawFree(given);
}

static void delete_plain(dl_managed *managed) { drop_export(managed->manager); }
static void delete_versioned(dl_versioned *managed) { drop_export(managed->manager); }

/* Frees the contents of a capsule that was not consumed. */
static void drop_capsule(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
        managed->deleter(managed);
    } else if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        dl_versioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        managed->deleter(managed);
    }
}

static uint8_t code_of(int dtype)
{
    return dtype == VME_BOOL      ? DL_BOOL
           : dtype <= VME_INT64   ? DL_INT
           : dtype <= VME_UINT64  ? DL_UINT
           : dtype <= VME_FLOAT64 ? DL_FLOAT
                                  : DL_COMPLEX;
}

PyObject *array_method___dlpack__(PyObject *object, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *values[4];
    array *self = (array *)object;
    if (array_arguments("__dlpack__", args, count, keywords, names, 0, 0, values) < 0)
        return NULL;
    if (array_given(values[0]))
        return PyErr_Format(PyExc_ValueError, "NumPy only supports stream=None.");
    bool versioned = false;
    if (array_given(values[1])) {
        if (!PyTuple_Check(values[1]) || PyTuple_GET_SIZE(values[1]) != 2)
            return PyErr_Format(PyExc_TypeError, "max_version must be None or a tuple with two elements.");
        int64_t major;
        if (array_argument_int(PyTuple_GET_ITEM(values[1], 0), 0, &major) < 0)
            return NULL;
        versioned = major >= 1;
    }
    if (array_given(values[2])) {
        int device, number;
        if (!PyTuple_Check(values[2]) || !PyArg_ParseTuple(values[2], "ii", &device, &number)) {
            PyErr_Clear();
            return PyErr_Format(PyExc_TypeError, "dl_device must be None or a tuple of two ints");
        }
        if (device != DL_CPU || number != 0)
            return PyErr_Format(PyExc_BufferError, "cannot export to device (%d, %d): arrays are in CPU memory, (1, 0)",
                                device, number);
    }
    int copy = array_given(values[3]) ? PyObject_IsTrue(values[3]) : 0;
    if (copy < 0)
        return NULL;
    array *source = copy ? array_cast(self, self->t.dtype) : (array *)Py_NewRef(self);
    if (source == NULL)
        return NULL;
    export *given = NULL;
    PyObject *capsule = NULL;
    int rank = source->t.rank, width = vme_dtype_size((vme_dtype)source->t.dtype);
    if (!versioned && !array_writable(source)) {
        PyErr_SetString(PyExc_BufferError,
                        "Cannot export readonly array since signalling readonly is unsupported by DLPack "
                        "(supported by newer DLPack version).");
        goto done;
    }
    given = PyMem_RawCalloc(1, sizeof *given + 2 * (size_t)rank * sizeof *given->dims);
    if (given == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    dl_tensor tensor = {
        .data = source->t.data,
        .device = {DL_CPU, 0},
        .ndim = rank,
        .dtype = {code_of(source->t.dtype), (uint8_t)(8 * width), 1},
        .shape = given->dims,
        .strides = given->dims + rank,
    };
    for (int i = 0; i < rank; i++) {
        if (source->t.strides[i] % width != 0 && source->t.shape[i] > 1) {
            PyErr_SetString(PyExc_BufferError, "DLPack only supports strides which are a multiple of itemsize.");
            PyMem_RawFree(given);
            goto done;
        }
        tensor.shape[i] = source->t.shape[i];
        tensor.strides[i] = source->t.strides[i] / width;
    }
    given->buffer = vme_buffer_ref(source->t.buffer);
    given->writable = array_writable(source);
    if (given->writable)
        vme_buffer_open_window(given->buffer);
    if (versioned) {
        given->as.versioned = (dl_versioned){
            .version = {1, 0},
            .manager = given,
            .deleter = delete_versioned,
            .flags = (uint64_t)((given->writable ? 0 : DL_READ_ONLY) | (copy ? DL_COPIED : 0)),
            .tensor = tensor,
        };
        capsule = PyCapsule_New(&given->as.versioned, "dltensor_versioned", drop_capsule);
    } else {
        given->as.plain = (dl_managed){.tensor = tensor, .manager = given, .deleter = delete_plain};
        capsule = PyCapsule_New(&given->as.plain, "dltensor", drop_capsule);
    }
    if (capsule == NULL)
        drop_export(given);
done:
    Py_DECREF(source);
    return capsule;
}

PyObject *array_method___dlpack_device__(PyObject *self, ARRAY_VECTORCALL) { return Py_BuildValue("(ii)", DL_CPU, 0); }

PyObject *array_method_to_device(PyObject *self, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"device", "stream", NULL};
    PyObject *values[2];
    if (array_arguments("to_device", args, count, keywords, names, 1, 1, values) < 0)
        return NULL;
    if (!PyUnicode_Check(values[0]) || !PyUnicode_EqualToUTF8(values[0], "cpu"))
        return PyErr_Format(PyExc_ValueError, "Unsupported device: %R. Only 'cpu' is accepted.", values[0]);
    return Py_NewRef(self);
}

PyObject *array_method___array_namespace__(PyObject *self, ARRAY_VECTORCALL)
{
    return PyImport_ImportModule("vmhost.engine.numpy");
}

static void drop_plain(void *owner)
{
    dl_managed *managed = owner;
    if (managed->deleter != NULL)
        managed->deleter(managed);
}

static void drop_versioned(void *owner)
{
    dl_versioned *managed = owner;
    if (managed->deleter != NULL)
        managed->deleter(managed);
}

static int dtype_of(dl_dtype foreign)
{
    for (int i = 0; i < VME_DTYPE_COUNT; i++)
        if (foreign.lanes == 1 && foreign.code == code_of(i) && foreign.bits == 8 * vme_dtype_size((vme_dtype)i))
            return i;
    if (foreign.lanes != 1)
        PyErr_Format(PyExc_BufferError, "Unsupported lanes in DLTensor dtype: %d, where each element is one number",
                     foreign.lanes);
    else
        PyErr_Format(PyExc_BufferError, "Unsupported dtype in DLTensor: code %d of %d bits", foreign.code,
                     foreign.bits);
    return -1;
}

static array *take_over(array_state *state, PyObject *capsule)
{
    bool versioned = PyCapsule_IsValid(capsule, "dltensor_versioned");
    void *managed = PyCapsule_GetPointer(capsule, versioned ? "dltensor_versioned" : "dltensor");
    if (managed == NULL)
        return NULL;
    const dl_tensor *tensor = versioned ? &((dl_versioned *)managed)->tensor : &((dl_managed *)managed)->tensor;
    if (versioned && ((dl_versioned *)managed)->version.major > 1) {
        PyErr_Format(PyExc_BufferError,
                     "from_dlpack(): the exported DLPack major version is too high to be imported: %u, where 1 is read",
                     ((dl_versioned *)managed)->version.major);
        return NULL;
    }
    if (tensor->device.device_type != DL_CPU) {
        PyErr_Format(PyExc_BufferError,
                     "Unsupported device in DLTensor: device type %d, where only the CPU's (1) can be read",
                     tensor->device.device_type);
        return NULL;
    }
    int dtype = dtype_of(tensor->dtype), rank = tensor->ndim;
    if (dtype < 0)
        return NULL;
    int64_t strides[VME_RANK_MAX], low = 0, high = 0, width = vme_dtype_size((vme_dtype)dtype);
    size_t bytes;
    if (rank > VME_RANK_MAX) {
        PyErr_Format(PyExc_BufferError,
                     "maxdims of DLPack tensor is higher than the supported maxdims: %d, where %d are", rank,
                     VME_RANK_MAX);
        return NULL;
    }
    if (rank > 0 && tensor->shape == NULL) {
        PyErr_Format(PyExc_BufferError, "from_dlpack(): the tensor has %d dimensions and no shape", rank);
        return NULL;
    }
    if (array_check_status(state, vme_shape_bytes((vme_dtype)dtype, rank, tensor->shape, strides, &bytes)) < 0)
        return NULL;
    bool fits = true;
    for (int i = 0; i < rank; i++) {
        int64_t span = 0;
        if (tensor->strides != NULL)
            fits = fits && !__builtin_mul_overflow(tensor->strides[i], width, &strides[i]);
        if (bytes != 0)
            fits = fits && !__builtin_mul_overflow(tensor->shape[i] - 1, strides[i], &span)
                   && !__builtin_add_overflow(span < 0 ? low : high, span, span < 0 ? &low : &high);
    }
    if (!fits || __builtin_add_overflow(high, width, &high) || __builtin_sub_overflow(high, low, &high)) {
        PyErr_SetString(PyExc_BufferError, "from_dlpack(): strides reach beyond what memory can hold");
        return NULL;
    }
    /* the size of the memory is unknown, but it must neither start at 0 nor wrap around the address space */
    uintptr_t first, lowest, end;
    if (bytes != 0
        && (tensor->data == NULL || __builtin_add_overflow((uintptr_t)tensor->data, tensor->byte_offset, &first)
            || __builtin_add_overflow(first, low, &lowest) || __builtin_add_overflow(lowest, high, &end))) {
        PyErr_Format(PyExc_BufferError, "from_dlpack(): the tensor's %zu bytes cannot lie at address %p + %llu", bytes,
                     tensor->data, (unsigned long long)tensor->byte_offset);
        return NULL;
    }
    char *data = bytes == 0 ? tensor->data : (char *)first;
    /* before 1.0 producers did not say whether writing is allowed: as in NumPy, such arrays are read-only */
    bool writable = versioned && !(((dl_versioned *)managed)->flags & DL_READ_ONLY);
    vme_buffer *buffer;
    if (PyCapsule_SetName(capsule, versioned ? "used_dltensor_versioned" : "used_dltensor") < 0)
        return NULL;
    if (array_check_status(state, vme_buffer_wrap(state->context, data + low, bytes == 0 ? 0 : (size_t)high, writable,
                                                  managed, versioned ? drop_versioned : drop_plain, &buffer))
        < 0) {
        versioned ? drop_versioned(managed) : drop_plain(managed);
        return NULL;
    }
    return array_on_buffer(state, buffer, dtype, rank, tensor->shape, strides, data, ARRAY_LENT);
}

PyObject *array_function_from_dlpack(PyObject *module, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"x", "device", "copy", NULL};
    PyObject *values[3], *capsule = NULL, *device = NULL;
    array_state *state = array_state_of(module);
    int type, number;
    bool copy;
    if (array_arguments("from_dlpack", args, count, keywords, names, 1, 1, values) < 0
        || array_argument_bool(values[2], false, &copy) < 0)
        return NULL;
    if (array_given(values[1]) && !(PyUnicode_Check(values[1]) && PyUnicode_EqualToUTF8(values[1], "cpu")))
        return PyErr_Format(PyExc_ValueError, "Device not understood. Only \"cpu\" is allowed, but received: %R",
                            values[1]);
    device = PyObject_CallMethod(values[0], "__dlpack_device__", NULL);
    if (device != NULL && !PyTuple_Check(device))
        PyErr_Format(PyExc_TypeError, "__dlpack_device__() must give a tuple of two ints, not '%.200s'",
                     Py_TYPE(device)->tp_name);
    if (device == NULL || PyErr_Occurred()
        || !PyArg_ParseTuple(device, "ii;__dlpack_device__() must give a tuple of two ints", &type, &number)) {
        Py_XDECREF(device);
        return NULL;
    }
    Py_DECREF(device);
    if (type != DL_CPU)
        return PyErr_Format(PyExc_BufferError,
                            "Unsupported device in DLTensor: device type %d, where only the CPU's (1) can be read",
                            type);
    PyObject *method = PyObject_GetAttrString(values[0], "__dlpack__");
    if (method == NULL)
        return NULL;
    PyObject *nothing = PyTuple_New(0), *version = Py_BuildValue("{s(ii)}", "max_version", 1, 0);
    if (nothing != NULL && version != NULL) {
        capsule = PyObject_Call(method, nothing, version);
        if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) { /* a producer older than DLPack 1.0 */
            PyErr_Clear();
            capsule = PyObject_CallNoArgs(method);
        }
    }
    Py_XDECREF(nothing);
    Py_XDECREF(version);
    Py_DECREF(method);
    if (capsule == NULL)
        return NULL;
    array *result = take_over(state, capsule);
    Py_DECREF(capsule);
    if (result != NULL && copy) {
        array *own = array_cast(result, result->t.dtype);
        Py_DECREF(result);
        result = own;
    }
    return (PyObject *)result;
}
