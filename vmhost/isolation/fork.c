/* fork(2) in a process that runs VMs. CPython's child deletes every interpreter but its own, and crashes over those whose threads it
 * does not have. So they are hidden from its list while the fork happens: the child never sees them (their memory is lost
 * there), the parent gets them back. Registered with os.register_at_fork by core.c.
 *
 * An interpreter that is just being made or ended cannot be hidden; a fork waits for those moments, some milliseconds each. One that hangs in
 * its end is not waited for longer than WAIT_MOST_S.
 */
#include "fork.h"

#include "clock.h"
#include "vm_private.h"
#include "warden.h"

enum { WAIT_MOST_S = 5 };

static pthread_rwlock_t in_transit = PTHREAD_RWLOCK_INITIALIZER;     /* read: one is being made or ended */
static bool hidden;             /* main GIL: between prepare and the end of the fork */
static atomic_bool child;

void vmh_fork_transit_begin(void) { pthread_rwlock_rdlock(&in_transit); }
void vmh_fork_transit_end(void) { pthread_rwlock_unlock(&in_transit); }

int vmh_fork_check(void)
{
    if (!atomic_load(&child))
        return 0;
    PyErr_SetString(PyExc_RuntimeError, "this process was forked from one that runs VMs, which did not come along; start processes with "
                    "\"spawn\" or \"forkserver\", or fork before vmhost is imported");
    return -1;
}

static void hide(vmh_vm *vm, void *unused)
{
    (void)unused;
    if (vm->interp != NULL)
        vmh_compat_hide_interpreter(vm->interp);
}

static void show(vmh_vm *vm, void *unused)
{
    (void)unused;
    if (vm->interp != NULL)
        vmh_compat_show_interpreter(vm->interp);
}

PyObject *vmh_fork_prepare(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    int64_t deadline = vmh_after_ns(vmh_now_ns(), WAIT_MOST_S * (int64_t)1000000000);
    if (atomic_load(&child))
        Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    while (!(hidden = pthread_rwlock_trywrlock(&in_transit) == 0) && vmh_now_ns() < deadline)
        usleep(500);
    Py_END_ALLOW_THREADS
    if (hidden)
        vmh_warden_visit_vms(hide, NULL);
    Py_RETURN_NONE;
}

PyObject *vmh_fork_parent(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    if (hidden) {
        vmh_warden_visit_vms(show, NULL);
        hidden = false;
        pthread_rwlock_unlock(&in_transit);
    }
    Py_RETURN_NONE;
}

PyObject *vmh_fork_child(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    atomic_store(&child, true);
    Py_RETURN_NONE;
}
