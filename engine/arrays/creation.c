/* Arrays from Python values: nested sequences, numbers, ranges, shapes. */
#include "methods.h"

#include <math.h>

/* ---- nested sequences: one pass finds shape and dtype, a second one fills */
typedef struct nesting {
    array_state *state;
    int rank;       /* depth of the numbers; -1: none seen yet */
    int known;      /* number of dimensions whose size is known */
    int dtype;      /* promoted so far; -1: no number seen yet */
    int64_t walked; /* elements visited, in both passes */
    int named;      /* the dtype that the caller names; -1: text and None are no numbers */
    int64_t shape[VME_RANK_MAX];
} nesting;

static int ragged(nesting *found, int depth)
{
    PyObject *shape = PyTuple_New(depth);
    for (int i = 0; shape != NULL && i < depth; i++) {
        PyObject *size = PyLong_FromLongLong(found->shape[i]);
        if (size == NULL)
            Py_CLEAR(shape);
        else
            PyTuple_SET_ITEM(shape, i, size);
    }
    if (shape != NULL)
        PyErr_Format(PyExc_ValueError,
                     "setting an array element with a sequence. The requested array has an inhomogeneous shape "
                     "after %d dimensions. The detected shape was %R + inhomogeneous part.",
                     depth, shape);
    Py_XDECREF(shape);
    return -1;
}

static int meet_dtype(nesting *found, int dtype)
{
    found->dtype = found->dtype < 0 ? dtype : (int)vme_dtype_promote((vme_dtype)found->dtype, (vme_dtype)dtype);
    return 0;
}

static int meet_number(nesting *found, PyObject *number, int weak, int depth)
{
    if (found->rank != depth) {
        if (found->rank >= 0)
            return ragged(found, depth < found->rank ? depth : found->rank);
        found->rank = depth;
    }
    static const unsigned char dtypes[] = {
        [WEAK_BOOL] = VME_BOOL, [WEAK_INT] = VME_INT64, [WEAK_FLOAT] = VME_FLOAT64, [WEAK_COMPLEX] = VME_COMPLEX128};
    int dtype = dtypes[weak];
    if (weak == WEAK_INT) {
        int overflow;
        if (PyLong_AsLongLongAndOverflow(number, &overflow) == -1 && overflow != 0) {
            char element[ARRAY_ELEMENT_BYTES]; /* without a dtype a number that no integer holds is refused */
            dtype = overflow > 0 ? VME_UINT64 : VME_INT64;
            if (found->named < 0 && element_from_python(dtype, number, element) < 0)
                return -1;
        }
    }
    return found->dtype == dtype ? 0 : meet_dtype(found, dtype);
}

/* Whether the object makes an array of itself. Lists and tuples, the most usual, are told without a look at their
 * type's attributes. */
static bool makes_array(PyObject *object)
{
    return !PyList_CheckExact(object) && !PyTuple_CheckExact(object) && !PyType_Check(object)
           && PyObject_HasAttrString((PyObject *)Py_TYPE(object), "__array__");
}

/* The same for an operand; one that has rules of its own for operators comes to its turn with its reflected one. */
static bool offers_array(PyObject *object)
{
    PyObject *type = (PyObject *)Py_TYPE(object);
    return makes_array(object) && !PyObject_HasAttrString(type, "__array_ufunc__")
           && !PyObject_HasAttrString(type, "__array_priority__");
}

static bool is_nested(PyObject *object)
{
    return PyList_Check(object) || PyTuple_Check(object)
           || (!makes_array(object) && PySequence_Check(object) && !PyUnicode_Check(object) && !PyBytes_Check(object)
               && !PyDict_Check(object) && !PyObject_CheckBuffer(object) && !is_array(object));
}

static int refuse(PyObject *object)
{
    PyErr_Format(PyExc_TypeError,
                 "cannot make an array element of '%.200s': elements are bool, int, float and complex numbers",
                 Py_TYPE(object)->tp_name);
    return -1;
}

/* The items of a nested sequence as a list or tuple. PySequence_Fast would convert a long range without checking for
 * stops, and a sequence that never ends: without an iterator of its own, its length says where that is. */
