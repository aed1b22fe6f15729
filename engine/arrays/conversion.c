/* Conversion of arrays to other dtypes, to Python values and back: astype, copies, assignment, item, tolist, numbers,
 * formatting. */
#include "methods.h"

array *array_cast(array *self, int dtype)
{
    array *result = array_new_like(self, dtype);
    if (result != NULL
        && array_check_status(self->state, OPERATOR(self->state->context, "copy", self->size,
                                                    vme_copy(self->state->context, &self->t, &result->t)))
               < 0)
        Py_CLEAR(result);
    return result;
}

array *array_contiguous(array *self, int dtype)
{
    if ((self->flags & ARRAY_CONTIGUOUS) && (dtype < 0 || self->t.dtype == dtype))
        return (array *)Py_NewRef(self);
    return array_cast(self, dtype < 0 ? self->t.dtype : dtype);
}

int array_assign(array *target, const array *source)
{
    /* as in NumPy, leading dimensions of size 1 beyond the target's rank are ignored */
    vme_tensor from = source->t;
    while (from.rank > target->t.rank && from.shape[0] == 1) {
        from.shape++;
        from.strides++;
        from.rank--;
    }
    return array_check_status(target->state, OPERATOR(target->state->context, "copy", target->size,
                                                      vme_copy(target->state->context, &from, &target->t)));
}

int array_assign_python(array *target, PyObject *value)
{
    char element[ARRAY_ELEMENT_BYTES];
    if (element_weak(value) != WEAK_NONE) {
        if (element_from_python(target->t.dtype, value, element) < 0)
            return -1;
        if (target->t.rank == 0) {
            memcpy(target->t.data, element, (size_t)vme_dtype_size((vme_dtype)target->t.dtype));
            return 0;
        }
        vme_tensor scalar = {NULL, element, NULL, NULL, 0, target->t.dtype};
        return array_check_status(target->state, OPERATOR(target->state->context, "copy", target->size,
                                                          vme_copy(target->state->context, &scalar, &target->t)));
    }
    if (is_array(value) && array_checks_scalar((array *)value, target->t.dtype)) {
        PyObject *number = array_item_value((array *)value);
        int result = number == NULL ? -1 : array_assign_python(target, number);
        Py_XDECREF(number);
        return result;
    }
    array *source;
    if (is_array(value))
        source = (array *)Py_NewRef(value);
    else /* Python numbers in lists are converted to the target's dtype one by one, with its errors */
        source = array_from_any(target->state, value, PyObject_CheckBuffer(value) ? -1 : target->t.dtype);
    if (source == NULL)
        return -1;
    int result = array_assign(target, source);
    Py_DECREF(source);
    return result;
}

array *array_scalar_from(array_state *state, int dtype, PyObject *number)
{
    if (dtype < 0) {
        switch (element_weak(number)) {
        case WEAK_BOOL: dtype = VME_BOOL; break;
        case WEAK_INT: {
            int overflow;
            PyLong_AsLongLongAndOverflow(number, &overflow);
            dtype = overflow > 0 ? VME_UINT64 : VME_INT64;
            break;
        }
        case WEAK_COMPLEX: dtype = VME_COMPLEX128; break;
        default: dtype = VME_FLOAT64;
        }
    }
    array *result = array_new_scalar(state, dtype);
    if (result != NULL && element_from_python(dtype, number, result->t.data) < 0)
        Py_CLEAR(result);
    return result;
}

PyObject *array_item_value(array *self)
{
    if (self->size != 1) {
        PyErr_SetString(PyExc_ValueError, "can only convert an array of size 1 to a Python scalar");
        return NULL;
    }
    return element_to_python(self->t.dtype, self->t.data);
}

array *array_new_in_order(const array *like, int dtype, int rank, const int64_t *shape, char order, bool zero)
{
    int64_t steps[VME_RANK_MAX];
    if (order == 'C' || rank < 2 || (order == 'K' && (rank != like->t.rank || (like->flags & ARRAY_CONTIGUOUS))))
        return array_new(like->state, dtype, rank, shape, zero);
    for (int i = 0; i < rank; i++)
        steps[i] = order == 'K' ? like->t.strides[i] : i + 1;
    return array_new_ordered(like->state, dtype, rank, shape, steps, zero);
}

array *array_cast_in_order(array *self, int dtype, char order)
{
    if (order == 'C' || (order == 'K' && (self->flags & ARRAY_CONTIGUOUS)))
        return array_cast(self, dtype);
    array *result = array_new_in_order(self, dtype, self->t.rank, self->t.shape, order, false);
    if (result != NULL
        && array_check_status(self->state, OPERATOR(self->state->context, "copy", self->size,
                                                    vme_copy(self->state->context, &self->t, &result->t)))
               < 0)
        Py_CLEAR(result);
    return result;
}

