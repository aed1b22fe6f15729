/* Every wait of a guest: locks, sleep, joins, descriptors. All of them end at once when the VM is stopped.
 *
 * Locks are plain fields, since the VM's GIL guards them; only a thread that has to wait leaves the GIL, and then sleeps on a
 * futex of its own that the waker, or vmh_waits_interrupt, writes. An interrupted wait lets the interpreter run its pending
 * calls (that is where a stop injects its exception): it fails if that raised, and goes on waiting if not. So a guest that
 * catches the exception and waits again sleeps until the next injection instead of spinning.
 */
#include "gates.h"

#include "clock.h"
#include "vm_private.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { WAITS = 0, WOKEN = 1, INTERRUPTED = 2 };
enum { THREADS_MOST = 60, THREAD_STACK_BYTES = 1 << 20, THREAD_STACK_LEAST = 128 << 10 };
#define TIMEOUT_MOST_S 9223372036.0

/* --- waiting */

/* Runs the interpreter's pending calls. -1: they raised (a stop). */
static int breathe(void)
{
    PyObject *dict = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *function = dict == NULL ? NULL : PyDict_GetItemString(dict, "vmhost.breathe");
    PyObject *result = function == NULL ? NULL : PyObject_CallNoArgs(function);
    Py_XDECREF(result);
    return function != NULL && result == NULL ? -1 : 0;
}

static void queue_push(vmh_queue *queue, vmh_waiter *waiter)
{
    if (queue->tail == NULL)
        queue->tail = &queue->first;
    waiter->queue_next = NULL;
    waiter->queue_link = queue->tail;
    *queue->tail = waiter;
    queue->tail = &waiter->queue_next;
}

static void queue_remove(vmh_queue *queue, vmh_waiter *waiter)
{
    if (waiter->queue_link == NULL)
        return;
    *waiter->queue_link = waiter->queue_next;
    if (waiter->queue_next != NULL)
        waiter->queue_next->queue_link = waiter->queue_link;
    else
        queue->tail = waiter->queue_link;
    waiter->queue_link = NULL;
}

/* False: nobody waits. */
static bool queue_wake(vmh_queue *queue)
{
    vmh_waiter *waiter = queue->first;
    if (waiter == NULL)
        return false;
    queue_remove(queue, waiter);
    atomic_store(&waiter->word, WOKEN);
    vmh_futex_wake(&waiter->word, 1);
    return true;
}

/* Sleeps, GIL released. 1: woken, 0: time over, -1: error set. */
static int wait_on(vmh_seal *seal, vmh_waiter *waiter, int64_t deadline_ns)
{
    int rc = -1;
    pthread_mutex_lock(&seal->waits_mutex);
    waiter->next = seal->waiters;
    waiter->link = &seal->waiters;
    if (waiter->next != NULL)
        waiter->next->link = &waiter->next;
    seal->waiters = waiter;
    pthread_mutex_unlock(&seal->waits_mutex);
    if (vmh_vm_stopping(seal->vm) && breathe() < 0)
        goto done;
    for (;;) {
        PyThreadState *ts = PyEval_SaveThread();
        while (atomic_load(&waiter->word) == WAITS && vmh_futex_wait(&waiter->word, WAITS, deadline_ns) != ETIMEDOUT)
            ;
        PyEval_RestoreThread(ts);
        unsigned word = INTERRUPTED;
        if (atomic_compare_exchange_strong(&waiter->word, &word, WAITS)) {
            if (breathe() < 0)
                goto done;
            continue;
        }
        rc = word == WOKEN ? 1 : 0;
        break;
    }
done:
    pthread_mutex_lock(&seal->waits_mutex);
    *waiter->link = waiter->next;
    if (waiter->next != NULL)
        waiter->next->link = waiter->link;
    pthread_mutex_unlock(&seal->waits_mutex);
    return rc;
}

