/* The end of the process. No VM may run while CPython finalises, and a VM that cannot end must not block the exit.
 *
 * The exit waits for VMs that end in time. The others are quarantined: they are hidden from the runtime, because
 * Py_Finalize would wait for them for ever. The thread of such a VM is parked already, or it is in a long C call that
 * uses nothing of the main interpreter. When that call returns, the thread is parked by its pending stop, or before it
 * starts to end the interpreter: CPython aborts when a hidden interpreter is ended. After finalisation exit(3) calls
 * our on_exit handler first. It flushes and leaves with the right status, before C destructors run beside live threads.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lanes/clock.h"
#include "vm/vm_private.h"
#include "lanes/warden.h"

/* Each VM's end has its own deadlines (end_s, grace_s). This bounds the total on an overloaded machine. */
enum { WAIT_MAX_S = 20, PATIENCE_S = 3 };

/* A forked child has no VM threads, and CPython has dropped their interpreters: there is nothing to end or wait for. */
static pid_t owner;

__attribute__((constructor)) static void remember_process(void) { owner = getpid(); }

static void leave(int status, void *unused)
{
    (void)unused;
    fflush(NULL);
    _exit(status);
}

/* Counts in *going the VMs that still have to finish. These are VMs in the last part of their end, where no guest code
 * runs, and VMs that were given up while ending but are not parked: such a VM may only have lacked a core. It still
 * runs Python, which must not continue beside CPython's own finalisation. */
static void hide(vmh_vm *vm, void *going)
{
    pthread_mutex_lock(&vm->life);
    bool ends = (vm->interpreter.in_transit && !vm->interpreter.stoppable)
                || (vm->phase.which == VMH_PHASE_END && vm->interpreter.interp != NULL && !vm->stop.parked);
    if (ends && !vm->interpreter.hidden && going != NULL) {
        vm->stop.parked_after = 0; /* park at the next stop */
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
