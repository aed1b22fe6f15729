#include "lanes/warden.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "lanes/clock.h"
#include "lanes/lane.h"
#include "lanes/signals.h"
#include "lanes/urgency.h"
#include "lanes/warden_vm.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the lists; no blocking while it is held */
static vmh_lane *lanes;                                  /* guarded by lock */
static vmh_vm *vms;                                      /* likewise */
static bool started;                                     /* likewise */
static atomic_llong planned = VMH_FOREVER;               /* time of the next check */
static atomic_int priority;
static atomic_uint word; /* futex: incremented when `planned` moved nearer */

void vmh_warden_add_lane(vmh_lane *lane)
{
    pthread_mutex_lock(&lock);
    lane->next_lane = lanes;
    lane->link = &lanes;
    if (lanes != NULL)
        lanes->link = &lane->next_lane;
    lanes = lane;
    pthread_mutex_unlock(&lock);
}

void vmh_warden_remove_lane(vmh_lane *lane)
{
    pthread_mutex_lock(&lock);
    *lane->link = lane->next_lane;
    if (lane->next_lane != NULL)
        lane->next_lane->link = lane->link;
    pthread_mutex_unlock(&lock);
}

void vmh_warden_add_vm(vmh_vm *vm)
{
    pthread_mutex_lock(&lock);
    vmh_vm_link(vm, &vms);
    pthread_mutex_unlock(&lock);
}

void vmh_warden_remove_vm(vmh_vm *vm)
{
    pthread_mutex_lock(&lock);
    vmh_vm_unlink(vm);
    pthread_mutex_unlock(&lock);
}

/* Takes a reference, unless the last one is being dropped right now (that thread waits for our lock to unlink). */
static bool take_reference(atomic_int *refs)
{
    int seen = atomic_load(refs);
    while (seen > 0)
        if (atomic_compare_exchange_weak(refs, &seen, seen + 1))
            return true;
    return false;
}

/* Both lists are walked item by item, with a reference on the current item and without the lock, since its handling may
 * take other locks. The item stays in the list, because only dropping the last reference removes it. New items are
 * added at the front, and not visited.
 *
 * Returns the lane after `lane` (NULL: the first), or NULL at the end; drops the reference on `lane`. */
static vmh_lane *lane_after(vmh_lane *lane)
{
    pthread_mutex_lock(&lock);
    vmh_lane *next = lane == NULL ? lanes : lane->next_lane;
    while (next != NULL && !take_reference(&next->refs))
        next = next->next_lane;
    pthread_mutex_unlock(&lock);
    if (lane != NULL)
        vmh_lane_unref(lane);
    return next;
}

static vmh_vm *vm_after(vmh_vm *vm)
{
    pthread_mutex_lock(&lock);
    vmh_vm *next = vm == NULL ? vms : vmh_vm_next(vm);
    while (next != NULL && !take_reference(vmh_vm_refs(next)))
        next = vmh_vm_next(next);
    pthread_mutex_unlock(&lock);
    if (vm != NULL)
        vmh_vm_unref(vm);
    return next;
}

void vmh_warden_visit_vms(void (*visit)(vmh_vm *, void *), void *context)
{
    for (vmh_vm *vm = vm_after(NULL); vm != NULL; vm = vm_after(vm))
        visit(vm, context);
}

void vmh_warden_arm(int64_t when_ns)
{
    long long seen = atomic_load_explicit(&planned, memory_order_relaxed);
    while (when_ns < seen) {
        if (atomic_compare_exchange_weak(&planned, &seen, when_ns)) {
            atomic_fetch_add(&word, 1);
            vmh_futex_wake(&word, 1);
            return;
        }
    }
}

int vmh_warden_priority(void) { return atomic_load(&priority); }

static int own_priority(void)
{
    int policy;
    struct sched_param own;
    return pthread_getschedparam(pthread_self(), &policy, &own) == 0 ? own.sched_priority : 0;
}

static void *warden(void *unused)
{
    (void)unused;
    vmh_signals_leave_to_host();
    vmh_urgency_set(VMH_PROMPT);
    for (;;) {
        unsigned seen = atomic_load(&word);
        long long due = atomic_load(&planned);
        if (due > vmh_now_ns()) {
            vmh_futex_wait(&word, seen, due);
            continue;
        }
        atomic_store(&planned, VMH_FOREVER);
        int64_t now = vmh_now_ns(), next = VMH_FOREVER;
        for (vmh_lane *lane = lane_after(NULL); lane != NULL; lane = lane_after(lane)) {
            int64_t again = vmh_lane_expire(lane, now);
            next = again < next ? again : next;
        }
        for (vmh_vm *vm = vm_after(NULL); vm != NULL; vm = vm_after(vm)) {
            int64_t again = vmh_vm_check(vm, now);
            next = again < next ? again : next;
        }
        vmh_warden_arm(next);
    }
    return NULL;
}

int vmh_warden_start(void)
{
    pthread_mutex_lock(&lock);
    int rc = 0;
    if (!started) {
        pthread_attr_t attributes;
        pthread_t thread;
        atomic_store(&priority, own_priority());
        rc = pthread_attr_init(&attributes);
        if (rc == 0) {
            pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
            rc = pthread_create(&thread, &attributes, warden, NULL);
            pthread_attr_destroy(&attributes);
        }
        started = rc == 0;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}
