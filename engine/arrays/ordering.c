/* Sorting and searching, and the random generator's words. */
#include "methods.h"

#include "vme_order.h"

static const char *const sort_names[] = {"a", "axis", "kind", "order", "stable", "descending", NULL};

/* Checks kind, order and stable, which change nothing: every sort is stable wherever that is visible. */
static int check_kind(PyObject *const *values)
{
    PyObject *kind = values[2];
    if (array_given(kind)) {
        const char *text = PyUnicode_Check(kind) ? PyUnicode_AsUTF8(kind) : NULL;
        if (text == NULL && PyErr_Occurred())
            return -1;
        if (text == NULL || text[0] == 0 || strchr("qQhHmMsS", text[0]) == NULL) { /* NumPy, too, looks no further */
            PyErr_Format(PyExc_ValueError, "sort kind must be one of 'quick', 'heap', or 'stable' (got %R)", kind);
            return -1;
        }
        if (array_given(values[4])) {
            PyErr_SetString(PyExc_ValueError,
                            "`kind` and keyword parameters can't be provided at the same time. Use only one of them.");
            return -1;
        }
    }
    if (array_given(values[3])) {
        PyErr_SetString(PyExc_ValueError, "Cannot specify order when the array has no fields.");
        return -1;
    }
    return 0;
}

static array *sorted(array *self, PyObject *const *values, bool indices)
{
    array_state *state = self->state;
    PyObject *axis_value = values[1];
    array *over = (array *)Py_NewRef(self), *result = NULL;
    int axis = self->t.rank - 1;
    bool descending;
    if (check_kind(values) < 0 || array_argument_bool(values[5], false, &descending) < 0)
        goto done;
    if (axis_value == Py_None || self->t.rank == 0) {
        if (self->t.rank == 0 && axis_value != Py_None && !indices) {
            array_axis_error(state, -1, 0);
            goto done;
        }
        int64_t flat[1] = {self->size};
        Py_SETREF(over, array_reshape(self, 1, flat));
        axis = 0;
        if (over == NULL)
            goto done;
    } else if (axis_value != NULL && array_argument_axis(state, axis_value, self->t.rank, &axis) < 0)
        goto done;
    result = array_new(state, indices ? VME_INT64 : over->t.dtype, over->t.rank, over->t.shape, false);
    if (result != NULL
        && array_check_status(state,
                              OPERATOR(state->context, indices ? "argsort" : "sort", over->size * 16,
                                       indices ? vme_argsort(state->context, &over->t, axis, descending, &result->t)
                                               : vme_sort(state->context, &over->t, axis, descending, &result->t)))
               < 0)
        Py_CLEAR(result);
done:
    Py_XDECREF(over);
    return result;
}

static PyObject *sort(array_state *state, array *self, PyObject **values)
{
    return (PyObject *)sorted(self, values, false);
}
static PyObject *argsort(array_state *state, array *self, PyObject **values)
{
    return (PyObject *)sorted(self, values, true);
}
ARRAY_FUNCTION_OF(sort, sort_names, 4, 1, 6, sort)
ARRAY_BOTH_OF(argsort, sort_names, 4, 1, 6, argsort)

static PyObject *sort_in_place(array_state *state, array *self, PyObject **values)
{
    if (array_require_writable(self, "sort array is read-only") < 0)
        return NULL;
    if (values[1] == Py_None)
        return PyErr_Format(PyExc_TypeError, "'NoneType' object cannot be interpreted as an integer");
    array *created = sorted(self, values, false);
    int result = created == NULL ? -1 : array_assign(self, created);
    Py_XDECREF(created);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}
ARRAY_METHOD_OF(sort, sort_names, 4, 1, 6, sort_in_place)

/* _partition(a, kth, axis, as_indices): kth ascending and non-negative; axis an int. The rest of numpy.partition is in
 * Python. */
static PyObject *select_elements(array_state *state, array *self, PyObject *const *values)
{
    int64_t kth[VME_RANK_MAX];
    int count, axis;
    bool indices;
    if (array_argument_shape(values[1], &count, kth) < 0
        || array_argument_axis(state, values[2], self->t.rank, &axis) < 0
        || array_argument_bool(values[3], false, &indices) < 0)
        return NULL;
    array *result = array_new(state, indices ? VME_INT64 : self->t.dtype, self->t.rank, self->t.shape, false);
    if (result != NULL
        && array_check_status(state,
                              OPERATOR(state->context, "partition", self->size * 4,
                                       vme_partition(state->context, &self->t, axis, count, kth, indices, &result->t)))
               < 0)
        Py_CLEAR(result);
    return (PyObject *)result;
}
ARRAY_PRIVATE_OF(_partition, select_elements)