/* ---- methods */
static const char *const astype_names[] = {"x", "dtype", "order", "casting", "subok", "copy", "device", NULL};

static PyObject *astype(array_state *state, array *self, PyObject **values)
{
    int dtype, casting;
    char order;
    bool copy;
    if ((dtype = array_dtype_from(state, values[1])) < 0 || (casting = dtype_casting(values[3], CAST_UNSAFE)) < 0
        || (order = array_argument_order(values[2], self, 'K')) == 0 || array_argument_device(values[6]) < 0
        || array_argument_bool(values[5], true, &copy) < 0)
        return NULL;
    if (!dtype_can_cast(self->t.dtype, dtype, casting))
        return PyErr_Format(PyExc_TypeError, "Cannot cast array data from %R to %R according to the rule '%U'",
                            state->dtypes[self->t.dtype], state->dtypes[dtype], values[3]);
    const bool ordered = order == 'F' ? array_is_fortran(self) : order != 'C' || self->flags & ARRAY_CONTIGUOUS;
    if (!copy && dtype == self->t.dtype && ordered)
        return Py_NewRef(self);
    array *result = array_cast_in_order(self, dtype, order);
    return self->flags & ARRAY_SCALAR ? array_as_scalar(result) : (PyObject *)result;
}
ARRAY_METHOD_OF(astype, astype_names, 6, 2, 7, astype)
PyObject *array_function_astype(PyObject *module, ARRAY_VECTORCALL)
{
    PyObject *values[7];
    if (array_arguments("astype", args, count, keywords, astype_names, 6, 2, values) < 0)
        return NULL;
    if (!is_array(values[0]))
        return PyErr_Format(PyExc_TypeError, "Input should be a NumPy array. It is of type %R.", Py_TYPE(values[0]));
    array_state *state = array_state_of(module);
    return WRITING(state, astype(state, (array *)values[0], values));
}

static const char *const copy_names[] = {"a", "order", "subok", NULL};
static PyObject *copy_in(array *self, PyObject *named, char absent)
{
    char order = array_argument_order(named, self, absent);
    return order == 0 ? NULL : (PyObject *)array_cast_in_order(self, self->t.dtype, order);
}
static PyObject *copy_by_method(array_state *state, array *self, PyObject **values)
{
    return copy_in(self, values[1], 'C');
}
static PyObject *copy_by_function(array_state *state, array *self, PyObject **values)
{
    return copy_in(self, values[1], 'K');
}
ARRAY_METHOD_OF(copy, copy_names, 2, 1, 3, copy_by_method)
ARRAY_FUNCTION_OF(copy, copy_names, 2, 1, 3, copy_by_function)

static const char *const only_self[] = {"a", "memo", NULL};
static PyObject *plain_copy(array_state *state, array *self, PyObject **values)
{
    array *result = array_cast_in_order(self, self->t.dtype, 'K');
    return self->flags & ARRAY_SCALAR ? array_as_scalar(result) : (PyObject *)result;
}
ARRAY_METHOD_OF(__copy__, only_self, 1, 1, 2, plain_copy)
static PyObject *deep_copy(array_state *state, array *self, PyObject **values)
{
    return self->flags & ARRAY_SCALAR ? Py_NewRef(self) : plain_copy(state, self, values);
}
ARRAY_METHOD_OF(__deepcopy__, only_self, 2, 1, 2, deep_copy)

PyObject *array_method___reduce_ex__(PyObject *self, ARRAY_VECTORCALL)
{
    PyErr_SetString(PyExc_TypeError,
                    "arrays are not pickled: pass them to a VM as they are, or store them with save()");
    return NULL;
}