static PyObject *items_of(nesting *found, PyObject *object)
{
    if (PyList_Check(object) || PyTuple_Check(object))
        return Py_NewRef(object);
    const Py_ssize_t length = PySequence_Size(object);
    const bool bounded = Py_TYPE(object)->tp_iter == NULL;
    PyObject *walk = length < 0 ? NULL : PyObject_GetIter(object), *items = walk == NULL ? NULL : PyList_New(0), *item;
    while (items != NULL && (item = PyIter_Next(walk)) != NULL) {
        if (bounded && PyList_GET_SIZE(items) == length) {
            PyErr_Format(PyExc_ValueError, "an array of '%.200s': expected %zd items, as its length says, got more",
                         Py_TYPE(object)->tp_name, length);
            Py_CLEAR(items);
        } else if (array_walk(found->state, &found->walked) < 0 || PyList_Append(items, item) < 0)
            Py_CLEAR(items);
        Py_DECREF(item);
    }
    Py_XDECREF(walk);
    if (items != NULL && PyErr_Occurred())
        Py_CLEAR(items);
    return items;
}

/* What stands for a number where the caller names a dtype: text; None, which is False or NaN. */
static bool stands_for_number(PyObject *object, int dtype)
{
    if (object == Py_None)
        return dtype == VME_BOOL || dtype >= VME_FLOAT16;
    return dtype >= 0 && dtype != VME_BOOL && (PyUnicode_Check(object) || PyBytes_Check(object));
}

static int element_from_stand_in(int dtype, PyObject *text, char *data)
{
    PyObject *number = NULL;
    if (text == Py_None)
        number = Py_NewRef(text);
    else if (dtype_is_integer(dtype))
        number = PyNumber_Long(text);
    else if (!dtype_is_complex(dtype))
        number = PyNumber_Float(text);
    else {
        PyObject *decoded = PyBytes_Check(text)
                                ? PyUnicode_DecodeLatin1(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text), NULL)
                                : Py_NewRef(text);
        if (decoded != NULL)
            number = PyObject_CallOneArg((PyObject *)&PyComplex_Type, decoded);
        Py_XDECREF(decoded);
    }
    int result = number == NULL ? -1 : element_from_python(dtype, number, data);
    Py_XDECREF(number);
    return result;
}

static int find(nesting *found, PyObject *object, int depth)
{
    int weak = element_weak(object);
    if (weak != WEAK_NONE)
        return meet_number(found, object, weak, depth);
    if (stands_for_number(object, found->named))
        return meet_number(found, object, WEAK_BOOL, depth);
    if (!is_nested(object) || array_is_traced(found->state, object)) {
        array *inner = array_from_any(found->state, object, -1);
        if (inner == NULL)
            return -1;
        int result = meet_dtype(found, inner->t.dtype), rank = depth + inner->t.rank;
        if (rank > VME_RANK_MAX || (found->rank >= 0 && found->rank != rank))
            result = ragged(found, depth);
        for (int i = 0; result == 0 && i < inner->t.rank; i++) {
            if (depth + i == found->known)
                found->shape[found->known++] = inner->t.shape[i];
            else if (found->shape[depth + i] != inner->t.shape[i])
                result = ragged(found, depth + i);
        }
        found->rank = rank;
        Py_DECREF(inner);
        return result;
    }
    PyObject *items = items_of(found, object);
    if (items == NULL)
        return -1;
    Py_ssize_t length = PySequence_Fast_GET_SIZE(items);
    int result = 0;
    if (depth >= VME_RANK_MAX) {
        PyErr_Format(PyExc_ValueError,
                     "setting an array element with a sequence. The requested array would exceed the maximum "
                     "number of dimension of %d.",
                     VME_RANK_MAX);
        result = -1;
    } else if (found->rank >= 0 && depth >= found->rank)
        result = ragged(found, found->rank);
    else if (depth == found->known)
        found->shape[found->known++] = length;
    else if (found->shape[depth] != length)
        result = ragged(found, depth);
    if (length == 0 && result == 0 && found->rank < 0)
        found->rank = depth + 1;
    if (Py_EnterRecursiveCall(" while making an array"))
        result = -1;
    else {
        for (Py_ssize_t i = 0; result == 0 && i < length && i < PySequence_Fast_GET_SIZE(items); i++) {
            if (array_walk(found->state, &found->walked) < 0) {
                result = -1;
                break;
            }
            PyObject *item = PySequence_Fast_GET_ITEM(items, i);
            if (PyFloat_CheckExact(item) && found->rank == depth + 1 && found->dtype == VME_FLOAT64)
                continue;
            Py_INCREF(item); /* the list may change in the meantime */
            result = find(found, item, depth + 1);
            Py_DECREF(item);
        }
        Py_LeaveRecursiveCall();
    }
    Py_DECREF(items);
    return result;
}

