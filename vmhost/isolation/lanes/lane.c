#include "lanes/lane.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lanes/clock.h"
#include "lanes/warden.h"

enum { DONE = 1, WAITED = 2 };   /* vmh_call.word */
enum { WATCHED = 1, ENDED = 2 }; /* vmh_call.watch */

/* ---- calls ---- */

vmh_call *vmh_call_new(vmh_lane *lane)
{
    vmh_call *call = malloc(sizeof *call);
    if (call == NULL)
        return NULL;
    memset(call, 0, offsetof(vmh_call, request));
    memset((char *)call + offsetof(vmh_call, word), 0, offsetof(vmh_call, reply) - offsetof(vmh_call, word));
    vmh_blob_init(&call->request);
    vmh_blob_init(&call->reply);
    call->done_event = (vmh_event){.type = VMH_EVENT_DONE, .object = call};
    call->failed_event = (vmh_event){.type = VMH_EVENT_FAILED_CALL, .object = call};
    atomic_init(&call->refs, 1);
    call->lane = vmh_lane_ref(lane);
    call->level = VMH_LEVELS / 2 - 1;
    call->deadline_ns = VMH_FOREVER;
    call->core = call->caller_core = -1;
    return call;
}

vmh_call *vmh_call_ref(vmh_call *call)
{
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    return call;
}

void vmh_call_unref(vmh_call *call)
{
    if (atomic_fetch_sub(&call->refs, 1) != 1)
        return;
    vmh_blob_clear(&call->request);
    vmh_blob_clear(&call->reply);
    if (call->record != NULL)
        vmh_blob_clear(call->record);
    free(call->record);
    free(call->runs);
    free(call->held);
    free(call->entry);
    vmh_lane_unref(call->lane);
    free(call);
}

bool vmh_call_claim(vmh_call *call, enum vmh_call_state from)
{
    int expected = from;
    return atomic_compare_exchange_strong(&call->state, &expected, VMH_CLAIMED);
}

static void post_done(vmh_call *call)
{
    vmh_call_ref(call);
    if (!vmh_events_post(call->lane->events, &call->done_event))
        vmh_call_unref(call);
}

void vmh_call_hold(vmh_call *call, char *held)
{
    char *copy = held == NULL ? NULL : strdup(held);
    call->held = held;
    if (copy == NULL)
        return;
    vmh_mutex_lock(&call->lane->lock);
    char *before = call->lane->held;
    call->lane->held = copy;
    vmh_mutex_unlock(&call->lane->lock);
    free(before);
}

void vmh_call_finish(vmh_call *call, enum vmh_kind kind)
{
    vmh_lane *lane = call->lane;
    call->kind = kind;
    call->ended_ns = vmh_now_ns();
    if (kind == VMH_TIME_LIMIT
        && (call->timed || call->started_ns == 0)) /* a deadline set by the caller, or a wait in the queue */
        call->excused = true;
    if (call->excused)
        atomic_fetch_add_explicit(&lane->excused[kind], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&lane->ends[kind], 1,
                              memory_order_release); /* after `excused`: readers of both rely on this order */
    if (call->started_ns != 0) {
        int64_t wall_ns = call->ended_ns - call->started_ns, wait_ns = call->started_ns - call->submitted_ns;
        atomic_fetch_add_explicit(&lane->wall_ns_total, wall_ns, memory_order_relaxed);
        atomic_fetch_add_explicit(&lane->wait_ns_total, wait_ns, memory_order_relaxed);
        vmh_histogram_add(&lane->walls, wall_ns);
        vmh_histogram_add(&lane->waits, wait_ns);
        atomic_fetch_add_explicit(&lane->request_bytes_total, (long long)call->request_bytes, memory_order_relaxed);
        if (vmh_tails_wants(&lane->tails, wall_ns, call->ended_ns)) {
            const vmh_tail tail = {call->ended_ns, wall_ns, wait_ns, call->request_bytes, (int)kind};
            vmh_mutex_lock(&lane->lock);
            vmh_tails_add(&lane->tails, &tail);
            vmh_mutex_unlock(&lane->lock);
        }
        atomic_fetch_sub_explicit(&lane->running, 1, memory_order_relaxed);
    }
    bool slow = call->started_ns != 0 && call->ended_ns - call->started_ns > lane->slow_ns;
    if (slow)
        atomic_fetch_add_explicit(&lane->slow_total, 1, memory_order_relaxed);
    /* From here on the submitter may drop its reference; our own keeps the call alive. */
    if (atomic_exchange(&call->word, DONE) & WAITED)
        vmh_futex_wake(&call->word, INT_MAX);
    if ((kind != VMH_OK || slow) && !call->quiet) { /* after the waiter was woken: both need the main GIL next */
        vmh_call_ref(call);
        if (!vmh_events_post(lane->events, &call->failed_event))
            vmh_call_unref(call);
    }
    if (atomic_fetch_or(&call->watch, ENDED) & WATCHED)
        post_done(call);
}