static PyObject *to_list(const array *self, int depth, const char *data, int64_t *walked)
{
    if (depth == self->t.rank)
        return element_to_python(self->t.dtype, data);
    int64_t length = self->t.shape[depth];
    PyObject *list = PyList_New(length);
    for (int64_t i = 0; list != NULL && i < length; i++) {
        PyObject *item = array_walk(self->state, walked) < 0
                             ? NULL
                             : to_list(self, depth + 1, data + i * self->t.strides[depth], walked);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

PyObject *array_method_tolist(PyObject *self, ARRAY_VECTORCALL)
{
    int64_t walked = 0;
    return to_list((array *)self, 0, ((array *)self)->t.data, &walked);
}

PyObject *array_method_item(PyObject *self, ARRAY_VECTORCALL)
{
    array *of = (array *)self;
    if (count == 0)
        return array_item_value(of);
    if (count == 1 && !PyTuple_Check(args[0]) && of->t.rank != 1) { /* an index into the flat array */
        int64_t index, at[VME_RANK_MAX];
        if (array_argument_int(args[0], 0, &index) < 0)
            return NULL;
        if (index < -of->size || index >= of->size)
            return PyErr_Format(PyExc_IndexError, "index %lld is out of bounds for size %lld", (long long)index,
                                (long long)of->size);
        index += index < 0 ? of->size : 0;
        const char *data = of->t.data;
        for (int i = of->t.rank - 1; i >= 0; i--) {
            at[i] = index % of->t.shape[i];
            index /= of->t.shape[i];
            data += at[i] * of->t.strides[i];
        }
        return element_to_python(of->t.dtype, data);
    }
    PyObject *key = NULL;
    if (count == 1) {
        key = Py_NewRef(args[0]);
    } else {
        key = PyTuple_New(count);
        for (Py_ssize_t i = 0; key != NULL && i < count; i++)
            PyTuple_SET_ITEM(key, i, Py_NewRef(args[i]));
    }
    if (key == NULL)
        return NULL;
    PyObject *element = NULL;
    if ((PyTuple_Check(key) ? PyTuple_GET_SIZE(key) : 1) != of->t.rank)
        PyErr_SetString(PyExc_ValueError, "incorrect number of indices for array");
    else
        element = array_subscript(self, key);
    Py_DECREF(key);
    PyObject *value = element == NULL || !is_array(element) ? NULL : array_item_value((array *)element);
    Py_XDECREF(element);
    return value;
}

PyObject *array_method_fill(PyObject *self, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"value", NULL};
    PyObject *value;
    if (array_arguments("fill", args, count, keywords, names, 1, 1, &value) < 0
        || array_require_writable((array *)self, "assignment destination is read-only") < 0
        || WRITING(((array *)self)->state, array_assign_python((array *)self, value)) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *array_method_tobytes(PyObject *self, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"order", NULL};
    PyObject *value;
    if (array_arguments("tobytes", args, count, keywords, names, 1, 0, &value) < 0)
        return NULL;
    char order = array_argument_order(value, (array *)self, 'C');
    if (order == 0)
        return NULL;
    array *of = order == 'F' ? array_transpose((array *)self, NULL) : (array *)Py_NewRef(self);
    if (of == NULL)
        return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, of->size * vme_dtype_size((vme_dtype)of->t.dtype));
    if (bytes == NULL)
        goto done;
    int64_t strides[VME_RANK_MAX];
    size_t size;
    vme_tensor out = {NULL, PyBytes_AS_STRING(bytes), of->t.shape, strides, of->t.rank, of->t.dtype};
    if (array_check_status(of->state, vme_shape_bytes((vme_dtype)of->t.dtype, of->t.rank, of->t.shape, strides, &size))
            < 0
        || array_check_status(
               of->state, OPERATOR(of->state->context, "copy", of->size, vme_copy(of->state->context, &of->t, &out)))
               < 0)
        Py_CLEAR(bytes);
done:
    Py_DECREF(of);
    return bytes;
}

static const char *const swap_names[] = {"a", "inplace", NULL};
static PyObject *byteswap(array_state *state, array *self, PyObject **values)
{
    bool inplace;
    if (array_argument_bool(values[1], false, &inplace) < 0
        || (inplace && array_require_writable(self, "Cannot byte-swap a read-only array") < 0))
        return NULL;
    array *created = array_cast(self, self->t.dtype);
    if (created == NULL)
        return NULL;
    int parts = 1 + dtype_is_complex(self->t.dtype), size = vme_dtype_size((vme_dtype)self->t.dtype) / parts;
    for (int64_t i = 0, walked = 0; i < created->size * parts; i++) {
        if (array_walk(state, &walked) < 0) {
            Py_DECREF(created);
            return NULL;
        }
        char *element = created->t.data + i * size;
        for (int low = 0, high = size - 1; low < high; low++, high--) {
            char kept = element[low];
            element[low] = element[high];
            element[high] = kept;
        }
    }
    if (!inplace)
        return (PyObject *)created;
    int result = array_assign(self, created);
    Py_DECREF(created);
    return result < 0 ? NULL : Py_NewRef(self);
}
ARRAY_METHOD_OF(byteswap, swap_names, 2, 1, 2, byteswap)

/* The same bytes as another dtype: the last dimension absorbs the difference in size. */
PyObject *array_method_view(PyObject *self, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"dtype", "type", NULL};
    PyObject *values[2];
    array *of = (array *)self;
    if (array_arguments("view", args, count, keywords, names, 2, 0, values) < 0)
        return NULL;
    int dtype = values[0] == (PyObject *)of->state->array_type
                    ? of->t.dtype
                    : array_argument_dtype(of->state, values[0], of->t.dtype);
    if (dtype < 0)
        return NULL;
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX];
    int rank = of->t.rank, from = vme_dtype_size((vme_dtype)of->t.dtype), to = vme_dtype_size((vme_dtype)dtype);
    memcpy(shape, of->t.shape, (size_t)rank * sizeof *shape);
    memcpy(strides, of->t.strides, (size_t)rank * sizeof *shape);
    if (from != to) {
        if (rank == 0)
            return PyErr_Format(PyExc_ValueError,
                                "Changing the dtype of a 0d array is only supported if the itemsize is unchanged");
        if (shape[rank - 1] != 1 && strides[rank - 1] != from)
            return PyErr_Format(PyExc_ValueError,
                                "To change to a dtype of a different size, the last axis must be contiguous");
        int64_t bytes = shape[rank - 1] * from;
        if (bytes % to != 0)
            return PyErr_Format(PyExc_ValueError,
                                "When changing to a larger dtype, its size must be a divisor of the total size in "
                                "bytes of the last axis of the array.");
        shape[rank - 1] = bytes / to;
        strides[rank - 1] = to;
    }
    array *result = array_view_of(of, dtype, rank, shape, strides, of->t.data);
    return of->flags & ARRAY_SCALAR ? array_as_scalar(result) : (PyObject *)result;
}

