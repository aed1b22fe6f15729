/* Parsing of vectorcall arguments: names, flags, shapes, axes. */
#include "arrays.h"

int array_arguments(const char *function, PyObject *const *args, Py_ssize_t count, PyObject *keywords,
                    const char *const *names, int positional, int required, PyObject **values)
{
    int known = 0;
    for (; names[known] != NULL; known++)
        values[known] = NULL;
    if (count > positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes from %d to %d positional arguments but %zd were given", function,
                     required, positional, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        values[i] = args[i];
    for (Py_ssize_t k = 0; keywords != NULL && k < PyTuple_GET_SIZE(keywords); k++) {
        PyObject *name = PyTuple_GET_ITEM(keywords, k);
        int at = 0;
        while (at < known && !PyUnicode_EqualToUTF8(name, names[at]))
            at++;
        if (at == known) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function, name);
            return -1;
        }
        if (values[at] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", function, name);
            return -1;
        }
        values[at] = args[count + k];
    }
    for (int i = 0; i < required; i++)
        if (values[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s' (pos %d)", function, names[i], i + 1);
            return -1;
        }
    return 0;
}

int array_argument_bool(PyObject *value, bool absent, bool *result)
{
    if (value == NULL) {
        *result = absent;
        return 0;
    }
    int truth = PyObject_IsTrue(value);
    *result = truth > 0;
    return truth < 0 ? -1 : 0;
}

int array_argument_device(PyObject *value)
{
    if (!array_given(value) || (PyUnicode_Check(value) && PyUnicode_EqualToUTF8(value, "cpu")))
        return 0;
    PyErr_Format(PyExc_ValueError, "Device not understood. Only \"cpu\" is allowed, but received: %S", value);
    return -1;
}

int array_argument_int(PyObject *value, int64_t absent, int64_t *result)
{
    if (value == NULL) {
        *result = absent;
        return 0;
    }
    int overflow;
    if (PyLong_CheckExact(value) && (*result = PyLong_AsLongLongAndOverflow(value, &overflow), overflow == 0))
        return 0;
    Py_ssize_t number = PyNumber_AsSsize_t(value, PyExc_OverflowError);
    *result = number;
    return number == -1 && PyErr_Occurred() ? -1 : 0;
}

static bool is_truth_value(PyObject *value)
{
    return PyBool_Check(value) || (is_array(value) && ((array *)value)->t.dtype == VME_BOOL);
}

/* A size that does not fit in int64_t is a ValueError, as in NumPy; a truth value is no size. */
static int size_of(PyObject *value, int64_t *size)
{
    if (!PyLong_CheckExact(value) && is_truth_value(value)) {
        PyErr_SetString(PyExc_TypeError, "an integer is required");
        return -1;
    }
    int result = array_argument_int(value, 0, size);
    if (result < 0 && PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        PyErr_SetString(PyExc_ValueError, "Maximum allowed dimension exceeded");
    }
    return result;
}

int array_argument_shape(PyObject *value, int *rank, int64_t *shape)
{
    if (PyIndex_Check(value) && !(is_array(value) && ((array *)value)->t.rank != 0)) {
        *rank = 1;
        return size_of(value, shape);
    }
    PyObject *sizes = PySequence_Tuple(value); /* a copy, because an item's __index__ could change the list */
    if (sizes == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            PyErr_Format(PyExc_TypeError, "expected a sequence of integers or a single integer, got '%R'", value);
        }
        return -1;
    }
    int result = -1;
    Py_ssize_t length = PyTuple_GET_SIZE(sizes);
    if (length > VME_RANK_MAX) {
        PyErr_Format(PyExc_ValueError, "maximum supported dimension for an ndarray is currently %d, found %zd",
                     VME_RANK_MAX, length);
        goto done;
    }
    for (Py_ssize_t i = 0; i < length; i++)
        if (size_of(PyTuple_GET_ITEM(sizes, i), &shape[i]) < 0)
            goto done;
    *rank = (int)length;
    result = 0;
