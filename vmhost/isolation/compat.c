/* The one file that looks into CPython's own structures. */
#define Py_BUILD_CORE 1
#include "compat.h"
#include "internal/pycore_interp_structs.h"
#include "internal/pycore_runtime_structs.h"

PyAPI_DATA(_PyRuntimeState) _PyRuntime;

void vmh_compat_hide_interpreter(PyInterpreterState *interp)
{
    PyMutex_Lock(&_PyRuntime.interpreters.mutex);
    PyInterpreterState **link = &_PyRuntime.interpreters.head;
    while (*link != NULL && *link != interp)
        link = &(*link)->next;
    if (*link == interp)
        *link = interp->next;
    PyMutex_Unlock(&_PyRuntime.interpreters.mutex);
}

void vmh_compat_show_interpreter(PyInterpreterState *interp)
{
    PyMutex_Lock(&_PyRuntime.interpreters.mutex);
    interp->next = _PyRuntime.interpreters.head;
    _PyRuntime.interpreters.head = interp;
    PyMutex_Unlock(&_PyRuntime.interpreters.mutex);
}
