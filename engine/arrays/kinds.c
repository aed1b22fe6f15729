/* The check at the entry of private functions: see kinds.h. */
#include "kinds.h"

#include "vme_python.h"

/* clang-format off */
static const char *const kind_names[KIND_COUNT] = {
    [KIND_ANY] = "any", [KIND_ARRAY] = "array", [KIND_OUT] = "out", [KIND_LIKE] = "like", [KIND_ARRAYS] = "arrays",
    [KIND_INTEGER] = "integer", [KIND_REAL] = "real", [KIND_TRUTH] = "truth", [KIND_NUMBER] = "number",
    [KIND_NUMBERS] = "numbers", [KIND_SIZES] = "sizes", [KIND_SETS] = "sets", [KIND_TEXT] = "text",
    [KIND_PATH] = "path", [KIND_BYTES] = "bytes", [KIND_DICT] = "dict", [KIND_LIST] = "list", [KIND_TUPLE] = "tuple",
    [KIND_SESSION] = "session", [KIND_TABLE] = "table", [KIND_SNAPSHOT] = "snapshot", [KIND_TYPE] = "type",
    [KIND_CALLABLE] = "callable",
};
/* How errors call them. */
static const char *const kind_texts[KIND_COUNT] = {
    [KIND_ARRAY] = "an array", [KIND_OUT] = "an array", [KIND_ARRAYS] = "a tuple of arrays",
    [KIND_NUMBERS] = "a tuple of numbers", [KIND_SETS] = "a list of tuples of a table, arrays, numbers and None",
    [KIND_TEXT] = "str", [KIND_BYTES] = "bytes", [KIND_DICT] = "a dict", [KIND_LIST] = "a list",
    [KIND_TUPLE] = "a tuple", [KIND_SESSION] = "a session of a model", [KIND_TABLE] = "an embedding table",
    [KIND_SNAPSHOT] = "a snapshot of an embedding table", [KIND_TYPE] = "a type", [KIND_CALLABLE] = "a function",
};
/* clang-format on */

/* ---- making arguments exact: each returns a new reference, or NULL with an error set */
static PyObject *exact_number(PyObject *value)
{
    if (PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyComplex_CheckExact(value) || PyBool_Check(value))
        return Py_NewRef(value);
    if (is_array(value) && ((array *)value)->size == 1)
        return array_item_value((array *)value);
    return PyIndex_Check(value) ? PyNumber_Index(value) : PyNumber_Float(value);
}

static PyObject *exact_real(PyObject *value)
{
    const double number = PyFloat_AsDouble(value);
    return number == -1 && PyErr_Occurred() ? NULL : PyFloat_FromDouble(number);
}

static PyObject *exact_integer(PyObject *value)
{
    int64_t number;
    return array_argument_int(value, 0, &number) < 0 ? NULL : PyLong_FromLongLong(number);
}

static PyObject *exact_truth(PyObject *value)
{
    const int truth = PyObject_IsTrue(value);
    return truth < 0 ? NULL : PyBool_FromLong(truth);
}

static PyObject *exact_sizes(PyObject *value)
{
    int64_t sizes[VME_RANK_MAX];
    int count;
    return array_argument_shape(value, &count, sizes) < 0 ? NULL : array_sizes_tuple(count, sizes);
}

/* The items of a tuple, each made exact. */
static PyObject *exact_items(PyObject *tuple, PyObject *(*exact)(PyObject *))
{
    const Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    PyObject *result = PyTuple_New(count);
    for (Py_ssize_t i = 0; result != NULL && i < count; i++) {
        PyObject *item = exact(PyTuple_GET_ITEM(tuple, i));
        if (item == NULL)
            Py_CLEAR(result);
        else
            PyTuple_SET_ITEM(result, i, item);
    }
    return result;
}

/* NULL without an error: not of this kind. */
static PyObject *exact_member(PyObject *value)
{
    if (is_array(value) || value == Py_None || PyCapsule_CheckExact(value) || PyLong_CheckExact(value))
        return Py_NewRef(value);
    return PyIndex_Check(value) ? PyNumber_Index(value) : NULL;
}

static bool are_members(PyObject *tuple)
{
    if (!PyTuple_CheckExact(tuple))
        return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *value = PyTuple_GET_ITEM(tuple, i);
        if (!is_array(value) && value != Py_None && !PyLong_CheckExact(value) && !PyCapsule_CheckExact(value))
            return false;
    }
    return true;
}

