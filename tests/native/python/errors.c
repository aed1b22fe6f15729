/* Errors of Python.h, beside this file: the type is all that there is of one. */
#include <Python.h>

static _Thread_local PyObject *error;

PyObject none_object;
static PyObject memory_error, os_error, overflow_error, runtime_error, system_error, type_error, value_error;
PyObject *PyExc_MemoryError = &memory_error, *PyExc_OSError = &os_error, *PyExc_OverflowError = &overflow_error,
         *PyExc_RuntimeError = &runtime_error, *PyExc_SystemError = &system_error, *PyExc_TypeError = &type_error,
         *PyExc_ValueError = &value_error;

PyObject *PyErr_Occurred(void) { return error; }

PyObject *PyErr_GetRaisedException(void)
{
    PyObject *raised = error;
    error = NULL;
    return raised;
}

void PyErr_SetRaisedException(PyObject *raised) { error = raised; }
void PyErr_Clear(void) { error = NULL; }
void PyErr_SetNone(PyObject *type) { error = type; }

void PyErr_SetString(PyObject *type, const char *text)
{
    (void)text;
    error = type;
}

PyObject *PyErr_SetFromErrno(PyObject *type)
{
    error = type;
    return NULL;
}

PyObject *PyErr_Format(PyObject *type, const char *format, ...)
{
    (void)format;
    error = type;
    return NULL;
}
