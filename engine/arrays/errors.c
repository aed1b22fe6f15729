/* The table that maps the engine's statuses to Python's exceptions. */
#include "arrays.h"

/* For a stop, the interpreter's owner injects an exception; it is raised here at once, so that no half-written array is
 * returned. */
static void raise_stop(void)
{
    PyObject *owned = PyInterpreterState_GetDict(PyInterpreterState_Get()), *breathe = NULL;
    if (owned != NULL && PyDict_GetItemStringRef(owned, VME_BREATHE, &breathe) < 0)
        return;
    PyObject *nothing = breathe == NULL ? NULL : PyObject_CallNoArgs(breathe);
    Py_XDECREF(breathe);
    Py_XDECREF(nothing);
    if (!PyErr_Occurred() && PyErr_CheckSignals() == 0)
        PyErr_SetString(PyExc_RuntimeError, "the array's computation was stopped");
}

PyObject *array_fail(array_state *state, vme_status status)
{
    PyObject *exception = PyExc_ValueError;
    switch (status) {
    case VME_OK:
    case VME_BAD_SHAPE:
    case VME_BAD_VALUE:
    case VME_READ_ONLY: break;
    case VME_NO_MEMORY: exception = PyExc_MemoryError; break;
    case VME_BAD_DTYPE: exception = PyExc_TypeError; break;
    case VME_BAD_INDEX: exception = PyExc_IndexError; break;
    case VME_BAD_AXIS: exception = state->axis_error; break;
    case VME_UNSUPPORTED: exception = PyExc_NotImplementedError; break;
    case VME_IO_ERROR: exception = PyExc_OSError; break;
    case VME_STOPPED: raise_stop(); return NULL;
    }
    PyErr_SetString(exception, vme_message());
    return NULL;
}

int array_check_status(array_state *state, vme_status status)
{
    if (status == VME_OK)
        return 0;
    array_fail(state, status);
    return -1;
}

PyObject *array_axis_error(array_state *state, int64_t axis, int rank)
{
    return PyErr_Format(state->axis_error, "axis %lld is out of bounds for array of dimension %d", (long long)axis,
                        rank);
}

PyObject *array_shape_text(int rank, const int64_t *shape)
{
    char text[VME_RANK_MAX * 21 + 4];
    int at = 0;
    text[at++] = '(';
    for (int i = 0; i < rank; i++)
        at += PyOS_snprintf(text + at, 24, i == 0 ? "%lld" : ",%lld", (long long)shape[i]);
    if (rank == 1)
        text[at++] = ',';
    text[at++] = ')';
    return PyUnicode_FromStringAndSize(text, at);
}

int array_errors_init(array_state *state, PyObject *module)
{
    PyObject *bases = PyTuple_Pack(2, PyExc_ValueError, PyExc_IndexError);
    if (bases == NULL)
        return -1;
    state->axis_error = PyErr_NewExceptionWithDoc("vmhost.engine.numpy.exceptions.AxisError",
                                                  "Axis supplied was invalid.", bases, NULL);
    Py_DECREF(bases);
    return state->axis_error == NULL ? -1 : PyModule_AddObjectRef(module, "AxisError", state->axis_error);
}