static void interrupt(vmh_seal *seal)
{
    pthread_mutex_lock(&seal->waits_mutex);
    for (vmh_waiter *waiter = seal->waiters; waiter != NULL; waiter = waiter->next) {
        unsigned word = WAITS;
        if (atomic_compare_exchange_strong(&waiter->word, &word, INTERRUPTED))
            vmh_futex_wake(&waiter->word, 1);
    }
    pthread_mutex_unlock(&seal->waits_mutex);
}

void vmh_waits_interrupt(vmh_vm *vm)
{
    vmh_seal_visit(vm, interrupt);
}

int vmh_wait_fds(struct pollfd *fds, int count, int64_t deadline_ns)
{
    vmh_seal *seal = vmh_seal_here();
    for (;;) {
        int timeout_ms = -1;
        if (deadline_ns != INT64_MAX) {
            int64_t left = deadline_ns - vmh_now_ns();
            timeout_ms = left <= 0 ? 0 : left > (int64_t)INT_MAX * 1000000 - 1000000 ? INT_MAX : (int)((left + 999999) / 1000000);
        }
        fds[count] = (struct pollfd){ .fd = vmh_vm_stop_fd(seal->vm), .events = POLLIN };
        PyThreadState *ts = PyEval_SaveThread();
        int ready = poll(fds, (nfds_t)count + 1, timeout_ms), error = errno;
        PyEval_RestoreThread(ts);
        if (ready < 0 && error != EINTR) {
            errno = error;
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
        if (breathe() < 0)
            return -1;
        if (ready > 0 && fds[count].revents != 0) {
            if (--ready == 0) {     /* stopped, but nothing was injected this time: the descriptor stays readable */
                ts = PyEval_SaveThread();
                usleep(1000);
                PyEval_RestoreThread(ts);
            }
        }
        if (ready > 0)
            return 1;
        if (deadline_ns != INT64_MAX && vmh_now_ns() >= deadline_ns)
            return 0;
    }
}

/* Seconds, as a deadline; None: never. `what` opens the error. -1: error set. */
static int deadline_parse(PyObject *timeout, const char *what, int64_t *deadline_ns)
{
    if (timeout == NULL || timeout == Py_None) {
        *deadline_ns = INT64_MAX;
        return 0;
    }
    double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1.0 && PyErr_Occurred())
        return -1;
    if (seconds != seconds) {
        PyErr_SetString(PyExc_ValueError, "Invalid value NaN (not a number)");
        return -1;
    }
    if (seconds < 0) {
        PyErr_SetString(PyExc_ValueError, what);
        return -1;
    }
    if (seconds > TIMEOUT_MOST_S) {
        PyErr_SetString(PyExc_OverflowError, "timeout value is too large");
        return -1;
    }
    int64_t wait_ns = (int64_t)(seconds * 1e9), now = vmh_now_ns();
    if ((double)wait_ns < seconds * 1e9)
        wait_ns++;
    *deadline_ns = wait_ns > INT64_MAX - now - 1 ? INT64_MAX - 1 : now + wait_ns;
    return 0;
}

/* --- sleep */

static PyObject *gate_sleep(PyObject *Py_UNUSED(module), PyObject *seconds)
{
    int64_t deadline;
    vmh_waiter waiter = { 0 };
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL)
        return vmh_deny("this thread is not one of the task's", "time.sleep");
    if (seconds == Py_None)
        return PyErr_Format(PyExc_TypeError, "'NoneType' object cannot be interpreted as an integer");
    if (deadline_parse(seconds, "sleep length must be non-negative", &deadline) < 0 || wait_on(seal, &waiter, deadline) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* --- lock */

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    bool locked;
    vmh_queue queue;
} lock_object;

/* acquire(blocking=True, timeout=-1). 0, or -1 with an error. `now`: do not wait. */
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
    return deadline_parse(timeout, "timeout value must be a non-negative number", deadline_ns);
}

