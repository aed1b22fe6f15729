/* The whole of a VM, for the files that run it: vm.c (its thread), guest.c (a call inside it), core.c (its Python wrapper). */
#ifndef VMH_VM_PRIVATE_H
#define VMH_VM_PRIVATE_H

#include "cpython/compat.h"
#include "crash/crash.h"
#include "lanes/lane.h"
#include "memory/memory.h"
#include "lanes/meter.h"
#include "crash/starvation.h"
#include "lanes/vm.h"

enum vmh_vm_state {
    VMH_VM_BOOTING, VMH_VM_READY, VMH_VM_SERVING, VMH_VM_ENDING, VMH_VM_ENDED, VMH_VM_FAILED, VMH_VM_QUARANTINED,
};

/* What the VM's thread is doing; everything but IDLE can be stopped. */
enum vmh_phase { VMH_PHASE_IDLE, VMH_PHASE_BOOT, VMH_PHASE_LOAD, VMH_PHASE_CALL, VMH_PHASE_END };

typedef struct vmh_log_line {
    struct vmh_log_line *next;
    int level;
    size_t size;
    char text[];
} vmh_log_line;

/* Of an error, on the wire. What the guest runtime reports is smaller (boot.py). */
enum { VMH_REPORT_BYTES_MOST = 1 << 20 };
enum { VMH_LOG_LINES_MOST = 1000, VMH_LOG_LINE_BYTES_MOST = 8192, VMH_GUEST_THREADS_MOST = 64 };

/* A guest's call of a host function. */
typedef struct vmh_host_call {
    atomic_int refs;
    atomic_uint word;           /* futex: 0 waiting, 1 answered, 2 the guest gave up */
    vmh_vm *vm;                 /* one reference */
    char *name;
    bool ok;                    /* reply is the result; else the error message */
    vmh_blob request, reply;
    vmh_event event;
} vmh_host_call;

struct vmh_vm {
    atomic_int refs;
    uint64_t id;
    atomic_int state;           /* enum vmh_vm_state */
    vmh_worker worker;
    pthread_t thread;
    clockid_t cpu_clock;        /* of its thread; valid while cpu_clock_valid */
    pid_t tid;                  /* likewise */
    atomic_bool cpu_clock_valid;
    atomic_llong cpu_ns_final;  /* when the thread is gone */

    /* set before the thread starts, then never changed */
    vmh_crash_slot *crash_slot; /* of its thread; NULL: none was free */
    size_t stack_bytes;
    int64_t grace_ns, boot_ns, load_ns, end_ns;
    vmh_image *system;
    vmh_events *events;
    vmh_blob permissions;       /* a dict on the wire */

    vmh_meter *meter;
    _Atomic(struct vme_context *) engine;   /* once it has loaded the engine; one reference, dropped with the VM */
    atomic_llong soft_bytes, hard_bytes;    /* in force from READY on */
    _Atomic(vmh_lane *) lane;   /* one reference; set once, by attach */
    atomic_bool retire;
    atomic_bool lost;           /* a thread of it ran over the end of its stack and is parked: overflow.c */
    _Atomic(vmh_call *) serving;        /* the call that its thread has taken and not ended; the worker's reference */

    /* The lifetime lock. Guards all up to the blank line: stoppers hold it, so the VM cannot end under them. */
    pthread_mutex_t life;
    PyInterpreterState *interp; /* NULL: none (yet, or any more) */
    bool hidden;                /* for good, as the process exits: must not be ended any more */
    bool in_transit;            /* its interpreter is being ended: fork.c */
    bool hidden_in_fork;        /* while the process forks: fork.c */
    bool stoppable;             /* pending calls reach it: from its boot until the last part of its end */
    enum vmh_phase phase;
    int64_t generation;         /* of the phase; even while idle */
    vmh_call *current;          /* phase CALL; the worker's reference */
    int64_t deadline_ns, phase_start_ns, cpu_limit_ns, cpu_start_ns;
    int64_t end_starved_ns;         /* phase END: what its thread had waited for a core when it began */
    int64_t stop_generation;        /* a stop is under way for this generation */
    enum vmh_kind stop_kind;
    int64_t stop_since_ns, next_inject_ns, inject_gap_ns;
    bool stop_delivered;
    bool answered_for;              /* the warden has answered its call, as grace was over: it serves no more */
    int64_t asked_seen_ns, asked_generation, asked_handed_ns;       /* an idle VM was asked to do something, and has not begun */
    int parked_after;               /* injections left before a quarantined VM is parked */
    vmh_host_call *host_call;       /* that a guest thread waits for; borrowed */
    vmh_starvation starvation;      /* of its thread, while it is stopped */
    struct { bool used; clockid_t clock; pid_t tid; vmh_starvation starvation; } threads[VMH_GUEST_THREADS_MOST];   /* the guest's own */
    int64_t threads_cpu_ns;         /* of those that ended */
    int thread_count;