/* Clears writability, or restores it if this array was made read-only on a writable buffer. */
PyObject *array_method_setflags(PyObject *self, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"write", "align", "uic", NULL};
    PyObject *values[3];
    bool write;
    array *of = (array *)self;
    if (array_arguments("setflags", args, count, keywords, names, 3, 0, values) < 0)
        return NULL;
    if (!array_given(values[0]))
        Py_RETURN_NONE;
    if (array_argument_bool(values[0], true, &write) < 0)
        return NULL;
    if (!write)
        of->flags |= ARRAY_READ_ONLY;
    else if (of->flags & ARRAY_SCALAR || !vme_buffer_writable(of->t.buffer))
        return PyErr_Format(PyExc_ValueError, "cannot set WRITEABLE flag to True of this array");
    else if (of->flags & ARRAY_READ_ONLY) {
        for (int i = 0; i < of->t.rank; i++)
            if (of->t.strides[i] == 0 && of->t.shape[i] > 1)
                return PyErr_Format(PyExc_ValueError, "cannot set WRITEABLE flag to True of this array");
        of->flags &= ~ARRAY_READ_ONLY;
    }
    Py_RETURN_NONE;
}

PyObject *array_method_is_integer(PyObject *self, ARRAY_VECTORCALL)
{
    PyObject *value = array_item_value((array *)self);
    if (value == NULL)
        return NULL;
    PyObject *answer = PyLong_Check(value) ? Py_NewRef(Py_True) : PyObject_CallMethod(value, "is_integer", NULL);
    Py_DECREF(value);
    return answer;
}

/* Methods that NumPy's scalars have of Python's numbers. */
static PyObject *of_number(PyObject *self, const char *name, PyObject *const *args, Py_ssize_t count,
                           PyObject *keywords)
{
    if (array_arguments(name, args, count, keywords, (const char *const[]){NULL}, 0, 0, NULL) < 0)
        return NULL;
    PyObject *value = array_item_value((array *)self);
    PyObject *answer = value == NULL ? NULL : PyObject_CallMethod(value, name, NULL);
    Py_XDECREF(value);
    return answer;
}
PyObject *array_method_bit_count(PyObject *self, ARRAY_VECTORCALL)
{
    return of_number(self, "bit_count", args, count, keywords);
}
PyObject *array_method_as_integer_ratio(PyObject *self, ARRAY_VECTORCALL)
{
    return of_number(self, "as_integer_ratio", args, count, keywords);
}
PyObject *array_method_hex(PyObject *self, ARRAY_VECTORCALL) { return of_number(self, "hex", args, count, keywords); }

static PyObject *only_value(PyObject *self)
{
    if (((array *)self)->t.rank != 0) {
        PyErr_SetString(PyExc_TypeError, "only 0-dimensional arrays can be converted to Python scalars");
        return NULL;
    }
    return array_item_value((array *)self);
}

