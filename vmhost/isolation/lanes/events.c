#include "lanes/events.h"

#include <stdlib.h>

#include "lanes/clock.h"
#include "lanes/critical.h"

vmh_events *vmh_events_new(void)
{
    vmh_events *events = calloc(1, sizeof *events);
    if (events == NULL)
        return NULL;
    if (pthread_mutex_init(&events->lock, NULL) != 0) {
        free(events);
        return NULL;
    }
    atomic_init(&events->refs, 1);
    events->tail = &events->head;
    return events;
}

vmh_events *vmh_events_ref(vmh_events *events)
{
    atomic_fetch_add(&events->refs, 1);
    return events;
}

void vmh_events_unref(vmh_events *events)
{
    if (atomic_fetch_sub(&events->refs, 1) != 1)
        return;
    pthread_mutex_destroy(&events->lock);
    free(events);
}

bool vmh_events_post(vmh_events *events, vmh_event *node)
{
    if (atomic_exchange(&node->queued, true))
        return false;
    vmh_mutex_lock(&events->lock);
    if (events->closed) {
        vmh_mutex_unlock(&events->lock);
        atomic_store(&node->queued, false);
        return false;
    }
    node->next = NULL;
    *events->tail = node;
    events->tail = &node->next;
    vmh_mutex_unlock(&events->lock);
    vmh_events_wake(events);
    return true;
}

vmh_event *vmh_events_take(vmh_events *events)
{
    vmh_mutex_lock(&events->lock);
    vmh_event *all = events->head;
    events->head = NULL;
    events->tail = &events->head;
    vmh_mutex_unlock(&events->lock);
    return all;
}

int vmh_events_wait(vmh_events *events, int64_t deadline_ns)
{
    /* A wake between two waits must not be lost: compare with the word that the last wait saw. */
    unsigned seen = events->seen;
    int rc = 0;
    atomic_fetch_add(&events->waiters, 1);
    if (atomic_load(&events->word) == seen)
        rc = vmh_futex_wait(&events->word, seen, deadline_ns);
    atomic_fetch_sub(&events->waiters, 1);
    events->seen = atomic_load(&events->word);
    return rc;
}

void vmh_events_wake(vmh_events *events)
{
    atomic_fetch_add(&events->word, 1);
    if (atomic_load(&events->waiters) != 0)
        vmh_futex_wake(&events->word, INT_MAX);
}

void vmh_events_close(vmh_events *events)
{
    vmh_mutex_lock(&events->lock);
    events->closed = true;
    vmh_mutex_unlock(&events->lock);
    vmh_events_wake(events);
}
