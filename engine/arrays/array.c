/* The array object: creation and destruction, its attributes, and its list of methods.
 *
 * Small arrays are the common case, so dead objects and dead buffers of up to 64 bytes are kept for reuse (bounded, per
 * interpreter; such buffers stay charged until array_free_lists_clear). An array refers to no Python object but its
 * type: foreign memory is kept alive by its buffer. So the garbage collector need not track it. */
#include "arrays.h"

#include <stddef.h>

#include "methods.h"
#include "vme_writes.h"

static array *object_new(array_state *state, int dtype, int rank)
{
    array *self;
    if (state->free_array_count > 0) {
        self = state->free_arrays[--state->free_array_count];
        PyObject_Init((PyObject *)self, state->array_type);
    } else {
        self = PyObject_New(array, state->array_type);
        if (self == NULL)
            return NULL;
        self->state = state;
        self->weak_references = NULL;
    }
    self->far_dims = NULL;
    int64_t *dims = self->dims;
    if (rank > ARRAY_INLINE_RANK) {
        dims = self->far_dims = PyMem_Malloc(2 * (size_t)rank * sizeof *dims);
        if (dims == NULL) {
            self->t.buffer = NULL;
            Py_DECREF(self);
            PyErr_NoMemory();
            return NULL;
        }
    }
    self->t = (vme_tensor){.shape = dims,
                           .strides = dims + (rank > ARRAY_INLINE_RANK ? rank : ARRAY_INLINE_RANK),
                           .rank = rank,
                           .dtype = dtype};
    return self;
}

void array_dealloc(PyObject *object)
{
    array *self = (array *)object;
    array_state *state = self->state;
    PyTypeObject *type = Py_TYPE(object);
    vme_buffer *buffer = self->t.buffer;
    if (self->weak_references != NULL)
        PyObject_ClearWeakRefs(object);
    if (buffer != NULL) {
        /* this is the only reference, so no other code can hold, freeze or inherit the buffer */
        if ((self->flags & ARRAY_OWN) && state->free_buffer_count < state->free_max
            && vme_buffer_size(buffer) == ARRAY_SMALL_BYTES && vme_buffer_references(buffer) == 1
            && vme_buffer_writable(buffer))
            state->free_buffers[state->free_buffer_count++] = buffer;
        else
            vme_buffer_unref(buffer);
    }
    if (self->far_dims != NULL)
        PyMem_Free(self->far_dims);
    if (state->free_array_count < state->free_max)
        state->free_arrays[state->free_array_count++] = self;
    else
        PyObject_Free(self);
    Py_DECREF(type);
}

void array_free_lists_clear(array_state *state)
{
    while (state->free_array_count > 0)
        PyObject_Free(state->free_arrays[--state->free_array_count]);
    while (state->free_buffer_count > 0)
        vme_buffer_unref(state->free_buffers[--state->free_buffer_count]);
}

/* Allocates the array's memory; on failure only the object is left. */
static int buffer_give(array *self, size_t bytes, bool zeroed)
{
    array_state *state = self->state;
    if (bytes <= ARRAY_SMALL_BYTES) {
        if (state->free_buffer_count > 0) {
            self->t.buffer = state->free_buffers[--state->free_buffer_count];
            if (zeroed)
                memset(vme_buffer_data(self->t.buffer), 0, bytes);
            self->t.data = vme_buffer_data(self->t.buffer);
            return 0;
        }
        bytes = ARRAY_SMALL_BYTES;
    }
    vme_status status =
        ENGINE(zeroed ? (int64_t)(bytes / 8) : 0, vme_buffer_new(state->context, bytes, zeroed, &self->t.buffer));
    if (status != VME_OK) {
        self->t.buffer = NULL;
        array_fail(state, status);
        return -1;
    }
    self->t.data = vme_buffer_data(self->t.buffer);
    return 0;
}

