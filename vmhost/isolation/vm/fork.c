/* fork(2) in a process that runs VMs. CPython's child deletes every interpreter but its own, and crashes over those
 * whose threads it does not have. So they are hidden from its list while the fork happens: the child never sees them
 * (their memory is lost there), the parent gets them back. Registered with os.register_at_fork by core.c.
 *
 * An interpreter that is just being made or ended cannot be hidden; a fork lets none begin to be, and waits for those
 * that are, some milliseconds each. One that hangs in its end is not waited for longer than WAIT_MAX_S, and stays
 * where it is; one that was lost in its end is not waited for at all.
 *
 * Hiding and showing wait for the runtime's lock, on which CPython may let go of the GIL of who waits, to take it back
 * when it has the lock already: so both are done without a GIL, and without any lock of ours but the VM's life lock
 * (docs/decisions/locks.md).
 */
#include "vm/fork.h"

#include "lanes/clock.h"
#include "crash/crash.h"
#include "vm/vm_private.h"
#include "lanes/warden.h"

enum { WAIT_MAX_S = 5 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t forked = PTHREAD_COND_INITIALIZER;
static int in_transit; /* guarded by lock: interpreters that are being made or ended */
static bool forking;   /* likewise: none may begin to */
static _Thread_local bool
    hidden; /* by this thread, between prepare and the end of its fork; others may fork at the same time */
static atomic_bool child;

void vmh_fork_transit_begin(void)
{
    vmh_mutex_lock(&lock);
    while (forking)
        pthread_cond_wait(&forked, &lock);
    in_transit++;
    vmh_mutex_unlock(&lock);
}

void vmh_fork_transit_end(void)
{
    vmh_mutex_lock(&lock);
    in_transit--;
    vmh_mutex_unlock(&lock);
}

/* `forking` from now on, unless another thread forks. */
static bool stop_transit(void)
{
    vmh_mutex_lock(&lock);
    bool stopped = !forking;
    forking = true;
    vmh_mutex_unlock(&lock);
    return stopped;
}

static bool nothing_in_transit(void)
{
    vmh_mutex_lock(&lock);
    bool nothing = in_transit == 0;
    vmh_mutex_unlock(&lock);
    return nothing;
}

bool vmh_fork_is_child(void) { return atomic_load(&child); }

int vmh_fork_check(void)
{
    if (!vmh_fork_is_child())
        return 0;
    PyErr_SetString(PyExc_RuntimeError,
                    "this process was forked from one that runs VMs, which did not come along; start processes with "
                    "\"spawn\" or \"forkserver\", or fork before vmhost is imported");
    return -1;
}

static void hide(vmh_vm *vm, void *unused)
{
    (void)unused;
    vmh_mutex_lock(&vm->life);
    vmh_vm_interpreter *own = &vm->interpreter;
    own->hidden_in_fork = own->interp != NULL && !own->in_transit && !own->hidden;
    if (own->hidden_in_fork)
        vmh_compat_hide_interpreter(own->interp);
    vmh_mutex_unlock(&vm->life);
}

static void show(vmh_vm *vm, void *unused)
{
    (void)unused;
    vmh_mutex_lock(&vm->life);
    vmh_vm_interpreter *own = &vm->interpreter;
    if (own->hidden_in_fork && own->interp != NULL && !own->hidden) /* not lost meanwhile, nor hidden for good */
        vmh_compat_show_interpreter(own->interp);
    own->hidden_in_fork = false;
    vmh_mutex_unlock(&vm->life);
}

PyObject *vmh_fork_prepare(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    int64_t deadline = vmh_after_ns(vmh_now_ns(), WAIT_MAX_S * (int64_t)1000000000);
    if (atomic_load(&child))
        Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS while (!(hidden = stop_transit()) && vmh_now_ns() < deadline) usleep(500);
    while (hidden && !nothing_in_transit() && vmh_now_ns() < deadline)
        usleep(500);
    if (hidden)
        vmh_warden_visit_vms(hide, NULL);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

PyObject *vmh_fork_parent(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    if (hidden) {
        Py_BEGIN_ALLOW_THREADS vmh_warden_visit_vms(show, NULL);
        hidden = false;
        vmh_mutex_lock(&lock);
        forking = false;
        pthread_cond_broadcast(&forked);
        vmh_mutex_unlock(&lock);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

PyObject *vmh_fork_child(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    atomic_store(&child, true);
    vmh_crash_forked();
    Py_RETURN_NONE;
}
