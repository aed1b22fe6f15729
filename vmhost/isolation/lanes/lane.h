/* Calls, and the lane: the native queue of the calls of one task version. No Python in here.
 *
 *   host threads --push--> [ lane: 16 levels, FIFO ] --take--> workers (one per VM, each on its thread)
 *
 * A call ends exactly once: the thread that moves its state to CLAIMED (its worker, the warden, a cancel, a close)
 * writes the reply and finishes it. A worker without work is pushed on the lane's idle stack; vmh_lane_push hands a
 * call straight to the top one (its caches are warm) and wakes it.
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
#include "lanes/spin.h"
#include "lanes/tails.h"
#include "lanes/task_metrics.h"
#include "lanes/vm.h"

#define VMH_LEVELS 16 /* priorities -8 .. 7 */
#define VMH_KINDS  16

enum vmh_call_state { VMH_QUEUED, VMH_RUNNING, VMH_CLAIMED };

/* The warden checks a VM that has not begun a call this long after it was handed over. */
#define VMH_BEGIN_NS INT64_C(1000000000)

typedef struct vmh_lane vmh_lane;

/* The first VMH_ENGINE_RUNS intervals in which a call ran models. */
enum { VMH_ENGINE_RUNS = 32 };

typedef struct vmh_engine_run {
    int64_t began_ns, ended_ns;
} vmh_engine_run;

typedef struct vmh_engine_runs {
    int count, kept; /* all runs; those recorded in `items` */
    vmh_engine_run items[VMH_ENGINE_RUNS];
} vmh_engine_runs;

/* What one thread writes while another spins on it, or works, must not share a cache line with what that one reads: a
 * line takes a quarter of a microsecond from core to core. Space between two such groups. */
#define VMH_LINE 64

/* `word`, on which its submitter spins, lies between what the VM's thread only reads. */
typedef struct vmh_call {
    atomic_int refs;
    atomic_int state;   /* enum vmh_call_state */
    atomic_uint watch;  /* WATCHED, ENDED: the thread that sets the second bit posts done_event */
    enum vmh_kind kind; /* written by the claimer, read after DONE */
    atomic_bool stop;   /* its caller wants it stopped */
    bool excused;       /* its outcome does not count against the task; as `kind` */
    bool recorded;      /* `record` holds the VM's recording; as `kind` */
    bool timed;         /* the deadline is the caller's own, earlier than the lane's limit */
    int64_t started_ns, ended_ns;
    vmh_engine_runs *runs;        /* as `kind`; owned; NULL: unknown */
    char *held;                   /* as `kind`; what held the memory at its limit (holdings.h); owned; NULL: unknown */
    struct vmh_call *prev, *next; /* in the lane's queue; guarded by the lane's lock */
    vmh_event done_event, failed_event;
    vmh_blob request;     /* written by the submitter before push, read by the worker */
    atomic_uint word;     /* futex: DONE, WAITED */
    atomic_int core;      /* where the VM that was handed the call ran last, then where it runs it; -1: unknown */
    vmh_lane *lane;       /* one reference */
    char *entry;          /* "module:function"; NULL: the lane's own. Owned */
    void *wrapper;        /* Python object of the main interpreter, borrowed; NULL once it is freed */
    int level;            /* 0 (first) .. VMH_LEVELS - 1 */
    int caller_core;      /* where its submitter ran; written before push */
    bool spread;          /* the value is (args, kwargs) */
    bool quiet;           /* no FAILED_CALL event (which slow calls post too) */
    size_t request_bytes; /* size of its arguments, arrays included; written by the submitter before push */
    int64_t submitted_ns, deadline_ns;
    /* NULL: not recorded. Before push the submitter writes the answers for the VM to replay; if `recorded`, it then
     * holds the call's effects other than its reply. Owned, malloc'ed. */
    vmh_blob *record;
    vmh_blob reply; /* written by the claimer, read after DONE */
} vmh_call;

/* A lane's view of a VM that serves it. */
typedef struct vmh_worker {
    char apart[VMH_LINE];
    atomic_uint inbox; /* futex; 1: something to do */
    char apart_too[VMH_LINE - sizeof(atomic_uint)];
    atomic_bool asleep;
    vmh_call *slot;    /* handed over; guarded by the lane's lock */
    int64_t handed_ns; /* time of the hand-over; likewise */
    bool attached;     /* likewise */
    bool idle;         /* on the idle stack; likewise */
    struct vmh_worker *prev, *next;
    vmh_spinner spinner;
    int core;               /* where it ran last; written by its own thread before it is idle */
    atomic_int caller_core; /* where the submitter of its latest call ran */
    atomic_int poker_core;  /* where its waker ran, and when it began; poked_ns 0: not while it slept */
    atomic_llong poked_ns;
    atomic_uint
        pokers; /* threads that poke it after they have released the lane's lock: its VM must not be freed yet */
} vmh_worker;

struct vmh_lane {
    /* written by submitters */
    atomic_int refs;
    atomic_llong submitted_total;
    vmh_spinner callers; /* they share it as a hint */