/* Waits until the lock is free. 1: it is (and the caller, who still has the GIL, takes it), 0: time over, -1: error set. */
static int lock_wait(vmh_queue *queue, const void *busy, size_t busy_size, int64_t deadline_ns)
{
    static const char zero[sizeof(unsigned long)];
    vmh_seal *seal = vmh_seal_here();
    vmh_waiter waiter = { 0 };
    if (seal == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a lock of a task is waited for outside its VM");
        return -1;
    }
    for (;;) {
        queue_push(queue, &waiter);
        int rc = wait_on(seal, &waiter, deadline_ns);
        queue_remove(queue, &waiter);
        bool is_free = memcmp(busy, zero, busy_size) == 0;
        if (rc < 0) {
            if (is_free)
                queue_wake(queue);      /* the wake-up may have been ours; pass it on */
            return -1;
        }
        if (is_free)
            return 1;
        if (rc == 0)
            return 0;
        atomic_store(&waiter.word, WAITS);      /* another thread was quicker */
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

static PyObject *lock_enter(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return lock_acquire(self, NULL, 0, NULL);
}

static PyObject *lock_release(PyObject *object, PyObject *Py_UNUSED(unused))
{
    lock_object *self = (lock_object *)object;
    if (!self->locked) {
        PyErr_SetString(PyExc_RuntimeError, "release unlocked lock");
        return NULL;
    }
    self->locked = false;
    queue_wake(&self->queue);
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
    return PyUnicode_FromFormat("<%s %s object at %p>", ((lock_object *)self)->locked ? "locked" : "unlocked", Py_TYPE(self)->tp_name, self);
}

static void object_dealloc(PyObject *self)
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
    {"acquire", (PyCFunction)(void (*)(void))lock_acquire, METH_FASTCALL | METH_KEYWORDS, PyDoc_STR("acquire(blocking=True, timeout=-1) -> bool")},
    {"acquire_lock", (PyCFunction)(void (*)(void))lock_acquire, METH_FASTCALL | METH_KEYWORDS, PyDoc_STR("An old name of acquire().")},
    {"release", lock_release, METH_NOARGS, PyDoc_STR("Any thread may release it.")},
    {"release_lock", lock_release, METH_NOARGS, PyDoc_STR("An old name of release().")},
    {"locked", lock_locked, METH_NOARGS, PyDoc_STR("Whether it is held.")},
    {"locked_lock", lock_locked, METH_NOARGS, PyDoc_STR("An old name of locked().")},
    {"__enter__", lock_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))lock_exit, METH_FASTCALL, NULL},
    {"_at_fork_reinit", lock_reinit, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef lock_members[] = {
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(lock_object, weakrefs), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot lock_slots[] = {
    {Py_tp_new, (void *)lock_new}, {Py_tp_dealloc, (void *)object_dealloc}, {Py_tp_repr, (void *)lock_repr}, {Py_tp_methods, lock_methods},
    {Py_tp_members, lock_members}, {Py_tp_doc, (void *)PyDoc_STR("A lock whose waits end when the VM is stopped.")}, {0, NULL},
};

static PyType_Spec lock_spec = {
    .name = "_thread.lock", .basicsize = sizeof(lock_object), .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, .slots = lock_slots,
};

static PyObject *allocate_lock(PyObject *type, PyObject *Py_UNUSED(unused))
{
    return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
}

/* --- RLock */

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    unsigned long owner, count;     /* owner counts while count > 0 */
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

static PyObject *rlock_enter(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return rlock_acquire(self, NULL, 0, NULL);
}

static bool rlock_mine(rlock_object *self)
{
    return self->count > 0 && self->owner == PyThread_get_thread_ident();
}

static PyObject *rlock_release(PyObject *object, PyObject *Py_UNUSED(unused))
{
    rlock_object *self = (rlock_object *)object;
    if (!rlock_mine(self)) {
        PyErr_SetString(PyExc_RuntimeError, "cannot release un-acquired lock");
        return NULL;
    }
    if (--self->count == 0)
        queue_wake(&self->queue);
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

/* For threading.Condition: lets go whatever the depth, and takes it back as it was. */
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
        queue_wake(&self->queue);
    }
    return state;
}

static PyObject *rlock_acquire_restore(PyObject *object, PyObject *state)
{
    rlock_object *self = (rlock_object *)object;
    unsigned long count, owner;
    if (!PyTuple_Check(state) || !PyArg_ParseTuple(state, "kk:_acquire_restore", &count, &owner))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "_acquire_restore: expected (count, owner), got %R", state);
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
    return PyUnicode_FromFormat("<%s %s object owner=%lu count=%lu at %p>", self->count > 0 ? "locked" : "unlocked", Py_TYPE(object)->tp_name,
                                self->count > 0 ? self->owner : 0, self->count, object);
}

