/* The one file that looks into CPython's own structures. */
#define Py_BUILD_CORE 1
#include "compat.h"
#include "internal/pycore_interp_structs.h"
#include "internal/pycore_runtime_structs.h"
#include "internal/pycore_tstate.h"

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

uintptr_t vmh_compat_stack_limit(PyThreadState *ts)
{
    return ((_PyThreadStateImpl *)ts)->c_stack_hard_limit;
}

bool vmh_compat_mutex_locked(PyInterpreterState *interp, int which)
{
    PyMutex *const all[VMH_COMPAT_MUTEXES] = {
        &_PyRuntime.interpreters.mutex,         /* thread states come and go */
        &_PyRuntime.imports.extensions.mutex,   /* native modules are imported */
        &_PyRuntime.unicode_state.ids.mutex,    /* an identifier is used for the first time */
        &_PyRuntime.allocators.mutex,           /* hooks are read and set */
        &_PyRuntime.tracemalloc.tables_lock,    /* each allocation, while the host traces them */
        &interp->ceval.pending.mutex,           /* the warden adds a stop */
    };
    return __atomic_load_n(&all[which]->_bits, __ATOMIC_SEQ_CST) & 1;
}

PyObject *vmh_dict_get(PyObject *dict, const char *name)
{
    PyObject *key = PyUnicode_FromString(name);
    PyObject *value = key == NULL ? NULL : PyDict_GetItemWithError(dict, key);
    Py_XDECREF(key);
    return value;
}
