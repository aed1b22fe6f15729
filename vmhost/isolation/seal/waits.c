/* All waits of a guest: locks, sleep, joins, descriptors. They end at once when the VM is stopped.
 *
 * Locks are plain fields, guarded by the VM's GIL. Only a thread that has to wait releases the GIL; it sleeps on its
 * own futex, which the waker or vmh_waits_interrupt sets. An interrupted wait runs the interpreter's pending calls
 * (where a stop injects its exception): it fails if they raised, else it goes on waiting. So a guest that catches the
 * exception and waits again sleeps until the next injection instead of spinning.
 */
#include "seal/waits.h"

#include "lanes/clock.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#define TIMEOUT_MAX_S  9223372036.0
#define DAEMON_POLL_MS 100

static _Thread_local bool daemon_here;

/* --- waiting */

/* Runs the interpreter's pending calls. -1: they raised (a stop). */
int vmh_breathe(void)
{
    PyObject *dict = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *function = dict == NULL ? NULL : vmh_dict_get(dict, "vmhost.breathe");
    PyObject *result = function == NULL ? NULL : PyObject_CallNoArgs(function);
    Py_XDECREF(result);
    return result == NULL && PyErr_Occurred() ? -1 : 0;
}

void vmh_queue_push(vmh_queue *queue, vmh_waiter *waiter)
{
    if (queue->tail == NULL)
        queue->tail = &queue->first;
    waiter->queue_next = NULL;
    waiter->queue_link = queue->tail;
    *queue->tail = waiter;
    queue->tail = &waiter->queue_next;
}

void vmh_queue_remove(vmh_queue *queue, vmh_waiter *waiter)
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

/* Wakes the first waiter. False: there is none. */
bool vmh_queue_wake(vmh_queue *queue)
{
    vmh_waiter *waiter = queue->first;
    if (waiter == NULL)
        return false;
    vmh_queue_remove(queue, waiter);
    atomic_store(&waiter->word, VMH_WOKEN);
    vmh_futex_wake(&waiter->word, 1);
    return true;
}

/* Sleeps with the GIL released. 1: woken, 0: timed out, -1: error set. */
int vmh_wait(vmh_seal *seal, vmh_waiter *waiter, int64_t deadline_ns)
{
    int rc = -1;
    vmh_mutex_lock(&seal->waits_mutex);
    waiter->next = seal->waiters;
    waiter->link = &seal->waiters;
    if (waiter->next != NULL)
        waiter->next->link = &waiter->next;
    seal->waiters = waiter;
    vmh_mutex_unlock(&seal->waits_mutex);
    if (vmh_vm_stopping(seal->vm) && vmh_breathe() < 0)
        goto done;
    for (;;) {
        PyThreadState *ts = PyEval_SaveThread();
        while (atomic_load(&waiter->word) == VMH_WAITING
               && vmh_futex_wait(&waiter->word, VMH_WAITING, deadline_ns) != ETIMEDOUT)
            ;
        PyEval_RestoreThread(ts);
        unsigned word = VMH_INTERRUPTED;
        if (atomic_compare_exchange_strong(&waiter->word, &word, VMH_WAITING)) {
            if (vmh_breathe() < 0)
                goto done;
            continue;
        }
        rc = word == VMH_WOKEN ? 1 : 0;
        break;
    }
done:
    vmh_mutex_lock(&seal->waits_mutex);
    *waiter->link = waiter->next;
    if (waiter->next != NULL)
        waiter->next->link = waiter->link;
    vmh_mutex_unlock(&seal->waits_mutex);
    return rc;
}

static void interrupt(vmh_seal *seal)
{
    vmh_mutex_lock(&seal->waits_mutex);
    for (vmh_waiter *waiter = seal->waiters; waiter != NULL; waiter = waiter->next) {
        unsigned word = VMH_WAITING;
        if (atomic_compare_exchange_strong(&waiter->word, &word, VMH_INTERRUPTED))
            vmh_futex_wake(&waiter->word, 1);
    }
    vmh_mutex_unlock(&seal->waits_mutex);
}

void vmh_waits_interrupt(vmh_vm *vm) { vmh_seal_visit(vm, interrupt); }

/* Marks the calling thread as a daemon, which the end of the task ends: its waits for descriptors are interrupted
 * regularly. */
void vmh_waits_daemon(bool daemon) { daemon_here = daemon; }

int vmh_wait_fds(struct pollfd *fds, int count, int64_t deadline_ns)
{
    vmh_seal *seal = vmh_seal_here();
    for (;;) {
        int timeout_ms = -1;
        if (deadline_ns != INT64_MAX) {
            int64_t left = deadline_ns - vmh_now_ns();
            timeout_ms = left <= 0                                     ? 0
                         : left > (int64_t)INT_MAX * 1000000 - 1000000 ? INT_MAX
                                                                       : (int)((left + 999999) / 1000000);
        }
        if (daemon_here && (timeout_ms < 0 || timeout_ms > DAEMON_POLL_MS))
            timeout_ms = DAEMON_POLL_MS;
        fds[count] = (struct pollfd){.fd = vmh_vm_stop_fd(seal->vm), .events = POLLIN};
        PyThreadState *ts = PyEval_SaveThread();
        int ready = poll(fds, (nfds_t)count + 1, timeout_ms), error = errno;
        PyEval_RestoreThread(ts);
        if (ready < 0 && error != EINTR) {
            errno = error;
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
        if (vmh_breathe() < 0)
            return -1;
        if (ready > 0 && fds[count].revents != 0) {
            if (--ready == 0) { /* stopped, but nothing was injected yet: the descriptor stays readable */
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

/* Converts seconds to a deadline; None: no limit. `what`: the error text for a negative number. -1: error set. */
int vmh_deadline_parse(PyObject *timeout, const char *what, int64_t *deadline_ns)
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
    if (seconds > TIMEOUT_MAX_S) {
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
    vmh_waiter waiter = {0};
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL)
        return vmh_deny("this thread is not one of the task's", "time.sleep");
    if (!PyFloat_Check(seconds) && !PyIndex_Check(seconds))
        return PyErr_Format(PyExc_TypeError, "'%T' object cannot be interpreted as an integer or float", seconds);
    if (vmh_deadline_parse(seconds, "sleep length must be non-negative", &deadline) < 0
        || vmh_wait(seal, &waiter, deadline) < 0)
        return NULL;
    Py_RETURN_NONE;
}

int vmh_def_set(PyObject *dict, const char *module, PyMethodDef *def, PyObject *self)
{
    PyObject *module_name = PyUnicode_FromString(module);
    PyObject *function = module_name == NULL ? NULL : PyCFunction_NewEx(def, self, module_name);
    int rc = function == NULL ? -1 : PyDict_SetItemString(dict, def->ml_name, function);
    Py_XDECREF(function);
    Py_XDECREF(module_name);
    return rc;
}

static PyMethodDef sleep_def = {"sleep", gate_sleep, METH_O,
                                PyDoc_STR("sleep($module, object, /)\n--\n\nWaits; ends when the VM is stopped.")};

int vmh_time_finish(PyObject *dict, PyObject *module) { return vmh_def_set(dict, "time", &sleep_def, module); }
