/* Threads of a guest: native threads that the VM counts, and whose waits a stop ends. */
#include "seal/waits.h"

#include "lanes/clock.h"
#include "memory/overflow.h"

#include <unistd.h>

enum { THREADS_MAX = 60, THREAD_STACK_BYTES = 1 << 20, THREAD_STACK_MIN = 128 << 10 };
static const int64_t DAEMON_GAP_NS = 20000000, DAEMON_GAP_MAX_NS = 1000000000;

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    enum { THREAD_NEW, THREAD_RUNS, THREAD_DONE } state;
    unsigned long ident;
    vmh_queue queue;
} handle_object;

typedef struct {
    vmh_vm *vm;
    vmh_seal *seal;
    PyInterpreterState *interp;
    PyObject *function, *args, *kwargs; /* references; used under the GIL only */
    handle_object *handle;
    unsigned long ident;
    bool daemon;
    atomic_uint entered; /* futex: 1: the thread is counted and has its state; 2: it has no state */
} thread_start;

static void *thread_main(void *argument)
{
    thread_start *start = argument;
    vmh_vm *vm = start->vm;
    vmh_seal *seal = start->seal;
    vmh_thread_enter(vm);
    vmh_seal_bind(seal);
    PyThreadState *ts = PyThreadState_New(start->interp);
    vmh_thread_state(vm, ts);
    start->ident = PyThread_get_thread_ident();
    atomic_store(&start->entered, ts == NULL ? 2 : 1);
    vmh_futex_wake(&start->entered, 1); /* without a state, `start` belongs to the parent again */
    if (ts != NULL) {
        PyEval_RestoreThread(ts);
        vmh_overflow_guard(vm);
        handle_object *handle = start->handle;
        vmh_daemon daemon = {ts, seal->daemon_list};
        if (start->daemon) {
            seal->daemon_list = &daemon;
            vmh_waits_daemon(true);
        }
        bool is_daemon = start->daemon;
        PyObject *result = PyObject_Call(start->function, start->args, start->kwargs);
        if (result == NULL) {
            if (PyErr_ExceptionMatches(PyExc_SystemExit))
                PyErr_Clear();
            else
                PyErr_FormatUnraisable("Exception ignored in thread started by %R", start->function);
        }
        Py_XDECREF(result);
        Py_DECREF(start->function);
        Py_DECREF(start->args);
        Py_XDECREF(start->kwargs);
        PyMem_RawFree(start);
        PyThreadState_Clear(ts); /* may run guest code, which frees thread-local objects */
        handle->state = THREAD_DONE;
        while (vmh_queue_wake(&handle->queue))
            ;
        Py_DECREF(handle);
        if (is_daemon) {
            vmh_daemon **link = &seal->daemon_list;
            while (*link != &daemon)
                link = &(*link)->next;
            *link = daemon.next;
            seal->daemons--;
        }
        if (--seal->threads == seal->daemons)
            while (vmh_queue_wake(&seal->idle))
                ;
        vmh_thread_state(vm, NULL);
        PyThreadState_DeleteCurrent();
    }
    vmh_overflow_unguard();
    vmh_seal_bind(NULL);
    vmh_thread_leave(vm);
    return NULL;
}

