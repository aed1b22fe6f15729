/* fork(2) in a process that runs VMs. CPython's child deletes every interpreter but its own, and crashes on those whose
 * threads do not exist there. So the VMs' interpreters are hidden from the runtime's list during the fork: the child
 * never sees them (it leaks their memory), and the parent gets them back. core.c registers this with
 * os.register_at_fork.
 *
 * An interpreter that is being made or ended cannot be hidden. A fork blocks new ones and waits for those under way, a
 * few milliseconds each. It waits at most WAIT_MAX_S for one that hangs in its end, which then stays in the list, and
 * not at all for one that was lost in its end.
 *
 * Hiding and showing take the runtime's lock. While a thread waits for that lock, CPython may release the thread's GIL,
 * and takes it again once it has the lock. So both run without a GIL, and hold none of our locks but the VM's life lock
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
static int in_transit; /* guarded by lock: number of interpreters that are being made or ended */
static bool forking;   /* guarded by lock: no interpreter may start to be made or ended */
static _Thread_local bool
    hidden; /* set by this thread, from prepare to the end of its fork; other threads may fork at the same time */
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

/* Sets `forking`, unless another thread forks already. */
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