bool vmh_call_done(const vmh_call *call) { return atomic_load_explicit(&call->word, memory_order_acquire) & DONE; }

int vmh_call_wait(vmh_call *call, int64_t deadline_ns)
{
    if (vmh_call_done(call) || vmh_spin(&call->word, DONE, &call->lane->callers, &call->core))
        return 0;
    for (;;) {
        unsigned word = atomic_fetch_or(&call->word, WAITED);
        if (word & DONE) {
            atomic_fetch_and(&call->word, ~(unsigned)WAITED);
            return 0;
        }
        int rc = vmh_futex_wait(&call->word, WAITED, deadline_ns);
        if (vmh_call_done(call))
            return 0;
        if (rc == ETIMEDOUT || rc == EINTR)
            return rc;
    }
}

void vmh_call_watch(vmh_call *call)
{
    /* Post for each watcher of an ended call: the event for the previous watcher may already have been handled. */
    if (atomic_fetch_or(&call->watch, WATCHED) & ENDED)
        post_done(call);
}

/* ---- lanes ---- */

vmh_lane *vmh_lane_new(const char *name, const char *version, const char *entry, vmh_code_store *store,
                       vmh_events *events)
{
    vmh_lane *lane = calloc(1, sizeof *lane);
    if (lane == NULL)
        return NULL;
    lane->name = strdup(name);
    lane->version = strdup(version);
    lane->entry = strdup(entry);
    if (lane->name == NULL || lane->version == NULL || lane->entry == NULL
        || pthread_mutex_init(&lane->lock, NULL) != 0) {
        free(lane->name);
        free(lane->version);
        free(lane->entry);
        free(lane);
        return NULL;
    }
    atomic_init(&lane->refs, 1);
    lane->store = vmh_code_store_ref(store);
    lane->events = vmh_events_ref(events);
    lane->capacity = SIZE_MAX;
    lane->next_deadline_ns = lane->wall_ns = lane->cpu_ns = lane->grace_ns = lane->slow_ns = VMH_FOREVER;
    lane->starved_event = (vmh_event){.type = VMH_EVENT_STARVED, .object = lane};
    vmh_warden_add_lane(lane);
    return lane;
}

vmh_lane *vmh_lane_ref(vmh_lane *lane)
{
    atomic_fetch_add_explicit(&lane->refs, 1, memory_order_relaxed);
    return lane;
}

void vmh_lane_unref(vmh_lane *lane)
{
    if (atomic_fetch_sub(&lane->refs, 1) != 1)
        return;
    vmh_warden_remove_lane(lane);
    vmh_code_store_unref(lane->store);
    vmh_events_unref(lane->events);
    pthread_mutex_destroy(&lane->lock);
    free(lane->held);
    free(lane->name);
    free(lane->version);
    free(lane->entry);
    free(lane->caller_errors);
    vmh_task_metrics_free(atomic_load(&lane->metrics));
    free(lane);
}

vmh_task_metrics *vmh_lane_metrics(vmh_lane *lane)
{
    vmh_task_metrics *metrics = atomic_load(&lane->metrics), *made;
    if (metrics != NULL || (made = vmh_task_metrics_new()) == NULL)
        return metrics;
    if (atomic_compare_exchange_strong(&lane->metrics, &metrics, made))
        return made;
    vmh_task_metrics_free(made); /* another VM was first */
    return metrics;
}

/* The static functions below require the lane's lock. */

static void enqueue(vmh_lane *lane, vmh_call *call, bool at_head)
{
    int level = call->level;
    vmh_call **first = &lane->first[level], **last = &lane->last[level];
    call->prev = at_head ? NULL : *last;
    call->next = at_head ? *first : NULL;
    *(call->prev != NULL ? &call->prev->next : first) = call;
    *(call->next != NULL ? &call->next->prev : last) = call;
    lane->levels |= 1u << level;
    lane->queued++;
    if (call->deadline_ns < lane->next_deadline_ns)
        lane->next_deadline_ns = call->deadline_ns;
}

static void dequeue(vmh_lane *lane, vmh_call *call)
{
    int level = call->level;
    *(call->prev != NULL ? &call->prev->next : &lane->first[level]) = call->next;
    *(call->next != NULL ? &call->next->prev : &lane->last[level]) = call->prev;
    call->held = NULL;
    call->prev = call->next = NULL;
    if (lane->first[level] == NULL)
        lane->levels &= ~(1u << level);
    lane->queued--;
}

