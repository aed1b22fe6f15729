/* Calls, and the lane: the native queue of the calls of one task version. No Python in here.
 *
 *   host threads --push--> [ lane: 16 levels, first come first ] --take--> workers (one per VM, each on its thread)
 *
 * A call ends exactly once: whoever moves its state to CLAIMED (its worker, the warden, a cancel, a close) writes the
 * reply and finishes it. A worker that finds nothing to do lies on the lane's idle stack; push hands a call straight to
 * the one on top (its caches are warm) and wakes it.
 */
#ifndef VMH_LANE_H
#define VMH_LANE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lanes/blob.h"
#include "lanes/events.h"
#include "lanes/histogram.h"
#include "lanes/code_store.h"
#include "lanes/tails.h"
#include "lanes/task_metrics.h"
#include "lanes/vm.h"

#define VMH_LEVELS 16 /* priorities -8 .. 7 */
#define VMH_KINDS  16

enum vmh_call_state { VMH_QUEUED, VMH_RUNNING, VMH_CLAIMED };

/* A VM that does not begin with what it was handed by then is looked at. */
#define VMH_BEGIN_NS INT64_C(1000000000)

typedef struct vmh_lane vmh_lane;

/* When a call ran models: the first VMH_ENGINE_RUNS times. */
enum { VMH_ENGINE_RUNS = 32 };

typedef struct vmh_engine_run {
    int64_t began_ns, ended_ns;
} vmh_engine_run;

typedef struct vmh_engine_runs {
    int count, told; /* told: of which there are items */
    vmh_engine_run items[VMH_ENGINE_RUNS];
} vmh_engine_runs;

typedef struct vmh_call {
    atomic_int refs;
    atomic_int state;     /* enum vmh_call_state */
    atomic_uint word;     /* futex: DONE, WAITED */
    atomic_uint watch;    /* WATCHED, ENDED: whoever completes the pair posts done_event */
    vmh_lane *lane;       /* one reference */
    char *entry;          /* "module:function"; NULL: the lane's own. Owned */
    bool spread;          /* the value is (args, kwargs) */
    bool quiet;           /* no FAILED_CALL event (which slow calls post too) */
    bool timed;           /* the deadline is its caller's own, sooner than the lane's limit */
    bool excused;         /* its end says nothing about the task; written by the claimer, read after DONE */
    atomic_bool stop;     /* its caller wants it stopped */
    bool recorded;        /* `record` holds what its VM tells; written by the claimer, read after DONE */
    int level;            /* 0 (first) .. VMH_LEVELS - 1 */
    size_t request_bytes; /* what it is given, arrays included; written by the submitter before push */
    int64_t submitted_ns, started_ns, ended_ns, deadline_ns;
    /* NULL: not recorded. What the VM is to answer with, written by the submitter before push; then what the call did
     * beside its reply, if `recorded`. Owned, malloc'ed. */
    vmh_blob *record;
    vmh_blob request;             /* written by the submitter before push, read by the worker */
    vmh_blob reply;               /* written by the claimer, read after DONE */
    enum vmh_kind kind;           /* likewise */
    vmh_engine_runs *runs;        /* likewise; owned; NULL: none are known */
    char *held;                   /* likewise; what held the memory at its limit (holdings.h); owned; NULL: not known */
    struct vmh_call *prev, *next; /* in the lane's queue; guarded by the lane's lock */
    vmh_event done_event, failed_event;
    void *wrapper; /* Python object of the main interpreter, borrowed; NULL when it is gone */
} vmh_call;

/* What a lane knows of the VM that serves it. */
typedef struct vmh_worker {
    atomic_uint inbox; /* futex: 1: look */
    atomic_bool asleep;
    vmh_call *slot;    /* handed over; guarded by the lane's lock */
    int64_t handed_ns; /* when; likewise */
    bool attached;     /* likewise */
    bool idle;         /* on the idle stack; likewise */
    struct vmh_worker *prev, *next;
    atomic_uint spins; /* how long to spin before sleeping */
} vmh_worker;