static PyObject *exact_set(PyObject *value)
{
    if (are_members(value))
        return Py_NewRef(value);
    return PyTuple_CheckExact(value) ? exact_items(value, exact_member) : NULL;
}

static PyObject *exact_sets(PyObject *value)
{
    if (!PyList_CheckExact(value) && !PyTuple_CheckExact(value))
        return NULL;
    PyObject *tuple = PySequence_Tuple(value); /* which code of an item cannot change */
    if (tuple == NULL)
        return NULL;
    bool all = true;
    for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(tuple); i++)
        all = are_members(PyTuple_GET_ITEM(tuple, i));
    if (!all)
        Py_SETREF(tuple, exact_items(tuple, exact_set));
    return tuple;
}

static bool are_ints(PyObject *value)
{
    if (!PyTuple_CheckExact(value))
        return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++)
        if (!PyLong_CheckExact(PyTuple_GET_ITEM(value, i)))
            return false;
    return true;
}

static PyObject *exact_of(array_state *state, int kind, PyObject *value)
{
    switch (kind) {
    case KIND_LIKE: return is_array(value) ? Py_NewRef(value) : (PyObject *)array_from_any(state, value, -1);
    case KIND_INTEGER: return PyLong_CheckExact(value) ? Py_NewRef(value) : exact_integer(value);
    case KIND_REAL: return PyFloat_CheckExact(value) ? Py_NewRef(value) : exact_real(value);
    case KIND_TRUTH: return PyBool_Check(value) ? Py_NewRef(value) : exact_truth(value);
    case KIND_NUMBER: return exact_number(value);
    case KIND_NUMBERS: return PyTuple_Check(value) ? exact_items(value, exact_number) : NULL;
    case KIND_SIZES: return are_ints(value) ? Py_NewRef(value) : exact_sizes(value);
    case KIND_SETS: return exact_sets(value);
    case KIND_PATH: return PyOS_FSPath(value);
    default: return Py_NewRef(value);
    }
}

/* ---- checks of exact arguments, which run no code of the program */
static bool are_arrays(PyObject *value)
{
    if (!PyTuple_Check(value))
        return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++)
        if (PyTuple_GET_ITEM(value, i) != Py_None && !is_array(PyTuple_GET_ITEM(value, i)))
            return false;
    return true;
}

static bool is_of_kind(int kind, PyObject *value)
{
    switch (kind) {
    case KIND_ARRAY:
    case KIND_OUT: return is_array(value);
    case KIND_ARRAYS: return are_arrays(value);
    case KIND_TEXT: return PyUnicode_Check(value);
    case KIND_BYTES: return PyBytes_Check(value);
    case KIND_DICT: return PyDict_Check(value);
    case KIND_LIST: return PyList_Check(value);
    case KIND_TUPLE: return PyTuple_Check(value);
    case KIND_SESSION: return PyCapsule_IsValid(value, ARRAY_SESSION_CAPSULE);
    case KIND_TABLE: return PyCapsule_IsValid(value, VME_EMBEDDING_CAPSULE);
    case KIND_SNAPSHOT: return PyCapsule_IsValid(value, ARRAY_SNAPSHOT_CAPSULE);
    case KIND_TYPE: return PyType_Check(value);
    case KIND_CALLABLE: return PyCallable_Check(value);
    default: return true;
    }
}

static int refuse(const array_private *of, const array_parameter *parameter, PyObject *value)
{
    PyErr_Format(PyExc_TypeError, "%s(): %s: expected %s%s, got %s", of->name, parameter->name,
                 kind_texts[parameter->kind & ~KIND_NONE], parameter->kind & KIND_NONE ? " or None" : "",
                 Py_TYPE(value)->tp_name);
    return -1;
}

/* Counts the write, too. */
static int check_out(PyObject *value) { return array_require_writable((array *)value, "output array is read-only"); }

static int check(const array_private *of, const array_parameter *parameter, PyObject *value)
{
    const int kind = parameter->kind & ~KIND_NONE;
    if (value == Py_None && parameter->kind & KIND_NONE)
        return 0;
    if (!is_of_kind(kind, value))
        return refuse(of, parameter, value);
    if (kind == KIND_OUT)
        return check_out(value);
    if (kind != KIND_INTEGER)
        return 0;
    int overflow;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) {
        PyErr_Format(PyExc_OverflowError, "%s(): %s: expected an int of 64 bits", of->name, parameter->name);
        return -1;
    }
    const int64_t low = parameter->bounds[0], high = parameter->bounds[1];
    if ((low == 0 && high == 0) || (number >= low && number <= high))
        return 0;
    PyErr_Format(PyExc_ValueError, "%s(): %s: expected %lld to %lld, got %lld", of->name, parameter->name,
                 (long long)low, (long long)high, number);
    return -1;
}

