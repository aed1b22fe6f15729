/* Fixes of builtin types with which a few lines of plain Python crash CPython 3.14.
 *
 * - super() without arguments assumes that its caller's first slot holds a cell if the function has one there. A
 *   comprehension over that variable puts the object itself there: `lambda: self; [super() for self in …]`.
 * - `yield from` and `await` assume that a StopIteration has a value. One from `__new__` alone, or whose `value` was
 *   deleted, has none.
 *
 * The types are static: their slots are process-wide and replaced once; in the host the replacements do what the
 * originals do. Their attributes are per interpreter. */
#include "seal/sealing.h"

#include <frameobject.h>
#include <pthread.h>
#include <stdatomic.h>

static initproc _Atomic super_init, stop_init;
static vectorcallfunc _Atomic super_call;
static newfunc _Atomic stop_new;

/* --- super */

enum { KIND_CELL = 0x40 }; /* Include/internal/pycore_code.h: CO_FAST_CELL */

/* The arguments that super() without arguments stands for, new references. 1: found; 0: CPython finds them safely; -1:
 * error set. */
static int super_arguments(PyObject *found[2])
{
    PyFrameObject *frame = PyEval_GetFrame(); /* borrowed */
    PyCodeObject *code = frame == NULL ? NULL : PyFrame_GetCode(frame);
    int rc = 0;
    if (code == NULL || code->co_argcount == 0
        || !(((const unsigned char *)PyBytes_AS_STRING(code->co_localspluskinds))[0] & KIND_CELL))
        goto done;
    rc = -1;
    found[1] = PyFrame_GetVar(frame, PyTuple_GET_ITEM(code->co_localsplusnames, 0));
    if (found[1] == NULL) {
        if (PyErr_ExceptionMatches(PyExc_NameError))
            PyErr_SetString(PyExc_RuntimeError, "super(): arg[0] deleted");
        goto done;
    }
    bool closes_over = false;
    for (int i = code->co_nlocalsplus - code->co_nfreevars; i < code->co_nlocalsplus && !closes_over; i++)
        closes_over = PyUnicode_EqualToUTF8(PyTuple_GET_ITEM(code->co_localsplusnames, i), "__class__");
    if (!closes_over) {
        PyErr_SetString(PyExc_RuntimeError, "super(): __class__ cell not found");
        goto done;
    }
    found[0] = PyFrame_GetVarString(frame, "__class__");
    if (found[0] == NULL) {
        if (PyErr_ExceptionMatches(PyExc_NameError))
            PyErr_SetString(PyExc_RuntimeError, "super(): empty __class__ cell");
        goto done;
    }
    if (!PyType_Check(found[0])) {
        PyErr_Format(PyExc_RuntimeError, "super(): __class__ is not a type (%s)", Py_TYPE(found[0])->tp_name);
        goto done;
    }
    rc = 1;
done:
    if (rc != 1) {
        Py_CLEAR(found[0]);
        Py_CLEAR(found[1]);
    }
    Py_XDECREF(code);
    return rc;
}

static int super_init_repaired(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *found[2] = {NULL, NULL}, *two = NULL;
    int rc = PyTuple_GET_SIZE(args) > 0 || (kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0) ? 0 : super_arguments(found);
    if (rc == 0)
        return atomic_load(&super_init)(self, args, kwargs);
    if (rc > 0) {
        two = PyTuple_Pack(2, found[0], found[1]);
        rc = two == NULL ? -1 : atomic_load(&super_init)(self, two, NULL);
    }
    Py_XDECREF(two);
    Py_XDECREF(found[0]);
    Py_XDECREF(found[1]);
    return rc;
}

static PyObject *super_call_repaired(PyObject *type, PyObject *const *args, size_t count, PyObject *names)
{
    PyObject *found[2] = {NULL, NULL}, *result = NULL;
    bool given = PyVectorcall_NARGS(count) > 0 || (names != NULL && PyTuple_GET_SIZE(names) > 0);
    int rc = given ? 0 : super_arguments(found);
    if (rc == 0)
        return atomic_load(&super_call)(type, args, count, names);
    if (rc > 0)
        result = atomic_load(&super_call)(type, found, 2, NULL);
    Py_XDECREF(found[0]);
    Py_XDECREF(found[1]);
    return result;
}

/* --- StopIteration */

static PyObject *stop_new_repaired(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *self = atomic_load(&stop_new)(type, args, kwargs);
    if (self != NULL && ((PyStopIterationObject *)self)->value == NULL)
        ((PyStopIterationObject *)self)->value = Py_NewRef(Py_None);
    return self;
}

static int stop_init_repaired(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *before = Py_XNewRef(((PyStopIterationObject *)self)->value); /* its destructor must see the new value */
    int rc = atomic_load(&stop_init)(self, args, kwargs);
    Py_XDECREF(before);
    return rc;
}

static PyObject *stop_value(PyObject *self, void *Py_UNUSED(data))
{
    PyObject *value = ((PyStopIterationObject *)self)->value;
    return Py_NewRef(value == NULL ? Py_None : value);
}

