/* Locks of a guest: plain fields guarded by the VM's GIL; waits go through waits.c. */
#include "seal/waits.h"

#include <string.h>

/* --- lock */

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    bool locked;
    vmh_queue queue;
} lock_object;

/* Parses acquire(blocking=True, timeout=-1). 0, or -1 with an error set. `now`: do not wait. */
static int acquire_parse(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, bool *now, int64_t *deadline_ns)
{
    PyObject *blocking = nargs > 0 ? args[0] : NULL, *timeout = nargs > 1 ? args[1] : NULL;
    *now = false;
    *deadline_ns = INT64_MAX;
    if (nargs > 2) {
        PyErr_Format(PyExc_TypeError, "acquire() takes at most 2 arguments (%zd given)", nargs);
        return -1;
    }
    for (Py_ssize_t i = 0; kwnames != NULL && i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        if (blocking == NULL && PyUnicode_EqualToUTF8(name, "blocking"))
            blocking = args[nargs + i];
        else if (timeout == NULL && PyUnicode_EqualToUTF8(name, "timeout"))
            timeout = args[nargs + i];
        else {
            PyErr_Format(PyExc_TypeError, "acquire() got an unexpected argument %R", name);
            return -1;
        }
    }
    int wanted = blocking == NULL ? 1 : PyObject_IsTrue(blocking);
    if (wanted < 0)
        return -1;
    *now = !wanted;
    if (timeout == NULL)
        return 0;
    double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1.0) {
        return PyErr_Occurred() ? -1 : 0;
    }
    if (!wanted) {
        PyErr_SetString(PyExc_ValueError, "can't specify a timeout for a non-blocking call");
        return -1;
    }
    if (seconds == 0) {
        *now = true;
        return 0;
    }
    return vmh_deadline_parse(timeout, "timeout value must be a non-negative number", deadline_ns);
}

/* Waits until the lock is free. 1: it is free, and the caller, which holds the GIL, takes it; 0: timed out; -1: error
 * set. */
static int lock_wait(vmh_queue *queue, const void *busy, size_t busy_size, int64_t deadline_ns)
{
    static const char zero[sizeof(unsigned long)];
    vmh_seal *seal = vmh_seal_here();
    vmh_waiter waiter = {0};
    if (seal == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a lock of a task is waited for outside its VM");
        return -1;
    }
    for (;;) {
        vmh_queue_push(queue, &waiter);
        int rc = vmh_wait(seal, &waiter, deadline_ns);
        vmh_queue_remove(queue, &waiter);
        bool is_free = memcmp(busy, zero, busy_size) == 0;
        if (rc < 0) {
            if (is_free)
                vmh_queue_wake(queue); /* pass on the wake-up, which may have been for this thread */
            return -1;
        }
        if (is_free)
            return 1;
        if (rc == 0)
            return 0;
        atomic_store(&waiter.word, VMH_WAITING); /* another thread took the lock */
    }
}

static PyObject *lock_acquire(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    lock_object *self = (lock_object *)object;
    bool now = false;
    int64_t deadline = INT64_MAX;
    if ((nargs != 0 || kwnames != NULL) && acquire_parse(args, nargs, kwnames, &now, &deadline) < 0)
        return NULL;
    if (self->locked) {
        int rc = now ? 0 : lock_wait(&self->queue, &self->locked, sizeof self->locked, deadline);
        if (rc <= 0)
            return rc < 0 ? NULL : Py_NewRef(Py_False);
    }
    self->locked = true;
    Py_RETURN_TRUE;
}

static PyObject *lock_enter(PyObject *self, PyObject *Py_UNUSED(unused)) { return lock_acquire(self, NULL, 0, NULL); }

static PyObject *lock_release(PyObject *object, PyObject *Py_UNUSED(unused))
{
    lock_object *self = (lock_object *)object;
    if (!self->locked) {
        PyErr_SetString(PyExc_RuntimeError, "release unlocked lock");
        return NULL;
    }
    self->locked = false;
    vmh_queue_wake(&self->queue);
    Py_RETURN_NONE;
}

static PyObject *lock_exit(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs))
{
    return lock_release(self, NULL);
}

static PyObject *lock_locked(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(((lock_object *)self)->locked);
}

static PyObject *lock_reinit(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ((lock_object *)self)->locked = false;
    Py_RETURN_NONE;
}

static PyObject *lock_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<%s %s object at %p>", ((lock_object *)self)->locked ? "locked" : "unlocked",
                                Py_TYPE(self)->tp_name, self);
}

void vmh_object_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_ClearWeakRefs(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *lock_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) != 0 || (kwargs != NULL && PyDict_GET_SIZE(kwargs) != 0))
        return PyErr_Format(PyExc_TypeError, "lock() takes no arguments");
    return type->tp_alloc(type, 0);
}