    char apart[VMH_LINE];
    pthread_mutex_t lock;
    vmh_worker *idle; /* guarded by lock, like all up to `last` */
    unsigned levels;  /* bit n: level n is not empty */
    unsigned idle_count, workers;
    bool closed;
    size_t queued, capacity;
    int64_t next_deadline_ns; /* no queued call expires earlier */
    vmh_call *first[VMH_LEVELS], *last[VMH_LEVELS];

    char apart_too[VMH_LINE];
    /* hardly ever written once it serves */
    atomic_bool stop;             /* all running calls are to be stopped */
    atomic_bool muted;            /* no STARVED events: the lane has its maximum number of VMs */
    bool memory_lines;            /* its VMs record which lines hold their memory */
    int calls_per_vm;             /* a worker retires after this many; 0: never */
    char *name, *version, *entry; /* owned, never change */
    char *caller_errors; /* likewise: names of exceptions that are the caller's fault, with a line break before and
                            after each; NULL: none */
    vmh_code_store *store;
    vmh_events *events;
    int64_t wall_ns, cpu_ns, grace_ns;   /* limits of a call; VMH_FOREVER: none */
    double coverage;                     /* the share of calls that record line and branch coverage, 0 to 1 */
    int64_t slow_ns;                     /* a longer call counts as slow; VMH_FOREVER: none does */
    _Atomic(vmh_task_metrics *) metrics; /* the task's own metrics; NULL until it has some */
    char *held;                          /* `held` of the last call that met its memory limit; owned; guarded by lock */
    vmh_event starved_event;
    void *wrapper;               /* as in vmh_call */
    vmh_lane *next_lane, **link; /* the warden's list */

    char apart_again[VMH_LINE];
    /* counters, written by the threads of VMs */
    atomic_llong running, ends[VMH_KINDS]; /* ends by kind */
    atomic_llong excused[VMH_KINDS];       /* the part of `ends` that does not count against the task */
    atomic_llong wall_ns_total, wait_ns_total, request_bytes_total, slow_total;
    atomic_llong denied_total;  /* permissions that its VMs asked for and were denied */
    vmh_histogram walls, waits; /* run times, and queue times, of calls that began */
    vmh_tails tails;            /* likewise; guarded by lock, as tails.h says */
    int64_t reports_since_ns;   /* used by the reader of events only: a second, and the reports read in it */
    unsigned reports;
};

vmh_call *vmh_call_new(vmh_lane *lane);
vmh_call *vmh_call_ref(vmh_call *call);
void vmh_call_unref(vmh_call *call);

/* True: the caller must fill kind and reply, then vmh_call_finish. */
bool vmh_call_claim(vmh_call *call, enum vmh_call_state from);
/* Call between claim and finish, at a memory limit: takes over `held`; the lane keeps a copy. NULL: unknown. */
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
/* The lane's metrics, created on first use; NULL: no memory. */
vmh_task_metrics *vmh_lane_metrics(vmh_lane *lane);

/* Takes a reference on each call. VMH_OK, VMH_QUEUE_FULL or VMH_CLOSED (then none was taken; all or nothing). */
enum vmh_kind vmh_lane_push(vmh_lane *lane, vmh_call **calls, size_t count);
/* True: `call` was queued, or handed over but not begun, and is now cancelled. */
bool vmh_lane_cancel(vmh_call *call, enum vmh_kind kind);
/* Accepts no more calls; with `drop`, ends the queued ones with VMH_CLOSED. */
void vmh_lane_close(vmh_lane *lane, bool drop);
/* Ends queued calls whose deadline is over; returns the time of the next check. */
int64_t vmh_lane_expire(vmh_lane *lane, int64_t now_ns);
/* The same for the call that `worker` was handed and has not begun. *handed_ns: when it was handed over; 0: there is
 * none. */
int64_t vmh_lane_expire_slot(vmh_lane *lane, vmh_worker *worker, int64_t now_ns, int64_t *handed_ns);
bool vmh_lane_starved(vmh_lane *lane);
/* The number of calls without an end: queued, handed over, or running. */
long long vmh_lane_unfinished(vmh_lane *lane);
/* Whether the lane is closed and its queue empty: its workers can end. */
bool vmh_lane_over(vmh_lane *lane);
/* Ends the queued calls with VMH_VM_LOST and an encoded message; returns how many. */
size_t vmh_lane_fail(vmh_lane *lane, const uint8_t *message, size_t size);

void vmh_lane_attach(vmh_lane *lane, vmh_worker *worker);
/* Removes the worker; a call that it was handed goes back to the head of its level. Then no thread in this file uses
 * the worker any more, and its VM may be freed. May be repeated. */
void vmh_lane_detach(vmh_lane *lane, vmh_worker *worker);
/* The next call, now RUNNING, with the queue's reference; NULL: none, and the worker is idle (or detached). */
vmh_call *vmh_lane_take(vmh_lane *lane, vmh_worker *worker);
void vmh_worker_wait(vmh_worker *worker);
void vmh_worker_poke(vmh_worker *worker);

/* Asks for `call` (or every running call of `lane`) to be stopped; the warden does so at once. */
void vmh_call_request_stop(vmh_call *call);
void vmh_lane_stop_running(vmh_lane *lane);

#endif
