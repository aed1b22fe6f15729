/* Native types whose methods assume that `__init__` has run: on an object from `__new__` alone, CPython 3.14 reads
 * NULL. Such an object either cannot be created, or its fields are filled at once. tests/crashers/test_native_types.py
 * tries all types. */
#include "seal/gates.h"

#include <string.h>

/* ---- internal helper types, which only CPython itself instantiates */
static const struct {
    const char *module, *type;
} internal[] = {
    {"_asyncio", "_asyncio.FutureIter"},
    {"_asyncio", "_asyncio.TaskStepMethWrapper"},
    {"_pickle", "_pickle.PicklerMemoProxy"},
    {"_pickle", "_pickle.UnpicklerMemoProxy"},
};
enum { INTERNAL = sizeof internal / sizeof *internal };

static bool is_internal(const char *module, PyTypeObject *type)
{
    for (int i = 0; i < INTERNAL; i++)
        if (strcmp(internal[i].module, module) == 0 && strcmp(internal[i].type, type->tp_name) == 0)
            return true;
    return false;
}

PyGetSetDef *vmh_getset_of(PyTypeObject *type, const char *name)
{
    PyObject *descriptor = vmh_dict_get(type->tp_dict, name);
    if (descriptor != NULL && Py_IS_TYPE(descriptor, &PyGetSetDescr_Type))
        return ((PyGetSetDescrObject *)descriptor)->d_getset;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_SystemError, "%s.%s is not a getset in this Python", type->tp_name, name);
    return NULL;
}

/* ---- asyncio's tasks: a pending task that is finalised reports to its loop, which is NULL before __init__, and after
 * a second __init__ that failed */
static _Atomic(PyMethodDef *) future_get_loop;
static _Atomic(destructor) task_finalize;

static void task_finalize_gate(PyObject *task)
{
    PyObject *error = PyErr_GetRaisedException();
    PyTypeObject *future = Py_TYPE(task);
    while (future->tp_base != &PyBaseObject_Type)
        future = future->tp_base;
    PyObject *loop = vmh_def_call(atomic_load(&future_get_loop), task, future, NULL, 0, NULL);
    PyErr_Clear();
    PyErr_SetRaisedException(error);
    if (loop != NULL)
        atomic_load (&task_finalize)(task);
    Py_XDECREF(loop);
}

static int tasks_finish(PyObject *dict)
{
    PyTypeObject *future = (PyTypeObject *)vmh_dict_get(dict, "Future");
    PyTypeObject *task = (PyTypeObject *)vmh_dict_get(dict, "Task");
    if (future == NULL || task == NULL || task->tp_finalize == task_finalize_gate)
        return PyErr_Occurred() ? -1 : 0;
    PyMethodDef *get_loop = vmh_method_def(future, "get_loop");
    if (get_loop == NULL)
        return -1;
    atomic_store(&future_get_loop, get_loop);
    atomic_store(&task_finalize, task->tp_finalize);
    return vmh_slot_replace(task, "__del__", (void **)&task->tp_finalize, (void *)task_finalize_gate);
}

/* ---- pickle: the proxy of a pickler's memo reads the memo, which is NULL until __init__ */
static _Atomic(newfunc) pickler_new;
static _Atomic(PyGetSetDef *) pickler_memo;

static PyObject *pickler_new_gate(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyGetSetDef *def = atomic_load(&pickler_memo);
    PyObject *self = atomic_load(&pickler_new)(type, args, kwargs), *empty = self == NULL ? NULL : PyDict_New();
    if (empty == NULL || def->set(self, empty, def->closure) < 0)
        Py_CLEAR(self);
    Py_XDECREF(empty);
    return self;
}

static int pickler_finish(PyObject *dict)
{
    PyTypeObject *pickler = (PyTypeObject *)vmh_dict_get(dict, "Pickler");
    if (pickler == NULL || pickler->tp_new == pickler_new_gate)
        return PyErr_Occurred() ? -1 : 0;
    PyGetSetDef *memo = vmh_getset_of(pickler, "memo");
    if (memo == NULL)
        return -1;
    atomic_store(&pickler_memo, memo);
    atomic_store(&pickler_new, pickler->tp_new);
    return vmh_slot_replace(pickler, "__new__", (void **)&pickler->tp_new, (void *)pickler_new_gate);
}