static bool queued_here(const vmh_lane *lane, const vmh_call *call)
{
    return call->prev != NULL || call->next != NULL || lane->first[call->level] == call;
}

static void idle_push(vmh_lane *lane, vmh_worker *worker)
{
    worker->idle = true;
    worker->prev = NULL;
    worker->next = lane->idle;
    if (lane->idle != NULL)
        lane->idle->prev = worker;
    lane->idle = worker;
    lane->idle_count++;
}

static void idle_remove(vmh_lane *lane, vmh_worker *worker)
{
    *(worker->prev != NULL ? &worker->prev->next : &lane->idle) = worker->next;
    if (worker->next != NULL)
        worker->next->prev = worker->prev;
    worker->prev = worker->next = NULL;
    worker->idle = false;
    lane->idle_count--;
}

static void post_starved(vmh_lane *lane)
{
    if (atomic_load(&lane->muted))
        return;
    vmh_lane_ref(lane);
    if (!vmh_events_post(lane->events, &lane->starved_event))
        vmh_lane_unref(lane);
}

enum vmh_kind vmh_lane_push(vmh_lane *lane, vmh_call **calls, size_t count)
{
    vmh_worker *wake[64];
    size_t woken = 0, given = 0;
    bool starved = false;
    int64_t now = vmh_now_ns(), soonest = VMH_FOREVER;
    const int here = vmh_core_here();
    for (size_t i = 0; i < count; i++) {
        calls[i]->submitted_ns = now;
        calls[i]->caller_core = here;
        if (calls[i]->deadline_ns < soonest)
            soonest = calls[i]->deadline_ns;
    }
    pthread_mutex_lock(&lane->lock);
    size_t waiting = count > lane->idle_count ? count - lane->idle_count : 0; /* calls left once each idle VM has one */
    bool full = waiting > lane->capacity || lane->queued > lane->capacity - waiting;
    enum vmh_kind kind = lane->closed ? VMH_CLOSED : waiting > 0 && full ? VMH_QUEUE_FULL : VMH_OK;
    if (kind == VMH_OK) {
        atomic_fetch_add_explicit(&lane->submitted_total, (long long)count, memory_order_relaxed);
        for (; given < count; given++) {
            vmh_call *call = vmh_call_ref(calls[given]);
            vmh_worker *worker = woken < 64 ? lane->idle : NULL;
            if (worker == NULL) {
                enqueue(lane, call, false);
                continue;
            }
            idle_remove(lane, worker);
            worker->slot = call;
            worker->handed_ns = now;
            atomic_store_explicit(&call->core, worker->core, memory_order_relaxed);
            atomic_fetch_add(&worker->pokers, 1);
            wake[woken++] = worker;
        }
        starved = lane->queued > 0 && lane->idle_count == 0;
    }
    pthread_mutex_unlock(&lane->lock);
    for (size_t i = 0; i < woken; i++) {
        vmh_worker_poke(wake[i]);
        atomic_fetch_sub(&wake[i]->pokers, 1); /* from here on its VM may be freed */
    }
    if (starved)
        post_starved(lane);
    if (kind == VMH_OK) {
        /* The earliest moment at which a CPU budget can run out is its own length from now. */
        int64_t cpu = vmh_after_ns(now, lane->cpu_ns);
        if (woken > 0 && soonest > now + VMH_BEGIN_NS)
            soonest = now + VMH_BEGIN_NS;
        vmh_warden_arm(cpu < soonest ? cpu : soonest);
    }
    return kind;
}

bool vmh_lane_cancel(vmh_call *call, enum vmh_kind kind)
{
    vmh_lane *lane = call->lane;
    pthread_mutex_lock(&lane->lock);
    /* collect() claims under this lock; afterwards the call's links belong to the collector. */
    bool mine = vmh_call_claim(call, VMH_QUEUED);
    bool queued = mine && queued_here(lane, call); /* if false, a VM was handed the call and drops it later */
    if (queued)
        dequeue(lane, call);
    pthread_mutex_unlock(&lane->lock);
    if (mine)
        vmh_call_finish(call, kind);
    if (queued)
        vmh_call_unref(call);
    return mine;
}