/* Starts `handle`. 0, or -1 with an error set. */
static int thread_begin(handle_object *handle, PyObject *function, PyObject *args, PyObject *kwargs, bool daemon)
{
    vmh_seal *seal = vmh_seal_here();
    pthread_attr_t attributes;
    pthread_t thread;
    if (seal == NULL || seal->threads >= THREADS_MAX || vmh_vm_stopping(seal->vm)) {
        PyErr_Format(PyExc_RuntimeError, "can't start new thread: a task has at most %d, and none while it is stopped",
                     THREADS_MAX);
        return -1;
    }
    thread_start *start = PyMem_RawCalloc(1, sizeof *start);
    if (start == NULL || pthread_attr_init(&attributes) != 0) {
        PyMem_RawFree(start);
        PyErr_NoMemory();
        return -1;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes,
                              seal->thread_stack_bytes == 0 ? THREAD_STACK_BYTES : seal->thread_stack_bytes);
    *start = (thread_start){.vm = seal->vm,
                            .seal = seal,
                            .interp = PyInterpreterState_Get(),
                            .function = Py_NewRef(function),
                            .args = Py_NewRef(args),
                            .kwargs = Py_XNewRef(kwargs),
                            .handle = (handle_object *)Py_NewRef(handle),
                            .daemon = daemon};
    atomic_init(&start->entered, 0);
    handle->state = THREAD_RUNS;
    seal->threads++;
    seal->daemons += daemon;
    int error = pthread_create(&thread, &attributes, thread_main, start);
    pthread_attr_destroy(&attributes);
    if (error == 0) {
        /* Keep the GIL: the thread takes it only after it has set `entered`, and is counted by then. */
        while (atomic_load(&start->entered) == 0)
            vmh_futex_wait(&start->entered, 0, INT64_MAX);
        if (atomic_load(&start->entered) == 1) {
            handle->ident = start->ident;
            return 0;
        }
    }
    seal->threads--;
    seal->daemons -= daemon;
    handle->state = THREAD_NEW;
    Py_DECREF(start->function);
    Py_DECREF(start->args);
    Py_XDECREF(start->kwargs);
    Py_DECREF(start->handle);
    PyMem_RawFree(start);
    PyErr_SetString(PyExc_RuntimeError, "can't start new thread");
    return -1;
}

static PyObject *start_new_thread(PyObject *handle_type, PyObject *args)
{
    PyObject *function, *arguments, *kwargs = NULL;
    if (!PyArg_UnpackTuple(args, "start_new_thread", 2, 3, &function, &arguments, &kwargs))
        return NULL;
    if (!PyCallable_Check(function))
        return PyErr_Format(PyExc_TypeError, "first arg must be callable");
    if (!PyTuple_Check(arguments))
        return PyErr_Format(PyExc_TypeError, "2nd arg must be a tuple");
    if (kwargs != NULL && !PyDict_Check(kwargs))
        return PyErr_Format(PyExc_TypeError, "optional 3rd arg must be a dictionary");
    handle_object *handle = (handle_object *)((PyTypeObject *)handle_type)->tp_alloc((PyTypeObject *)handle_type, 0);
    PyObject *result = NULL;
    if (handle != NULL && thread_begin(handle, function, arguments, kwargs, false) == 0)
        result = PyLong_FromUnsignedLong(handle->ident);
    Py_XDECREF(handle);
    return result;
}

static PyObject *start_joinable_thread(PyObject *handle_type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "handle", "daemon", NULL};
    PyObject *function, *handle = Py_None, *none, *result = NULL;
    int daemon = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|Op:start_joinable_thread", names, &function, &handle, &daemon))
        return NULL;
    if (!PyCallable_Check(function))
        return PyErr_Format(PyExc_TypeError, "thread function must be callable");
    if (handle == Py_None)
        handle = ((PyTypeObject *)handle_type)->tp_alloc((PyTypeObject *)handle_type, 0);
    else if (Py_TYPE(handle) == (PyTypeObject *)handle_type)
        Py_INCREF(handle);
    else
        return PyErr_Format(PyExc_TypeError, "'handle' must be a _ThreadHandle");
    none = PyTuple_New(0);
    if (handle != NULL && none != NULL) {
        if (((handle_object *)handle)->state != THREAD_NEW)
            PyErr_SetString(PyExc_RuntimeError, "thread already started");
        else if (thread_begin((handle_object *)handle, function, none, NULL, daemon) == 0)
            result = Py_NewRef(handle);
    }
    Py_XDECREF(none);
    Py_XDECREF(handle);
    return result;
}

