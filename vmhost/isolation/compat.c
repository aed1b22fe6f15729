/* The one file that looks into CPython's own structures. */
#define Py_BUILD_CORE 1
#include "compat.h"
#include "internal/pycore_interp_structs.h"
#include "internal/pycore_intrinsics.h"
#include "internal/pycore_runtime_structs.h"
#include "internal/pycore_tstate.h"
#include "opcode_ids.h"

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

bool vmh_compat_makes_generic(PyThreadState *ts)
{
    enum { FRAMES_MOST = 64 };      /* `typing` may be imported in there */
    static const char prefix[] = "<generic parameters of ";
    bool found = false;
    PyObject *before = PyErr_GetRaisedException();
    PyFrameObject *frame = PyThreadState_GetFrame(ts);
    for (int i = 0; frame != NULL && !found && i < FRAMES_MOST; i++) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        const char *name = PyUnicode_AsUTF8(code->co_name);
        int at = PyFrame_GetLasti(frame);
        if (name != NULL && at >= 0 && strncmp(name, prefix, sizeof prefix - 1) == 0) {
            /* an exception that waits now may come out at the next check, and the next one may be in there */
            PyObject *bytes = PyCode_GetCode(code);
            Py_ssize_t size = bytes == NULL ? 0 : PyBytes_GET_SIZE(bytes);
            const unsigned char *units = bytes == NULL ? NULL : (const unsigned char *)PyBytes_AS_STRING(bytes);
            for (Py_ssize_t unit = at; unit + 1 < size && !found; unit += 2)
                found = units[unit] == CALL_INTRINSIC_1 && units[unit + 1] == INTRINSIC_SUBSCRIPT_GENERIC;
            Py_XDECREF(bytes);
        }
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    PyErr_SetRaisedException(before);   /* and so forgets one of ours */
    return found;
}

static bool is_among(PyObject *text, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (PyUnicode_EqualToUTF8(text, names[i]))
            return true;
    return false;
}

bool vmh_compat_locks_import(PyThreadState *ts)
{
    static const char *const importlib[] = {"<frozen importlib._bootstrap>"};
    static const char *const functions[] = {
        "_get_module_lock", "_get_module_lock.<locals>.cb", "_lock_unlock_module", "_ModuleLock.acquire", "_ModuleLock.release",
        "_ModuleLockManager.__enter__", "_ModuleLockManager.__exit__",
        "_ImportLockContext.__enter__", "_ImportLockContext.__exit__",
    };
    bool found = false, inside = true;
    PyObject *before = PyErr_GetRaisedException();
    PyFrameObject *frame = PyThreadState_GetFrame(ts);
    while (frame != NULL && inside && !found) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        inside = is_among(code->co_filename, importlib, 1);
        found = inside && is_among(code->co_qualname, functions, sizeof functions / sizeof functions[0]);
        Py_DECREF(code);
        PyFrameObject *back = inside && !found ? PyFrame_GetBack(frame) : NULL;
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    PyErr_SetRaisedException(before);
    return found;
}