array *array_new(array_state *state, int dtype, int rank, const int64_t *shape, bool zeroed)
{
    size_t bytes;
    int64_t strides[VME_RANK_MAX];
    vme_status status = vme_shape_bytes((vme_dtype)dtype, rank, shape, strides, &bytes);
    if (status != VME_OK) {
        array_fail(state, status);
        return NULL;
    }
    array *self = object_new(state, dtype, rank);
    if (self == NULL)
        return NULL;
    if (rank > 0) /* with rank 0 `shape` may be NULL, which memcpy does not allow */
        memcpy((int64_t *)self->t.shape, shape, (size_t)rank * sizeof *shape);
    memcpy((int64_t *)self->t.strides, strides, (size_t)rank * sizeof *shape);
    self->size = (int64_t)(bytes / (size_t)vme_dtype_size((vme_dtype)dtype));
    self->flags = ARRAY_CONTIGUOUS | ARRAY_OWN;
    if (buffer_give(self, bytes, zeroed) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

array *array_new_like(const array *of, int dtype)
{
    if ((of->flags & ARRAY_CONTIGUOUS) && dtype == of->t.dtype) {
        int rank = of->t.rank;
        array *self = object_new(of->state, dtype, rank);
        if (self == NULL)
            return NULL;
        for (int i = 0; i < rank; i++) {
            ((int64_t *)self->t.shape)[i] = of->t.shape[i];
            ((int64_t *)self->t.strides)[i] = of->t.strides[i];
        }
        self->size = of->size;
        self->flags = ARRAY_CONTIGUOUS | ARRAY_OWN;
        if (buffer_give(self, (size_t)of->size * (size_t)vme_dtype_size((vme_dtype)dtype), false) < 0) {
            Py_DECREF(self);
            return NULL;
        }
        return self;
    }
    return array_new(of->state, dtype, of->t.rank, of->t.shape, false);
}

array *array_new_scalar(array_state *state, int dtype)
{
    array *self = object_new(state, dtype, 0);
    if (self == NULL)
        return NULL;
    self->size = 1;
    self->flags = ARRAY_CONTIGUOUS | ARRAY_OWN;
    if (buffer_give(self, ARRAY_SMALL_BYTES, false) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

array *array_on_buffer(array_state *state, vme_buffer *buffer, int dtype, int rank, const int64_t *shape,
                       const int64_t *strides, char *data, int flags)
{
    array *self = object_new(state, dtype, rank);
    if (self == NULL) {
        vme_buffer_unref(buffer);
        return NULL;
    }
    self->t.buffer = buffer;
    self->t.data = data;
    self->flags = flags & ~(ARRAY_CONTIGUOUS | ARRAY_SCALAR);
    int64_t step = vme_dtype_size((vme_dtype)dtype);
    uint64_t size = 1;
    bool contiguous = true, fits = true;
    for (int i = rank - 1; i >= 0; i--) {
        ((int64_t *)self->t.shape)[i] = shape[i];
        ((int64_t *)self->t.strides)[i] = strides != NULL ? strides[i] : step;
        if (shape[i] != 1 && self->t.strides[i] != step)
            contiguous = false;
        fits = !__builtin_mul_overflow(step, shape[i] == 0 ? 1 : shape[i], &step) && fits;
        size *= (uint64_t)shape[i];
    }
    size_t bytes;
    if (!fits) { /* an empty array whose other sizes are too large, or one element many times */
        array_fail(state, vme_shape_bytes((vme_dtype)dtype, rank, shape, NULL, &bytes));
        Py_DECREF(self);
        return NULL;
    }
    self->size = (int64_t)size;
    if (contiguous || size == 0)
        self->flags |= ARRAY_CONTIGUOUS;
    return self;
}

char *array_data_at(const array *of, int64_t offset)
{
    /* Compared as numbers: forming a pointer outside the buffer is already undefined. */
    char *start = vme_buffer_data(of->t.buffer);
    const int64_t before = of->t.data - start, after = (int64_t)vme_buffer_size(of->t.buffer) - before;
    if (offset >= -before && offset <= after)
        return of->t.data + offset;
    PyErr_Format(PyExc_ValueError, "offset must lie within the buffer: from %lld to %lld bytes, not %lld",
                 (long long)-before, (long long)after, (long long)offset);
    return NULL;
}

array *array_view_of(const array *of, int dtype, int rank, const int64_t *shape, const int64_t *strides, char *data)
{
    return array_on_buffer(of->state, vme_buffer_ref(of->t.buffer), dtype, rank, shape, strides, data,
                           (of->flags & (ARRAY_READ_ONLY | ARRAY_OWN | ARRAY_LENT)) | ARRAY_VIEW);
}

bool array_writable(const array *self)
{
    return !(self->flags & ARRAY_READ_ONLY) && vme_buffer_writable(self->t.buffer);
}

int array_require_writable(const array *self, const char *what)
{
    if (array_writable(self)) {
        vme_buffer_note_write(self->t.buffer, ++self->state->writes);
        return 0;
    }
    PyErr_SetString(PyExc_ValueError, what);
    return -1;
}

/* ---- attributes */
PyObject *array_sizes_tuple(int rank, const int64_t *sizes)
{
    PyObject *tuple = PyTuple_New(rank);
    for (int i = 0; tuple != NULL && i < rank; i++) {
        PyObject *size = PyLong_FromLongLong(sizes[i]);
        if (size == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, size);
    }
    return tuple;
}

#define SELF ((array *)self)
static PyObject *get_shape(PyObject *self, void *closure) { return array_sizes_tuple(SELF->t.rank, SELF->t.shape); }
static PyObject *get_strides(PyObject *self, void *closure) { return array_sizes_tuple(SELF->t.rank, SELF->t.strides); }
static PyObject *get_ndim(PyObject *self, void *closure) { return PyLong_FromLong(SELF->t.rank); }
static PyObject *get_size(PyObject *self, void *closure) { return PyLong_FromLongLong(SELF->size); }
static PyObject *get_dtype(PyObject *self, void *closure) { return Py_NewRef(SELF->state->dtypes[SELF->t.dtype]); }
static PyObject *get_transposed(PyObject *self, void *closure) { return (PyObject *)array_transpose(SELF, NULL); }
static PyObject *get_device(PyObject *self, void *closure) { return PyUnicode_FromString("cpu"); }

static PyObject *get_matrix_transposed(PyObject *self, void *closure)
{
    int rank = SELF->t.rank, order[VME_RANK_MAX];
    if (rank < 2)
        return PyErr_Format(PyExc_ValueError, "matrix transpose with ndim < 2 is undefined");
    for (int i = 0; i < rank; i++)
        order[i] = i;
    order[rank - 2] = rank - 1;
    order[rank - 1] = rank - 2;
    return (PyObject *)array_transpose(SELF, order);
}

static PyObject *get_itemsize(PyObject *self, void *closure)
{
    return PyLong_FromLong(vme_dtype_size((vme_dtype)SELF->t.dtype));
}

static PyObject *get_nbytes(PyObject *self, void *closure)
{
    return PyLong_FromLongLong(SELF->size * vme_dtype_size((vme_dtype)SELF->t.dtype));
}

/* The real or imaginary part of complex elements, as a view; of real elements the array itself, or read-only zeros. */
static PyObject *get_part(PyObject *self, void *closure)
{
    bool imaginary = closure != NULL;
    int dtype = SELF->t.dtype;
    if (dtype_is_complex(dtype)) {
        int part = dtype == VME_COMPLEX64 ? VME_FLOAT32 : VME_FLOAT64;
        array *view = array_view_of(SELF, part, SELF->t.rank, SELF->t.shape, SELF->t.strides,
                                    SELF->t.data + (imaginary ? vme_dtype_size((vme_dtype)part) : 0));
        if (view != NULL && SELF->flags & ARRAY_SCALAR)
            view->flags |= ARRAY_SCALAR;
        return (PyObject *)view;
    }
    if (!imaginary)
        return Py_NewRef(self);
    array *zeros = array_new(SELF->state, dtype, SELF->t.rank, SELF->t.shape, true);
    if (zeros != NULL)
        zeros->flags |= ARRAY_READ_ONLY | (SELF->flags & ARRAY_SCALAR);
    return (PyObject *)zeros;
}

static int set_part(PyObject *self, PyObject *value, void *closure)
{
    if (value == NULL || (closure != NULL && !dtype_is_complex(SELF->t.dtype))) {
        PyErr_SetString(value == NULL ? PyExc_AttributeError : PyExc_TypeError,
                        value == NULL ? "Cannot delete array's parts" : "array does not have imaginary part to set");
        return -1;
    }
    array *part = (array *)get_part(self, closure);
    int result = part == NULL || array_require_writable(part, "assignment destination is read-only") < 0
                     ? -1
                     : WRITING(part->state, array_assign_python(part, value));
    Py_XDECREF(part);
    return result;
}

bool array_is_fortran(const array *of)
{
    int64_t step = vme_dtype_size((vme_dtype)of->t.dtype);
    bool fortran = true;
    for (int i = 0; i < of->t.rank; i++) {
        if (of->t.shape[i] != 1 && of->t.strides[i] != step)
            fortran = false;
        if (__builtin_mul_overflow(step, of->t.shape[i], &step))
            fortran = false;
    }
    return fortran || of->size == 0;
}

/* The flags object; flags.writeable, flags["C_CONTIGUOUS"] and the like are implemented in Python. */
static PyObject *get_flags(PyObject *self, void *closure)
{
    const vme_tensor *t = &SELF->t;
    bool aligned =
        (uintptr_t)t->data % (uintptr_t)(vme_dtype_size((vme_dtype)t->dtype) >> dtype_is_complex(t->dtype)) == 0;
    PyObject *module = PyImport_ImportModule("vmhost.engine.numpy._flags");
    if (module == NULL)
        return NULL;
    PyObject *flags = PyObject_CallMethod(
        module, "Flags", "OOOOOO", self, SELF->flags & ARRAY_CONTIGUOUS ? Py_True : Py_False,
        array_is_fortran(SELF) ? Py_True : Py_False, array_writable(SELF) ? Py_True : Py_False,
        aligned ? Py_True : Py_False,
        vme_buffer_data(t->buffer) == (void *)t->data && (SELF->flags & (ARRAY_VIEW | ARRAY_OWN)) == ARRAY_OWN
            ? Py_True
            : Py_False);
    Py_DECREF(module);
    return flags;
}

static PyObject *get_flat(PyObject *self, void *closure)
{
    PyObject *module = PyImport_ImportModule("vmhost.engine.numpy._flat");
    PyObject *flat = module == NULL ? NULL : PyObject_CallMethod(module, "flatiter", "O", self);
    Py_XDECREF(module);
    return flat;
}

static int set_flat(PyObject *self, PyObject *value, void *closure)
{
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "Cannot delete flat iterator");
        return -1;
    }
    PyObject *flat = get_flat(self, closure), *all = flat == NULL ? NULL : PySlice_New(NULL, NULL, NULL);
    int result = all == NULL ? -1 : PyObject_SetItem(flat, all, value);
    Py_XDECREF(flat);
    Py_XDECREF(all);
    return result;
}

/* Attributes omitted on purpose: raises AttributeError with the alternative. `closure`: the name. */
static PyObject *get_absent(PyObject *self, void *closure)
{
    PyObject *module = PyImport_ImportModule("vmhost.engine.numpy._absent");
    PyObject *error = module == NULL ? NULL : PyObject_CallMethod(module, "missing_method", "s", (const char *)closure);
    if (error != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(module);
    return NULL;
}
#define ABSENT(name) {name, get_absent, NULL, NULL, (void *)name}

static PyGetSetDef attributes[] = {
    {"shape", get_shape, NULL, "Sizes of the dimensions.", NULL},
    {"strides", get_strides, NULL, "Bytes from one element to the next, a dimension each.", NULL},
    {"ndim", get_ndim, NULL, "Number of dimensions.", NULL},
    {"size", get_size, NULL, "Number of elements.", NULL},
    {"dtype", get_dtype, NULL, "Type of the elements.", NULL},
    {"itemsize", get_itemsize, NULL, "Bytes of an element.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of all elements.", NULL},
    {"T", get_transposed, NULL, "View with the dimensions reversed.", NULL},
    {"mT", get_matrix_transposed, NULL, "View with the last two dimensions swapped.", NULL},
    {"real", get_part, set_part, "The real part.", NULL},
    {"imag", get_part, set_part, "The imaginary part.", "imaginary"},
    {"flags", get_flags, NULL, "How the memory lies and whether it may be written.", NULL},
    {"flat", get_flat, set_flat, "The elements in C order: iterated, read and written by number.", NULL},
    {"device", get_device, NULL, "\"cpu\".", NULL},
    ABSENT("base"),
    ABSENT("ctypes"),
    ABSENT("data"),
    ABSENT("dump"),
    ABSENT("dumps"),
    ABSENT("getfield"),
    ABSENT("resize"),
    ABSENT("setfield"),
    ABSENT("tofile"),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(array, weak_references), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))array_method_##name, METH_FASTCALL | METH_KEYWORDS, NULL},
static PyMethodDef methods[] = {
    ARRAY_METHODS(METHOD){NULL, NULL, 0, NULL},
};

static Py_ssize_t length(PyObject *self)
{
    if (SELF->t.rank > 0)
        return SELF->t.shape[0];
    PyErr_SetString(PyExc_TypeError, "len() of unsized object");
    return -1;
}

/* Printing is implemented in Python, imported when the first array is printed. */
static PyObject *in_words(PyObject *self, const char *function)
{
    PyObject *module = PyImport_ImportModule("vmhost.engine.numpy._printing");
    if (module == NULL)
        return NULL;
    PyObject *text = PyObject_CallMethod(module, function, "O", self);
    Py_DECREF(module);
    return text;
}
static PyObject *representation(PyObject *self) { return in_words(self, "array_repr"); }
static PyObject *string(PyObject *self) { return in_words(self, "array_str"); }

static Py_hash_t hash(PyObject *self)
{
    if (!(SELF->flags & ARRAY_SCALAR)) {
        PyErr_SetString(PyExc_TypeError, "unhashable type: 'numpy.ndarray'");
        return -1;
    }
    PyObject *value = array_item_value(SELF);
    if (value == NULL)
        return -1;
    Py_hash_t result = PyObject_Hash(value);
    Py_DECREF(value);
    return result;
}

static int contains(PyObject *self, PyObject *value)
{
    PyObject *equal =
        array_is_operand(value) ? array_binary(SELF->state, VME_EQUAL, self, value, NULL, -1) : Py_NewRef(Py_False);
    if (equal == NULL || !is_array(equal)) {
        Py_XDECREF(equal);
        return equal == NULL ? -1 : 0;
    }
    uint64_t all = ((array *)equal)->t.rank == 64 ? ~UINT64_C(0) : (UINT64_C(1) << ((array *)equal)->t.rank) - 1;
    PyObject *any = array_reduce((array *)equal, VME_ANY, all, false, -1, NULL, NULL);
    Py_DECREF(equal);
    int result = any == NULL ? -1 : PyObject_IsTrue(any);
    Py_XDECREF(any);
    return result;
}

/* Bytes of the object, with the elements of an array that is no view. */
PyObject *array_method___sizeof__(PyObject *self, ARRAY_VECTORCALL)
{
    if (array_arguments("__sizeof__", args, count, keywords, (const char *const[]){NULL}, 0, 0, NULL) < 0)
        return NULL;
    size_t bytes = sizeof(array) + (SELF->far_dims == NULL ? 0 : 2 * (size_t)SELF->t.rank * sizeof(int64_t));
    if (!(SELF->flags & ARRAY_VIEW))
        bytes += (size_t)SELF->size * (size_t)vme_dtype_size((vme_dtype)SELF->t.dtype);
    return PyLong_FromSize_t(bytes);
}

/* Iteration: an index and the array. */
typedef struct array_iterator {
    PyObject_HEAD
    array *over;
    int64_t next;
} array_iterator;

static PyObject *iterate(PyObject *self)
{
    if (SELF->t.rank == 0) {
        PyErr_SetString(PyExc_TypeError, "iteration over a 0-d array");
        return NULL;
    }
    array_iterator *iterator = PyObject_New(array_iterator, SELF->state->iterator_type);
    if (iterator != NULL) {
        iterator->over = (array *)Py_NewRef(self);
        iterator->next = 0;
    }
    return (PyObject *)iterator;
}

static PyObject *iterator_next(PyObject *self)
{
    array_iterator *iterator = (array_iterator *)self;
    array *over = iterator->over;
    if (iterator->next >= over->t.shape[0])
        return NULL;
    int64_t walked = iterator->next; /* list(), sum() and the like iterate without checking for stops */
    if (array_walk(over->state, &walked) < 0)
        return NULL;
    return array_item_at(over, iterator->next++);
}

static void iterator_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF(((array_iterator *)self)->over);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot iterator_slots[] = {
    {Py_tp_dealloc, iterator_dealloc},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, iterator_next},
    {0, NULL},
};
static PyType_Spec iterator_spec = {
    "vmhost.engine._array.ndarray_iterator",
    sizeof(array_iterator),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    iterator_slots,
};

/* ndarray(shape, dtype=float, buffer=None, offset=0, strides=None) */
static PyObject *construct(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"shape", "dtype", "buffer", "offset", "strides", "order", NULL};
    PyObject *shape, *dtype_name = NULL, *buffer = NULL, *steps = NULL, *order = NULL;
    Py_ssize_t offset = 0;
    array_state *state = PyType_GetModuleState(type);
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|OOnOO:ndarray", names, &shape, &dtype_name, &buffer, &offset,
                                     &steps, &order))
        return NULL;
    int64_t sizes[VME_RANK_MAX], strides[VME_RANK_MAX];
    int rank, stride_rank, dtype = array_argument_dtype(state, dtype_name, VME_FLOAT64);
    if (dtype < 0 || array_argument_shape(shape, &rank, sizes) < 0)
        return NULL;
    size_t bytes;
    if (array_check_status(state, vme_shape_bytes((vme_dtype)dtype, rank, sizes, strides, &bytes)) < 0)
        return NULL;
    if (array_given(steps)) {
        if (array_argument_shape(steps, &stride_rank, strides) < 0)
            return NULL;
        if (stride_rank != rank) {
            PyErr_SetString(PyExc_ValueError, "strides, if given, must be the same length as shape");
            return NULL;
        }
    }
    if (!array_given(buffer)) {
        array *fresh = array_new(state, dtype, rank, sizes, false);
        char lies = fresh == NULL ? 0 : array_argument_order(order, fresh, 'C');
        if (lies == 'F')
            Py_SETREF(fresh, array_new_in_order(fresh, dtype, rank, sizes, 'F', false));
        else if (lies == 0)
            Py_CLEAR(fresh);
        if (fresh == NULL || !array_given(steps))
            return (PyObject *)fresh;
        const vme_tensor view = {fresh->t.buffer, fresh->t.data, sizes, strides, rank, dtype};
        array *strided = array_check_status(state, vme_tensor_check(&view)) < 0
                             ? NULL
                             : array_as_owner(array_view_of(fresh, dtype, rank, sizes, strides, fresh->t.data));
        Py_DECREF(fresh);
        return (PyObject *)strided;
    }
    array *memory = array_from_exporter(state, buffer);
    if (memory == NULL)
        return NULL;
    char *data;
    array *self = NULL;
    char lies = array_argument_order(order, memory, 'C');
    if (lies == 'F' && !array_given(steps)) { /* from the first dimension to the last */
        int64_t step = vme_dtype_size((vme_dtype)dtype);
        for (int i = 0; i < rank; i++) {
            strides[i] = step;
            step *= sizes[i] == 0 ? 1 : sizes[i];
        }
    }
    if (lies == 0)
        ; /* the exception is set */
    else if (offset < 0 || !(memory->flags & ARRAY_CONTIGUOUS))
        PyErr_SetString(PyExc_ValueError, "offset must be non-negative and the buffer contiguous");
    else if (!array_given(steps)
             && (bytes > vme_buffer_size(memory->t.buffer)
                 || (size_t)offset > vme_buffer_size(memory->t.buffer) - bytes))
        PyErr_SetString(PyExc_TypeError, "buffer is too small for requested array");
    else if ((data = array_data_at(memory, offset)) != NULL) {
        const vme_tensor view = {memory->t.buffer, data, sizes, strides, rank, dtype};
        if (array_check_status(state, vme_tensor_check(&view)) == 0)
            self = array_view_of(memory, dtype, rank, sizes, strides, data);
    }
    Py_DECREF(memory);
    return (PyObject *)self;
}