static PyObject *rlock_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    return type->tp_alloc(type, 0);
}

static PyMethodDef rlock_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))rlock_acquire, METH_FASTCALL | METH_KEYWORDS, PyDoc_STR("acquire(blocking=True, timeout=-1) -> bool")},
    {"release", rlock_release, METH_NOARGS, PyDoc_STR("By the thread that holds it.")},
    {"locked", rlock_locked, METH_NOARGS, PyDoc_STR("Whether any thread holds it.")},
    {"__enter__", rlock_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))rlock_exit, METH_FASTCALL, NULL},
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
    {Py_tp_new, (void *)rlock_new}, {Py_tp_dealloc, (void *)object_dealloc}, {Py_tp_repr, (void *)rlock_repr}, {Py_tp_methods, rlock_methods},
    {Py_tp_members, rlock_members}, {Py_tp_doc, (void *)PyDoc_STR("A reentrant lock whose waits end when the VM is stopped.")}, {0, NULL},
};

static PyType_Spec rlock_spec = {
    .name = "_thread.RLock", .basicsize = sizeof(rlock_object), .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, .slots = rlock_slots,
};

/* --- threads */

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
    PyObject *function, *args, *kwargs;     /* references; used under the GIL only */
    handle_object *handle;
    unsigned long ident;
    atomic_uint entered;                    /* futex: 1: the thread is counted and has its state; -1: it has none */
} thread_start;

static void *thread_main(void *argument)
{
    thread_start *start = argument;
    vmh_vm *vm = start->vm;
    vmh_seal *seal = start->seal;
    vmh_thread_enter(vm);
    vmh_seal_bind(seal);
    PyThreadState *ts = PyThreadState_New(start->interp);
    start->ident = PyThread_get_thread_ident();
    atomic_store(&start->entered, ts == NULL ? 2 : 1);
    vmh_futex_wake(&start->entered, 1);     /* without a state, `start` is the parent's again from here on */
    if (ts != NULL) {
        PyEval_RestoreThread(ts);
        handle_object *handle = start->handle;
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
        PyThreadState_Clear(ts);        /* may run code of the guest: its thread-local objects go */
        handle->state = THREAD_DONE;
        while (queue_wake(&handle->queue))
            ;
        Py_DECREF(handle);
        if (--seal->threads == 0)
            while (queue_wake(&seal->idle))
                ;
        PyThreadState_DeleteCurrent();
    }
    vmh_seal_bind(NULL);
    vmh_thread_leave(vm);
    return NULL;
}