static int stop_set_value(PyObject *self, PyObject *value, void *Py_UNUSED(data))
{
    PyObject *before = ((PyStopIterationObject *)self)->value;
    ((PyStopIterationObject *)self)->value = Py_NewRef(value == NULL ? Py_None : value);
    Py_XDECREF(before);
    return 0;
}

static PyGetSetDef stop_value_def = {"value", stop_value, stop_set_value, PyDoc_STR("generator return value"), NULL};

/* --- */

/* Updates the wrapper through which Python in the calling interpreter sees a slot. */
static int wrapper_repair(PyTypeObject *type, const char *name, void *function)
{
    PyObject *dict = PyType_GetDict(type), *wrapper = dict == NULL ? NULL : vmh_dict_get(dict, name);
    int rc = 0;
    if (wrapper != NULL && Py_IS_TYPE(wrapper, &PyWrapperDescr_Type))
        ((PyWrapperDescrObject *)wrapper)->d_wrapped = function;
    else if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_SystemError, "%s.%s cannot be repaired in this Python", type->tp_name, name);
        rc = -1;
    } else
        rc = -1;
    Py_XDECREF(dict);
    return rc;
}

static void repair_slots(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    PyTypeObject *stop = (PyTypeObject *)PyExc_StopIteration;
    pthread_mutex_lock(&lock);
    if (atomic_load(&super_init) == NULL) {
        atomic_store(&super_init, PySuper_Type.tp_init);
        atomic_store(&super_call, PySuper_Type.tp_vectorcall);
        atomic_store(&stop_new, stop->tp_new);
        atomic_store(&stop_init, stop->tp_init);
        __atomic_store_n(&PySuper_Type.tp_init, super_init_repaired, __ATOMIC_SEQ_CST);
        if (PySuper_Type.tp_vectorcall != NULL)
            __atomic_store_n(&PySuper_Type.tp_vectorcall, super_call_repaired, __ATOMIC_SEQ_CST);
        __atomic_store_n(&stop->tp_new, stop_new_repaired, __ATOMIC_SEQ_CST);
        __atomic_store_n(&stop->tp_init, stop_init_repaired, __ATOMIC_SEQ_CST);
    }
    pthread_mutex_unlock(&lock);
}

/* Classes of the calling interpreter that inherited the slot before it was replaced: CPython compares slots. */
static int subclasses_repair(PyTypeObject *type)
{
    PyObject *all = PyObject_CallMethod((PyObject *)&PyType_Type, "__subclasses__", "O", type);
    int rc = all == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; rc == 0 && i < PyList_GET_SIZE(all); i++) {
        PyTypeObject *one = (PyTypeObject *)PyList_GET_ITEM(all, i);
        if (one->tp_new == atomic_load(&stop_new))
            one->tp_new = stop_new_repaired;
        rc = subclasses_repair(one);
    }
    Py_XDECREF(all);
    return rc;
}

int vmh_repairs_host(void)
{
    PyTypeObject *stop = (PyTypeObject *)PyExc_StopIteration;
    repair_slots();
    PyObject *dict = PyType_GetDict(stop), *bases = PyType_GetDict((PyTypeObject *)PyExc_BaseException), *made = NULL;
    int rc = dict == NULL || bases == NULL ? -1 : PyDict_ContainsString(dict, "__new__");
    if (rc == 0) { /* StopIteration has inherited it with the slot, and now needs one of its own, of the same kind */
        PyObject *inherited = vmh_dict_get(bases, "__new__"); /* borrowed */
        rc = -1;
        if (inherited != NULL && PyCFunction_CheckExact(inherited))
            made = PyCFunction_New(((PyCFunctionObject *)inherited)->m_ml, (PyObject *)stop);
        else if (!PyErr_Occurred())
            PyErr_SetString(PyExc_SystemError, "StopIteration.__new__ cannot be repaired in this Python");
        if (made != NULL && PyDict_SetItemString(dict, "__new__", made) == 0) {
            PyType_Modified(stop);
            rc = subclasses_repair(stop);
        }
    }
    Py_XDECREF(made);
    Py_XDECREF(dict);
    Py_XDECREF(bases);
    return rc < 0 ? -1 : 0;
}

int vmh_repairs_make(void)
{
    PyTypeObject *stop = (PyTypeObject *)PyExc_StopIteration;
    repair_slots();
    if (wrapper_repair(&PySuper_Type, "__init__", (void *)super_init_repaired) < 0
        || wrapper_repair(stop, "__init__", (void *)stop_init_repaired) < 0)
        return -1;
    PyObject *dict = PyType_GetDict(stop), *value = PyDescr_NewGetSet(stop, &stop_value_def);
    int rc = dict == NULL || value == NULL ? -1 : PyDict_SetItemString(dict, "value", value);
    Py_XDECREF(value);
    Py_XDECREF(dict);
    return rc;
}