PyTypeObject *array_type_new(array_state *state, PyObject *module)
{
    PyType_Slot own[] = {
        {Py_tp_dealloc, array_dealloc},
        {Py_tp_new, construct},
        {Py_tp_getset, attributes},
        {Py_tp_members, members},
        {Py_tp_methods, methods},
        {Py_tp_repr, representation},
        {Py_tp_str, string},
        {Py_tp_hash, hash},
        {Py_tp_iter, iterate},
        {Py_tp_richcompare, array_richcompare},
        {Py_mp_length, length},
        {Py_mp_subscript, array_subscript},
        {Py_mp_ass_subscript, array_assign_subscript},
        {Py_sq_length, length},
        {Py_sq_contains, contains},
        {Py_bf_getbuffer, array_getbuffer},
        {Py_bf_releasebuffer, array_releasebuffer},
    };
    enum { OWN = sizeof own / sizeof *own };
    PyType_Slot slots[OWN + 64];
    memcpy(slots, own, sizeof own);
    int count = OWN;
    for (int i = 0; array_number_slots[i].slot != 0; i++)
        slots[count++] = array_number_slots[i];
    for (int i = 0; array_conversion_slots[i].slot != 0; i++)
        slots[count++] = array_conversion_slots[i];
    slots[count] = (PyType_Slot){0, NULL};
    PyType_Spec spec = {
        "vmhost.engine.numpy.ndarray",
        sizeof(array),
        0,
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_SEQUENCE,
        slots,
    };
    state->iterator_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &iterator_spec, NULL);
    if (state->iterator_type == NULL)
        return NULL;
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    /* NumPy looks for this attribute on the type: with it, operations with another library's array or number use our
     * implementation */
    PyObject *dict = type == NULL ? NULL : PyType_GetDict(type);
    if (dict == NULL || PyDict_SetItemString(dict, "__array_ufunc__", Py_None) < 0)
        Py_CLEAR(type);
    else
        PyType_Modified(type);
    Py_XDECREF(dict);
    return type;
}
