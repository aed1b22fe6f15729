/* The end of the process: no VM may run while CPython is finalised, and one that cannot be ended must not keep it from
 * exiting.
 *
 * VMs that end in time are waited for. Each that is left (quarantined) is hidden from the runtime, whose Py_Finalize
 * would wait for it for ever; its thread is parked, or in a long C call without anything of the main interpreter, and
 * parked when it comes out of it, by the stop that waits for it there or before it begins to end: an interpreter that
 * is hidden must not be ended any more (CPython aborts when it does not find it). When finalising is done, exit(3)
 * calls our on_exit handler first, which flushes and leaves with the right status, before C destructors run under
 * threads that still live.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lanes/clock.h"
#include "vm/vm_private.h"
#include "lanes/warden.h"

/* Ends are bounded by their own deadlines (end_s, grace_s); this bounds the sum of what an overloaded machine makes of
 * them. */
enum { WAIT_MAX_S = 20, PATIENCE_S = 3 };

/* A forked child has no thread of any VM, and CPython threw their interpreters away: nothing to end there, nobody to
 * wait for. */
static pid_t owner;

__attribute__((constructor)) static void remember_process(void) { owner = getpid(); }

static void leave(int status, void *unused)
{
    (void)unused;
    fflush(NULL);
    _exit(status);
}

/* Counts in *going the VMs that are left to finish: those whose interpreter is in the last part of its end, where
 * nothing of a guest runs; and those that were given up while they ended, but are not parked. Such a one may have
 * lacked a core only: it still runs Python, which must not go on beside CPython's own end. */
static void hide(vmh_vm *vm, void *going)
{
    pthread_mutex_lock(&vm->life);
    bool ends = (vm->interpreter.in_transit && !vm->interpreter.stoppable)
                || (vm->phase.which == VMH_PHASE_END && vm->interpreter.interp != NULL && !vm->stop.parked);
    if (ends && !vm->interpreter.hidden && going != NULL) {
        vm->stop.parked_after = 0; /* with the next stop */
        ++*(int *)going;
    } else {
        vm->interpreter.hidden = true;
        if (vm->interpreter.interp != NULL)
            vmh_compat_hide_interpreter(vm->interpreter.interp);
    }
    pthread_mutex_unlock(&vm->life);
}

PyObject *vmh_exit(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    if (getpid() != owner || vmh_vm_threads(false) == 0)
        Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS vmh_vm_end_all();
    int64_t deadline = vmh_after_ns(vmh_now_ns(), WAIT_MAX_S * (int64_t)1000000000);
    while (vmh_vm_threads(true) > 0 && vmh_now_ns() < deadline)
        usleep(500);
    if (vmh_vm_threads(false) > 0) {
        int64_t patience = vmh_after_ns(vmh_now_ns(), PATIENCE_S * (int64_t)1000000000);
        int going = 1;
        while (going > 0 && vmh_now_ns() < patience) {
            going = 0;
            vmh_warden_visit_vms(hide, &going);
            if (going > 0)
                usleep(500);
        }
        if (going > 0)
            vmh_warden_visit_vms(hide, NULL);
        on_exit(leave, NULL);
    }
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}
