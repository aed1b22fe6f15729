/* Tracing: calls with a traced argument go to a function written in Python (vmhost.engine.grad).
 *
 * `_trace(type, function)` sets both, for this interpreter. From then on each function of the module and each ufunc
 * checks its arguments' types, also within lists and tuples, and calls function(name, *args, **keywords) if the type of
 * one is exactly `type`. Before that call there are no checks. */
#include "methods.h"

PyObject *array_function__trace(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    Py_XSETREF(state->traced_type, Py_NewRef(args[0]));
    Py_XSETREF(state->tracer, Py_NewRef(args[1]));
    Py_RETURN_NONE;
}

array *array_refuse_traced(void)
{
    PyErr_SetString(PyExc_TypeError,
                    "a traced array cannot be read as plain numbers or written into another array here: its gradient "
                    "would be lost. Make the result with numpy.where, numpy.concatenate or numpy.stack, or take the "
                    "value alone with engine.grad.stop_gradient");
    return NULL;
}

static bool holds(const array_state *state, PyObject *const *items, Py_ssize_t count, int depth)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        if (array_is_traced(state, items[i]))
            return true;
        if (depth > 0 && (PyList_CheckExact(items[i]) || PyTuple_CheckExact(items[i]))
            && holds(state, PySequence_Fast_ITEMS(items[i]), PySequence_Fast_GET_SIZE(items[i]), depth - 1))
            return true;
    }
    return false;
}

bool array_any_traced(const array_state *state, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    return holds(state, args, count + (keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords)), VME_RANK_MAX);
}

PyObject *array_call_traced(array_state *state, const char *name, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords)
{
    enum { FEW = 8 };
    Py_ssize_t all = 1 + count + (keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords));
    PyObject *few[FEW], *result = NULL, *text = PyUnicode_InternFromString(name), *tracer = Py_NewRef(state->tracer);
    PyObject **with_name = all <= FEW ? few : PyMem_New(PyObject *, all);
    if (text != NULL && with_name != NULL) {
        with_name[0] = text;
        memcpy(with_name + 1, args, (size_t)(all - 1) * sizeof *args);
        result = PyObject_Vectorcall(tracer, with_name, (size_t)count + 1, keywords);
    } else if (text != NULL)
        PyErr_NoMemory();
    if (with_name != few)
        PyMem_Free(with_name);
    Py_XDECREF(text);
    Py_DECREF(tracer);
    return result;
}