static int fill_nested(nesting *found, int dtype, PyObject *object, int depth, int64_t step, char *data)
{
    if (depth == found->rank && element_weak(object) != WEAK_NONE)
        return element_from_python(dtype, object, data);
    if (depth == found->rank && stands_for_number(object, found->named))
        return element_from_stand_in(dtype, object, data);
    if (!is_nested(object) || array_is_traced(found->state, object)) {
        array *inner = array_from_any(found->state, object, -1);
        if (inner == NULL)
            return -1;
        if (depth == found->rank && array_checks_scalar(inner, dtype)) {
            int stored = element_from_python(dtype, (PyObject *)inner, data);
            Py_DECREF(inner);
            return stored;
        }
        vme_tensor out = {NULL, data, found->shape + depth, NULL, found->rank - depth, dtype};
        int64_t strides[VME_RANK_MAX];
        size_t bytes;
        int result =
            array_check_status(found->state, vme_shape_bytes((vme_dtype)dtype, out.rank, out.shape, strides, &bytes));
        out.strides = strides;
        if (result == 0)
            result = array_check_status(found->state, OPERATOR(found->state->context, "copy", inner->size,
                                                               vme_copy(found->state->context, &inner->t, &out)));
        Py_DECREF(inner);
        return result;
    }
    if (depth == found->rank) {
        PyErr_SetString(PyExc_ValueError, "a number became a sequence while an array was made of it");
        return -1;
    }
    PyObject *items = items_of(found, object);
    if (items == NULL)
        return -1;
    int result = 0;
    int64_t length = found->shape[depth], inner_step = length > 0 ? step / length : 0;
    for (int64_t i = 0; result == 0 && i < length; i++) {
        if (array_walk(found->state, &found->walked) < 0) {
            result = -1;
            break;
        }
        if (PySequence_Fast_GET_SIZE(items) != length) {
            PyErr_SetString(PyExc_ValueError, "a sequence changed its length while an array was made of it");
            result = -1;
            break;
        }
        PyObject *item = PySequence_Fast_GET_ITEM(items, i);
        if (dtype == VME_FLOAT64 && PyFloat_CheckExact(item) && depth + 1 == found->rank) {
            double value = PyFloat_AS_DOUBLE(item);
            memcpy(data + i * inner_step, &value, sizeof value);
        } else {
            Py_INCREF(item);
            result = fill_nested(found, dtype, item, depth + 1, inner_step, data + i * inner_step);
            Py_DECREF(item);
        }
    }
    Py_DECREF(items);
    return result;
}

static array *from_nested(array_state *state, PyObject *object, int dtype)
{
    nesting found = {.state = state, .rank = -1, .dtype = -1, .named = dtype};
    if (find(&found, object, 0) < 0)
        return NULL;
    if (dtype < 0)
        dtype = found.dtype < 0 ? VME_FLOAT64 : found.dtype;
    array *result = array_new(state, dtype, found.rank, found.shape, false);
    if (result != NULL && result->size > 0
        && fill_nested(&found, dtype, object, 0, result->size * vme_dtype_size((vme_dtype)dtype), result->t.data) < 0)
        Py_CLEAR(result);
    return result;
}

/* The array that the object's __array__ makes. */
static array *from_protocol(array_state *state, PyObject *object, int dtype)
{
    PyObject *made = PyObject_CallMethod(object, "__array__", NULL);
    if (made != NULL && !is_array(made) && (!PyObject_CheckBuffer(made) || PyBytes_Check(made))) {
        PyErr_Format(PyExc_ValueError, "object __array__ method not producing an array, but '%.200s'",
                     Py_TYPE(made)->tp_name);
        Py_CLEAR(made);
    }
    array *result = made == NULL ? NULL : array_from_any(state, made, dtype);
    Py_XDECREF(made);
    return result;
}

bool array_is_operand(PyObject *object)
{
    return is_array(object) || element_weak(object) != WEAK_NONE || PyList_Check(object) || PyTuple_Check(object)
           || (PyObject_CheckBuffer(object) && !PyBytes_Check(object)) || PyRange_Check(object) || offers_array(object);
}