/* Makes the module's internal helper types uninstantiable. They are in no module's dict. */
static int internal_close(const char *module)
{
    PyObject *types = PyObject_CallMethod((PyObject *)&PyBaseObject_Type, "__subclasses__", NULL);
    if (types == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(types); i++) {
        PyTypeObject *type = (PyTypeObject *)PyList_GET_ITEM(types, i);
        if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) && (type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE)
            && is_internal(module, type)) {
            type->tp_new = NULL;
            type->tp_flags = (type->tp_flags | Py_TPFLAGS_DISALLOW_INSTANTIATION) & ~Py_TPFLAGS_BASETYPE;
            PyType_Modified(type);
        }
    }
    Py_DECREF(types);
    return 0;
}

int vmh_asyncio_finish(PyObject *dict, PyObject *Py_UNUSED(module))
{
    return tasks_finish(dict) < 0 ? -1 : internal_close("_asyncio");
}

int vmh_pickle_finish(PyObject *dict, PyObject *Py_UNUSED(module))
{
    return pickler_finish(dict) < 0 ? -1 : internal_close("_pickle");
}

Py_ssize_t vmh_member_offset(PyTypeObject *type, const char *name)
{
    PyObject *dict = PyType_GetDict(type), *member = dict == NULL ? NULL : vmh_dict_get(dict, name);
    Py_ssize_t offset = member != NULL && Py_IS_TYPE(member, &PyMemberDescr_Type)
                            ? ((PyMemberDescrObject *)member)->d_member->offset
                            : 0;
    Py_XDECREF(dict);
    if (offset <= 0 && !PyErr_Occurred())
        PyErr_Format(PyExc_SystemError, "%s.%s is not a member in this Python", type->tp_name, name);
    return offset;
}

void vmh_member_fill(PyObject *object, Py_ssize_t offset, PyObject *value)
{
    PyObject **handle = (PyObject **)((char *)object + offset);
    if (*handle == NULL)
        *handle = Py_NewRef(value);
}

/* ---- super: its __get__ reads the class. An object from __new__ alone becomes an unbound super of `object`. The type
 * is static, so the slot is process-wide; outside of VMs nothing changes. */
static _Atomic(newfunc) super_new;
static _Atomic(Py_ssize_t) super_class;

static PyObject *super_new_gate(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *self = atomic_load(&super_new)(type, args, kwargs);
    if (self != NULL && vmh_seal_here() != NULL)
        vmh_member_fill(self, atomic_load(&super_class), (PyObject *)&PyBaseObject_Type);
    return self;
}

int vmh_super_gate(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    Py_ssize_t offset = vmh_member_offset(&PySuper_Type, "__thisclass__");
    if (offset == 0)
        return -1;
    vmh_mutex_lock(&lock);
    if (atomic_load(&super_new) == NULL) {
        atomic_store(&super_class, offset);
        atomic_store(&super_new, PySuper_Type.tp_new);
        __atomic_store_n(&PySuper_Type.tp_new, super_new_gate, __ATOMIC_SEQ_CST);
    }
    vmh_mutex_unlock(&lock);
    return 0;
}

/* ---- functions: the collector clears them one by one, and CPython 3.14 reads NULL if code that runs meanwhile
 * (`__release_buffer__`, `__del__` of objects that the collector does not track) calls a cleared one. The gate keeps
 * what the evaluation loop needs: cycles through globals and cells are broken where those are cleared. The type is
 * static, like super. */
static _Atomic(inquiry) function_clear;

static void keep(PyObject **handle, PyObject *value)
{
    if (*handle == NULL)
        *handle = value;
    else
        Py_XDECREF(value);
}

static int function_clear_gate(PyObject *object)
{
    PyFunctionObject *function = (PyFunctionObject *)object;
    if (vmh_seal_here() == NULL)
        return atomic_load(&function_clear)(object);
    PyObject *globals = Py_XNewRef(function->func_globals), *builtins = Py_XNewRef(function->func_builtins);
    PyObject *closure = Py_XNewRef(function->func_closure);
    int rc = atomic_load(&function_clear)(object);
    keep(&function->func_globals, globals);
    keep(&function->func_builtins, builtins);
    keep(&function->func_closure, closure);
    return rc;
}

int vmh_function_gate(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    vmh_mutex_lock(&lock);
    if (atomic_load(&function_clear) == NULL) {
        atomic_store(&function_clear, PyFunction_Type.tp_clear);
        __atomic_store_n(&PyFunction_Type.tp_clear, function_clear_gate, __ATOMIC_SEQ_CST);
    }
    vmh_mutex_unlock(&lock);
    return 0;
}
