#include "warden.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "clock.h"
#include "lane.h"
#include "urgency.h"
#include "warden_vm.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static vmh_lane *lanes;             /* guarded by lock */
static vmh_vm *vms;                 /* likewise */
static bool started;                /* likewise */
static atomic_llong planned = VMH_FOREVER;      /* when the next look is due */
static atomic_uint word;            /* futex: bumped when `planned` moved nearer */

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

void vmh_warden_visit_vms(void (*visit)(vmh_vm *, void *), void *context)
{
    pthread_mutex_lock(&lock);
    for (vmh_vm *vm = vms; vm != NULL; vm = vmh_vm_next(vm))
        visit(vm, context);
    pthread_mutex_unlock(&lock);
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

/* A reference, unless the last one is going just now (its holder then waits for our lock to unlink). */
static bool take_reference(atomic_int *refs)
{
    int seen = atomic_load(refs);
    while (seen > 0)
        if (atomic_compare_exchange_weak(refs, &seen, seen + 1))
            return true;
    return false;
}

typedef struct {
    void **items;
    size_t count, capacity;
} list;

static void list_add(list *all, void *item)
{
    if (all->count == all->capacity) {
        size_t capacity = all->capacity * 2 + 64;
        void **items = realloc(all->items, capacity * sizeof *items);
        if (items == NULL)
            return;         /* looked at next time: see `short_of_memory` */
        all->items = items;
        all->capacity = capacity;
    }
    all->items[all->count++] = item;
}

static void *warden(void *unused)
{
    list some_lanes = {NULL, 0, 0}, some_vms = {NULL, 0, 0};
    (void)unused;
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
        bool short_of_memory = false;
        some_lanes.count = some_vms.count = 0;
        pthread_mutex_lock(&lock);
        for (vmh_lane *lane = lanes; lane != NULL; lane = lane->next_lane)
            if (take_reference(&lane->refs)) {
                size_t before = some_lanes.count;
                list_add(&some_lanes, lane);
                if (some_lanes.count == before) {
                    atomic_fetch_sub(&lane->refs, 1);
                    short_of_memory = true;
                }
            }
        for (vmh_vm *vm = vms; vm != NULL; vm = vmh_vm_next(vm))
            if (take_reference(vmh_vm_refs(vm))) {
                size_t before = some_vms.count;
                list_add(&some_vms, vm);
                if (some_vms.count == before) {
                    atomic_fetch_sub(vmh_vm_refs(vm), 1);
                    short_of_memory = true;
                }
            }
        pthread_mutex_unlock(&lock);
        for (size_t i = 0; i < some_lanes.count; i++) {
            int64_t again = vmh_lane_expire(some_lanes.items[i], now);
            next = again < next ? again : next;
            vmh_lane_unref(some_lanes.items[i]);
        }
        for (size_t i = 0; i < some_vms.count; i++) {
            int64_t again = vmh_vm_check(some_vms.items[i], now);
            next = again < next ? again : next;
            vmh_vm_unref(some_vms.items[i]);
        }
        vmh_warden_arm(short_of_memory ? now + 10000000 : next);
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