array *array_from_any(array_state *state, PyObject *object, int dtype)
{
    if (is_array(object))
        return dtype < 0 || dtype == ((array *)object)->t.dtype ? (array *)Py_NewRef(object)
                                                                : array_cast((array *)object, dtype);
    if (element_weak(object) != WEAK_NONE)
        return array_scalar_from(state, dtype, object);
    if (PyObject_CheckBuffer(object) && !PyBytes_Check(object)) {
        array *lent = array_from_exporter(state, object);
        if (lent == NULL || dtype < 0 || dtype == lent->t.dtype)
            return lent;
        array *cast = array_cast(lent, dtype);
        Py_DECREF(lent);
        return cast;
    }
    if (array_is_traced(state, object))
        return array_refuse_traced();
    if (is_nested(object) || stands_for_number(object, dtype))
        return from_nested(state, object, dtype);
    if (makes_array(object))
        return from_protocol(state, object, dtype);
    refuse(object);
    return NULL;
}

array *array_copy_of_any(array_state *state, PyObject *object, int dtype)
{
    array *result = array_from_any(state, object, dtype);
    if (result == NULL || !(is_array(object) || PyObject_CheckBuffer(object) || makes_array(object))
        || (dtype >= 0 && is_array(object) && dtype != ((array *)object)->t.dtype))
        return result;
    array *copy = array_cast(result, result->t.dtype);
    Py_DECREF(result);
    return copy;
}

/* array and asarray: `copy` 1 always, 0 never (ValueError), -1 if needed */
static PyObject *make(array_state *state, PyObject *object, PyObject *dtype_name, int copy, PyObject *order,
                      int64_t min_rank)
{
    int dtype = array_argument_dtype(state, dtype_name, -1);
    if (dtype < 0 && PyErr_Occurred())
        return NULL;
    array *result = array_from_any(state, object, is_array(object) ? -1 : dtype);
    if (result == NULL)
        return NULL;
    char wanted = array_argument_order(order, result, 'K');
    if (wanted != 0 && is_array(object) && dtype >= 0 && dtype != result->t.dtype)
        Py_SETREF(result, array_cast_in_order(result, dtype, wanted));
    if (wanted == 0 || result == NULL) {
        Py_XDECREF(result);
        return NULL;
    }
    bool shares = (PyObject *)result == object
                  || (!is_array(object) && PyObject_CheckBuffer(object) && (dtype < 0 || !(result->flags & ARRAY_OWN)));
    bool fortran = wanted == 'F', c_order = wanted == 'C';
    bool ordered = fortran ? array_is_fortran(result) : !c_order || result->flags & ARRAY_CONTIGUOUS;
    if (copy == 0 && !(shares && ordered)) {
        Py_DECREF(result);
        PyErr_SetString(
            PyExc_ValueError,
            "Unable to avoid copy while creating an array as requested.\n"
            "If using `np.array(obj, copy=False)` replace it with `np.asarray(obj)` to allow a copy when needed "
            "(no behavior change in NumPy 1.x).\nFor more details, see "
            "https://numpy.org/devdocs/numpy_2_0_migration_guide.html#adapting-to-changes-in-the-copy-keyword.");
        return NULL;
    }
    bool scalar = result->flags & ARRAY_SCALAR; /* a scalar never exposes its memory: asarray(scalar) is writable */
    if (fortran && !(copy != 1 && !scalar && ordered)) {
        array *turned = array_transpose(result, NULL);
        Py_DECREF(result);
        result = turned == NULL        ? NULL
                 : copy == 1 || scalar ? array_cast(turned, turned->t.dtype)
                                       : array_contiguous(turned, turned->t.dtype);
        Py_XDECREF(turned);
        bool copied = result != NULL && !(result->flags & ARRAY_VIEW);
        turned = result == NULL ? NULL : array_transpose(result, NULL);
        Py_XDECREF(result);
        result = copied ? array_as_owner(turned) : turned;
    } else if (!fortran && ((copy == 1 && shares) || !ordered || scalar)) {
        array *own = array_cast_in_order(result, result->t.dtype, wanted);
        Py_DECREF(result);
        result = own;
    }
    if (result != NULL && result->t.rank < min_rank) {
        if (min_rank > VME_RANK_MAX) {
            Py_DECREF(result);
            PyErr_Format(PyExc_ValueError, "ndmin bigger than allowable number of dimensions NPY_MAXDIMS (=%d)",
                         VME_RANK_MAX);
            return NULL;
        }
        int64_t shape[VME_RANK_MAX];
        int extra = (int)min_rank - result->t.rank;
        for (int i = 0; i < min_rank; i++)
            shape[i] = i < extra ? 1 : result->t.shape[i - extra];
        array *raised = array_reshape(result, (int)min_rank, shape);
        Py_DECREF(result);
        result = raised;
    }
    return (PyObject *)result;
}