/* Claims the queued calls whose deadline is over at `now` (VMH_FOREVER: all) and moves them to a list of their own. */
static vmh_call *collect(vmh_lane *lane, int64_t now)
{
    vmh_call *all = NULL, **tail = &all;
    int64_t next = VMH_FOREVER;
    for (int level = 0; level < VMH_LEVELS; level++) {
        vmh_call *call = lane->first[level];
        while (call != NULL) {
            vmh_call *after = call->next;
            if (now != VMH_FOREVER && call->deadline_ns > now) {
                if (call->deadline_ns < next)
                    next = call->deadline_ns;
            } else if (vmh_call_claim(call, VMH_QUEUED)) {
                dequeue(lane, call);
                *tail = call;
                tail = &call->next;
            }
            call = after;
        }
    }
    lane->next_deadline_ns = next;
    return all;
}

static void finish_all(vmh_call *call, enum vmh_kind kind)
{
    while (call != NULL) {
        vmh_call *next = call->next;
        call->next = NULL;
        vmh_call_finish(call, kind);
        vmh_call_unref(call);
        call = next;
    }
}

void vmh_lane_close(vmh_lane *lane, bool drop)
{
    pthread_mutex_lock(&lane->lock);
    lane->closed = true;
    vmh_call *dropped = drop ? collect(lane, VMH_FOREVER) : NULL;
    for (vmh_worker *worker = lane->idle; worker != NULL; worker = worker->next)
        vmh_worker_poke(worker); /* it finds the lane closed, and ends */
    pthread_mutex_unlock(&lane->lock);
    finish_all(dropped, VMH_CLOSED);
}

bool vmh_lane_over(vmh_lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    bool over = lane->closed && lane->levels == 0;
    pthread_mutex_unlock(&lane->lock);
    return over;
}

size_t vmh_lane_fail(vmh_lane *lane, const uint8_t *message, size_t size)
{
    pthread_mutex_lock(&lane->lock);
    vmh_call *all = collect(lane, VMH_FOREVER);
    pthread_mutex_unlock(&lane->lock);
    size_t count = 0;
    for (vmh_call *call = all; call != NULL; call = call->next, count++)
        if (vmh_blob_reserve(&call->reply, size)) { /* without memory the error has no message */
            memcpy(call->reply.data, message, size);
            call->reply.size = size;
        }
    finish_all(all, VMH_VM_LOST);
    return count;
}

int64_t vmh_lane_expire(vmh_lane *lane, int64_t now_ns)
{
    pthread_mutex_lock(&lane->lock);
    vmh_call *over = lane->next_deadline_ns <= now_ns ? collect(lane, now_ns) : NULL;
    int64_t next = lane->next_deadline_ns;
    pthread_mutex_unlock(&lane->lock);
    finish_all(over, VMH_TIME_LIMIT);
    return next;
}

int64_t vmh_lane_expire_slot(vmh_lane *lane, vmh_worker *worker, int64_t now_ns, int64_t *handed_ns)
{
    int64_t next = VMH_FOREVER;
    enum vmh_kind kind = VMH_TIME_LIMIT;
    pthread_mutex_lock(&lane->lock);
    vmh_call *call = worker->slot, *over = NULL;
    *handed_ns = call == NULL ? 0 : worker->handed_ns;
    if (call != NULL && atomic_load(&call->state) == VMH_QUEUED) {
        if (atomic_load(&lane->stop))
            kind = VMH_CLOSED;
        if (kind != VMH_CLOSED && call->deadline_ns > now_ns)
            next = call->deadline_ns;
        else if (vmh_call_claim(call, VMH_QUEUED))
            over = vmh_call_ref(call);
    }
    pthread_mutex_unlock(&lane->lock);
    if (over != NULL) {
        vmh_call_finish(over, kind);
        vmh_call_unref(over);
    }
    return next;
}

bool vmh_lane_starved(vmh_lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    bool starved = lane->queued > 0 && lane->idle_count == 0;
    pthread_mutex_unlock(&lane->lock);
    return starved;
}

long long vmh_lane_unfinished(vmh_lane *lane)
{
    long long ended = 0;
    for (int i = 0; i < VMH_KINDS; i++)
        ended += atomic_load(&lane->ends[i]);
    return atomic_load(&lane->submitted_total)
           - ended; /* `submitted_total` is read last: a call pushed meanwhile may be counted, none is missed */
}

void vmh_lane_attach(vmh_lane *lane, vmh_worker *worker)
{
    pthread_mutex_lock(&lane->lock);
    lane->workers++;
    worker->attached = true;
    pthread_mutex_unlock(&lane->lock);
}