struct vmh_lane {
    atomic_int refs;
    pthread_mutex_t lock;
    vmh_call *first[VMH_LEVELS], *last[VMH_LEVELS]; /* guarded by lock, like all up to `closed` */
    unsigned levels;                                /* bit n: level n is not empty */
    size_t queued, capacity;
    vmh_worker *idle;
    unsigned idle_count, workers;
    int64_t next_deadline_ns; /* no queued call expires before */
    bool closed;
    atomic_bool stop;                      /* everything that runs is to be stopped */
    atomic_llong running, ends[VMH_KINDS]; /* counters; ends by kind */
    atomic_llong excused[VMH_KINDS];       /* of these ends, those that say nothing about the task */
    atomic_llong wall_ns_total, wait_ns_total, submitted_total;
    atomic_llong request_bytes_total;
    vmh_histogram walls, waits;   /* of calls that began: how long they ran, how long they waited before */
    vmh_tails tails;              /* likewise; guarded by lock, as tails.h says */
    char *name, *version, *entry; /* owned, never change */
    char *caller_errors; /* likewise: names of exceptions that blame the caller, a line break before and after each;
                            NULL: none */
    vmh_code_store *store;
    int64_t wall_ns, cpu_ns, grace_ns; /* limits of a call; VMH_FOREVER: none */
    double coverage;                   /* the share of calls whose lines and branches are noted, 0 to 1 */
    bool memory_lines;                 /* its VMs note which lines hold their memory */
    int calls_per_vm;                  /* a worker retires after so many; 0: never */
    atomic_uint spins;                 /* of callers, who share it as a hint */
    int64_t slow_ns;                   /* a call that took longer counts as slow; VMH_FOREVER: none does */
    atomic_llong slow_total;
    atomic_llong denied_total;           /* what its VMs asked for and were denied */
    _Atomic(vmh_task_metrics *) metrics; /* what the task counts itself; NULL until it does */
    char *held;                          /* `held` of the last call that met its memory limit; owned; guarded by lock */
    atomic_bool muted;                   /* no STARVED events: the lane has all the VMs that it may have */
    vmh_events *events;
    vmh_event starved_event;
    void *wrapper;               /* as a call's */
    vmh_lane *next_lane, **link; /* the warden's list */
};

vmh_call *vmh_call_new(vmh_lane *lane);
vmh_call *vmh_call_ref(vmh_call *call);
void vmh_call_unref(vmh_call *call);

/* True: the caller must fill kind and reply, then vmh_call_finish. */
bool vmh_call_claim(vmh_call *call, enum vmh_call_state from);
/* Before that: what held the memory, at a memory limit, which is taken over; its lane keeps a copy. NULL: not known. */
void vmh_call_hold(vmh_call *call, char *held);
void vmh_call_finish(vmh_call *call, enum vmh_kind kind);
bool vmh_call_done(const vmh_call *call);
/* 0: done; else an errno (ETIMEDOUT, EINTR). */
int vmh_call_wait(vmh_call *call, int64_t deadline_ns);
void vmh_call_watch(vmh_call *call);

vmh_lane *vmh_lane_new(const char *name, const char *version, const char *entry, vmh_code_store *store,
                       vmh_events *events);
vmh_lane *vmh_lane_ref(vmh_lane *lane);
void vmh_lane_unref(vmh_lane *lane);
/* Its metrics, which are made where there are none; NULL: no memory. */
vmh_task_metrics *vmh_lane_metrics(vmh_lane *lane);

/* Takes a reference on each call. VMH_OK, VMH_QUEUE_FULL or VMH_CLOSED (then none was taken; all or nothing). */
enum vmh_kind vmh_lane_push(vmh_lane *lane, vmh_call **calls, size_t count);
/* True: `call` was waiting, or handed over and not begun, and is cancelled now. */
bool vmh_lane_cancel(vmh_call *call, enum vmh_kind kind);
/* Ends what waits with `kind` when `drop`; takes no more. */
void vmh_lane_close(vmh_lane *lane, bool drop);
/* Ends queued calls whose deadline is over; returns when to look again. */
int64_t vmh_lane_expire(vmh_lane *lane, int64_t now_ns);
/* The same for the call that `worker` was handed and has not begun, if there is one: when that was in *handed_ns, else
 * 0. */
int64_t vmh_lane_expire_slot(vmh_lane *lane, vmh_worker *worker, int64_t now_ns, int64_t *handed_ns);
bool vmh_lane_starved(vmh_lane *lane);
/* Calls without an end: they wait, are handed over but not begun, or run. */
long long vmh_lane_unfinished(vmh_lane *lane);
/* Closed, and nothing waits: its workers have nothing to wait for. */
bool vmh_lane_over(vmh_lane *lane);
/* Ends what waits with VMH_VM_LOST and an encoded message; how many. */
size_t vmh_lane_fail(vmh_lane *lane, const uint8_t *message, size_t size);

void vmh_lane_attach(vmh_lane *lane, vmh_worker *worker);
/* The worker leaves; a call that was handed to it goes back to the head of its level. May be repeated. */
void vmh_lane_detach(vmh_lane *lane, vmh_worker *worker);
/* The next call, RUNNING now, its queue reference the worker's; NULL: none, and the worker is idle (or left). */
vmh_call *vmh_lane_take(vmh_lane *lane, vmh_worker *worker);
void vmh_worker_wait(vmh_worker *worker);
void vmh_worker_poke(vmh_worker *worker);

/* Ask the VM that runs `call` (every VM that runs a call of `lane`) to stop it: the warden finds and stops it at once.
 */
void vmh_call_request_stop(vmh_call *call);
void vmh_lane_stop_running(vmh_lane *lane);

/* Threads that run guest code or spin: spinning is worth it only while they leave a core free. */
void vmh_hot_enter(void);
void vmh_hot_leave(void);

#endif