/* Starts `handle`. 0, or -1 with an error. */
static int thread_begin(handle_object *handle, PyObject *function, PyObject *args, PyObject *kwargs)
{
    vmh_seal *seal = vmh_seal_here();
    pthread_attr_t attributes;
    pthread_t thread;
    if (seal == NULL || seal->threads >= THREADS_MOST || vmh_vm_stopping(seal->vm)) {
        PyErr_Format(PyExc_RuntimeError, "can't start new thread: a task has at most %d, and none while it is stopped", THREADS_MOST);
        return -1;
    }
    thread_start *start = PyMem_RawCalloc(1, sizeof *start);
    if (start == NULL || pthread_attr_init(&attributes) != 0) {
        PyMem_RawFree(start);
        PyErr_NoMemory();
        return -1;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, seal->thread_stack_bytes == 0 ? THREAD_STACK_BYTES : seal->thread_stack_bytes);
    *start = (thread_start){ .vm = seal->vm, .seal = seal, .interp = PyInterpreterState_Get(), .function = Py_NewRef(function),
                             .args = Py_NewRef(args), .kwargs = Py_XNewRef(kwargs), .handle = (handle_object *)Py_NewRef(handle) };
    atomic_init(&start->entered, 0);
    handle->state = THREAD_RUNS;
    seal->threads++;
    int error = pthread_create(&thread, &attributes, thread_main, start);
    pthread_attr_destroy(&attributes);
    if (error == 0) {
        /* the GIL is kept: the thread takes it only after it has answered, and is counted by then */
        while (atomic_load(&start->entered) == 0)
            vmh_futex_wait(&start->entered, 0, INT64_MAX);
        if (atomic_load(&start->entered) == 1) {
            handle->ident = start->ident;
            return 0;
        }
    }
    seal->threads--;
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
    if (handle != NULL && thread_begin(handle, function, arguments, kwargs) == 0)
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
    if (daemon)
        return PyErr_Format(PyExc_RuntimeError, "daemon threads are disabled in this (sub)interpreter");
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
        else if (thread_begin((handle_object *)handle, function, none, NULL) == 0)
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
        /* negative: for ever, as CPython has it */
        if (seconds >= 0 && deadline_parse(args[0], "", &deadline) < 0)
            return NULL;
    }
    while (self->state != THREAD_DONE && seal != NULL) {
        vmh_waiter waiter = { 0 };
        queue_push(&self->queue, &waiter);
        int rc = wait_on(seal, &waiter, deadline);
        queue_remove(&self->queue, &waiter);
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
    self->state = THREAD_DONE;
    while (queue_wake(&self->queue))
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
    {Py_tp_new, (void *)handle_new}, {Py_tp_dealloc, (void *)object_dealloc}, {Py_tp_repr, (void *)handle_repr}, {Py_tp_methods, handle_methods},
    {Py_tp_getset, handle_getset}, {Py_tp_members, handle_members}, {0, NULL},
};

static PyType_Spec handle_spec = {
    .name = "_thread._ThreadHandle", .basicsize = sizeof(handle_object), .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, .slots = handle_slots,
};

static int threads_counted(vmh_vm *vm)
{
    pthread_mutex_lock(&vm->life);
    int count = vm->thread_count;
    pthread_mutex_unlock(&vm->life);
    return count;
}