/* in place */
static const char *const partition_names[] = {"a", "kth", "axis", "kind", "order", NULL};
static PyObject *partition(array_state *state, array *self, PyObject **values)
{
    if (array_require_writable(self, "sort array is read-only") < 0)
        return NULL;
    if (values[2] == Py_None)
        return PyErr_Format(PyExc_TypeError, "'NoneType' object cannot be interpreted as an integer");
    PyObject *module = PyImport_ImportModule("vmhost.engine.numpy._sets"),
             *axis = values[2] != NULL ? Py_NewRef(values[2]) : PyLong_FromLong(-1);
    PyObject *created = module == NULL || axis == NULL
                            ? NULL
                            : PyObject_CallMethod(module, "partition", array_given(values[3]) ? "OOOO" : "OOO", self,
                                                  values[1], axis, values[3]);
    int result = created == NULL ? -1 : array_assign(self, (array *)created);
    Py_XDECREF(module);
    Py_XDECREF(axis);
    Py_XDECREF(created);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}
ARRAY_METHOD_OF(partition, partition_names, 5, 2, 5, partition)

static const char *const search_names[] = {"a", "v", "side", "sorter", NULL};
static PyObject *searchsorted(array_state *state, array *self, PyObject **values)
{
    array *over = NULL, *wanted = NULL, *result = NULL;
    bool right = array_given(values[2]) && PyUnicode_Check(values[2]) && PyUnicode_EqualToUTF8(values[2], "right");
    if (array_given(values[2]) && !right && !(PyUnicode_Check(values[2]) && PyUnicode_EqualToUTF8(values[2], "left")))
        return PyErr_Format(PyExc_ValueError, "search side must be 'left' or 'right' (got %R)", values[2]);
    if (self->t.rank != 1)
        return PyErr_Format(PyExc_ValueError, "object too deep for desired array");
    if (array_given(values[3])) {
        PyObject *taken[5] = {(PyObject *)self, values[3], NULL, NULL, NULL};
        over = (array *)array_take(state, self, taken);
    } else
        over = (array *)Py_NewRef(self);
    int weak = element_weak(values[1]);
    wanted = over == NULL        ? NULL
             : weak != WEAK_NONE ? array_scalar_from(state, -1, values[1])
                                 : array_from_any(state, values[1], -1);
    if (wanted == NULL)
        goto done;
    int dtype = (int)vme_dtype_promote((vme_dtype)over->t.dtype, (vme_dtype)wanted->t.dtype);
    if (over->t.dtype != dtype)
        Py_SETREF(over, array_cast(over, dtype));
    if (over != NULL && wanted->t.dtype != dtype)
        Py_SETREF(wanted, array_cast(wanted, dtype));
    if (over == NULL || wanted == NULL)
        goto done;
    result = array_new(state, VME_INT64, wanted->t.rank, wanted->t.shape, false);
    if (result != NULL
        && array_check_status(state,
                              OPERATOR(state->context, "searchsorted", result->size * 16,
                                       vme_searchsorted(state->context, &over->t, &wanted->t, right, &result->t)))
               < 0)
        Py_CLEAR(result);
done:
    Py_XDECREF(over);
    Py_XDECREF(wanted);
    return array_as_scalar(result);
}
ARRAY_BOTH_OF(searchsorted, search_names, 4, 2, 4, searchsorted)

/* _words(key, counter, first, count): `count` words of Philox's stream, from word `first` on, as uint64 */
PyObject *array_function__words(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    unsigned long long key[2], counter[4], first;
    PyObject *sequences[2], *number;
    int64_t shape[1];
    sequences[0] = args[0];
    sequences[1] = args[1];
    if (!PyArg_ParseTuple(sequences[0], "KK", &key[0], &key[1])
        || !PyArg_ParseTuple(sequences[1], "KKKK", &counter[0], &counter[1], &counter[2], &counter[3]))
        return NULL;
    number = args[2];
    first = PyLong_AsUnsignedLongLong(number);
    if ((first == (unsigned long long)-1 && PyErr_Occurred()) || array_argument_int(args[3], 0, &shape[0]) < 0)
        return NULL;
    uint64_t own_key[2] = {key[0], key[1]}, own_counter[4] = {counter[0], counter[1], counter[2], counter[3]};
    array *result = array_new(state, VME_UINT64, 1, shape, false);
    if (result != NULL
        && array_check_status(state, OPERATOR(state->context, "philox", result->size * 8,
                                              vme_philox(state->context, own_key, own_counter, first, &result->t)))
               < 0)
        Py_CLEAR(result);
    return (PyObject *)result;
}
