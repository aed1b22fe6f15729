/* The one table from the engine's statuses to Python's exceptions. */
#include "arrays.h"

/* A stop comes with a pending call that injects an exception into this thread; here it is made to run and is raised at once, so
 * that no half-written array is returned. */
static void raise_stop(void)
{
    if (Py_MakePendingCalls() < 0 || PyErr_CheckSignals() < 0)
        return;
    PyThreadState *thread = PyThreadState_Get();
    PyObject *injected = __atomic_exchange_n(&thread->async_exc, NULL, __ATOMIC_SEQ_CST);
    if (injected == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "stopped");
        return;
    }
    PyErr_SetNone(injected);
    Py_DECREF(injected);
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
    return PyErr_Format(state->axis_error, "axis %lld is out of bounds for array of dimension %d", (long long)axis, rank);
}

int array_errors_init(array_state *state, PyObject *module)
{
    PyObject *bases = PyTuple_Pack(2, PyExc_ValueError, PyExc_IndexError);
    if (bases == NULL)
        return -1;
    state->axis_error = PyErr_NewExceptionWithDoc("engine.numpy.exceptions.AxisError",
                                                  "Axis supplied was invalid.", bases, NULL);
    Py_DECREF(bases);
    return state->axis_error == NULL ? -1 : PyModule_AddObjectRef(module, "AxisError", state->axis_error);
}