static PyMethodDef lock_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))lock_acquire, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("acquire($self, /, blocking=True, timeout=-1)\n--\n\n")},
    {"acquire_lock", (PyCFunction)(void (*)(void))lock_acquire, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("acquire_lock($self, /, blocking=True, timeout=-1)\n--\n\nAn old name of acquire().")},
    {"release", lock_release, METH_NOARGS, PyDoc_STR("release($self, /)\n--\n\nAny thread may.")},
    {"release_lock", lock_release, METH_NOARGS, PyDoc_STR("release_lock($self, /)\n--\n\nAn old name.")},
    {"locked", lock_locked, METH_NOARGS, PyDoc_STR("locked($self, /)\n--\n\nWhether it is held.")},
    {"locked_lock", lock_locked, METH_NOARGS, PyDoc_STR("locked_lock($self, /)\n--\n\nAn old name.")},
    {"__enter__", lock_enter, METH_NOARGS, PyDoc_STR("__enter__($self, /)\n--\n\n")},
    {"__exit__", (PyCFunction)(void (*)(void))lock_exit, METH_FASTCALL,
     PyDoc_STR("__exit__($self, /, *exc_info)\n--\n\n")},
    {"_at_fork_reinit", lock_reinit, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef lock_members[] = {
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(lock_object, weakrefs), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot lock_slots[] = {
    {Py_tp_new, (void *)lock_new},
    {Py_tp_dealloc, (void *)vmh_object_dealloc},
    {Py_tp_repr, (void *)lock_repr},
    {Py_tp_methods, lock_methods},
    {Py_tp_members, lock_members},
    {Py_tp_doc, (void *)PyDoc_STR("lock()\n--\n\nA lock whose waits end when the VM is stopped.")},
    {0, NULL},
};

static PyType_Spec lock_spec = {
    .name = "_thread.lock",
    .basicsize = sizeof(lock_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = lock_slots,
};

static PyObject *allocate_lock(PyObject *type, PyObject *Py_UNUSED(unused))
{
    return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
}

/* --- RLock */

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    unsigned long owner, count; /* owner is valid while count > 0 */
    vmh_queue queue;
} rlock_object;

static PyObject *rlock_acquire(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    rlock_object *self = (rlock_object *)object;
    bool now = false;
    int64_t deadline = INT64_MAX;
    unsigned long me = PyThread_get_thread_ident();
    if ((nargs != 0 || kwnames != NULL) && acquire_parse(args, nargs, kwnames, &now, &deadline) < 0)
        return NULL;
    if (self->count > 0 && self->owner == me) {
        self->count++;
        Py_RETURN_TRUE;
    }
    if (self->count > 0) {
        int rc = now ? 0 : lock_wait(&self->queue, &self->count, sizeof self->count, deadline);
        if (rc <= 0)
            return rc < 0 ? NULL : Py_NewRef(Py_False);
    }
    self->owner = me;
    self->count = 1;
    Py_RETURN_TRUE;
}

static PyObject *rlock_enter(PyObject *self, PyObject *Py_UNUSED(unused)) { return rlock_acquire(self, NULL, 0, NULL); }

static bool rlock_mine(rlock_object *self) { return self->count > 0 && self->owner == PyThread_get_thread_ident(); }

static PyObject *rlock_release(PyObject *object, PyObject *Py_UNUSED(unused))
{
    rlock_object *self = (rlock_object *)object;
    if (!rlock_mine(self)) {
        PyErr_SetString(PyExc_RuntimeError, "cannot release un-acquired lock");
        return NULL;
    }
    if (--self->count == 0)
        vmh_queue_wake(&self->queue);
    Py_RETURN_NONE;
}

static PyObject *rlock_exit(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs))
{
    return rlock_release(self, NULL);
}

static PyObject *rlock_locked(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(((rlock_object *)self)->count > 0);
}

static PyObject *rlock_is_owned(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(rlock_mine((rlock_object *)self));
}

static PyObject *rlock_recursion_count(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLong(rlock_mine((rlock_object *)self) ? ((rlock_object *)self)->count : 0);
}

/* For threading.Condition: releases the lock at any depth; _acquire_restore restores it. */
static PyObject *rlock_release_save(PyObject *object, PyObject *Py_UNUSED(unused))
{
    rlock_object *self = (rlock_object *)object;
    if (!rlock_mine(self)) {
        PyErr_SetString(PyExc_RuntimeError, "cannot release un-acquired lock");
        return NULL;
    }
    PyObject *state = Py_BuildValue("(kk)", self->count, self->owner);
    if (state != NULL) {
        self->count = 0;
        vmh_queue_wake(&self->queue);
    }
    return state;
}

static PyObject *rlock_acquire_restore(PyObject *object, PyObject *state)
{
    rlock_object *self = (rlock_object *)object;
    unsigned long count, owner;
    if (!PyTuple_Check(state) || !PyArg_ParseTuple(state, "kk:_acquire_restore", &count, &owner))
        return PyErr_Occurred()
                   ? NULL
                   : PyErr_Format(PyExc_TypeError, "_acquire_restore: expected (count, owner), got %R", state);
    if (count == 0)
        return PyErr_Format(PyExc_ValueError, "_acquire_restore: expected a count above 0");
    if (self->count > 0 && lock_wait(&self->queue, &self->count, sizeof self->count, INT64_MAX) < 0)
        return NULL;
    self->count = count;
    self->owner = owner;
    Py_RETURN_NONE;
}

static PyObject *rlock_reinit(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ((rlock_object *)self)->count = 0;
    Py_RETURN_NONE;
}

static PyObject *rlock_repr(PyObject *object)
{
    rlock_object *self = (rlock_object *)object;
    return PyUnicode_FromFormat("<%s %s object owner=%lu count=%lu at %p>", self->count > 0 ? "locked" : "unlocked",
                                Py_TYPE(object)->tp_name, self->count > 0 ? self->owner : 0, self->count, object);
}

static PyObject *rlock_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    return type->tp_alloc(type, 0);
}