    atomic_bool stopping;
    atomic_int pending_out;     /* pending calls added and not run yet */
    int stop_fd;
    atomic_llong calls, errors, stops, boot_ns_taken;
    atomic_llong idle_since_ns;
    enum vmh_kind load_kind;    /* of its own thread: why it could not load its task; OK: it could */
    bool doomed;                /* of its own thread: a stop was delivered, so it retires */

    pthread_mutex_t log_lock;
    vmh_log_line *log_first, **log_tail;
    int log_count;
    long long log_dropped;

    /* of the interpreter, touched on its threads only */
    PyThreadState *tstate;
    PyObject *native, *entry_for, *report, *finish, *entries, *stop_error;
    PyTypeObject *buffer_type;
    vmh_blob scratch;

    char failure[512];          /* why it could not boot */
    const char *quarantined_in; /* phase name */
    vmh_event ready_event, end_event, quarantine_event, stopped_event, log_event;
    void *wrapper;
    struct vmh_vm *next_vm, **link;     /* the warden's list */
};

/* NULL: errno says why. */
vmh_vm *vmh_vm_new(vmh_image *system, vmh_events *events);
vmh_vm *vmh_vm_ref(vmh_vm *vm);
void vmh_vm_unref(vmh_vm *vm);
/* Starts the thread, which boots. 0 or an errno. */
int vmh_vm_start(vmh_vm *vm);
void vmh_vm_attach(vmh_vm *vm, vmh_lane *lane);
void vmh_vm_retire(vmh_vm *vm);
int64_t vmh_vm_cpu_ns(vmh_vm *vm);
void vmh_vm_post(vmh_vm *vm, vmh_event *event);
/* From now on every call and boot is stopped and every VM ends: the process exits. */
void vmh_vm_end_all(void);
int vmh_vm_threads(bool only_lively);       /* VM threads that exist; only_lively: those not quarantined */
const char *vmh_phase_name(enum vmh_phase phase);

/* The warden's look: starts, repeats and escalates stops; when to look again. */
int64_t vmh_vm_check(vmh_vm *vm, int64_t now_ns);

/* A phase begins and ends on the VM's thread, GIL held. end: true when a stop was delivered in it (*kind says why). */
void vmh_phase_begin(vmh_vm *vm, enum vmh_phase phase, vmh_call *call, int64_t deadline_ns, int64_t cpu_limit_ns);
bool vmh_phase_end(vmh_vm *vm, enum vmh_kind *kind);

/* guest.c: inside the VM, GIL held */
int vmh_guest_boot(vmh_vm *vm);                         /* -1: a Python error is set */
void vmh_guest_load(vmh_vm *vm, vmh_lane *lane);
void vmh_guest_serve(vmh_vm *vm, vmh_call *call);
void vmh_guest_finish(vmh_vm *vm);
void vmh_guest_clear(vmh_vm *vm);                       /* lets go of every object of the interpreter */
void vmh_log_add(vmh_vm *vm, int level, const char *text, size_t size);
/* Into `to`: "TypeName: message", of the error that is set; clears it. */
void vmh_error_describe(char *to, size_t size);

/* exit.c: registered with atexit by core.c */
PyObject *vmh_exit(PyObject *module, PyObject *unused);

void vmh_host_call_unref(vmh_host_call *call);

#endif