/* Sets *copy to -1 for None, otherwise to the truth value. Returns -1 with an exception set. */
static int copy_argument(PyObject *value, int absent, int *copy)
{
    if (value != NULL && PyUnicode_Check(value)) {
        PyErr_SetString(PyExc_ValueError, "strings are not allowed for 'copy' keyword. Use True/False/None instead.");
        return -1;
    }
    *copy = value == NULL ? absent : value == Py_None ? -1 : PyObject_IsTrue(value);
    return *copy < 0 && PyErr_Occurred() ? -1 : 0;
}

PyObject *array_function_array(PyObject *module, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"object", "dtype", "copy", "order", "subok", "ndmin", "ndmax", "like", NULL};
    PyObject *values[8];
    int64_t min_rank, max_rank;
    int copy;
    if (array_arguments("array", args, count, keywords, names, 2, 1, values) < 0
        || array_argument_int(values[5], 0, &min_rank) < 0 || array_argument_int(values[6], VME_RANK_MAX, &max_rank) < 0
        || copy_argument(values[2], 1, &copy) < 0)
        return NULL;
    if (max_rank < 0 || max_rank > VME_RANK_MAX)
        return PyErr_Format(PyExc_ValueError, "ndmax must be in the range [0, NPY_MAXDIMS (%d)]", VME_RANK_MAX);
    PyObject *result = make(array_state_of(module), values[0], values[1], copy, values[3], min_rank);
    if (result != NULL && ((array *)result)->t.rank > (max_rank > min_rank ? max_rank : min_rank)) {
        PyErr_Format(PyExc_ValueError, "ndmax=%lld: below that depth lie sequences, and arrays hold numbers only",
                     (long long)max_rank);
        Py_CLEAR(result);
    }
    return result;
}

PyObject *array_function_asarray(PyObject *module, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"a", "dtype", "order", "device", "copy", "like", NULL};
    PyObject *values[6];
    int copy;
    /* A scalar never exposes its memory, so it is copied. */
    if (count == 1 && keywords == NULL && is_array(args[0]) && !(((array *)args[0])->flags & ARRAY_SCALAR))
        return Py_NewRef(args[0]);
    if (array_arguments("asarray", args, count, keywords, names, 3, 1, values) < 0
        || array_argument_device(values[3]) < 0 || copy_argument(values[4], -1, &copy) < 0)
        return NULL;
    return make(array_state_of(module), values[0], values[1], copy, values[2], 0);
}

PyObject *array_function_ascontiguousarray(PyObject *module, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"a", "dtype", "like", NULL};
    PyObject *values[3];
    if (array_arguments("ascontiguousarray", args, count, keywords, names, 2, 1, values) < 0)
        return NULL;
    PyObject *order = PyUnicode_FromString("C");
    PyObject *result = order == NULL ? NULL : make(array_state_of(module), values[0], values[1], -1, order, 1);
    Py_XDECREF(order);
    return result;
}

/* ---- arrays by shape */
static PyObject *in_order(array *result, PyObject *order)
{
    char wanted = result == NULL ? 0 : array_argument_order(order, result, 'C');
    if (wanted == 0)
        Py_CLEAR(result);
    if (wanted != 'F' || result->t.rank < 2)
        return (PyObject *)result;
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX], step = vme_dtype_size((vme_dtype)result->t.dtype);
    for (int i = 0; i < result->t.rank; i++) {
        shape[i] = result->t.shape[i];
        strides[i] = step;
        step *= shape[i] == 0 ? 1 : shape[i];
    }
    array *turned = array_view_of(result, result->t.dtype, result->t.rank, shape, strides, result->t.data);
    Py_DECREF(result);
    return (PyObject *)array_as_owner(turned);
}

static array *filled(array *result, PyObject *value)
{
    if (result != NULL && array_assign_python(result, value) < 0)
        Py_CLEAR(result);
    return result;
}

/* full: what is neither an integer of Python nor text is cast without checks. */
static array *filled_by_cast(array *result, PyObject *value)
{
    if (result == NULL)
        return NULL;
    const int weak = element_weak(value), dtype = result->t.dtype;
    if (weak == WEAK_BOOL || weak == WEAK_INT || (weak == WEAK_FLOAT && dtype == VME_FLOAT64) || value == Py_None
        || PyUnicode_Check(value) || PyBytes_Check(value))
        return filled(result, value);
    array *source = array_from_any(result->state, value, -1);
    if (source == NULL || array_assign(result, source) < 0)
        Py_CLEAR(result);
    Py_XDECREF(source);
    return result;
}

