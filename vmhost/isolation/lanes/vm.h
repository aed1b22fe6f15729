/* A VM as seen by threads that do not run it: an opaque type with its queries and notifications, implemented in vm/.
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

/* Why a call was stopped; also the error kind that its caller gets. The Python side (errors.py) uses the same numbers.
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
    VMH_VALUE = 9,       /* the result is not a value that can cross; payload: the message */
    VMH_LOAD_ERROR = 10, /* the task's module or entry point could not be imported; payload: the report */
};

/* The VM that the calling thread belongs to, or NULL on a host thread. Guest threads are bound by vmh_thread_enter. */
vmh_vm *vmh_current(void);

/* True once the current call (or boot, or ending) must unwind, until the next one begins.
 * A guest's waits must then return early with an error. */
bool vmh_vm_stopping(const vmh_vm *vm);

/* An eventfd that is readable while vmh_vm_stopping(), for poll(2) together with a guest's descriptors. -1: none yet.
 */
int vmh_vm_stop_fd(vmh_vm *vm);

struct vmh_code_store;
struct vmh_meter;
struct vmh_code_store *vmh_vm_system(vmh_vm *vm); /* standard library and guest runtime */
struct vmh_code_store *vmh_vm_task(vmh_vm *vm);   /* NULL until the VM was attached to a lane */
struct vmh_meter *vmh_vm_meter(vmh_vm *vm);

/* Counts a permission that the task of `vm` asked for and was denied. */
void vmh_vm_denied(vmh_vm *vm);

/* Raises the exception of a stop, on a thread of `vm` with its GIL held. */
void vmh_vm_raise_stop(vmh_vm *vm);

/* Call when the calling thread of `vm` is about to be suspended for good: the VM is lost, and the warden gives it up.
 * Safe in a signal handler. */
void vmh_vm_lose(vmh_vm *vm);

/* Called when a guest thread begins or ends, on its native thread (from the thread-start gate in threads.c): they set
 * the thread-local VM, register the thread's CPU clock and count the thread. A VM with threads left is never ended. */
void vmh_thread_enter(vmh_vm *vm);
void vmh_thread_leave(vmh_vm *vm);
/* Sets the PyThreadState of the calling guest thread; it must live until this is set to NULL. */
void vmh_thread_state(vmh_vm *vm, void *state);
int vmh_thread_count(vmh_vm *vm); /* guest threads that have begun and not ended */

#endif
