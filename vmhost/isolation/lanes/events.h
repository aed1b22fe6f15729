/* What happened natively and the host's Python must act on: a queue of intrusive nodes, so that posting never
 * allocates.
 *
 * A node lives inside the object it speaks of. While it is queued it holds one reference on that object (the poster
 * takes it, whoever pops the node gives it back). No Python in here.
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
    VMH_EVENT_ENDED,       /* vm: gone; the last event of a VM that ended well */
    VMH_EVENT_QUARANTINED, /* vm: did not unwind or end in time; its thread is still there */
    VMH_EVENT_STOPPED,     /* vm: a call of it was stopped, so it retires */
    VMH_EVENT_LOG,         /* vm: lines wait in vm.take_logs() */
    VMH_EVENT_STARVED,     /* lane: calls wait and no VM is idle */
    VMH_EVENT_FAILED_CALL, /* call: ended other than well */
    VMH_EVENT_DONE,        /* call: a watched one ended */
    VMH_EVENT_HOST_CALL,   /* host call: a guest waits for a function of the host */
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
    atomic_uint word;        /* futex: bumped by every post and wake */
    atomic_int waiters;
    unsigned seen; /* of the one thread that waits */
} vmh_events;

vmh_events *vmh_events_new(void); /* NULL: no memory */
vmh_events *vmh_events_ref(vmh_events *events);
void vmh_events_unref(vmh_events *events);

/* Queues `node`, unless it is queued already. True when it was queued now: the caller's reference on the object moves
 * to the queue. False: the caller keeps it. */
bool vmh_events_post(vmh_events *events, vmh_event *node);

/* Takes all nodes, oldest first; each is free to be posted again once vmh_event_done was called on it. */
vmh_event *vmh_events_take(vmh_events *events);

/* For one thread at a time. Sleeps until something is queued, vmh_events_wake, a signal, or the deadline. 0 or an errno
 * as vmh_futex_wait. */
int vmh_events_wait(vmh_events *events, int64_t deadline_ns);
void vmh_events_wake(vmh_events *events);
void vmh_events_close(vmh_events *events);

#endif