static PyObject *make_thread_handle(PyObject *handle_type, PyObject *ident)
{
    unsigned long number = PyLong_AsUnsignedLong(ident);
    if (number == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    handle_object *handle = (handle_object *)((PyTypeObject *)handle_type)->tp_alloc((PyTypeObject *)handle_type, 0);
    if (handle != NULL) {
        handle->state = THREAD_RUNS;
        handle->ident = number;
    }
    return (PyObject *)handle;
}

static PyObject *handle_join(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    handle_object *self = (handle_object *)object;
    int64_t deadline = INT64_MAX;
    vmh_seal *seal = vmh_seal_here();
    if (nargs > 1)
        return PyErr_Format(PyExc_TypeError, "join() takes at most 1 argument (%zd given)", nargs);
    if (self->state == THREAD_NEW)
        return PyErr_Format(PyExc_RuntimeError, "thread not started");
    if (self->state == THREAD_RUNS && self->ident == PyThread_get_thread_ident())
        return PyErr_Format(PyExc_RuntimeError, "Cannot join current thread");
    if (nargs == 1 && args[0] != Py_None) {
        double seconds = PyFloat_AsDouble(args[0]);
        if (seconds == -1.0 && PyErr_Occurred())
            return NULL;
        /* negative: no limit, as in CPython */
        if (seconds >= 0 && vmh_deadline_parse(args[0], "", &deadline) < 0)
            return NULL;
    }
    while (self->state != THREAD_DONE && seal != NULL) {
        vmh_waiter waiter = {0};
        vmh_queue_push(&self->queue, &waiter);
        int rc = vmh_wait(seal, &waiter, deadline);
        vmh_queue_remove(&self->queue, &waiter);
        if (rc < 0)
            return NULL;
        if (rc == 0)
            break;
    }
    Py_RETURN_NONE;
}

static PyObject *handle_set_done(PyObject *object, PyObject *Py_UNUSED(unused))
{
    handle_object *self = (handle_object *)object;
    if (self->state == THREAD_NEW)
        return PyErr_Format(PyExc_RuntimeError, "thread not started");
    self->state = THREAD_DONE;
    while (vmh_queue_wake(&self->queue))
        ;
    Py_RETURN_NONE;
}

static PyObject *handle_is_done(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(((handle_object *)self)->state == THREAD_DONE);
}

static PyObject *handle_ident(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(((handle_object *)self)->ident);
}

static PyObject *handle_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<_ThreadHandle object: ident=%lu>", ((handle_object *)self)->ident);
}

static PyObject *handle_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    return type->tp_alloc(type, 0);
}