static PyObject *number_float(PyObject *self)
{
    PyObject *value = only_value(self);
    if (value == NULL || PyFloat_Check(value))
        return value;
    PyObject *number = PyNumber_Float(value);
    Py_DECREF(value);
    return number;
}

static PyObject *number_int(PyObject *self)
{
    PyObject *value = only_value(self);
    if (value == NULL || PyLong_CheckExact(value))
        return value;
    PyObject *number = PyNumber_Long(value);
    Py_DECREF(value);
    return number;
}

static PyObject *number_index(PyObject *self)
{
    array *of = (array *)self;
    if (of->t.rank != 0 || !dtype_is_integer(of->t.dtype)) {
        PyErr_SetString(PyExc_TypeError, "only integer scalar arrays can be converted to a scalar index");
        return NULL;
    }
    return array_item_value(of);
}

static int number_bool(PyObject *self)
{
    array *of = (array *)self;
    if (of->size != 1) {
        PyErr_SetString(
            PyExc_ValueError,
            of->size == 0
                ? "The truth value of an empty array is ambiguous. Use `array.size > 0` to check that an array is not "
                  "empty."
                : "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()");
        return -1;
    }
    if (of->t.dtype == VME_BOOL)
        return *of->t.data != 0;
    PyObject *value = array_item_value(of);
    int truth = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    return truth;
}

PyObject *array_method___complex__(PyObject *self, ARRAY_VECTORCALL)
{
    PyObject *value = only_value(self);
    if (value == NULL)
        return NULL;
    PyObject *number = PyObject_CallOneArg((PyObject *)&PyComplex_Type, value);
    Py_DECREF(value);
    return number;
}

/* round(x) is an int, round(x, digits) has the array's dtype, as for NumPy's scalars. */
PyObject *array_method___round__(PyObject *self, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"ndigits", NULL};
    PyObject *digits;
    if (array_arguments("__round__", args, count, keywords, names, 1, 0, &digits) < 0)
        return NULL;
    if (array_given(digits))
        return PyObject_CallMethod(self, "round", "O", digits);
    PyObject *value = only_value(self), *whole = value == NULL ? NULL : PyObject_CallMethod(value, "__round__", NULL);
    Py_XDECREF(value);
    return whole;
}

PyObject *array_method___trunc__(PyObject *self, ARRAY_VECTORCALL)
{
    PyObject *value = only_value(self), *whole = value == NULL ? NULL : PyNumber_Long(value);
    Py_XDECREF(value);
    return whole;
}

PyObject *array_method___format__(PyObject *self, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"spec", NULL};
    PyObject *spec;
    if (array_arguments("__format__", args, count, keywords, names, 1, 1, &spec) < 0)
        return NULL;
    if (!PyUnicode_Check(spec))
        return PyErr_Format(PyExc_TypeError, "__format__() argument must be str, not %.200s", Py_TYPE(spec)->tp_name);
    bool scalar = ((array *)self)->t.rank == 0;
    if (!scalar && PyUnicode_GET_LENGTH(spec) == 0)
        return PyObject_Str(self);
    if (!scalar)
        return PyErr_Format(PyExc_TypeError, "unsupported format string passed to numpy.ndarray.__format__");
    PyObject *value = array_item_value((array *)self);
    if (value == NULL)
        return NULL;
    PyObject *text = PyObject_Format(value, spec);
    Py_DECREF(value);
    return text;
}

PyType_Slot array_conversion_slots[] = {
    {Py_nb_float, number_float},
    {Py_nb_int, number_int},
    {Py_nb_index, number_index},
    {Py_nb_bool, number_bool},
    {0, NULL},
};

/* ---- methods implemented in Python: the function of the same name in vmhost.engine.numpy, with the array as first
 * argument */
#define DELEGATED(name) \
    PyObject *array_method_##name(PyObject *self, ARRAY_VECTORCALL) \
    { \
        return array_delegate("vmhost.engine.numpy", #name, self, args, count, keywords); \
    }
ARRAY_DELEGATED(DELEGATED)

/* compress(condition, axis, out): the array is the function's second argument */
PyObject *array_method_compress(PyObject *self, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"condition", "axis", "out", NULL};
    PyObject *values[3];
    if (array_arguments("compress", args, count, keywords, names, 3, 1, values) < 0)
        return NULL;
    PyObject *module = PyImport_ImportModule("vmhost.engine.numpy");
    PyObject *result = module == NULL ? NULL
                                      : PyObject_CallMethod(module, "compress", "OOOO", values[0], self,
                                                            values[1] == NULL ? Py_None : values[1],
                                                            values[2] == NULL ? Py_None : values[2]);
    Py_XDECREF(module);
    return result;
}