static array *filled_with_one(array *result)
{
    PyObject *one = result == NULL ? NULL : PyLong_FromLong(1);
    if (one == NULL) {
        Py_XDECREF(result);
        return NULL;
    }
    result = filled(result, one);
    Py_DECREF(one);
    return result;
}

enum fill { FILL_NOTHING, FILL_ZERO, FILL_ONE };

static PyObject *by_shape(PyObject *module, const char *function, enum fill fill, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"shape", "dtype", "order", "device", "like", NULL};
    PyObject *values[5];
    array_state *state = array_state_of(module);
    int64_t shape[VME_RANK_MAX];
    int rank, dtype;
    if (array_arguments(function, args, count, keywords, names, 3, 1, values) < 0
        || array_argument_device(values[3]) < 0 || (dtype = array_argument_dtype(state, values[1], VME_FLOAT64)) < 0
        || array_argument_shape(values[0], &rank, shape) < 0)
        return NULL;
    array *result = array_new(state, dtype, rank, shape, fill == FILL_ZERO);
    return in_order(fill == FILL_ONE ? filled_with_one(result) : result, values[2]);
}

PyObject *array_function_zeros(PyObject *module, ARRAY_VECTORCALL)
{
    return by_shape(module, "zeros", FILL_ZERO, args, count, keywords);
}
PyObject *array_function_ones(PyObject *module, ARRAY_VECTORCALL)
{
    return by_shape(module, "ones", FILL_ONE, args, count, keywords);
}
PyObject *array_function_empty(PyObject *module, ARRAY_VECTORCALL)
{
    return by_shape(module, "empty", FILL_NOTHING, args, count, keywords);
}

static int dtype_of_value(array_state *state, PyObject *value)
{
    array *result = array_from_any(state, value, -1);
    if (result == NULL)
        return -1;
    int dtype = result->t.dtype;
    Py_DECREF(result);
    return dtype;
}

PyObject *array_function_full(PyObject *module, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"shape", "fill_value", "dtype", "order", "device", "like", NULL};
    PyObject *values[6];
    array_state *state = array_state_of(module);
    int64_t shape[VME_RANK_MAX];
    int rank, dtype;
    if (array_arguments("full", args, count, keywords, names, 4, 2, values) < 0 || array_argument_device(values[4]) < 0
        || (dtype = array_given(values[2]) ? array_dtype_from(state, values[2]) : dtype_of_value(state, values[1])) < 0
        || array_argument_shape(values[0], &rank, shape) < 0)
        return NULL;
    return in_order(filled_by_cast(array_new(state, dtype, rank, shape, false), values[1]), values[3]);
}

static PyObject *like(PyObject *module, const char *function, enum fill fill, bool full, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"a", "fill_value", "dtype", "order", "subok", "shape", "device", NULL};
    static const char *const plain_names[] = {"a", "dtype", "order", "subok", "shape", "device", NULL};
    PyObject *values[7];
    array_state *state = array_state_of(module);
    int given = array_arguments(function, args, count, keywords, full ? names : plain_names, full ? 5 : 4, full ? 2 : 1,
                                values);
    if (given < 0 || array_argument_device(values[full ? 6 : 5]) < 0)
        return NULL;
    PyObject *dtype_name = values[full ? 2 : 1], *shape = values[full ? 5 : 4];
    array *of = array_from_any(state, values[0], -1);
    if (of == NULL)
        return NULL;
    int64_t sizes[VME_RANK_MAX];
    int rank = of->t.rank, dtype = array_argument_dtype(state, dtype_name, of->t.dtype);
    char order = dtype < 0 ? 0 : array_argument_order(values[full ? 3 : 2], of, 'K');
    memcpy(sizes, of->t.shape, (size_t)rank * sizeof *sizes);
    array *result = NULL;
    if (order != 0 && !(array_given(shape) && array_argument_shape(shape, &rank, sizes) < 0))
        result = array_new_in_order(of, dtype, rank, sizes, order, fill == FILL_ZERO);
    Py_DECREF(of);
    return (PyObject *)(full ? filled_by_cast(result, values[1]) : fill == FILL_ONE ? filled_with_one(result) : result);
}