done:
    Py_DECREF(sizes);
    return result;
}

int array_argument_axis(array_state *state, PyObject *value, int rank, int *axis)
{
    int64_t number;
    if (array_argument_int(value, 0, &number) < 0)
        return -1;
    if (number < -rank || number >= rank) {
        array_axis_error(state, number, rank);
        return -1;
    }
    *axis = (int)(number < 0 ? number + rank : number);
    return 0;
}

static int refuse_truth_value(PyObject *axis)
{
    if (!is_truth_value(axis))
        return 0;
    PyErr_SetString(PyExc_TypeError, "an integer is required for the axis");
    return -1;
}

int array_argument_axes(array_state *state, PyObject *value, int rank, uint64_t *axes)
{
    *axes = 0;
    if (!array_given(value)) {
        *axes = rank == 64 ? ~UINT64_C(0) : (UINT64_C(1) << rank) - 1;
        return 0;
    }
    int axis;
    if (!PyTuple_Check(value)) {
        if (!PyLong_CheckExact(value) && refuse_truth_value(value) < 0)
            return -1;
        if (rank == 0 && PyLong_Check(value)) { /* as in NumPy, a 0-d array accepts axis 0 and -1 */
            int64_t number;
            if (array_argument_int(value, 0, &number) < 0)
                return -1;
            if (number == 0 || number == -1)
                return 0;
        }
        if (array_argument_axis(state, value, rank, &axis) < 0)
            return -1;
        *axes = UINT64_C(1) << axis;
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
        if (refuse_truth_value(PyTuple_GET_ITEM(value, i)) < 0
            || array_argument_axis(state, PyTuple_GET_ITEM(value, i), rank, &axis) < 0)
            return -1;
        if (*axes >> axis & 1) {
            PyErr_SetString(PyExc_ValueError, "duplicate value in 'axis'");
            return -1;
        }
        *axes |= UINT64_C(1) << axis;
    }
    return 0;
}

int array_argument_out(PyObject *value, array **out)
{
    *out = NULL;
    if (!array_given(value))
        return 0;
    if (PyTuple_Check(value) && PyTuple_GET_SIZE(value) == 1) {
        value = PyTuple_GET_ITEM(value, 0);
        if (value == Py_None)
            return 0;
    }
    if (!is_array(value)) {
        PyErr_SetString(PyExc_TypeError, "return arrays must be of ArrayType");
        return -1;
    }
    *out = (array *)value;
    return array_require_writable(*out, "output array is read-only");
}

PyObject *array_delegate(const char *module_name, const char *function_name, PyObject *self, ARRAY_VECTORCALL)
{
    PyObject *module = PyImport_ImportModule(module_name), *result = NULL;
    PyObject *function = module == NULL ? NULL : PyObject_GetAttrString(module, function_name);
    Py_ssize_t all = 1 + count + (keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords));
    PyObject **with_self = function == NULL ? NULL : PyMem_New(PyObject *, all);
    if (with_self != NULL) {
        with_self[0] = self;
        memcpy(with_self + 1, args, (size_t)(all - 1) * sizeof *args);
        result = PyObject_Vectorcall(function, with_self, (size_t)count + 1, keywords);
        PyMem_Free(with_self);
    } else if (function != NULL)
        PyErr_NoMemory();
    Py_XDECREF(function);
    Py_XDECREF(module);
    return result;
}

int array_argument_axis_of_one(array_state *state, PyObject *value, int rank, int *axis)
{
    if (refuse_truth_value(value) < 0)
        return -1;
    if (rank > 0)
        return array_argument_axis(state, value, rank, axis);
    int64_t number;
    if (array_argument_int(value, 0, &number) < 0)
        return -1;
    if (number < -1 || number > 0) {
        array_axis_error(state, number, 1);
        return -1;
    }
    *axis = 0;
    return 0;
}
