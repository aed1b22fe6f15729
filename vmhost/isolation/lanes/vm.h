/* A VM, as those see it who do not run it: an opaque type, what may be asked of it, and what it may be
 * told. The files of vm/ answer.
 *
 * A VM is one CPython subinterpreter on one native thread. Threads that touch it: its own (boots, serves, ends it),
 * guest threads (started by its task), the warden (stops it), host threads (attach, retire, read counters).
 */
#ifndef VMH_VM_H
#define VMH_VM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lanes/critical.h"

typedef struct vmh_vm vmh_vm;

/* Why a call is stopped; also the error kind that its caller gets. The numbers are part of the Python side (errors.py).
 */
enum vmh_kind {
    VMH_OK = 0,
    VMH_TASK_ERROR = 1, /* the task raised; payload: the guest's report */
    VMH_TIME_LIMIT = 2, /* wall time */
    VMH_CPU_LIMIT = 3,  /* CPU time */
    VMH_MEMORY_LIMIT = 4,
    VMH_VM_LOST = 5, /* wedged or crashed */
    VMH_CLOSED = 6,
    VMH_CANCELLED = 7,
    VMH_QUEUE_FULL = 8,
    VMH_VALUE = 9,       /* a result that cannot cross; payload: the message */
    VMH_LOAD_ERROR = 10, /* the task's module or entry point could not be imported; payload: the report */
};

/* The VM that the calling thread belongs to, or NULL on a host thread. Guest threads are bound by vmh_thread_enter. */
vmh_vm *vmh_current(void);

/* True from the moment when the current call (or boot, or ending) must unwind until the next one begins.
 * Waits of a guest must return early with an error when it is set. */
bool vmh_vm_stopping(const vmh_vm *vm);

/* An eventfd that is readable while vmh_vm_stopping(); for poll(2) beside a guest's descriptors. -1: none (yet). */
int vmh_vm_stop_fd(vmh_vm *vm);

struct vmh_code_store;
struct vmh_meter;
struct vmh_code_store *vmh_vm_system(vmh_vm *vm); /* standard library and guest runtime */
struct vmh_code_store *vmh_vm_task(vmh_vm *vm);   /* NULL until the VM was attached to a lane */
struct vmh_meter *vmh_vm_meter(vmh_vm *vm);

/* The task of `vm` asked for what it is not granted. */
void vmh_vm_denied(vmh_vm *vm);

/* Raises, on a thread of `vm` with its GIL held, the exception that a stop raises. */
void vmh_vm_raise_stop(vmh_vm *vm);

/* The calling thread of `vm` stands still for ever from now on: the VM is lost, and the warden gives it up. In a
 * signal handler too. */
void vmh_vm_lose(vmh_vm *vm);

/* A guest thread begins / ends on the calling native thread (from the thread-start gate in threads.c). They bind the
 * thread-local VM, register the thread's CPU clock and count it; a VM with threads left is never ended. */
void vmh_thread_enter(vmh_vm *vm);
void vmh_thread_leave(vmh_vm *vm);
/* Of a guest thread, the calling one: its PyThreadState, which lives until it is set to NULL again. */
void vmh_thread_state(vmh_vm *vm, void *state);
int vmh_thread_count(vmh_vm *vm); /* those that began and did not end */

#endif