PyObject *array_function_zeros_like(PyObject *module, ARRAY_VECTORCALL)
{
    return like(module, "zeros_like", FILL_ZERO, false, args, count, keywords);
}
PyObject *array_function_ones_like(PyObject *module, ARRAY_VECTORCALL)
{
    return like(module, "ones_like", FILL_ONE, false, args, count, keywords);
}
PyObject *array_function_empty_like(PyObject *module, ARRAY_VECTORCALL)
{
    return like(module, "empty_like", FILL_NOTHING, false, args, count, keywords);
}
PyObject *array_function_full_like(PyObject *module, ARRAY_VECTORCALL)
{
    return like(module, "full_like", FILL_NOTHING, true, args, count, keywords);
}

/* ---- arange([start,] stop[, step,], dtype=None) */
/* -1 with OverflowError if `dtype` does not hold the first two of `length` elements, which NumPy checks. */
static int arange_fits(int dtype, PyObject *start, PyObject *step, int64_t length)
{
    char element[ARRAY_ELEMENT_BYTES];
    PyObject *first = array_given(start) ? Py_NewRef(start) : PyLong_FromLong(0);
    int result = first == NULL || (length > 0 && element_from_python(dtype, first, element) < 0) ? -1 : 0;
    if (result == 0 && length > 1) {
        PyObject *by = step != NULL ? Py_NewRef(step) : PyLong_FromLong(1);
        PyObject *value = by == NULL ? NULL : PyNumber_Index(first), *second = NULL;
        Py_XSETREF(by, value == NULL ? NULL : PyNumber_Index(by));
        second = by == NULL ? NULL : PyNumber_Add(value, by);
        result = second == NULL ? -1 : element_from_python(dtype, second, element);
        Py_XDECREF(second);
        Py_XDECREF(value);
        Py_XDECREF(by);
    }
    Py_XDECREF(first);
    return result;
}