/* Waits for all guest threads; called by threading._shutdown and when the VM ends, which must find none. */
static PyObject *shutdown_threads(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    vmh_seal *seal = vmh_seal_here();
    while (seal != NULL && seal->threads > 0) {
        vmh_waiter waiter = { 0 };
        queue_push(&seal->idle, &waiter);
        int rc = wait_on(seal, &waiter, INT64_MAX);
        queue_remove(&seal->idle, &waiter);
        if (rc < 0)
            return NULL;
    }
    /* what is left has let go of the interpreter and is about to return to the system */
    while (seal != NULL && threads_counted(seal->vm) > 0) {
        PyThreadState *ts = PyEval_SaveThread();
        usleep(100);
        PyEval_RestoreThread(ts);
        if (breathe() < 0)
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
    if (seal == NULL || bytes < 0 || (bytes > 0 && (bytes < THREAD_STACK_LEAST || bytes > (Py_ssize_t)64 << 20)))
        return PyErr_Format(PyExc_ValueError, "size not valid: %zd bytes; 0 or from %d to 64 MiB", bytes, THREAD_STACK_LEAST);
    size_t before = seal->thread_stack_bytes;
    if (PyTuple_GET_SIZE(args) > 0)
        seal->thread_stack_bytes = (size_t)bytes;
    return PyLong_FromSize_t(before);
}

/* Names of threads are seen by the host's tools; a guest's stay in the VM. */
static PyObject *set_name(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(name))
{
    Py_RETURN_NONE;
}

static PyMethodDef thread_defs[] = {
    {"start_new_thread", start_new_thread, METH_VARARGS, PyDoc_STR("start_new_thread(function, args[, kwargs]) -> identity")},
    {"start_new", start_new_thread, METH_VARARGS, PyDoc_STR("An old name of start_new_thread().")},
    {"start_joinable_thread", (PyCFunction)(void (*)(void))start_joinable_thread, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("start_joinable_thread(function, handle=None, daemon=True) -> handle")},
    {"_make_thread_handle", make_thread_handle, METH_O, NULL},
    {"allocate_lock", allocate_lock, METH_NOARGS, PyDoc_STR("allocate_lock() -> lock")},
    {"allocate", allocate_lock, METH_NOARGS, PyDoc_STR("An old name of allocate_lock().")},
    {"_shutdown", shutdown_threads, METH_NOARGS, NULL},
    {"_count", count_threads, METH_NOARGS, PyDoc_STR("How many threads the task has started that still run.")},
    {"stack_size", stack_size, METH_VARARGS, PyDoc_STR("stack_size([size]) -> size before")},
    {"set_name", set_name, METH_O, PyDoc_STR("Does nothing: the names of threads belong to the process.")},
};

static int def_set(PyObject *dict, PyMethodDef *def, PyObject *self)
{
    PyObject *module_name = PyUnicode_FromString("_thread");
    PyObject *function = module_name == NULL ? NULL : PyCFunction_NewEx(def, self, module_name);
    int rc = function == NULL ? -1 : PyDict_SetItemString(dict, def->ml_name, function);
    Py_XDECREF(function);
    Py_XDECREF(module_name);
    return rc;
}

int vmh_thread_finish(PyObject *dict)
{
    PyObject *interp_dict = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *lock = PyDict_GetItemString(interp_dict, "vmhost.lock"), *rlock = NULL, *handle = NULL;
    int rc = -1;
    if (lock != NULL) {     /* a second instance of the module: the same types */
        lock = Py_NewRef(lock);
        rlock = Py_XNewRef(PyDict_GetItemString(interp_dict, "vmhost.rlock"));
        handle = Py_XNewRef(PyDict_GetItemString(interp_dict, "vmhost.handle"));
    } else {
        lock = PyType_FromSpec(&lock_spec);
        rlock = PyType_FromSpec(&rlock_spec);
        handle = PyType_FromSpec(&handle_spec);
    }
    if (lock == NULL || rlock == NULL || handle == NULL
            || PyDict_SetItemString(interp_dict, "vmhost.lock", lock) < 0 || PyDict_SetItemString(interp_dict, "vmhost.rlock", rlock) < 0
            || PyDict_SetItemString(interp_dict, "vmhost.handle", handle) < 0
            || PyDict_SetItemString(dict, "lock", lock) < 0 || PyDict_SetItemString(dict, "LockType", lock) < 0
            || PyDict_SetItemString(dict, "RLock", rlock) < 0 || PyDict_SetItemString(dict, "_ThreadHandle", handle) < 0)
        goto done;
    for (size_t i = 0; i < sizeof thread_defs / sizeof *thread_defs; i++) {
        PyMethodDef *def = &thread_defs[i];
        PyObject *self = strncmp(def->ml_name, "allocate", 8) == 0 ? lock : strncmp(def->ml_name, "s", 1) == 0 || def->ml_name[1] == 'm' ? handle : NULL;
        if (def_set(dict, def, self) < 0)
            goto done;
    }
    rc = 0;
done:
    Py_XDECREF(lock);
    Py_XDECREF(rlock);
    Py_XDECREF(handle);
    return rc;
}

static PyMethodDef sleep_def = {"sleep", gate_sleep, METH_O, PyDoc_STR("sleep(seconds); ends when the VM is stopped.")};

int vmh_time_finish(PyObject *dict)
{
    return def_set(dict, &sleep_def, NULL);
}