/* ---- the entry */
static int place_arguments(const array_private *of, ARRAY_VECTORCALL, PyObject **values)
{
    if (keywords == NULL && count >= of->required && count <= of->count) {
        for (int i = 0; i < of->count; i++)
            values[i] = i < count ? args[i] : NULL;
        return 0;
    }
    const char *names[ARRAY_PARAMETERS_MAX + 1];
    for (int i = 0; i < of->count; i++)
        names[i] = of->parameters[i].name;
    names[of->count] = NULL;
    return array_arguments(of->name, args, count, keywords, names, of->count, of->required, values);
}

/* Whether the value is exact already, and fits: then nothing is to be made, and no code of the program can run. */
static inline bool fits(const array_parameter *parameter, PyObject *value)
{
    if (value == Py_None && parameter->kind & KIND_NONE)
        return true;
    const int kind = parameter->kind & ~KIND_NONE;
    switch (kind) {
    case KIND_LIKE: return is_array(value);
    case KIND_OUT: return is_array(value) && array_writable((array *)value) && check_out(value) == 0;
    case KIND_INTEGER: {
        if (!PyLong_CheckExact(value) || !PyUnstable_Long_IsCompact((PyLongObject *)value))
            return false;
        const int64_t number = PyUnstable_Long_CompactValue((PyLongObject *)value), low = parameter->bounds[0],
                      high = parameter->bounds[1];
        return (low == 0 && high == 0) || (number >= low && number <= high);
    }
    case KIND_REAL: return PyFloat_CheckExact(value);
    case KIND_TRUTH: return PyBool_Check(value);
    case KIND_SIZES: return are_ints(value);
    case KIND_NUMBER:
    case KIND_NUMBERS:
    case KIND_SETS:
    case KIND_PATH: return false;
    default: return is_of_kind(kind, value);
    }
}

PyObject *array_call_checked(PyObject *module, const array_private *of, ARRAY_VECTORCALL)
{
    PyObject *values[ARRAY_PARAMETERS_MAX], *result = NULL;
    unsigned made = 0; /* a bit for each value that is a reference of this function */
    int fitting = 0;
    while (keywords == NULL && fitting < count && fitting < of->count && fits(&of->parameters[fitting], args[fitting]))
        fitting++;
    if (fitting == of->count && fitting == count)
        return of->function(module, args, count, NULL);
    if (place_arguments(of, args, count, keywords, values) < 0)
        return NULL;
    for (int i = 0; i < of->count; i++) {
        const array_parameter *parameter = &of->parameters[i];
        if (values[i] == NULL || fits(parameter, values[i]))
            continue;
        PyObject *exact = exact_of(array_state_of(module), parameter->kind & ~KIND_NONE, values[i]);
        if (exact == NULL) {
            if (!PyErr_Occurred())
                refuse(of, parameter, values[i]);
            goto done;
        }
        values[i] = exact;
        made |= 1u << i;
    }
    for (int i = 0; made != 0 && i < of->count; i++) /* of all: code that ran may have changed what fitted */
        if (values[i] != NULL && check(of, &of->parameters[i], values[i]) < 0)
            goto done;
    result = of->function(module, values, of->count, NULL);
done:
    for (int i = 0; made != 0; i++, made >>= 1)
        if (made & 1)
            Py_DECREF(values[i]);
    return result;
}

PyObject *array_parameters(const array_private *of)
{
    PyObject *all = PyTuple_New(of->count);
    for (int i = 0; all != NULL && i < of->count; i++) {
        const array_parameter *one = &of->parameters[i];
        const bool bounded = one->bounds[0] != 0 || one->bounds[1] != 0;
        PyObject *bounds =
            bounded ? Py_BuildValue("LL", (long long)one->bounds[0], (long long)one->bounds[1]) : Py_NewRef(Py_None);
        PyObject *item = bounds == NULL ? NULL
                                        : Py_BuildValue("ssONO", one->name, kind_names[one->kind & ~KIND_NONE],
                                                        one->kind & KIND_NONE ? Py_True : Py_False, bounds,
                                                        one->absent[0] != 0 ? Py_True : Py_False);
        if (item == NULL)
            Py_CLEAR(all);
        else
            PyTuple_SET_ITEM(all, i, item);
    }
    return all;
}