PyObject *array_function_arange(PyObject *module, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"start", "stop", "step", "dtype", "device", "like", NULL};
    PyObject *values[6];
    array_state *state = array_state_of(module);
    if (array_arguments("arange", args, count, keywords, names, 4, 0, values) < 0
        || array_argument_device(values[4]) < 0)
        return NULL;
    PyObject *start = values[0], *stop = values[1], *step = array_given(values[2]) ? values[2] : NULL;
    if (!array_given(stop) && count > 0) {
        stop = start;
        start = NULL;
    }
    if (stop == NULL || stop == Py_None) {
        PyErr_SetString(PyExc_TypeError, "arange() requires stop to be specified.");
        return NULL;
    }
    int dtype = array_argument_dtype(state, values[3], -1), meeting = VME_INT64;
    if (dtype < 0 && PyErr_Occurred())
        return NULL;
    PyObject *const numbers[] = {start, stop, step};
    double limits[3] = {0, 0, 1};
    int64_t integers[3] = {0, 0, 1}; /* modulo 2**64 */
    __int128 exact[3] = {0, 0, 1};
    bool integral = true;
    for (int i = 0; i < 3; i++) {
        if (numbers[i] == NULL || numbers[i] == Py_None)
            continue;
        int overflow = 1; /* a plain number that int64 holds is read at once */
        long long plain = PyLong_CheckExact(numbers[i]) ? PyLong_AsLongLongAndOverflow(numbers[i], &overflow) : 0;
        if (overflow == 0) {
            meeting = (int)vme_dtype_promote((vme_dtype)meeting, VME_INT64);
            limits[i] = (double)plain;
            exact[i] = integers[i] = plain;
            continue;
        }
        array *number = array_from_any(state, numbers[i], -1);
        if (number == NULL) {
            if (i == 1 && PyErr_ExceptionMatches(PyExc_OverflowError)) {
                PyErr_Clear();
                PyErr_SetString(PyExc_ValueError, "Maximum allowed size exceeded");
            }
            return NULL;
        }
        int own = number->t.dtype;
        Py_DECREF(number);
        if (dtype_is_complex(own)) {
            PyErr_SetString(PyExc_TypeError, "arange() is not defined for complex numbers here");
            return NULL;
        }
        meeting = (int)vme_dtype_promote((vme_dtype)meeting, (vme_dtype)own);
        limits[i] = PyFloat_AsDouble(numbers[i]);
        if (limits[i] == -1.0 && PyErr_Occurred())
            return NULL;
        if (own >= VME_FLOAT16)
            integral = false;
        else if (element_from_python(own == VME_UINT64 ? VME_UINT64 : VME_INT64, numbers[i], (char *)&integers[i]) < 0)
            return NULL;
        exact[i] = own == VME_UINT64 ? (__int128)(uint64_t)integers[i] : (__int128)integers[i];
    }
    if (limits[2] == 0) {
        PyErr_SetString(PyExc_ZeroDivisionError, "division by zero");
        return NULL;
    }
    double length = ceil((limits[1] - limits[0]) / limits[2]);
    if (length == 0 && limits[1] != limits[0]) /* the quotient underflows, or the step is infinite: the start alone */
        length = !signbit(length);
    if (integral) { /* exact, even beyond 2**53 */
        __int128 span = exact[1] - exact[0], by = exact[2];
        __int128 items = span == 0 || (span < 0) != (by < 0) ? 0 : (span + by - (by < 0 ? -1 : 1)) / by;
        length = (double)items;
    }
    if (isnan(length)) {
        PyErr_SetString(PyExc_ValueError, "arange: cannot compute length");
        return NULL;
    }
    if (length >= 9e18) {
        PyErr_SetString(PyExc_ValueError, "Maximum allowed size exceeded");
        return NULL;
    }
    int64_t shape[1] = {length > 0 ? (int64_t)length : 0};
    if (length <= 1) /* no step is taken: it may be infinite */
        limits[2] = 0;
    if (dtype < 0)
        dtype = meeting;
    const __int128 second = length > 1 ? exact[0] + exact[2] : exact[0];
    bool fits = dtype == VME_INT64 && exact[0] == (int64_t)exact[0] && second == (int64_t)second;
    if (integral && !fits && dtype_is_integer(dtype) && arange_fits(dtype, start, step, shape[0]) < 0)
        return NULL;
    if (dtype == VME_BOOL && shape[0] > 2) {
        PyErr_SetString(PyExc_TypeError,
                        "arange() is only supported for booleans when the result has at most length 2.");
        return NULL;
    }
    array *result = array_new(state, dtype, 1, shape, false);
    /* NumPy computes in the output's dtype: the step is the difference of its first two elements */
    if (dtype_is_integer(dtype) && !integral) {
        integers[0] = (int64_t)limits[0];
        integers[2] = (int64_t)(limits[0] + limits[2]) - integers[0];
    }
    if (result != NULL
        && array_check_status(
               state, OPERATOR(state->context, "arange", result->size,
                               vme_arange(state->context, limits[0], limits[2], integers[0], integers[2], &result->t)))
               < 0)
        Py_CLEAR(result);
    return (PyObject *)result;
}

PyObject *array_function_frombuffer(PyObject *module, ARRAY_VECTORCALL)
{
    static const char *const names[] = {"buffer", "dtype", "count", "offset", "like", NULL};
    PyObject *values[5];
    array_state *state = array_state_of(module);
    int64_t items, offset;
    int dtype;
    if (array_arguments("frombuffer", args, count, keywords, names, 4, 1, values) < 0
        || (dtype = array_argument_dtype(state, values[1], VME_FLOAT64)) < 0
        || array_argument_int(values[2], -1, &items) < 0 || array_argument_int(values[3], 0, &offset) < 0)
        return NULL;
    array *bytes = array_from_exporter(state, values[0]);
    if (bytes == NULL)
        return NULL;
    int64_t size = bytes->size * vme_dtype_size((vme_dtype)bytes->t.dtype), width = vme_dtype_size((vme_dtype)dtype);
    array *result = NULL;
    if (!(bytes->flags & ARRAY_CONTIGUOUS))
        PyErr_SetString(PyExc_ValueError, "ndarray is not C-contiguous");
    else if (offset < 0 || offset > size)
        PyErr_Format(PyExc_ValueError, "offset must be non-negative and no greater than buffer length (%lld)",
                     (long long)size);
    else if (items < 0 && (size - offset) % width != 0)
        PyErr_SetString(PyExc_ValueError, "buffer size must be a multiple of element size");
    else if (items >= 0 && items > (size - offset) / width)
        PyErr_SetString(PyExc_ValueError, "buffer is smaller than requested size");
    else {
        int64_t shape[1] = {items < 0 ? (size - offset) / width : items};
        result = array_view_of(bytes, dtype, 1, shape, NULL, bytes->t.data + offset);
    }
    Py_DECREF(bytes);
    return (PyObject *)result;
}