static PyMethodDef rlock_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))rlock_acquire, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("acquire($self, /, blocking=True, timeout=-1)\n--\n\n")},
    {"release", rlock_release, METH_NOARGS, PyDoc_STR("release($self, /)\n--\n\nBy its holder.")},
    {"locked", rlock_locked, METH_NOARGS, PyDoc_STR("locked($self, /)\n--\n\nWhether it is held.")},
    {"__enter__", rlock_enter, METH_NOARGS, PyDoc_STR("__enter__($self, /)\n--\n\n")},
    {"__exit__", (PyCFunction)(void (*)(void))rlock_exit, METH_FASTCALL,
     PyDoc_STR("__exit__($self, /, *exc_info)\n--\n\n")},
    {"_is_owned", rlock_is_owned, METH_NOARGS, NULL},
    {"_recursion_count", rlock_recursion_count, METH_NOARGS, NULL},
    {"_release_save", rlock_release_save, METH_NOARGS, NULL},
    {"_acquire_restore", rlock_acquire_restore, METH_O, NULL},
    {"_at_fork_reinit", rlock_reinit, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef rlock_members[] = {
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(rlock_object, weakrefs), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot rlock_slots[] = {
    {Py_tp_new, (void *)rlock_new},
    {Py_tp_dealloc, (void *)vmh_object_dealloc},
    {Py_tp_repr, (void *)rlock_repr},
    {Py_tp_methods, rlock_methods},
    {Py_tp_members, rlock_members},
    {Py_tp_doc, (void *)PyDoc_STR("A reentrant lock whose waits end when the VM is stopped.")},
    {0, NULL},
};

static PyType_Spec rlock_spec = {
    .name = "_thread.RLock",
    .basicsize = sizeof(rlock_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = rlock_slots,
};

static PyMethodDef allocate_defs[] = {
    {"allocate_lock", allocate_lock, METH_NOARGS, PyDoc_STR("allocate_lock($module, /)\n--\n\nReturns a new lock.")},
    {"allocate", allocate_lock, METH_NOARGS, PyDoc_STR("allocate($module, /)\n--\n\nAn old name of allocate_lock().")},
};

PyObject *vmh_type_once(const char *key, PyType_Spec *spec)
{
    PyObject *dict = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *type = dict == NULL ? NULL : vmh_dict_get(dict, key);
    if (type != NULL)
        return Py_NewRef(type);
    if (PyErr_Occurred())
        return NULL;
    type = PyType_FromSpec(spec);
    if (type != NULL && (dict == NULL || PyDict_SetItemString(dict, key, type) < 0))
        Py_CLEAR(type);
    return type;
}

int vmh_locks_finish(PyObject *dict)
{
    PyObject *lock = vmh_type_once("vmhost.lock", &lock_spec), *rlock = vmh_type_once("vmhost.rlock", &rlock_spec);
    int rc = -1;
    if (lock != NULL && rlock != NULL && PyDict_SetItemString(dict, "lock", lock) == 0
        && PyDict_SetItemString(dict, "LockType", lock) == 0 && PyDict_SetItemString(dict, "RLock", rlock) == 0
        && vmh_def_set(dict, "_thread", &allocate_defs[0], lock) == 0)
        rc = vmh_def_set(dict, "_thread", &allocate_defs[1], lock);
    Py_XDECREF(lock);
    Py_XDECREF(rlock);
    return rc;
}