void vmh_lane_detach(vmh_lane *lane, vmh_worker *worker)
{
    pthread_mutex_lock(&lane->lock);
    if (worker->idle)
        idle_remove(lane, worker);
    vmh_call *call = worker->slot, *gone = NULL;
    worker->slot = NULL;
    bool over = false;
    if (call != NULL && atomic_load(&call->state) != VMH_QUEUED) {
        gone = call;                                       /* already claimed by someone who ends it */
    } else if (call != NULL && atomic_load(&lane->stop)) { /* read under the lock: see vmh_lane_stop_running */
        gone = call;
        over = vmh_call_claim(call, VMH_QUEUED);
    } else if (call != NULL && lane->idle != NULL) {
        vmh_worker *other = lane->idle;
        idle_remove(lane, other);
        other->slot = call;
        other->handed_ns = vmh_now_ns();
        vmh_worker_poke(other); /* under the lock: afterwards its VM may be freed */
    } else if (call != NULL) {
        enqueue(lane, call, true);
    }
    lane->workers -= worker->attached;
    worker->attached = false;
    bool starved = lane->queued > 0 && lane->idle_count == 0;
    pthread_mutex_unlock(&lane->lock);
    while (atomic_load(&worker->pokers) > 0) /* rare, and short: only sleeping lets a poker of lower priority run */
        usleep(20);
    if (over)
        vmh_call_finish(call, VMH_CLOSED);
    if (gone != NULL)
        vmh_call_unref(gone);
    if (starved)
        post_starved(lane);
}

vmh_call *vmh_lane_take(vmh_lane *lane, vmh_worker *worker)
{
    for (;;) {
        pthread_mutex_lock(&lane->lock);
        vmh_call *call = worker->slot;
        const bool handed = call != NULL;
        if (handed) {
            worker->slot = NULL;
        } else if (!worker->attached) {
            /* the warden gave this worker up: it no longer belongs to the lane */
        } else if (lane->levels != 0) {
            call = lane->first[__builtin_ctz(lane->levels)];
            dequeue(lane, call);
            if (worker->idle)
                idle_remove(lane, worker);
        } else if (!worker->idle) {
            idle_push(lane, worker);
        }
        pthread_mutex_unlock(&lane->lock);
        if (call == NULL)
            return NULL;
        int expected = VMH_QUEUED;
        if (atomic_compare_exchange_strong(&call->state, &expected, VMH_RUNNING)) {
            const int here = vmh_core_here();
            if (here != worker->core || !handed) /* its submitter spins on this line */
                atomic_store_explicit(&call->core, here, memory_order_relaxed);
            worker->core = here;
            atomic_store_explicit(&worker->caller_core, call->caller_core, memory_order_relaxed);
            return call;
        }
        vmh_call_unref(call); /* cancelled after it was handed over */
    }
}

void vmh_call_request_stop(vmh_call *call)
{
    atomic_store(&call->stop, true);
    vmh_warden_arm(0);
}

void vmh_lane_stop_running(vmh_lane *lane)
{
    atomic_store(&lane->stop, true);
    /* A call that a VM was handed and gave back is queued again. From here on none is given back. */
    pthread_mutex_lock(&lane->lock);
    vmh_call *left = lane->closed ? collect(lane, VMH_FOREVER) : NULL;
    pthread_mutex_unlock(&lane->lock);
    finish_all(left, VMH_CLOSED);
    vmh_warden_arm(0);
}

void vmh_worker_wait(vmh_worker *worker)
{
    if (atomic_exchange(&worker->inbox, 0) != 0)
        return;
    if (!vmh_spin(&worker->inbox, 1, &worker->spinner, &worker->caller_core)) {
        atomic_store_explicit(&worker->poked_ns, 0, memory_order_relaxed);
        atomic_store(&worker->asleep, true);
        while (atomic_load(&worker->inbox) == 0)
            vmh_futex_wait(&worker->inbox, 0, VMH_FOREVER);
        atomic_store(&worker->asleep, false);
        int64_t poked_ns = atomic_load_explicit(&worker->poked_ns, memory_order_relaxed);
        if (poked_ns != 0 && atomic_load_explicit(&worker->poker_core, memory_order_relaxed) != vmh_core_here())
            vmh_spin_wake_took(vmh_now_ns() - poked_ns);
    }
    atomic_store(&worker->inbox, 0);
}

void vmh_worker_poke(vmh_worker *worker)
{
    if (atomic_load(&worker->asleep)) {
        atomic_store_explicit(&worker->poker_core, vmh_core_here(), memory_order_relaxed);
        atomic_store_explicit(&worker->poked_ns, vmh_now_ns(), memory_order_relaxed);
    }
    atomic_store(&worker->inbox, 1);
    if (atomic_load(&worker->asleep))
        vmh_futex_wake(&worker->inbox, 1);
}
