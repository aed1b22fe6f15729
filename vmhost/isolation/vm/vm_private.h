/* The complete VM, for the files that run it: vm.c (the structure), threads.c (its threads), stop.c (phases and stops),
 * guest.c (a call inside it), core_vm.c (its Python wrapper). The struct of each subject is declared in its header. */
#ifndef VMH_VM_PRIVATE_H
#define VMH_VM_PRIVATE_H

#include "cpython/compat.h"
#include "lanes/lane.h"
#include "lanes/warden_vm.h"
#include "memory/holders.h"
#include "memory/memory.h"
#include "vm/cover.h"
#include "vm/guest.h"
#include "vm/log.h"
#include "vm/phase.h"
#include "vm/stop.h"
#include "vm/threads.h"
#include "wire/wire.h"

enum vmh_vm_state {
    VMH_VM_BOOTING,
    VMH_VM_READY,
    VMH_VM_SERVING,
    VMH_VM_ENDING,
    VMH_VM_ENDED,
    VMH_VM_FAILED,
    VMH_VM_QUARANTINED,
};

/* Set before the thread starts, then never changed. */
typedef struct vmh_vm_limits {
    size_t stack_bytes;
    int64_t grace_ns, boot_ns, load_ns, end_ns;
} vmh_vm_limits;

typedef struct vmh_vm_counters {
    atomic_llong calls, errors, stops, boot_ns_taken;
    atomic_llong idle_since_ns;
} vmh_vm_counters;

/* The events that it posts to the host. */
typedef struct vmh_vm_events {
    vmh_events *queue; /* one reference; never changes */
    vmh_event ready, end, quarantined, stopped, log;
} vmh_vm_events;

/* The work that it does. */
typedef struct vmh_vm_work {
    vmh_worker worker;
    _Atomic(vmh_lane *) lane; /* one reference; set once, by attach */
    _Atomic(vmh_call *) call; /* taken by its thread and not yet ended; the worker's reference */
    atomic_bool retire;
    enum vmh_kind load_kind; /* for its own thread: why loading the task failed; VMH_OK: it did not */
    bool doomed;             /* for its own thread: a stop was delivered, so it retires */
} vmh_vm_work;

/* Guarded by the life lock, except `tstate`. */
typedef struct vmh_vm_interpreter {
    PyInterpreterState *interp; /* NULL: none */
    PyThreadState *tstate;      /* used only on the VM's own thread */
    bool hidden;                /* for good, as the process exits: must not be ended */
    bool in_transit;            /* it is being ended: fork.c */
    bool hidden_in_fork;        /* during a fork: fork.c */
    bool stoppable;             /* pending calls reach it: from its boot until the last part of its end */
} vmh_vm_interpreter;

struct vmh_vm {
    atomic_int refs;
    uint64_t id;
    atomic_int state;       /* enum vmh_vm_state */
    vmh_code_store *system; /* one reference; never changes */
    vmh_vm_limits limits;
    vmh_vm_work work;
    vmh_vm_events events;
    vmh_vm_counters counters;
    vmh_allowance memory;
    _Atomic(struct vme_context *) engine; /* NULL until the VM loads the engine; one reference, dropped with the VM */
    vmh_values values;
    vmh_log log;
    vmh_guest guest;
    vmh_cover cover;

    /* The life lock. Stoppers hold it so that the VM cannot end meanwhile. Each struct says which fields it guards. */
    pthread_mutex_t life;
    vmh_vm_interpreter interpreter;
    vmh_phase_state phase;
    vmh_stop stop;
    vmh_asked asked;
    vmh_threads threads;
    vmh_host_call *host_call; /* the one a guest thread waits for; borrowed; guarded by life */

    char failure[512];              /* why it could not boot */
    void *wrapper;                  /* Python object of the main interpreter, borrowed; NULL once it is freed */
    struct vmh_vm *next_vm, **link; /* the warden's list */
};

/* NULL, with errno set, on failure. */
vmh_vm *vmh_vm_new(vmh_code_store *system, vmh_events *events);
vmh_vm *vmh_vm_ref(vmh_vm *vm);
/* Starts the thread, which boots. 0 or an errno. */
int vmh_vm_start(vmh_vm *vm);
void vmh_vm_attach(vmh_vm *vm, vmh_lane *lane);
void vmh_vm_retire(vmh_vm *vm);
int64_t vmh_vm_cpu_ns(vmh_vm *vm);
void vmh_vm_post(vmh_vm *vm, vmh_event *event);
/* For the exit of the process: stops every call and boot, and ends every VM. */
void vmh_vm_end_all(void);
int vmh_vm_threads(bool only_lively); /* VM threads that exist; only_lively: those not quarantined */

/* exit.c: registered with atexit by core.c */
PyObject *vmh_exit(PyObject *module, PyObject *unused);

#endif
