/* Native events that the host's Python must handle: a queue of intrusive nodes, so that posting never allocates.
 *
 * A node is part of the object that it is about. While queued it holds one reference to that object: the poster takes
 * the reference, and the thread that pops the node releases it. No Python in here.
 */
#ifndef VMH_EVENTS_H
#define VMH_EVENTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum vmh_event_type {
    VMH_EVENT_NONE = 0,
    VMH_EVENT_READY,       /* vm: booted and sealed */
    VMH_EVENT_FAILED,      /* vm: could not boot */
    VMH_EVENT_ENDED,       /* vm: ended; the last event of a VM that ended normally */
    VMH_EVENT_QUARANTINED, /* vm: did not unwind or end in time; its thread still exists */
    VMH_EVENT_STOPPED,     /* vm: one of its calls was stopped, so it retires */
    VMH_EVENT_LOG,         /* vm: lines wait in vm.take_logs() */
    VMH_EVENT_STARVED,     /* lane: calls wait and no VM is idle */
    VMH_EVENT_FAILED_CALL, /* call: ended without success */
    VMH_EVENT_DONE,        /* call: a watched one ended */
    VMH_EVENT_HOST_CALL,   /* host call: a guest waits for a host function */
};

typedef struct vmh_event {
    struct vmh_event *next;
    enum vmh_event_type type;
    void *object; /* vmh_vm, vmh_lane, vmh_call or vmh_host_call, by type; one reference while queued */
    atomic_bool queued;
} vmh_event;

typedef struct vmh_events {
    atomic_int refs;
    pthread_mutex_t lock;
    vmh_event *head, **tail; /* guarded by lock */
    bool closed;             /* guarded by lock; posts are dropped */
    atomic_uint word;        /* futex: incremented by every post and wake */
    atomic_int waiters;
    unsigned seen; /* value of `word` at the end of the last wait; used only by the waiting thread */
} vmh_events;

vmh_events *vmh_events_new(void); /* NULL: no memory */
vmh_events *vmh_events_ref(vmh_events *events);
void vmh_events_unref(vmh_events *events);

/* Queues `node` unless it is already queued. True: queued now, and the caller's reference to the object moves to the
 * queue. False: the caller keeps it. */
bool vmh_events_post(vmh_events *events, vmh_event *node);

/* Takes all nodes, oldest first. A node can be posted again once its `queued` flag is cleared. */
vmh_event *vmh_events_take(vmh_events *events);

/* For one thread at a time. Sleeps until something is queued, vmh_events_wake, a signal, or the deadline. 0 or an errno
 * as vmh_futex_wait. */
int vmh_events_wait(vmh_events *events, int64_t deadline_ns);
void vmh_events_wake(vmh_events *events);
void vmh_events_close(vmh_events *events);

#endif