static PyMethodDef handle_methods[] = {
    {"join", (PyCFunction)(void (*)(void))handle_join, METH_FASTCALL, PyDoc_STR("join(timeout=None)")},
    {"_set_done", handle_set_done, METH_NOARGS, NULL},
    {"is_done", handle_is_done, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef handle_getset[] = {{"ident", handle_ident, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef handle_members[] = {
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(handle_object, weakrefs), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot handle_slots[] = {
    {Py_tp_new, (void *)handle_new},
    {Py_tp_dealloc, (void *)vmh_object_dealloc},
    {Py_tp_repr, (void *)handle_repr},
    {Py_tp_methods, handle_methods},
    {Py_tp_getset, handle_getset},
    {Py_tp_members, handle_members},
    {0, NULL},
};

static PyType_Spec handle_spec = {
    .name = "_thread._ThreadHandle",
    .basicsize = sizeof(handle_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = handle_slots,
};

/* Waits until only daemons run, or for the deadline. -1: error set. */
static int idle_wait(vmh_seal *seal, int64_t deadline_ns)
{
    vmh_waiter waiter = {0};
    vmh_queue_push(&seal->idle, &waiter);
    int rc = vmh_wait(seal, &waiter, deadline_ns);
    vmh_queue_remove(&seal->idle, &waiter);
    return rc;
}

/* Waits for all guest threads; called by threading._shutdown and at the end of the VM, which must not have any. CPython
 * leaves daemons running and freezes them when it ends. Here each gets a SystemExit, repeatedly until it ends, at
 * growing intervals, since it may still be unwinding from the last one. */
static PyObject *shutdown_threads(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    vmh_seal *seal = vmh_seal_here();
    while (seal != NULL && seal->threads > seal->daemons)
        if (idle_wait(seal, INT64_MAX) < 0)
            return NULL;
    for (int64_t gap_ns = DAEMON_GAP_NS; seal != NULL && seal->daemons > 0;
         gap_ns *= gap_ns < DAEMON_GAP_MAX_NS ? 2 : 1) {
        for (vmh_daemon *daemon = seal->daemon_list; daemon != NULL; daemon = daemon->next)
            PyThreadState_SetAsyncExc(daemon->ts->thread_id, PyExc_SystemExit);
        vmh_waits_interrupt(seal->vm);
        int64_t deadline_ns = vmh_now_ns() + gap_ns;
        while (seal->daemons > 0 && vmh_now_ns() < deadline_ns)
            if (idle_wait(seal, deadline_ns) < 0)
                return NULL;
    }
    /* The remaining threads have left the interpreter and are about to exit. */
    while (seal != NULL && vmh_thread_count(seal->vm) > 0) {
        PyThreadState *ts = PyEval_SaveThread();
        usleep(100);
        PyEval_RestoreThread(ts);
        if (vmh_breathe() < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *count_threads(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    vmh_seal *seal = vmh_seal_here();
    return PyLong_FromLong(seal == NULL ? 0 : seal->threads);
}

static PyObject *stack_size(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_ssize_t bytes = 0;
    vmh_seal *seal = vmh_seal_here();
    if (!PyArg_ParseTuple(args, "|n:stack_size", &bytes))
        return NULL;
    if (seal == NULL || bytes < 0 || (bytes > 0 && (bytes < THREAD_STACK_MIN || bytes > (Py_ssize_t)64 << 20)))
        return PyErr_Format(PyExc_ValueError, "size not valid: %zd bytes; 0 or from %d to 64 MiB", bytes,
                            THREAD_STACK_MIN);
    size_t before = seal->thread_stack_bytes;
    if (PyTuple_GET_SIZE(args) > 0)
        seal->thread_stack_bytes = (size_t)bytes;
    return PyLong_FromSize_t(before);
}

/* The host's tools show thread names; a guest's names stay in the VM. */
static PyObject *set_name(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(name)) { Py_RETURN_NONE; }

/* The interpreter's configuration forbids CPython's daemons, which would outlive it. The task's daemons, above, do not.
 */
static PyObject *daemon_threads_allowed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) { Py_RETURN_TRUE; }

static PyMethodDef thread_defs[] = {
    {"start_new_thread", start_new_thread, METH_VARARGS,
     PyDoc_STR("start_new_thread($module, function, args, kwargs={}, /)\n--\n\nReturns the thread's identity.")},
    {"start_new", start_new_thread, METH_VARARGS,
     PyDoc_STR("start_new($module, function, args, kwargs={}, /)\n--\n\nAn old name of start_new_thread().")},
    {"start_joinable_thread", (PyCFunction)(void (*)(void))start_joinable_thread, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("start_joinable_thread($module, /, function, handle=None, daemon=True)\n--\n\nReturns its handle.")},
    {"_make_thread_handle", make_thread_handle, METH_O, PyDoc_STR("_make_thread_handle($module, ident, /)\n--\n\n")},
    {"_shutdown", shutdown_threads, METH_NOARGS, PyDoc_STR("_shutdown($module, /)\n--\n\n")},
    {"_count", count_threads, METH_NOARGS,
     PyDoc_STR("_count($module, /)\n--\n\nHow many threads the task has started that still run.")},
    {"stack_size", stack_size, METH_VARARGS,
     PyDoc_STR("stack_size($module, size=0, /)\n--\n\nReturns the size before.")},
    {"daemon_threads_allowed", daemon_threads_allowed, METH_NOARGS,
     PyDoc_STR("daemon_threads_allowed($module, /)\n--\n\nTrue.")},
    {"set_name", set_name, METH_O,
     PyDoc_STR("set_name($module, name, /)\n--\n\nDoes nothing: the names of threads belong to the process.")},
};

int vmh_thread_finish(PyObject *dict, PyObject *Py_UNUSED(module))
{
    PyObject *handle = vmh_type_once("vmhost.handle", &handle_spec);
    int rc = handle == NULL || PyDict_SetItemString(dict, "_ThreadHandle", handle) < 0 ? -1 : vmh_locks_finish(dict);
    /* The functions have the handle type as their self, to create handles. */
    for (size_t i = 0; rc == 0 && i < sizeof thread_defs / sizeof *thread_defs; i++)
        rc = vmh_def_set(dict, "_thread", &thread_defs[i], handle);
    Py_XDECREF(handle);
    return rc;
}
